"""The partitions of the archive: how long they are, what is in them, their end."""

from __future__ import annotations

from collections.abc import Collection
from datetime import timedelta

from airflow_provider_pgqueue.core.duration import Duration
from airflow_provider_pgqueue.core.message import Row
from airflow_provider_pgqueue.core.statement import Statement, nothing, one


def partition_archive(partition_by: str) -> Statement[None]:
    """Create archive partitions by `day` or by `month` from now on."""
    return Statement("partition_archive", locals(), nothing)


def archive_partitions() -> Statement[list[Row]]:
    """List the partitions of the archive, oldest first: `partition`, from `first_at` to before `end_at`."""
    return Statement("archive_partitions", {}, list)


def closed_archive_partitions(
    *, older_than: Duration = timedelta(0), names: Collection[str] | None = None, with_open: bool = False
) -> Statement[list[Row]]:
    """List the partitions that were completed so long ago, or those with these names, with their sizes and columns.

    With `with_open` also those with messages that still take some.
    """
    return Statement("closed_archive_partitions", locals(), list)


def archive_checksums(partition: str, first_page: int, end_page: int) -> Statement[list[Row]]:
    """Return a count and a hash of the messages on some pages of a closed partition, per queue, result and UTC day."""
    return Statement("archive_checksums", locals(), list)


def drop_archive_partition(partition: str, manifest: str) -> Statement[int]:
    """Drop a closed partition that equals the manifest (JSON text) of its export; return how many messages it had.

    Raises ExportDiffers, OpenDeadMessages or ForeignPartition, and drops nothing, if it may not be dropped.
    """
    return Statement("drop_archive_partition", locals(), one)
