"""Finding finished messages."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime

from airflow_provider_pgqueue.core.client import Statement, list_of
from airflow_provider_pgqueue.core.message import ArchivedMessage, MessageOutcome


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
) -> Statement[list[ArchivedMessage]]:
    """Find archived messages, newest first, without their bodies. BeforeArchive for a time that is not kept."""
    return Statement("search_archive", dict(locals()), list_of(ArchivedMessage))


def message_outcomes(
    ids: Collection[int], *, follow_requeues: bool = False, with_output: bool = False
) -> Statement[list[MessageOutcome]]:
    """Return what became of messages, in the order of their ids.

    With `follow_requeues`, of the latest message that repeats each; then a dead one without a remedy is not finished.
    """
    arguments = dict(locals()) | {"ids": list(ids)}
    return Statement("message_outcomes", arguments, list_of(MessageOutcome), {"ids": "bigint[]"})
