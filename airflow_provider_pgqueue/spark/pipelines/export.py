"""Closed partitions of the archive become Parquet; with `drop`, a partition that was compared with it is dropped."""

from __future__ import annotations

import json
import logging
import os
import random
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import click
import psycopg
import pyarrow as pa
from pyarrow.fs import SubTreeFileSystem
from pyspark.errors import PySparkException

from airflow_provider_pgqueue.core.client import run as run_statement
from airflow_provider_pgqueue.core.errors import (
    ConnectionFailed,
    ExportDiffers,
    ExportError,
    InvalidArgument,
    UndecidedMessages,
)
from airflow_provider_pgqueue.core.statements import Statement
from airflow_provider_pgqueue.core.statements.statement import one
from airflow_provider_pgqueue.spark.database import Database
from airflow_provider_pgqueue.spark.failure import raised_in_spark
from airflow_provider_pgqueue.spark.pipelines.chunk_files import differs, export_chunk
from airflow_provider_pgqueue.spark.pipelines.command import duration, new_run_id, on_spark
from airflow_provider_pgqueue.spark.pipelines.manifest import (
    Chunk,
    File,
    Manifest,
    is_file_of,
    manifest_path,
    read_manifest,
    read_manifests,
    staging_folder,
)
from airflow_provider_pgqueue.spark.pipelines.partition import Partition, closed_partitions, versions
from airflow_provider_pgqueue.spark.pipelines.run import Summary, run
from airflow_provider_pgqueue.spark.pipelines.target import (
    files_in,
    move,
    open_target,
    remove_folder,
    shown,
    sync_folders,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger(__name__)

_MOST_ROWS: Final = 250_000
_TRIES: Final = 3
_TRIES_TO_DROP: Final = 6
_TYPES: Final = {"bigint": "bigint", "integer": "int", "smallint": "smallint", "timestamp with time zone": "timestamp"}


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
    rows_per_file: int = 100_000
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

    Raises InvalidArgument for a partition that does not exist or is not closed, PermissionDenied, ExportError if the
    target cannot be written, ExportDiffers if a partition changes all the time.
    """
    with run(database, options.run_id, "export") as this:
        if this.summary is not None:
            return this.summary
        job = _Export(spark, database, open_target(options.target), options)
        with _clear(options.target):
            return this.finish(job.all())


def read_export(spark: SparkSession, target: str) -> DataFrame:
    """Return the exported messages, each once, with the columns of the archive and `date`; of valid exports only.

    ExportError if there is no export, or a manifest is damaged.
    """
    manifests = read_manifests(open_target(target))
    if not manifests:
        raise ExportError(f"{shown(target)!r} has no export. Give the target of one that finished.")
    columns = {column.name: _TYPES.get(column.kind, "string") for each in manifests for column in each.columns}
    schema = ", ".join(f"`{name}` {kind}" for name, kind in (columns | {"date": "date"}).items())
    base = _for_spark(target)
    paths = [f"{base}/{file.path}" for manifest in manifests for file in manifest.files]
    if not paths:
        return spark.createDataFrame([], schema)
    return spark.read.schema(schema).option("basePath", f"{base}/data").parquet(*paths).select(*columns, "date")


def _for_spark(target: str) -> str:
    uri = shown(target) if "://" in target else f"file://{os.path.abspath(target)}"
    return re.sub("^s3:", "s3a:", uri.rstrip("/"))


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
        for name in self._names():
            with self._alone(name) as conn:
                what, manifest, present = self._ensure(conn, name)
                done[what].append(manifest)
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
        arguments = {"partition": name, "first_page": 0, "end_page": 0}
        run_statement(conn, Statement("archive_checksums", arguments, len))  # raises what is wrong with the name

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
        except ExportError as error:
            log.warning("partition %s: %s", name, error)
            manifest = None
        found = closed_partitions(conn, older_than=timedelta(0), names=[name])
        if not found:
            if manifest is None:
                raise InvalidArgument(f"archive partition {name!r} was dropped by somebody else. Leave it out.")
            return "skipped", manifest, False
        (partition,) = found
        if manifest is not None and not self._changed(partition, manifest):
            log.info("partition %s: %d messages are exported already", name, manifest.rows)
            return "skipped", manifest, True
        if manifest is not None and manifest.oid != partition.oid:
            raise ExportDiffers(
                f"{shown(self.options.target)} has an export of another partition {name!r} with other messages. "
                f"Give another target, or move that export away: {manifest_path(name)} and its files."
            )
        return "exported", self._export(conn, partition), True

    def _changed(self, partition: Partition, manifest: Manifest) -> bool:
        covered = sum(chunk.end_page - chunk.first_page for chunk in manifest.chunks)
        if manifest.columns != partition.columns or covered < partition.pages:
            return True
        files: dict[int, list[File]] = {chunk.number: [] for chunk in manifest.chunks}
        for file in manifest.files:
            files[file.chunk].append(file)
        database, target, name, read_back = self.database, self.target, partition.name, self.options.drop
        return any(
            self._on_executors(
                manifest.chunks,
                lambda chunk: differs(database, target, name, chunk, files[chunk.number], read_back=read_back),
            )
        )

    def _export(self, conn: psycopg.Connection[Any], partition: Partition) -> Manifest:
        started = time.monotonic()
        log.info("partition %s: exporting %d pages", partition.name, partition.pages)
        remove_folder(self.target, staging_folder(partition.name))
        try:
            manifest, staged = self._stage(conn, partition)
            self._publish(manifest, staged)
        finally:
            remove_folder(self.target, staging_folder(partition.name))
        rate = manifest.rows / max(0.001, time.monotonic() - started)
        log.info("partition %s: %d messages in %d files, %.0f/s", partition.name, manifest.rows, len(staged), rate)
        return manifest

    def _stage(self, conn: psycopg.Connection[Any], partition: Partition) -> tuple[Manifest, list[tuple[str, File]]]:
        """Write all files of a partition while nothing in it changes: a row that changes goes to another range."""
        for _ in range(_TRIES):
            before = versions(conn, partition)
            found = closed_partitions(conn, older_than=timedelta(0), names=[partition.name])
            if found:
                staged = self._stage_chunks(found[0])
                if versions(conn, partition) == before:
                    return self._manifest(conn, found[0], [file for _, file in staged]), staged
            log.info("partition %s changed meanwhile: exporting it anew", partition.name)
        raise ExportDiffers(
            f"archive partition {partition.name!r} changed during {_TRIES} exports. "
            "Look who changes or drops it, and export it again."
        )

    def _stage_chunks(self, partition: Partition) -> list[tuple[str, File]]:
        staging = f"{staging_folder(partition.name)}/{uuid4().hex}"
        self.target.create_dir(staging, recursive=True)
        database, target = self.database, self.target
        chunks = partition.chunks(self.options.rows_per_file)
        found = self._on_executors(chunks, lambda chunk: export_chunk(database, target, partition, chunk, staging))
        return [(path, File.from_json(file)) for files in found for path, file in files]

    def _manifest(self, conn: psycopg.Connection[Any], partition: Partition, files: list[File]) -> Manifest:
        (version,) = conn.execute("SELECT messages.schema_version()").fetchone() or (0,)
        return Manifest(
            partition=partition.name,
            oid=partition.oid,
            first_at=partition.first_at,
            end_at=partition.end_at,
            schema_version=version,
            exported_at=datetime.now(UTC),
            columns=partition.columns,
            chunks=partition.chunks(self.options.rows_per_file),
            files=tuple(sorted(files, key=lambda file: file.path)),
        )

    def _publish(self, manifest: Manifest, staged: list[tuple[str, File]]) -> None:
        """Put the files in the place of what an older export of the partition left, then make them valid."""
        old = manifest_path(manifest.partition)
        if self.target.get_file_info(old).is_file:
            self.target.delete_file(old)
            sync_folders(self.target, [old])
        for info in files_in(self.target, "data"):
            if is_file_of(manifest.partition, info.base_name):
                self.target.delete_file(info.path)
        for path, file in staged:
            move(self.target, path, file.path)
        sync_folders(self.target, [file.path for file in manifest.files])
        manifest.save(self.target)

    def _drop(self, conn: psycopg.Connection[Any], manifest: Manifest) -> str | None:
        """Drop the partition; return why it is kept if it cannot be dropped now."""
        arguments = {"partition": manifest.partition, "manifest": manifest.to_json()}
        drop = Statement("drop_archive_partition", arguments, one, {"manifest": "jsonb"})
        why = "it is in use"
        for attempt in range(_TRIES_TO_DROP):
            try:
                rows = run_statement(conn, drop)
            except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected):
                time.sleep(random.uniform(0.1, 0.3) * (attempt + 1))
            except (UndecidedMessages, ExportDiffers) as error:
                why = str(error)
                break
            else:
                log.info("partition %s: dropped with %d messages", manifest.partition, rows)
                return None
        log.warning("partition %s was not dropped: %s", manifest.partition, why)
        return why

    def _on_executors(self, chunks: tuple[Chunk, ...], work: Callable[[Chunk], Any]) -> list[Any]:
        """Return what the work gives for each chunk, of the attempt that Spark counts; ExportError for a bad target."""
        if not chunks:
            return []

        def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                for number in batch.column(0).to_pylist():
                    yield pa.RecordBatch.from_pydict({"report": [_report(work, chunks[number])]})

        tasks = min(len(chunks), self.options.max_connections)
        rows = self.spark.range(0, len(chunks), 1, tasks).mapInArrow(task, "report string").collect()
        reports = [json.loads(row.report) for row in rows]
        for report in reports:
            if "refused" in report:
                raise OSError(report["refused"])
            if "differs" in report:
                raise ExportDiffers(report["differs"])
        return [report["done"] for report in reports]


def _report(work: Callable[[Chunk], Any], chunk: Chunk) -> str:
    try:
        return json.dumps({"done": work(chunk)}, default=_plain)
    except OSError as error:  # of the target: to try again would not help
        return json.dumps({"refused": error.strerror or str(error)})
    except ExportDiffers as error:
        return json.dumps({"differs": str(error)})


def _plain(value: Any) -> Any:
    return asdict(value) if isinstance(value, File) else value.isoformat()


@contextmanager
def _clear(target: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ExportError(
            f"target {shown(target)!r} cannot be used: {error.strerror or error}. "
            "Nothing was dropped that is not exported. Make room, or grant the right to write there, and run it again."
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
@click.option("--rows-per-file", type=click.IntRange(1, _MOST_ROWS), default=100_000, show_default=True, help="About.")
@click.option("--max-connections", type=click.IntRange(1), default=8, show_default=True, help="That read at once.")
@click.option("--run-id", help="A run that finished under this name is not done again. Default: a new name.")
@on_spark
def command(spark: SparkSession, database: Database, run_id: str | None, **options: Any) -> Summary:
    """Write closed partitions of the archive as Parquet, and drop them with --drop.

    What is exported and unchanged is skipped.
    """
    return export(spark, ExportOptions(run_id=run_id or new_run_id("export"), **options), database)
