"""What of an export is valid: a manifest per partition names its files; what no manifest names does not count."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from datetime import date, datetime
from hashlib import sha256
from typing import Any, Final

from pyarrow.fs import SubTreeFileSystem

from airflow_provider_pgqueue.core.errors import ExportError
from airflow_provider_pgqueue.spark.pipelines.target import files_in, write

FORMAT: Final = 1
STAGING: Final = "_staging"
_MANIFESTS: Final = "_manifests"
# What Spark escapes in the names of folders too; it leaves the rest of Unicode alone.
_SPECIAL: Final = re.compile(r"""[\x00-\x1f\x7f"#%'*/:=?\\{}\[\]^]""")


@dataclass(frozen=True, slots=True)
class Chunk:
    """The pages of a partition that one task exports, from `first_page` to before `end_page`."""

    number: int
    first_page: int
    end_page: int


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the archive with its type in PostgreSQL."""

    name: str
    kind: str


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """A file with the messages of one chunk, queue, result and day; `md5` is of their content, not of the file."""

    chunk: int
    path: str
    queue_name: str
    result: str
    date: date
    rows: int
    bytes: int
    md5: str

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> File:
        return cls(**value | {"date": date.fromisoformat(value["date"])})


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What was exported of a partition, all of it or nothing."""

    partition: str
    oid: int
    first_at: datetime
    end_at: datetime
    schema_version: int
    exported_at: datetime
    columns: tuple[Column, ...]
    chunks: tuple[Chunk, ...]
    files: tuple[File, ...]

    @property
    def rows(self) -> int:
        """How many messages there are."""
        return sum(file.rows for file in self.files)

    @property
    def bytes(self) -> int:
        """How large all files are."""
        return sum(file.bytes for file in self.files)

    def to_json(self) -> str:
        """Return the manifest with a checksum of itself, to notice when a part of it is lost or changed."""
        content = asdict(self) | {"format": FORMAT, "rows": self.rows, "bytes": self.bytes}
        content = json.loads(json.dumps(content, default=_iso))
        return json.dumps(content | {"checksum": _checksum(content)}, indent=1, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> Manifest:
        """Return the manifest in a text; ValueError if the text is not whole."""
        content = json.loads(text)
        if not isinstance(content, dict) or content.pop("checksum", None) != _checksum(content):
            raise ValueError("the checksum is wrong")
        if content["format"] != FORMAT:
            raise ValueError(f"format {content['format']} is not known")
        return cls(
            partition=content["partition"],
            oid=content["oid"],
            first_at=datetime.fromisoformat(content["first_at"]),
            end_at=datetime.fromisoformat(content["end_at"]),
            schema_version=content["schema_version"],
            exported_at=datetime.fromisoformat(content["exported_at"]),
            columns=tuple(Column(**column) for column in content["columns"]),
            chunks=tuple(Chunk(**chunk) for chunk in content["chunks"]),
            files=tuple(File.from_json(file) for file in content["files"]),
        )

    def save(self, target: SubTreeFileSystem) -> None:
        """Make the export of the partition valid, from one moment to the next."""
        by_way_of = f"{staging_folder(self.partition)}/manifest.json"
        write(target, manifest_path(self.partition), self.to_json().encode(), by_way_of=by_way_of)


def read_manifest(target: SubTreeFileSystem, partition: str) -> Manifest | None:
    """Return the manifest of a partition, None if there is none; ExportError if it is damaged."""
    path = manifest_path(partition)
    try:
        with target.open_input_stream(path) as stream:
            return Manifest.from_json(stream.read().decode())
    except FileNotFoundError:
        return None
    except ValueError as error:  # of the JSON, its encoding or the checksum
        raise ExportError(f"the manifest {path} is damaged. Export the partition again.") from error


def read_manifests(target: SubTreeFileSystem) -> list[Manifest]:
    """Return all manifests by the time of their partitions; ExportError if one is damaged."""
    names = [info.base_name.removesuffix(".json") for info in files_in(target, _MANIFESTS)]
    found = [manifest for name in names if (manifest := read_manifest(target, _unescaped(name)))]
    return sorted(found, key=lambda manifest: manifest.first_at)


def manifest_path(partition: str) -> str:
    return f"{_MANIFESTS}/{escaped(partition)}.json"


def staging_folder(partition: str) -> str:
    """Return the folder of what is not valid yet; Spark and pyarrow look into none that begins with `_`."""
    return f"{STAGING}/{escaped(partition)}"


def data_path(partition: str, chunk: int, queue_name: str, result: str, day: date) -> str:
    """Return where a file goes, with the columns that it is split by in the names of folders, as Spark has them."""
    folder = f"queue_name={escaped(queue_name)}/result={escaped(result)}/date={day.isoformat()}"
    return f"data/{folder}/{escaped(partition)}-{chunk:05}.parquet"


def is_file_of(partition: str, base_name: str) -> bool:
    """Return whether a file in `data` is one of the partition, of this or of an older export."""
    return re.fullmatch(rf"{re.escape(escaped(partition))}-\d+\.parquet", base_name) is not None


def escaped(name: str) -> str:
    """Return a name that is one segment of a path, whatever it has in it; an empty one as Hive writes NULL."""
    return _SPECIAL.sub(lambda found: f"%{ord(found[0]):02X}", name) or "__HIVE_DEFAULT_PARTITION__"


def _unescaped(name: str) -> str:
    return re.sub("%([0-9A-F]{2})", lambda found: chr(int(found[1], 16)), name)


def _checksum(content: dict[str, Any]) -> str:
    return sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _iso(value: date) -> str:
    return value.isoformat()
