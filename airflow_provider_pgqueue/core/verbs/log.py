"""The archive as a log, in the order of transactions."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_provider_pgqueue.core.message import Row
from airflow_provider_pgqueue.core.statement import Statement, only_row


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
