"""The content of a target of exports: Parquet files, and manifests that name the valid ones.

Each manifest names the files of one partition; a file that none names does not count.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import date, datetime
from hashlib import sha256
from typing import Any, Final, Self
from urllib.parse import unquote

import pyarrow as pa

from airflow_provider_pgqueue.core.errors import ExportDamaged, ExportError
from airflow_provider_pgqueue.core.quantity import quantity
from airflow_provider_pgqueue.export.target import Target

log = logging.getLogger(__name__)

_FORMAT: Final = 1
_MANIFESTS: Final = "_manifests"
_DATA_FILE: Final = re.compile(r"(?P<partition>.+)-\d{5,}-[0-9a-f]{32}\.parquet")
# The characters that Spark escapes in the names of folders; it leaves the rest of Unicode alone.
_SPECIAL: Final = re.compile(r"""[\x00-\x1f\x7f"#%'*/:=?\\{}\[\]^]""")
TYPES: Final = {
    "bigint": pa.int64(),
    "integer": pa.int32(),
    "smallint": pa.int16(),
    "timestamp with time zone": pa.timestamp("us", tz="UTC"),
}


def arrow_schema(columns: Mapping[str, str]) -> pa.Schema:
    """Return columns of the archive in Arrow; what has no simple type is text, as JSON is."""
    return pa.schema([(name, TYPES.get(kind, pa.string())) for name, kind in columns.items()])


def all_manifests(target: Target) -> list[Manifest]:
    """Return all manifests by the time of their partitions; there is at least one."""
    try:
        names = [unquote(info.base_name.removesuffix(".json")) for info in target.files_in(_MANIFESTS)]
        found = [manifest for name in names if (manifest := Manifest.read(target, name))]
    except OSError as error:
        raise ExportError(
            f"target {target} cannot be read: {error.strerror or error}. "
            "Give the folder of an export, and grant the right to read it."
        ) from error
    if not found:
        raise ExportError(f"{target} has no exported partition. Give the target of an export that wrote one.")
    return sorted(found, key=lambda manifest: manifest.first_at)


@dataclass(frozen=True, slots=True)
class Chunk:
    """The pages of a partition that one task exports, from `first_page` to before `end_page`."""

    number: int
    first_page: int
    end_page: int


@dataclass(frozen=True, slots=True)
class Version:
    """The number of rows and a hash of the place and transaction of each: it differs after any change of any row."""

    rows: int = 0
    hash: int = 0

    def __add__(self, other: Version) -> Version:
        """Return the version of the rows of both."""
        return Version(self.rows + other.rows, self.hash ^ other.hash)


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """A file with the messages of one chunk, queue, result and day."""

    chunk: int
    path: str
    queue_name: str
    result: str
    date: date
    rows: int
    bytes: int

    def __post_init__(self) -> None:
        # A checksum does not prevent a forged manifest, and the files that an older manifest names are removed.
        if {"", ".", ".."} & set(str(self.path).split("/")):
            raise ValueError(f"path {self.path!r} leads out of the target")


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The export of one whole partition; `columns` are the columns of the archive with their types."""

    partition: str
    oid: int
    first_at: datetime
    end_at: datetime
    exported_at: datetime
    version: Version
    columns: dict[str, str]
    chunks: tuple[Chunk, ...]
    files: tuple[File, ...]

    @property
    def rows(self) -> int:
        """The number of messages."""
        return sum(file.rows for file in self.files)

    @property
    def bytes(self) -> int:
        """The size of all files."""
        return sum(file.bytes for file in self.files)

    def to_json(self) -> str:
        """Return the manifest with a checksum of itself, to notice when a part of it is lost or changed."""
        content = asdict(self) | {"format": _FORMAT, "rows": self.rows, "bytes": self.bytes}
        content = json.loads(json.dumps(content, default=lambda moment: moment.isoformat()))
        return json.dumps(content | {"checksum": _checksum(content)}, indent=1, ensure_ascii=False)

    def with_checksums(self, md5s: Sequence[str]) -> str:
        """Return what PostgreSQL compares its rows with: the manifest with the md5 of what each file has."""
        files = [{**asdict(file), "md5": md5} for file, md5 in zip(self.files, md5s, strict=True)]
        return json.dumps({**asdict(self), "files": files}, default=lambda moment: moment.isoformat())

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return the manifest in a text; ValueError if the text is not whole, ExportError if its format is newer."""
        content = json.loads(text)
        if not isinstance(content, dict):
            raise ValueError("it is not an object")
        if content.get("format", _FORMAT) != _FORMAT:
            raise ExportError(f"format {content['format']}; this version of the package knows format {_FORMAT}")
        if content.pop("checksum", None) != _checksum(content):
            raise ValueError("the checksum is wrong")
        content |= {name: datetime.fromisoformat(content[name]) for name in ("first_at", "end_at", "exported_at")}
        content["version"] = Version(**content["version"])
        content["chunks"] = tuple(Chunk(**chunk) for chunk in content["chunks"])
        content["files"] = tuple(File(**file | {"date": date.fromisoformat(file["date"])}) for file in content["files"])
        return cls(**{field.name: content[field.name] for field in fields(cls)})

    @classmethod
    def read(cls, target: Target, partition: str) -> Self | None:
        """Return the manifest of a partition, None if there is none; ExportDamaged if it is not whole."""
        path = manifest_path(partition)
        try:
            with target.folder.open_input_stream(path) as stream:
                return cls.from_json(stream.read().decode())
        except FileNotFoundError:
            return None
        except ExportError as error:
            raise ExportError(
                f"the manifest {path} has {error}. Upgrade the package, here and where the export runs."
            ) from None
        except ValueError as error:  # of the JSON, its encoding or the checksum
            raise ExportDamaged(
                f"the manifest {path} is damaged. Export partition {partition!r} again; its files are kept until then. "
                "If PostgreSQL has it no more, bring the manifest back from a backup."
            ) from error

    def save(self, target: Target) -> None:
        """Make the export of the partition valid at once: no reader ever sees half of a manifest."""
        path, staged = manifest_path(self.partition), f"{staging_folder(self.partition)}/manifest.json"
        target.folder.create_dir(staging_folder(self.partition), recursive=True)
        with target.folder.open_output_stream(staged) as stream:
            stream.write(self.to_json().encode())
        target.sync([staged])
        target.move(staged, path)
        target.sync_folders([path])

    def has_all_files(self, target: Target) -> bool:
        """Return whether each file is there in its full size."""
        found = target.folder.get_file_info([file.path for file in self.files])
        return [info.size for info in found] == [file.bytes for file in self.files]

    def remove_others(self, target: Target, paths: Iterable[str]) -> None:
        """Remove those of the files of the partition that the manifest does not name.

        They must have been there before the lock of the partition was taken: a younger file may belong to an export
        that is at work now.
        """
        others = set(paths) - {file.path for file in self.files}
        for path in sorted(others):
            target.remove_file(path)
        if others:
            log.info("partition %s: %s of other exports removed", self.partition, quantity(len(others), "file"))


def manifest_path(partition: str) -> str:
    return f"{_MANIFESTS}/{_escaped(partition)}.json"


def staging_folder(partition: str, *export: str) -> str:
    """Return the folder of files that are not valid yet; Spark and pyarrow skip folders that begin with `_`."""
    return "/".join(("_staging", _escaped(partition), *export))


def data_path(partition: str, export: str, chunk: int, queue_name: str, result: str, day: date) -> str:
    """Return where a file goes, with the columns that it is split by in the names of folders, as Spark has them.

    The name of the export is in the name of the file: no other export has the same.
    """
    folder = f"queue_name={_escaped(queue_name)}/result={_escaped(result)}/date={day.isoformat()}"
    return f"data/{folder}/{_escaped(partition)}-{chunk:05}-{export}.parquet"


def files_by_partition(target: Target) -> dict[str, list[str]]:
    """Return all files in `data` by their partition, whether a manifest names them or not."""
    found: dict[str, list[str]] = {}
    for info in target.files_in("data"):
        if made_by_export := _DATA_FILE.fullmatch(info.base_name):
            found.setdefault(unquote(made_by_export["partition"]), []).append(info.path)
    return found


def _escaped(name: str) -> str:
    """Return any name as one segment of a path; an empty name as Hive writes NULL."""
    if name in (".", ".."):
        return name.replace(".", "%2E")
    return _SPECIAL.sub(lambda found: f"%{ord(found[0]):02X}", name) or "__HIVE_DEFAULT_PARTITION__"


def _checksum(content: dict[str, Any]) -> str:
    return sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
