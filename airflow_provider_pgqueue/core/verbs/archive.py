"""What became of messages, and the archive as a log, in the order of transactions."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime

from airflow_provider_pgqueue.core.message import MessageOutcome, OutcomeCount, Row
from airflow_provider_pgqueue.core.statement import Statement, list_of, only_row


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


def message_life(message_id: int) -> Statement[list[Row]]:
    """Return what is recorded of a message in the order of time, without its body; nothing if it is unknown."""
    return Statement("message_life", locals(), list)


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


def archive_log_end(*, after_removal: int = 0, queue_names: Sequence[str] | None = None) -> Statement[Row]:
    """Return where the log ends now, which transaction holds it back, and what is gone of these queues, or of all.

    Only removals after the one of the number `after_removal` count.
    """
    return Statement("archive_log_end", locals(), only_row)


def split_archive_log(
    from_xid: int,
    before_xid: int,
    *,
    max_messages: int | None = None,
    max_steps: int = 1000,
    queue_names: Sequence[str] | None = None,
) -> Statement[list[Row]]:
    """Split a range of the log into steps of whole transactions, of up to `max_messages` of these queues each."""
    return Statement("split_archive_log", locals(), list)
