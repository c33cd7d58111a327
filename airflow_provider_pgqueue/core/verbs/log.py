"""The archive as a log, in the order of transactions."""

from __future__ import annotations

from airflow_provider_pgqueue.core.client import Statement, only_row
from airflow_provider_pgqueue.core.message import Row


def archive_log_end() -> Statement[Row]:
    """Return where the log begins and ends now, and which transaction holds the end back."""
    return Statement("archive_log_end", {}, only_row)


def split_archive_log(
    from_xid: int, before_xid: int, *, max_messages: int | None = None, max_steps: int = 1000
) -> Statement[list[Row]]:
    """Split a range of the log into steps of whole transactions, of up to `max_messages` each."""
    return Statement("split_archive_log", dict(locals()), list)
