"""What is finished."""

from __future__ import annotations

from datetime import datetime

from airflow_provider_pgqueue.core.message import Archived
from airflow_provider_pgqueue.core.verbs.statement import Statement, list_of, nothing


def search_archive(
    queue_name: str | None = None,
    *,
    id: int | None = None,
    reference: str | None = None,
    result: str | None = None,
    fingerprint: str | None = None,
    archived_from: datetime | None = None,
    archived_to: datetime | None = None,
    max_messages: int = 100,
) -> Statement[list[Archived]]:
    """Find finished messages, newest first, without their bodies. BeforeArchive for a time that is not kept."""
    return Statement("search_archive", dict(locals()), list_of(Archived.from_row))


def partition_archive(partition_by: str) -> Statement[None]:
    """Make the partitions of the archive by `day` or by `month` from now on."""
    return Statement("partition_archive", dict(locals()), nothing)
