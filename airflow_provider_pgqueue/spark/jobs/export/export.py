"""Closed partitions of the archive become Parquet; with `drop`, a partition that was compared with it is dropped."""

from __future__ import annotations

import errno
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import click
import psycopg
from pyarrow.fs import FileSelector, SubTreeFileSystem
from pyspark.errors import PySparkException

from airflow_provider_pgqueue.core import verbs
from airflow_provider_pgqueue.core.client import run as run_statement
from airflow_provider_pgqueue.core.errors import (
    ConnectionFailed,
    ExportDamaged,
    ExportDiffers,
    ExportError,
    InvalidArgument,
    PgQueueError,
)
from airflow_provider_pgqueue.core.quantity import quantity, rate
from airflow_provider_pgqueue.spark.database import Database
from airflow_provider_pgqueue.spark.failure import raised_in_spark
from airflow_provider_pgqueue.spark.jobs.command import duration, new_run_id, on_spark
from airflow_provider_pgqueue.spark.jobs.export.chunk_files import are_readable, export_chunk
from airflow_provider_pgqueue.spark.jobs.export.chunk_tasks import for_each_chunk
from airflow_provider_pgqueue.spark.jobs.export.drop import drop
from airflow_provider_pgqueue.spark.jobs.export.manifest import (
    Chunk,
    File,
    Manifest,
    Version,
    manifest_path,
    read_manifest,
    staging_folder,
)
from airflow_provider_pgqueue.spark.jobs.export.partition import Partition, closed_partitions, version_of
from airflow_provider_pgqueue.spark.jobs.export.replace import (
    files_by_partition,
    is_in_place,
    of_several_exports,
    remove_others,
    take_place,
)
from airflow_provider_pgqueue.spark.jobs.export.target import open_target, remove_folder, shown
from airflow_provider_pgqueue.spark.jobs.run import Summary, run
from airflow_provider_pgqueue.spark.jobs.watch import watching, watching_tasks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

_MOST_ROWS: Final = 250_000
_TRIES: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportOptions:
    """What to export, and where to.

    :param target: path or URI (file, s3, gs, hdfs) of a folder that driver and executors reach
    :param older_than: how long ago the time of a partition ended at least
    :param partitions: names of the partitions to export, whatever their age; empty for all
    :param drop: drop each partition after its export was compared with it
    :param rows_per_file: about how many messages are in a range of pages, and in a file at most; up to 250,000
    :param max_connections: how many executors read from PostgreSQL at once at most
    :param run_id: a run that finished under this name is not done again; by default a new name
    """

    target: str
    older_than: timedelta = timedelta(0)
    partitions: tuple[str, ...] = ()
    drop: bool = False
    rows_per_file: int = 250_000
    max_connections: int = 8
    run_id: str = field(default_factory=lambda: new_run_id("export"))

    def __post_init__(self) -> None:
        if not self.target:
            raise InvalidArgument("target is empty. Give a path, or a URI of file, s3, gs or hdfs.")
        if self.older_than < timedelta(0):
            raise InvalidArgument(f"older_than is {self.older_than}. Give a duration from 0.")
        if not 1 <= self.rows_per_file <= _MOST_ROWS:
            raise InvalidArgument(f"rows_per_file is {self.rows_per_file}. Give a whole number from 1 to {_MOST_ROWS}.")
        if self.max_connections < 1:
            raise InvalidArgument(f"max_connections is {self.max_connections}. Give a whole number from 1.")


def export(spark: SparkSession, options: ExportOptions, database: Database) -> Summary:
    """Export closed partitions of the archive and return what was done: partitions, rows, bytes, files, seconds.

    A partition is exported all or not at all: it counts from when its manifest is there. After a crash run it again;
    what is exported and unchanged is skipped. Each file was read back and is equal to what PostgreSQL has, before
    anything is dropped. A partition that cannot be dropped now stands in `kept` with the reason; nothing of it is lost.
    One that somebody else drops before it is exported is left out, unless it was asked for by name.

    Raises InvalidArgument for a partition that does not exist or is not closed, PermissionDenied, ExportError if the
    target cannot be written, ExportDiffers if a partition changes all the time.
    """
    with run(database, options.run_id, "export") as this:
        if this.summary is not None:
            return this.summary
        job = _Export(spark, database, open_target(options.target), options)
        with _clear(options.target):
            return this.finish(job.all())


class _Gone(PgQueueError):
    """Retention dropped a partition before it was exported."""

    def __init__(self, name: str) -> None:
        super().__init__(f"archive partition {name!r} was dropped by somebody else. Leave it out.")


@dataclass(frozen=True, slots=True)
class _Export:
    spark: SparkSession
    database: Database
    target: SubTreeFileSystem
    options: ExportOptions

    def all(self) -> Summary:
        started = time.monotonic()
        done: dict[str, list[Manifest]] = {"exported": [], "skipped": [], "dropped": []}
        kept: dict[str, str] = {}
        found = files_by_partition(self.target)
        names = self._names()
        self._tidy({name: paths for name, paths in found.items() if name not in names})
        for name in names:
            with self._alone(name) as conn:
                remove_folder(self.target, staging_folder(name))
                try:
                    what, manifest, present = self._ensure(conn, name)
                except _Gone as error:
                    if name in self.options.partitions:
                        raise InvalidArgument(str(error)) from None
                    log.info("%s", error)
                    continue
                done[what].append(manifest)
                remove_others(self.target, manifest, found.get(name, ()))
                if present and self.options.drop:
                    if why := self._drop(conn, manifest):
                        kept[name] = why
                    else:
                        done["dropped"].append(manifest)
        return {
            **{what: [manifest.partition for manifest in manifests] for what, manifests in done.items()},
            "kept": kept,
            "rows": sum(manifest.rows for manifest in done["exported"]),
            "bytes": sum(manifest.bytes for manifest in done["exported"]),
            "files": sum(len(manifest.files) for manifest in done["exported"]),
            "seconds": round(time.monotonic() - started, 3),
        }

    def _names(self) -> list[str]:
        """Return the partitions to export; those that are asked for by name, also if they were dropped already."""
        with self.database.connect("pgqueue export") as conn:
            found = closed_partitions(conn, older_than=self.options.older_than, names=self.options.partitions)
            names = [partition.name for partition in found]
            for name in self.options.partitions:
                if name not in names:
                    if read_manifest(self.target, name) is None:
                        self._refuse(conn, name)
                    names.append(name)
        return names

    def _refuse(self, conn: psycopg.Connection[Any], name: str) -> None:
        run_statement(conn, verbs.archive_checksums(name, 0, 0))  # raises what is wrong with the name

    def _tidy(self, found: Mapping[str, list[str]]) -> None:
        """Remove what a killed export left of partitions that this run does not export."""
        for name, paths in found.items():
            if of_several_exports(paths):
                with self._alone(name):
                    try:
                        manifest = read_manifest(self.target, name)
                    except ExportError as error:
                        log.warning("partition %s: %s", name, error)
                        continue
                    if manifest is not None:
                        remove_folder(self.target, staging_folder(name))
                        remove_others(self.target, manifest, paths)

    @contextmanager
    def _alone(self, name: str) -> Iterator[psycopg.Connection[Any]]:
        """Wait until no other export works on the partition, and keep the others waiting."""
        with self.database.connect("pgqueue export") as conn:
            ask = "SELECT pg_try_advisory_lock(hashtextextended('messages.export ' || %s, 0))"
            waited = 0
            while conn.execute(ask, [name]).fetchone() != (True,):
                if waited % 10 == 0:
                    log.info("partition %s: waiting for another export of it", name)
                time.sleep(1)  # and not in PostgreSQL, where it would hold a snapshot
                waited += 1
            yield conn

    def _ensure(self, conn: psycopg.Connection[Any], name: str) -> tuple[str, Manifest, bool]:
        """Return what was done, the manifest that is valid now, and whether the partition is there."""
        try:
            manifest = read_manifest(self.target, name)
        except ExportDamaged as error:
            log.warning("partition %s: %s", name, error)
            manifest = None
        found = closed_partitions(conn, older_than=timedelta(0), names=[name])
        if not found:
            if manifest is None:
                raise _Gone(name)
            return "skipped", manifest, False
        (partition,) = found
        if manifest is not None and not self._is_outdated(conn, partition, manifest):
            log.info("partition %s: exported already, with %s", name, quantity(manifest.rows))
            return "skipped", manifest, True
        if manifest is not None and manifest.oid != partition.oid:
            raise ExportDiffers(
                f"{shown(self.options.target)} has an export of another partition {name!r} with other messages. "
                f"Give another target, or move that export away: {manifest_path(name)} and its files."
            )
        manifest = self._export(conn, partition, older=manifest)
        if self.options.drop and not self._is_readable(manifest):
            raise OSError(errno.EIO, "what was written cannot be read back")
        return "exported", manifest, True

    def _is_outdated(self, conn: psycopg.Connection[Any], partition: Partition, manifest: Manifest) -> bool:
        """Return whether the partition changed since its export, or files of that are gone or damaged."""
        covered = sum(chunk.end_page - chunk.first_page for chunk in manifest.chunks)
        if (manifest.oid, manifest.columns) != (partition.oid, partition.columns) or covered < partition.pages:
            return True
        infos = self.target.get_file_info([file.path for file in manifest.files])
        if [info.size for info in infos] != [file.bytes for file in manifest.files]:
            return True
        if version_of(conn, partition) != manifest.version:
            return True
        return self.options.drop and not self._is_readable(manifest)

    def _is_readable(self, manifest: Manifest) -> bool:
        """Read all files back, on the executors, and return whether they have what the manifest notes."""
        files: dict[int, list[File]] = {chunk.number: [] for chunk in manifest.chunks}
        for file in manifest.files:
            files[file.chunk].append(file)
        target = self.target
        with watching_tasks(self.spark, f"partition {manifest.partition}, reading back"):
            return all(self._for_each(manifest.chunks, lambda chunk: are_readable(target, files[chunk.number])))

    def _export(self, conn: psycopg.Connection[Any], partition: Partition, *, older: Manifest | None) -> Manifest:
        started = time.monotonic()
        log.info("partition %s: exporting %d pages", partition.name, partition.pages)
        try:
            manifest, staged = self._stage(conn, partition)
            # The lock is of the session: if that broke, another export may be at work.
            take_place(self.target, manifest, staged, older=older, still_alone=lambda: conn.execute("SELECT"))
        finally:
            remove_folder(self.target, staging_folder(partition.name))
        speed = rate(manifest.rows, time.monotonic() - started)
        log.info(
            "partition %s: %s in %s, %s", partition.name, quantity(manifest.rows), quantity(len(staged), "file"), speed
        )
        return manifest

    def _stage(self, conn: psycopg.Connection[Any], partition: Partition) -> tuple[Manifest, list[tuple[str, File]]]:
        """Write all files of a partition while nothing in it changes: a row that changes goes to another range."""
        for _ in range(_TRIES):
            found = closed_partitions(conn, older_than=timedelta(0), names=[partition.name])
            if not found:
                raise _Gone(partition.name)
            manifest, staged = self._stage_chunks(conn, found[0])
            if version_of(conn, partition) == manifest.version:
                return manifest, staged
            log.info("partition %s changed meanwhile: exporting it anew", partition.name)
        raise ExportDiffers(
            f"archive partition {partition.name!r} changed during {_TRIES} exports. "
            "Look who changes or drops it, and export it again."
        )

    def _stage_chunks(
        self, conn: psycopg.Connection[Any], partition: Partition
    ) -> tuple[Manifest, list[tuple[str, File]]]:
        name = uuid4().hex
        folder = staging_folder(partition.name, name)
        self.target.create_dir(folder, recursive=True)
        database, target = self.database, self.target
        chunks = partition.chunks(self.options.rows_per_file)
        with watching(lambda: self._say(partition, folder, len(chunks))):
            done = self._for_each(chunks, lambda chunk: export_chunk(database, target, partition, chunk, name))
        staged = [(path, File.from_json(file)) for chunk in done for path, file in chunk["files"]]
        (schema_version,) = conn.execute("SELECT messages.schema_version()").fetchone() or (0,)
        manifest = Manifest(
            partition=partition.name,
            oid=partition.oid,
            first_at=partition.first_at,
            end_at=partition.end_at,
            schema_version=schema_version,
            exported_at=datetime.now(UTC),
            version=sum((Version(**chunk["version"]) for chunk in done), Version()),
            columns=partition.columns,
            chunks=chunks,
            files=tuple(sorted((file for _, file in staged), key=lambda file: file.path)),
        )
        return manifest, staged

    def _say(self, partition: Partition, folder: str, chunks: int) -> None:
        """Say how far the tasks are: what they wrote is all that the driver sees before they end."""
        found = self.target.get_file_info(FileSelector(folder))
        begun = len({info.base_name.partition("-")[0] for info in found})
        megabytes = sum(info.size for info in found) / 1e6
        log.info("partition %s: %d of %d parts in files, %.1f MB", partition.name, begun, chunks, megabytes)

    def _drop(self, conn: psycopg.Connection[Any], manifest: Manifest) -> str | None:
        """Drop the partition if its export stands where it was put; return why it is kept."""
        if not is_in_place(self.target, manifest):
            return "somebody else changed its export meanwhile"
        try:
            return drop(conn, manifest)
        except InvalidArgument:
            if closed_partitions(conn, older_than=timedelta(0), names=[manifest.partition]):
                raise
            return "somebody else dropped it meanwhile"

    def _for_each(self, chunks: tuple[Chunk, ...], work: Callable[[Chunk], Any]) -> list[Any]:
        return for_each_chunk(self.spark, chunks, work, at_once=self.options.max_connections)


@contextmanager
def _clear(target: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ExportError(
            f"target {shown(target)!r} cannot be used: {error.strerror or error}. "
            "Nothing was dropped that is not exported. "
            "Make room, grant the right to write there, or give a folder, and run it again."
        ) from error
    except PySparkException as error:  # its text may quote data
        raise raised_in_spark(error) or ExportError(
            f"a task of the export to {shown(target)!r} failed on its executor. "
            "Nothing was dropped that is not exported. The log of the executor says why; run it again."
        ) from error
    except psycopg.OperationalError as error:
        raise ConnectionFailed(f"{type(error).__name__}: the connection broke. Run the export again.") from error


@click.command("export")
@click.option("--target", required=True, help="Path or URI of the folder: file, s3, gs or hdfs.")
@click.option("--older-than", type=duration, default="0", show_default=True, help="Only what ended so long ago.")
@click.option("--partition", "partitions", multiple=True, help="Only this one, whatever its age; any number of times.")
@click.option("--drop", is_flag=True, help="Drop each partition after its export was compared with it.")
@click.option("--rows-per-file", type=click.IntRange(1, _MOST_ROWS), default=250_000, show_default=True, help="About.")
@click.option("--max-connections", type=click.IntRange(1), default=8, show_default=True, help="That read at once.")
@click.option("--run-id", help="A run that finished under this name is not done again. Default: a new name.")
@on_spark
def command(spark: SparkSession, database: Database, run_id: str | None, **options: Any) -> Summary:
    """Write closed partitions of the archive as Parquet, and drop them with --drop.

    What is exported and unchanged is skipped.
    """
    return export(spark, ExportOptions(run_id=run_id or new_run_id("export"), **options), database)
