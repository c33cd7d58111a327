"""The export of the archive in this process, and what the target has already."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, TypeVar

import adbc_driver_manager as adbc
import pyarrow as pa

from airflow_provider_pgqueue.core.argument import check, several, whole
from airflow_provider_pgqueue.core.duration import Duration
from airflow_provider_pgqueue.core.progress import watching
from airflow_provider_pgqueue.core.quantity import quantity
from airflow_provider_pgqueue.export.connection import Database, translated
from airflow_provider_pgqueue.export.exporter import NAME, RULES, Exporter, Summary, Until
from airflow_provider_pgqueue.export.manifest import all_manifests
from airflow_provider_pgqueue.export.target import Target

log = logging.getLogger(__name__)

_RULES: Final = {**RULES, "parallelism": whole(1, 64)}
_Item = TypeVar("_Item")
_Done = TypeVar("_Done")


def export_archive(
    dsn: str | None = None,
    *,
    target: str,
    parallelism: int = 4,
    older_than: Duration = timedelta(0),
    partitions: Sequence[str] = (),
    drop: bool = False,
    until: Until = "completed",
) -> Summary:
    """Write completed partitions of the archive as Parquet, verify them, drop them if wanted; return what was done.

    This is the `export` of `airflow_provider_pgqueue.spark`, with threads of this process in place of tasks: the files,
    the manifests, the promises and the summary are the same, and each continues what the other began. No run is
    recorded: call it again after a crash, and what is exported and unchanged is skipped.

    :param dsn: Connection string; by default `PGQUEUE_DSN`, or libpq's own variables.
    :param target: Path or URI (file, s3, gs, hdfs) of a folder.
    :param parallelism: How many threads read from PostgreSQL and write files at once; each buffers up to 64 MB of rows.
    :param older_than: Only partitions whose time ended at least this long ago.
    :param partitions: Only these, whatever their age.
    :param drop: Drop each partition after its export was compared with it.
    :param until: `now` also exports what is in partitions that still take messages; these are not dropped, and exported
        again when they have changed. By default such partitions are in `waiting` of the summary, with the reason.
    :raises InvalidArgument: for a partition that does not exist, or is not completed.
    :raises ExportError: if the target cannot be written; ExportDiffers if a partition changes all the time.
    """
    check(locals(), _RULES)
    names = several("partitions", partitions)
    exporter = Exporter(Database(dsn or ""), Target.open(target), Threads(parallelism))
    with exporter.database.connect(NAME, check_schema=True):
        pass
    return exporter.all(older_than, names, drop=drop, until=until)


def export_files(target: str) -> list[str]:
    """Return all files of valid exports, to hand them to another program: paths on this machine, else URIs.

    Queue, result and day are in the names of their folders only. An export that comes later may remove some of them.
    ExportError if there is no export, or a manifest is damaged or of a newer version.
    """
    folder = Target.open(target)
    return [f"{folder.base}/{file.path}" for manifest in all_manifests(folder) for file in manifest.files]


@dataclass(frozen=True, slots=True)
class Threads:
    """Threads of this process, which share the work of an export. After an error none begins what is left."""

    number: int

    def __call__(self, items: Sequence[_Item], work: Callable[[_Item], _Done], doing: str = "") -> list[_Done]:
        """Return what the work returns for each item; see `ForEach`."""
        done: list[_Done] = []

        def log_progress() -> None:
            log.info("%s: %d of %s done", doing, len(done), quantity(len(items), "file"))

        try:
            with (
                watching(log_progress) if doing else nullcontext(),
                ThreadPoolExecutor(self.number, "pgqueue-export") as pool,
            ):
                for one in pool.map(work, items):
                    done.append(one)
        except (adbc.Error, pa.ArrowException) as error:
            raise translated(error) from None
        return done
