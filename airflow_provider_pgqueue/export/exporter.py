"""Partitions of the archive become Parquet; with `drop`, a partition that was compared with it is dropped.

At any time the older export of a partition or the new one is whole and valid. The files of each export have names of
their own: the new ones are placed next to the old ones, then the manifest is replaced, and only then the old ones go.
An export that is killed in between leaves files that no manifest names.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any, Final, Literal, Protocol, TypeVar
from uuid import uuid4

import psycopg

from airflow_provider_pgqueue.core import verbs
from airflow_provider_pgqueue.core.argument import Rule, duration, one_of
from airflow_provider_pgqueue.core.client import run
from airflow_provider_pgqueue.core.duration import Duration, as_timedelta, duration_text
from airflow_provider_pgqueue.core.errors import (
    ConnectionFailed,
    ExportDamaged,
    ExportDiffers,
    ExportError,
    InvalidArgument,
    PgQueueError,
)
from airflow_provider_pgqueue.core.progress import watching
from airflow_provider_pgqueue.core.quantity import quantity, rate
from airflow_provider_pgqueue.core.query import query
from airflow_provider_pgqueue.export.chunk import checksum_of, export_chunk
from airflow_provider_pgqueue.export.connection import Database
from airflow_provider_pgqueue.export.manifest import (
    File,
    Manifest,
    Version,
    files_by_partition,
    manifest_path,
    staging_folder,
)
from airflow_provider_pgqueue.export.partition import Partition, drop_partition, partitions_to_export
from airflow_provider_pgqueue.export.target import Target

log = logging.getLogger(__name__)

_TRIES: Final = 3
_DROPPED: Final = "dropped"
SAFE: Final = "Nothing was dropped that is not exported."
NAME: Final = "pgqueue export"  # of its sessions
Until = Literal["completed", "now"]
RULES: Final[Mapping[str, Rule]] = {
    "older_than": duration(timedelta(0), timedelta(days=36_500)),
    "until": one_of("completed", "now"),
}
Connection = psycopg.Connection[Any]
Summary = dict[str, Any]
_Item = TypeVar("_Item")
_Done = TypeVar("_Done")


class ForEach(Protocol):
    """Shares work out to the threads of this process or to the tasks of Spark."""

    def __call__(self, items: Sequence[_Item], work: Callable[[_Item], _Done], doing: str = "") -> list[_Done]:
        """Return what the work returns for each item, in their order.

        :param doing: say meanwhile how far this is; by default the exporter does.
        """


class PartitionGone(PgQueueError):
    """Retention dropped a partition before it was exported."""

    def __init__(self, name: str) -> None:
        super().__init__(f"archive partition {name!r} was dropped by somebody else. Leave it out.")


@dataclass(frozen=True, slots=True)
class Exporter:
    """Exports partitions to a target; of the work in `for_each` it knows only what that returns."""

    database: Database
    target: Target
    for_each: ForEach

    def all(
        self, older_than: Duration, partitions: Sequence[str], *, drop: bool, until: Until = "completed"
    ) -> Summary:
        """Do all that is to be done and return what it was: partitions, rows, bytes, files, seconds.

        `waiting` says why partitions with messages were left out.
        """
        with _clear(self.target):
            return self._all(older_than, partitions, drop=drop, until=until)

    def _all(self, older_than: Duration, partitions: Sequence[str], *, drop: bool, until: Until) -> Summary:
        started = time.monotonic()
        done: dict[str, list[Manifest]] = {"exported": [], "skipped": [], "dropped": []}
        kept: dict[str, str] = {}
        found = files_by_partition(self.target)
        names, waiting = self._names(older_than, partitions, until)
        self._tidy({name: paths for name, paths in found.items() if name not in names})
        for name in names:
            try:
                what, manifest, why = self._one(name, found.get(name, ()), drop=drop)
            except PartitionGone as error:
                if name in partitions:
                    raise InvalidArgument(str(error)) from None
                log.info("%s", error)
                continue
            done[what].append(manifest)
            if why == _DROPPED:
                done["dropped"].append(manifest)
            elif why:
                kept[name] = why
        return {
            **{what: [manifest.partition for manifest in manifests] for what, manifests in done.items()},
            "kept": kept,
            "waiting": waiting,
            "rows": sum(manifest.rows for manifest in done["exported"]),
            "bytes": sum(manifest.bytes for manifest in done["exported"]),
            "files": sum(len(manifest.files) for manifest in done["exported"]),
            "seconds": round(time.monotonic() - started, 3),
        }

    def _names(self, older_than: Duration, partitions: Sequence[str], until: Until) -> tuple[list[str], dict[str, str]]:
        """Return the partitions to export, and why others wait that have messages.

        Those that are asked for by name are among them also if they were dropped already.
        """
        with self.database.connect(NAME) as conn:
            found = partitions_to_export(conn, older_than=older_than, names=partitions, with_open=until == "now")
            names = [partition.name for partition in found]
            others = [] if partitions else partitions_to_export(conn)
            waiting = {other.name: _why_waiting(other, older_than) for other in others if other.name not in names}
            for name in partitions:
                if name not in names:
                    if Manifest.read(self.target, name) is None:
                        run(conn, verbs.archive_checksums(name, 0, 0))  # raises what is wrong with the name
                    names.append(name)
        return names, waiting

    def _tidy(self, found: Mapping[str, list[str]]) -> None:
        """Remove what a killed export left of partitions that this run does not export."""
        for name, paths in found.items():
            # All files of an export end with its name.
            if len({path.rpartition("-")[2] for path in paths}) > 1:
                with self._alone(name):
                    try:
                        manifest = Manifest.read(self.target, name)
                    except ExportError as error:
                        log.warning("partition %s: %s", name, error)
                        continue
                    if manifest is not None:
                        self.target.remove_folder(staging_folder(name))
                        manifest.remove_others(self.target, paths)

    def _one(self, name: str, found: Sequence[str], *, drop: bool) -> tuple[str, Manifest, str]:
        """Export a partition, and drop it if wanted; return what was done, the manifest, and what became of it."""
        with self._alone(name) as lock, self.database.connect(NAME) as conn:
            for anew in (False, True):
                what, manifest, present = self.ensure(conn, lock, name, anew=anew)
                manifest.remove_others(self.target, found)
                if not (present and drop):
                    return what, manifest, ""
                if open_yet := [one for one in partitions_to_export(conn, names=[name]) if one.is_open]:
                    return what, manifest, _still_open(*open_yet)
                try:
                    why = self._drop(conn, manifest)
                    break
                except ExportDiffers as error:  # a row changed since, or a file was damaged or replaced
                    why = str(error)
                    log.warning("partition %s: %s", name, why)
            return what, manifest, why

    @contextmanager
    def _alone(self, name: str) -> Iterator[Connection]:
        """Wait until no other export works on the partition, and keep the others waiting.

        The lock belongs to a transaction that stays open and does nothing else, so a pooler keeps its session for it.
        It has no number and no snapshot, so that it holds back neither the vacuum nor the log.
        """
        with self.database.connect(NAME) as conn:
            for waited in count():
                with conn.transaction():
                    if conn.execute(query("lock_export"), [name]).fetchone() == (True,):
                        yield conn
                        return
                if waited % 10 == 0:
                    log.info("partition %s: waiting for another export of it", name)
                time.sleep(1)  # and not in PostgreSQL, where it would hold a snapshot

    def ensure(
        self, conn: Connection, lock: Connection, name: str, *, anew: bool = False
    ) -> tuple[str, Manifest, bool]:
        """Return what was done, the manifest that is valid now, and whether the partition is there.

        :param lock: the session that keeps other exports of the partition waiting.
        :param anew: export it though there is an export that seems to be current.
        """
        self.target.remove_folder(staging_folder(name))
        try:
            manifest = Manifest.read(self.target, name)
        except ExportDamaged as error:
            log.warning("partition %s: %s", name, error)
            manifest = None
        found = partitions_to_export(conn, names=[name])
        if not found:
            if manifest is None:
                raise PartitionGone(name)
            return "skipped", manifest, False
        (partition,) = found
        if manifest is not None and not anew and self._is_current(conn, partition, manifest):
            log.info("partition %s: exported already, with %s", name, quantity(manifest.rows))
            return "skipped", manifest, True
        if manifest is not None and manifest.oid != partition.oid:
            raise ExportDiffers(
                f"{self.target} has an export of another partition {name!r} with other messages. "
                f"Give another target, or move that export away: {manifest_path(name)} and its files."
            )
        older, manifest = manifest, self._export(conn, lock, partition)
        if older is not None:
            manifest.remove_others(self.target, [file.path for file in older.files])
        return "exported", manifest, True

    def _is_current(self, conn: Connection, partition: Partition, manifest: Manifest) -> bool:
        """Return whether the partition is as it was exported, and the files of that are there in their full size."""
        return (
            (manifest.oid, manifest.columns) == (partition.oid, partition.columns)
            and sum(chunk.end_page - chunk.first_page for chunk in manifest.chunks) >= partition.pages
            and manifest.has_all_files(self.target)
            and partition.version(conn) == manifest.version
        )

    def _drop(self, conn: Connection, manifest: Manifest) -> str:
        """Drop the partition if its export stands where it was put and has its rows; return what became of it."""
        target = self.target
        doing = f"reading back partition {manifest.partition}"
        found = self.for_each(manifest.files, lambda file: checksum_of(target, file.path), doing)
        md5s = [md5 for md5 in found if md5 is not None]
        if len(md5s) < len(found):
            raise ExportDiffers(f"the export of {manifest.partition!r} cannot be read back. See the log for its files.")
        if not (Manifest.read(target, manifest.partition) == manifest and manifest.has_all_files(target)):
            return "somebody else changed its export meanwhile"
        try:
            return drop_partition(conn, manifest, md5s) or _DROPPED
        except InvalidArgument:
            if partitions_to_export(conn, names=[manifest.partition]):
                raise
            return "somebody else dropped it meanwhile"

    def _export(self, conn: Connection, lock: Connection, partition: Partition) -> Manifest:
        started = time.monotonic()
        log.info("partition %s: exporting %d pages", partition.name, partition.pages)
        try:
            manifest, staged = self._stage(conn, partition)
            for path, file in staged.items():
                self.target.move(path, file.path)
            self.target.sync_folders(file.path for file in manifest.files)
            # If the session of the lock broke, another export may be at work by now.
            lock.execute("SELECT")
            manifest.save(self.target)
        finally:
            self.target.remove_folder(staging_folder(partition.name))
        done, files = quantity(manifest.rows), quantity(len(staged), "file")
        speed = rate(manifest.rows, time.monotonic() - started)
        log.info("partition %s: %s in %s, %s", partition.name, done, files, speed)
        return manifest

    def _stage(self, conn: Connection, partition: Partition) -> tuple[Manifest, dict[str, File]]:
        """Write all files of a partition, again if a row changed meanwhile: it may have moved to another range."""
        for _ in range(_TRIES):
            found = partitions_to_export(conn, names=[partition.name])
            if not found:
                raise PartitionGone(partition.name)
            # Read again, because a partition that still takes messages has more of them by now.
            (partition,) = found
            manifest, staged = self._stage_chunks(partition)
            if partition.version(conn) == manifest.version:
                return manifest, staged
            log.info("partition %s changed meanwhile: exporting it anew", partition.name)
        raise ExportDiffers(
            f"archive partition {partition.name!r} changed during {_TRIES} exports. "
            "Find out who changes or drops it, and export it again."
        )

    def _stage_chunks(self, partition: Partition) -> tuple[Manifest, dict[str, File]]:
        """Write the files once; return their manifest, and the files by where they are staged."""
        name = uuid4().hex
        folder = staging_folder(partition.name, name)
        self.target.folder.create_dir(folder, recursive=True)
        database, target, chunks = self.database, self.target, partition.chunks()

        def log_progress() -> None:
            # Until the tasks end, only the files that they have written show their progress.
            found = target.files_in(folder)
            begun = len({info.base_name.partition("-")[0] for info in found})
            megabytes = sum(info.size for info in found) / 1e6
            log.info("partition %s: %d of %d parts in files, %.1f MB", partition.name, begun, len(chunks), megabytes)

        with watching(log_progress):
            done = self.for_each(chunks, lambda chunk: export_chunk(database, target, partition, chunk, name))
        staged = {path: file for files, _ in done for path, file in files.items()}
        manifest = Manifest(
            partition=partition.name,
            oid=partition.oid,
            first_at=partition.first_at,
            end_at=partition.end_at,
            exported_at=datetime.now(UTC),
            version=sum((version for _, version in done), Version()),
            columns=partition.columns,
            chunks=chunks,
            files=tuple(sorted(staged.values(), key=lambda file: file.path)),
        )
        return manifest, staged


def _still_open(partition: Partition) -> str:
    return f"it takes messages until {partition.end_at:%Y-%m-%d %H:%M %Z}"


def _why_waiting(partition: Partition, older_than: Duration) -> str:
    if partition.is_open:
        return f"{_still_open(partition)}; --until now exports what it has"
    return f"it was completed less than {duration_text(as_timedelta(older_than))} ago"


@contextmanager
def _clear(target: Target) -> Iterator[None]:
    """Turn the errors of a target and of a connection into ones that say what to do, and quote no data."""
    try:
        yield
    except OSError as error:
        raise ExportError(
            f"target {target} cannot be used: {error.strerror or error}. {SAFE} "
            "Make room, grant the right to write there, or give a folder, and run it again."
        ) from error
    except psycopg.OperationalError as error:
        raise ConnectionFailed(f"{type(error).__name__}: the connection broke. Run the export again.") from error
