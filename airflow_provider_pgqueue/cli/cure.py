"""What helps against an error, in commands of this program: in place of the SQL that other callers are told."""

from __future__ import annotations

import re
from typing import Final

from airflow_provider_pgqueue.core.errors import (
    PgQueueError,
    QueueFull,
    QueueNotEmpty,
    QueueNotFound,
    QueuePaused,
    SchemaMissing,
    SchemaTooOld,
)

_CURES: Final[dict[type[PgQueueError], str]] = {
    SchemaMissing: "Install it: pgqueue install",
    SchemaTooOld: "Upgrade it: pgqueue install",
    QueueNotFound: "Create it: pgqueue queues create {queue}; or list those that exist: pgqueue queues",
    QueuePaused: "Resume it: pgqueue queues resume {queue}",
    QueueFull: "Publish later, or raise the limit: pgqueue queues alter {queue} --max-depth N",
    QueueNotEmpty: "Finish its messages, or delete them with it: pgqueue queues drop {queue} --force",
}
_QUEUE: Final = re.compile(r"queue '([\w.-]+)'")


def with_cure(error: PgQueueError) -> str:
    """Return what is wrong and the command that helps; where there is none, the error's own cure."""
    cure = _CURES.get(type(error))
    if cure is None:
        return str(error)
    named = _QUEUE.search(error.problem)
    return f"{error.problem}. {cure.format(queue=named[1] if named else 'NAME')}"
