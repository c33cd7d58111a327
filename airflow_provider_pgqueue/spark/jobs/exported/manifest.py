"""What of an export is valid: a manifest per partition names its files; what no manifest names does not count."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from datetime import date, datetime
from hashlib import sha256
from typing import Any, Final

from pyarrow.fs import SubTreeFileSystem

from airflow_provider_pgqueue.core.errors import ExportDamaged, ExportError
from airflow_provider_pgqueue.spark.jobs.exported.target import files_in, is_inside, write

FORMAT: Final = 1
STAGING: Final = "_staging"
_MANIFESTS: Final = "_manifests"
_DATA_FILE: Final = re.compile(r"(?P<partition>.+)-\d{5,}-[0-9a-f]{32}\.parquet")
# What Spark escapes in the names of folders too; it leaves the rest of Unicode alone.
_SPECIAL: Final = re.compile(r"""[\x00-\x1f\x7f"#%'*/:=?\\{}\[\]^]""")


@dataclass(frozen=True, slots=True)
class Chunk:
    """The pages of a partition that one task exports, from `first_page` to before `end_page`."""

    number: int
    first_page: int
    end_page: int


@dataclass(frozen=True, slots=True)
class ArchiveColumn:
    """A column of the archive with its type in PostgreSQL."""

    name: str
    kind: str


@dataclass(frozen=True, slots=True)
class Version:
    """Differs after any change of any row: how many rows there are, and a hash of the place and transaction of each."""

    rows: int = 0
    hash: int = 0

    def __add__(self, other: Version) -> Version:
        """Return the version of the rows of both."""
        return Version(self.rows + other.rows, self.hash ^ other.hash)


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
        """Return the file; ValueError if its path leads out of the target: a checksum keeps nobody from writing one."""
        if not isinstance(value["path"], str) or not is_inside(value["path"]):
            raise ValueError(f"path {value['path']!r} leads out of the target")
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
    version: Version
    columns: tuple[ArchiveColumn, ...]
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
        """Return the manifest in a text; ValueError if the text is not whole, UnknownFormat for a newer one."""
        content = json.loads(text)
        if not isinstance(content, dict):
            raise ValueError("it is no object")
        if content.get("format", FORMAT) != FORMAT:
            raise UnknownFormat(content["format"])
        if content.pop("checksum", None) != _checksum(content):
            raise ValueError("the checksum is wrong")
        return cls(
            partition=content["partition"],
            oid=content["oid"],
            first_at=datetime.fromisoformat(content["first_at"]),
            end_at=datetime.fromisoformat(content["end_at"]),
            schema_version=content["schema_version"],
            exported_at=datetime.fromisoformat(content["exported_at"]),
            version=Version(**content["version"]),
            columns=tuple(ArchiveColumn(**column) for column in content["columns"]),
            chunks=tuple(Chunk(**chunk) for chunk in content["chunks"]),
            files=tuple(File.from_json(file) for file in content["files"]),
        )

    def save(self, target: SubTreeFileSystem) -> None:
        """Make the export of the partition valid, from one moment to the next."""
        by_way_of = f"{staging_folder(self.partition)}/manifest.json"
        write(target, manifest_path(self.partition), self.to_json().encode(), by_way_of=by_way_of)


class UnknownFormat(Exception):
    """A manifest is of a format that this version of the package does not know."""


def read_manifest(target: SubTreeFileSystem, partition: str) -> Manifest | None:
    """Return the manifest of a partition, None if there is none.

    ExportDamaged if it is not whole, ExportError if a newer version of the package wrote it.
    """
    path = manifest_path(partition)
    try:
        with target.open_input_stream(path) as stream:
            return Manifest.from_json(stream.read().decode())
    except FileNotFoundError:
        return None
    except UnknownFormat as error:
        raise ExportError(
            f"the manifest {path} has format {error}; this version of the package knows format {FORMAT}. "
            "Upgrade the package, here and where the export runs."
        ) from error
    except ValueError as error:  # of the JSON, its encoding or the checksum
        raise ExportDamaged(
            f"the manifest {path} is damaged. Export partition {partition!r} again; its files are kept until then. "
            "If PostgreSQL has it no more, bring the manifest back from a backup."
        ) from error


def read_manifests(target: SubTreeFileSystem) -> list[Manifest]:
    """Return all manifests by the time of their partitions; errors as of `read_manifest`."""
    names = [info.base_name.removesuffix(".json") for info in files_in(target, _MANIFESTS)]
    found = [manifest for name in names if (manifest := read_manifest(target, _unescaped(name)))]
    return sorted(found, key=lambda manifest: manifest.first_at)


def manifest_path(partition: str) -> str:
    return f"{_MANIFESTS}/{escaped(partition)}.json"


def staging_folder(partition: str, *export: str) -> str:
    """Return the folder of what is not valid yet; Spark and pyarrow look into none that begins with `_`."""
    return "/".join((STAGING, escaped(partition), *export))


def data_path(partition: str, export: str, chunk: int, queue_name: str, result: str, day: date) -> str:
    """Return where a file goes, with the columns that it is split by in the names of folders, as Spark has them.

    The name of the export is in the name of the file: no other export has the same.
    """
    folder = f"queue_name={escaped(queue_name)}/result={escaped(result)}/date={day.isoformat()}"
    return f"data/{folder}/{escaped(partition)}-{chunk:05}-{export}.parquet"


def partition_of(base_name: str) -> str | None:
    """Return of which partition a file in `data` is, None if no export made it."""
    found = _DATA_FILE.fullmatch(base_name)
    return _unescaped(found["partition"]) if found else None


def export_of(path: str) -> str:
    """Return the name of the export that made a file in `data`."""
    return path.rpartition("-")[2].removesuffix(".parquet")


def escaped(name: str) -> str:
    """Return a name that is one segment of a path, whatever it has in it; an empty one as Hive writes NULL."""
    if name in (".", ".."):
        return name.replace(".", "%2E")
    return _SPECIAL.sub(lambda found: f"%{ord(found[0]):02X}", name) or "__HIVE_DEFAULT_PARTITION__"


def _unescaped(name: str) -> str:
    return re.sub("%([0-9A-F]{2})", lambda found: chr(int(found[1], 16)), name)


def _checksum(content: dict[str, Any]) -> str:
    return sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _iso(value: date) -> str:
    return value.isoformat()
