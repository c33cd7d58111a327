"""Finding finished messages."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime

from airflow_provider_pgqueue.core.message import MessageOutcome, OutcomeCount, Row
from airflow_provider_pgqueue.core.statement import Statement, list_of


def message_outcomes(
    ids: Collection[int], *, follow_requeues: bool = False, with_output: bool = False
) -> Statement[list[MessageOutcome]]:
    """Return what became of messages, in the order of their ids.

    With `follow_requeues`, a requeued message has the outcome of the last message that repeats it, and an open dead
    message is not finished.
    """
    return Statement("message_outcomes", locals(), list_of(MessageOutcome))


def outcome_counts(
    ids: Collection[int] | None = None,
    *,
    reference: str | None = None,
    queue_name: str | None = None,
    follow_requeues: bool = False,
) -> Statement[list[OutcomeCount]]:
    """Return how many messages ended with each result: of these ids, or with this reference, in one queue or all.

    By reference, a message that was requeued counts as the one that repeats it. `follow_requeues` is that of
    `message_outcomes`.
    """
    return Statement("outcome_counts", locals(), list_of(OutcomeCount))


def search_messages(
    queue_name: str | None = None,
    *,
    reference: str | None = None,
    state: str | None = None,
    fingerprint: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    max_messages: int = 100,
    message_id: int | None = None,
    after_id: int | None = None,
    after_place: datetime | None = None,
) -> Statement[list[Row]]:
    """Find messages, unfinished and archived, without their bodies.

    :param state: ready, delayed, leased, done, dead (only open dead messages), or a result.
    :param after_id: with `after_place`, the `id` and `place` of the last row of a list of one state, to continue it.
    """
    return Statement("search_messages", locals(), _found)


def _found(rows: list[Row]) -> list[Row]:
    for row in rows:
        row["queue_name"] = row.pop("message_queue")
        row |= {name: row.pop(f"message_{name}") for name in ("state", "reference", "topic")}
    return rows
