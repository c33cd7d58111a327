"""One partition of the archive becomes Parquet, or stays what it is if it is exported and unchanged."""

from __future__ import annotations

import errno
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import uuid4

import psycopg
from pyarrow.fs import FileSelector, SubTreeFileSystem
from pyspark.sql import SparkSession

from airflow_provider_pgqueue.core.errors import ExportDamaged, ExportDiffers, PgQueueError
from airflow_provider_pgqueue.core.quantity import quantity, rate
from airflow_provider_pgqueue.spark.database import Database
from airflow_provider_pgqueue.spark.jobs.export.chunk import are_readable, export_chunk, for_each_chunk
from airflow_provider_pgqueue.spark.jobs.export.partition import Partition, closed_partitions, version_of
from airflow_provider_pgqueue.spark.jobs.export.replace import take_place
from airflow_provider_pgqueue.spark.jobs.exported.manifest import (
    Chunk,
    File,
    Manifest,
    Version,
    manifest_path,
    read_manifest,
    staging_folder,
)
from airflow_provider_pgqueue.spark.jobs.exported.target import remove_folder, shown
from airflow_provider_pgqueue.spark.jobs.progress import watching, watching_tasks

log = logging.getLogger(__name__)

_TRIES: Final = 3


class PartitionGone(PgQueueError):
    """Retention dropped a partition before it was exported."""

    def __init__(self, name: str) -> None:
        super().__init__(f"archive partition {name!r} was dropped by somebody else. Leave it out.")


@dataclass(frozen=True, slots=True)
class Exporter:
    """Exports partitions to a target, on the driver; with `verify` each file is read back."""

    spark: SparkSession
    database: Database
    uri: str
    target: SubTreeFileSystem
    rows_per_file: int
    at_once: int
    verify: bool

    def ensure(self, conn: psycopg.Connection[Any], name: str) -> tuple[str, Manifest, bool]:
        """Return what was done, the manifest that is valid now, and whether the partition is there."""
        try:
            manifest = read_manifest(self.target, name)
        except ExportDamaged as error:
            log.warning("partition %s: %s", name, error)
            manifest = None
        found = closed_partitions(conn, older_than=timedelta(0), names=[name])
        if not found:
            if manifest is None:
                raise PartitionGone(name)
            return "skipped", manifest, False
        (partition,) = found
        if manifest is not None and not self._is_outdated(conn, partition, manifest):
            log.info("partition %s: exported already, with %s", name, quantity(manifest.rows))
            return "skipped", manifest, True
        if manifest is not None and manifest.oid != partition.oid:
            raise ExportDiffers(
                f"{shown(self.uri)} has an export of another partition {name!r} with other messages. "
                f"Give another target, or move that export away: {manifest_path(name)} and its files."
            )
        manifest = self._export(conn, partition, older=manifest)
        if self.verify and not self._is_readable(manifest):
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
        return self.verify and not self._is_readable(manifest)

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
                raise PartitionGone(partition.name)
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
        chunks = partition.chunks(self.rows_per_file)
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

    def _for_each(self, chunks: tuple[Chunk, ...], work: Callable[[Chunk], Any]) -> list[Any]:
        return for_each_chunk(self.spark, chunks, work, at_once=self.at_once)
