"""One partition of the archive becomes Parquet, or stays as it is if it is exported and unchanged.

At each moment the older export or the new one is whole and valid. The files of each export have names of their own: the
new ones are placed beside the old ones, then the manifest is replaced, and only then the old ones go. An export that is
killed in between leaves files that no manifest names.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final
from uuid import uuid4

import psycopg
from pyarrow.fs import FileSelector, SubTreeFileSystem

from airflow_provider_pgqueue.core.errors import ExportDamaged, ExportDiffers, PgQueueError
from airflow_provider_pgqueue.core.quantity import quantity, rate
from airflow_provider_pgqueue.spark.jobs.export.chunk import checksum_of, export_chunk
from airflow_provider_pgqueue.spark.jobs.export.partition import Partition, closed_partitions
from airflow_provider_pgqueue.spark.jobs.exported.manifest import (
    File,
    Manifest,
    Version,
    manifest_path,
    read_manifest,
    remove_others,
    staging_folder,
)
from airflow_provider_pgqueue.spark.jobs.exported.target import move, remove_folder, shown, sync_folders
from airflow_provider_pgqueue.spark.jobs.job import Job
from airflow_provider_pgqueue.spark.jobs.tasks import for_each, watching, watching_tasks

log = logging.getLogger(__name__)

_TRIES: Final = 3


class PartitionGone(PgQueueError):
    """Retention dropped a partition before it was exported."""

    def __init__(self, name: str) -> None:
        super().__init__(f"archive partition {name!r} was dropped by somebody else. Leave it out.")


@dataclass(frozen=True, slots=True)
class Exporter:
    """Exports partitions to a target, on the driver."""

    job: Job
    uri: str
    target: SubTreeFileSystem

    def ensure(
        self, conn: psycopg.Connection[Any], lock: psycopg.Connection[Any], name: str, *, anew: bool = False
    ) -> tuple[str, Manifest, bool]:
        """Return what was done, the manifest that is valid now, and whether the partition is there.

        :param lock: the session that keeps other exports of the partition waiting.
        :param anew: export it though there is an export that seems to be current.
        """
        remove_folder(self.target, staging_folder(name))
        try:
            manifest = read_manifest(self.target, name)
        except ExportDamaged as error:
            log.warning("partition %s: %s", name, error)
            manifest = None
        found = closed_partitions(conn, names=[name])
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
                f"{shown(self.uri)} has an export of another partition {name!r} with other messages. "
                f"Give another target, or move that export away: {manifest_path(name)} and its files."
            )
        older, manifest = manifest, self._export(conn, lock, partition)
        if older is not None:
            remove_others(self.target, manifest, [file.path for file in older.files])
        return "exported", manifest, True

    def _is_current(self, conn: psycopg.Connection[Any], partition: Partition, manifest: Manifest) -> bool:
        """Return whether the partition is as it was exported, and the files of that are there in their full size."""
        covered = sum(chunk.end_page - chunk.first_page for chunk in manifest.chunks)
        return (
            (manifest.oid, manifest.columns) == (partition.oid, partition.columns)
            and covered >= partition.pages
            and manifest.has_all_files(self.target)
            and partition.version(conn) == manifest.version
        )

    def checksums(self, manifest: Manifest) -> list[str | None]:
        """Read all files back, on the executors, and return the md5 of the rows of each; None for a damaged one."""
        target = self.target
        with watching_tasks(self.job.spark, f"partition {manifest.partition}, reading back"):
            return self._for_each(manifest.files, lambda file: checksum_of(target, file))

    def _export(self, conn: psycopg.Connection[Any], lock: psycopg.Connection[Any], partition: Partition) -> Manifest:
        started = time.monotonic()
        log.info("partition %s: exporting %d pages", partition.name, partition.pages)
        try:
            manifest, staged = self._stage(conn, partition)
            for path, file in staged.items():
                move(self.target, path, file.path)
            sync_folders(self.target, [file.path for file in manifest.files])
            # If the session of the lock broke, another export may be at work by now.
            lock.execute("SELECT")
            manifest.save(self.target)
        finally:
            remove_folder(self.target, staging_folder(partition.name))
        speed = rate(manifest.rows, time.monotonic() - started)
        log.info(
            "partition %s: %s in %s, %s", partition.name, quantity(manifest.rows), quantity(len(staged), "file"), speed
        )
        return manifest

    def _stage(self, conn: psycopg.Connection[Any], partition: Partition) -> tuple[Manifest, dict[str, File]]:
        """Write all files of a partition, again if a row changed meanwhile: it may have moved to another range."""
        for _ in range(_TRIES):
            found = closed_partitions(conn, names=[partition.name])
            if not found:
                raise PartitionGone(partition.name)
            manifest, staged = self._stage_chunks(found[0])
            if partition.version(conn) == manifest.version:
                return manifest, staged
            log.info("partition %s changed meanwhile: exporting it anew", partition.name)
        raise ExportDiffers(
            f"archive partition {partition.name!r} changed during {_TRIES} exports. "
            "Look who changes or drops it, and export it again."
        )

    def _stage_chunks(self, partition: Partition) -> tuple[Manifest, dict[str, File]]:
        """Write the files once; return their manifest, and the files by where they are staged."""
        name = uuid4().hex
        folder = staging_folder(partition.name, name)
        self.target.create_dir(folder, recursive=True)
        database, target, chunks = self.job.database, self.target, partition.chunks()
        with watching(lambda: self._say(partition, folder, len(chunks))):
            done = self._for_each(chunks, lambda chunk: export_chunk(database, target, partition, chunk, name))
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

    def _say(self, partition: Partition, folder: str, chunks: int) -> None:
        """Say how far the tasks are: what they wrote is all that the driver sees before they end."""
        found = self.target.get_file_info(FileSelector(folder))
        begun = len({info.base_name.partition("-")[0] for info in found})
        megabytes = sum(info.size for info in found) / 1e6
        log.info("partition %s: %d of %d parts in files, %.1f MB", partition.name, begun, chunks, megabytes)

    def _for_each(self, items: Sequence[Any], work: Callable[[Any], Any]) -> list[Any]:
        # To try again would not help against an error of the target.
        job = self.job
        return for_each(
            job.spark, items, work, at_once=job.parallelism, is_final=lambda each: isinstance(each, OSError)
        )
