"""Closed partitions of the archive become Parquet; with `drop`, a partition that was compared with it is dropped."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from itertools import count
from typing import Any, Final

import psycopg
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from airflow_provider_pgqueue.core import verbs
from airflow_provider_pgqueue.core.argument import check, duration
from airflow_provider_pgqueue.core.client import ZERO, run
from airflow_provider_pgqueue.core.errors import ConnectionFailed, ExportDiffers, ExportError, InvalidArgument
from airflow_provider_pgqueue.core.query import query
from airflow_provider_pgqueue.spark.failure import raised_in_spark
from airflow_provider_pgqueue.spark.jobs.export.exporter import Exporter, PartitionGone
from airflow_provider_pgqueue.spark.jobs.export.partition import closed_partitions, drop_partition
from airflow_provider_pgqueue.spark.jobs.exported.manifest import (
    Manifest,
    are_of_several_exports,
    files_by_partition,
    read_manifest,
    remove_others,
    staging_folder,
)
from airflow_provider_pgqueue.spark.jobs.exported.target import open_target, remove_folder, shown
from airflow_provider_pgqueue.spark.jobs.job import Job, Summary

log = logging.getLogger(__name__)

_DROPPED: Final = "dropped"


def export(
    spark: SparkSession,
    *,
    target: str,
    run_id: str | None = None,
    dsn: str | None = None,
    parallelism: int | None = None,
    older_than: timedelta = ZERO,
    partitions: Sequence[str] = (),
    drop: bool = False,
) -> Summary:
    """Write closed partitions of the archive as Parquet, verify them, drop them if wanted.

    A partition is exported all or not at all: it counts from when its manifest is there. After a crash run it again;
    what is exported and unchanged is skipped. Before a partition is dropped, its files are read back, and PostgreSQL
    compares the md5 of what they have with that of its rows; if they differ, it is exported anew, once. A partition
    that cannot be dropped now stands in `kept` of the summary with the reason; nothing of it is lost. One that somebody
    else drops before it is exported is left out, unless it was asked for by name.

    :param target: Path or URI (file, s3, gs, hdfs) of a folder that driver and executors reach.
    :param older_than: Only partitions whose time ended at least so long ago.
    :param partitions: Only these, whatever their age.
    :param drop: Drop each partition after its export was compared with it.
    :raises InvalidArgument: for a partition that does not exist or is not closed.
    :raises ExportError: if the target cannot be written; ExportDiffers if a partition changes all the time.
    """
    if not target:
        raise InvalidArgument("target is empty. Give a path, or a URI of file, s3, gs or hdfs.")
    check({"older_than": older_than}, {"older_than": duration(ZERO, timedelta(days=36_500))})
    job = Job.of(spark, "export", run_id, dsn, parallelism)
    exporter = Exporter(job, target, open_target(target))
    return job.once(_Export(exporter, older_than, partitions, drop).summary)


@dataclass(frozen=True, slots=True)
class _Export:
    """One export, on the driver."""

    exporter: Exporter
    older_than: timedelta
    partitions: Sequence[str]
    drop: bool

    def summary(self) -> Summary:
        """Do all that is to be done and return what it was: partitions, rows, bytes, files, seconds."""
        with _clear(self.exporter.uri):
            return self._all()

    def _all(self) -> Summary:
        started = time.monotonic()
        done: dict[str, list[Manifest]] = {"exported": [], "skipped": [], "dropped": []}
        kept: dict[str, str] = {}
        found = files_by_partition(self.exporter.target)
        names = self._names()
        self._tidy({name: paths for name, paths in found.items() if name not in names})
        for name in names:
            try:
                what, manifest, why = self._one(name, found.get(name, ()))
            except PartitionGone as error:
                if name in self.partitions:
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
            "rows": sum(manifest.rows for manifest in done["exported"]),
            "bytes": sum(manifest.bytes for manifest in done["exported"]),
            "files": sum(len(manifest.files) for manifest in done["exported"]),
            "seconds": round(time.monotonic() - started, 3),
        }

    def _one(self, name: str, found: Sequence[str]) -> tuple[str, Manifest, str]:
        """Export a partition, and drop it if wanted; return what was done, the manifest, and what became of it."""
        with self._alone(name) as lock, self.exporter.job.connect() as conn:
            for anew in (False, True):
                what, manifest, present = self.exporter.ensure(conn, lock, name, anew=anew)
                remove_others(self.exporter.target, manifest, found)
                if not (present and self.drop):
                    return what, manifest, ""
                try:
                    why = self._drop(conn, manifest)
                    break
                except ExportDiffers as error:  # a row changed since, or a file was damaged or replaced
                    why = str(error)
                    log.warning("partition %s: %s", name, why)
            return what, manifest, why

    def _names(self) -> list[str]:
        """Return the partitions to export; those that are asked for by name, also if they were dropped already."""
        with self.exporter.job.connect() as conn:
            found = closed_partitions(conn, older_than=self.older_than, names=self.partitions)
            names = [partition.name for partition in found]
            for name in self.partitions:
                if name not in names:
                    if read_manifest(self.exporter.target, name) is None:
                        run(conn, verbs.archive_checksums(name, 0, 0))  # raises what is wrong with the name
                    names.append(name)
        return names

    def _tidy(self, found: Mapping[str, list[str]]) -> None:
        """Remove what a killed export left of partitions that this run does not export."""
        for name, paths in found.items():
            if are_of_several_exports(paths):
                with self._alone(name):
                    try:
                        manifest = read_manifest(self.exporter.target, name)
                    except ExportError as error:
                        log.warning("partition %s: %s", name, error)
                        continue
                    if manifest is not None:
                        remove_folder(self.exporter.target, staging_folder(name))
                        remove_others(self.exporter.target, manifest, paths)

    @contextmanager
    def _alone(self, name: str) -> Iterator[psycopg.Connection[Any]]:
        """Wait until no other export works on the partition, and keep the others waiting.

        The lock is of a transaction that stays open and does nothing else: a pooler leaves its session to nobody else.
        It has no number and no snapshot, so that it holds back neither the vacuum nor the log.
        """
        with self.exporter.job.connect() as conn:
            for waited in count():
                with conn.transaction():
                    if conn.execute(query("lock_export"), [name]).fetchone() == (True,):
                        yield conn
                        return
                if waited % 10 == 0:
                    log.info("partition %s: waiting for another export of it", name)
                time.sleep(1)  # and not in PostgreSQL, where it would hold a snapshot

    def _drop(self, conn: psycopg.Connection[Any], manifest: Manifest) -> str:
        """Drop the partition if its export stands where it was put and has its rows; return what became of it."""
        md5s = [md5 for md5 in self.exporter.checksums(manifest) if md5 is not None]
        if len(md5s) < len(manifest.files):
            raise ExportDiffers(f"the export of {manifest.partition!r} cannot be read back. See the log for its files.")
        if not manifest.is_in_place(self.exporter.target):
            return "somebody else changed its export meanwhile"
        try:
            return drop_partition(conn, manifest, md5s) or _DROPPED
        except InvalidArgument:
            if closed_partitions(conn, names=[manifest.partition]):
                raise
            return "somebody else dropped it meanwhile"


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
