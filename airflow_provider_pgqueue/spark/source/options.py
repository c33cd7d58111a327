"""Checks the options of a read, a write or a stream, and answers the names that people bring from other sources."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_pgqueue.core.argument import moment_or_text, queue_name
from airflow_provider_pgqueue.core.errors import InvalidArgument, InvalidQueueName, QueueNotFound
from airflow_provider_pgqueue.core.query import query

if TYPE_CHECKING:
    import psycopg

_OF_SPARK: Final = frozenset({"checkpointlocation", "queryname"})  # what it hands on to the sink of a stream

# The fix for options of Kafka, JDBC and files that this source does not take.
_INSTEAD: Final = {
    "Use maxMessagesPerTrigger.": "maxOffsetsPerTrigger maxRecordsPerTrigger maxFilesPerTrigger",
    "Use numPartitions.": "minPartitions",
    "Use queue.": "subscribe assign",
    "Use queue, with names separated by commas; or topic, with a pattern.": "subscribePattern",
    "Use queue, or a column topic in the rows.": "topic",
    "A stream is known by its checkpoint.": "group.id kafka.group.id groupIdPrefix",
    "Name headers in columns.": "includeHeaders",
    "A stream of the archive starts at startingOffsets; a batch read takes since and until.": (
        "since until from to startingTimestamp endingTimestamp startingOffsets endingOffsets"
    ),
    "Use table, which is archive or queue; and queue for the names of queues.": "dbtable",
    "Use table, and where for a condition.": "query",
    "Use where for a condition that PostgreSQL applies.": "pushDownPredicate pushFilters predicates",
    "A read cuts its ranges itself; numPartitions is how many at most.": "partitionColumn lowerBound upperBound",
    "A read is cut into statements by itself; a stream takes maxMessagesPerTrigger.": "fetchsize",
    "Rows are published in transactions of any size; maxConnections is how many tasks write at once.": "batchsize",
    "Use maxConnections, which is how many tasks write at once.": "numPartitions",
    "Rows are published in one transaction.": "isolationLevel",
    "A queue cannot be overwritten.": "truncate",
    "Give the connection to register(spark, conninfo) or in PGQUEUE_DSN: it belongs in no option.": (
        "url host port user password driver bootstrap.servers kafka.bootstrap.servers sessionInitStatement"
    ),
    "Call load() and save() without a path.": "path",
}
_ADVICE: Final = {name.lower(): advice for advice, names in _INSTEAD.items() for name in names.split()}


def check_names(options: Collection[str], known: Collection[str], what: str) -> None:
    """Raise InvalidArgument for an option that `what` does not take, such as one of Kafka: none is silently ignored.

    Spark writes them in lower case.
    """
    by_name = {name.lower(): name for name in known}
    for option in options:
        if option.lower() not in by_name.keys() | _OF_SPARK:
            near = get_close_matches(option.lower().replace("_", ""), by_name, n=1)
            guess = f"Did you mean {by_name[near[0]]}?" if near else ""
            hint = _ADVICE.get(option.lower(), guess)
            raise InvalidArgument(
                f"there is no option {option[:50]!r}. {what} takes {', '.join(known)}. {hint}".strip()
            )


def choice(options: Mapping[str, str], name: str, among: Collection[str], *, default: str | None = None) -> str:
    """Return one of the values that an option may have."""
    value = options.get(name, default)
    if value is None or value not in among:
        given = "is missing" if value is None else f"is {value[:50]!r}"
        raise InvalidArgument(f"option {name} {given}. Give one of {', '.join(among)}.")
    return value


def queues(options: Mapping[str, str]) -> list[str]:
    """Return the names in option `queue`; InvalidQueueName for one that no queue can have."""
    found = names(options, "queue")
    for name in found:
        if fix := queue_name(name):
            raise InvalidQueueName(f"option queue names {name[:50]!r}, which no queue can have as its name", fix)
    return found


def check_queues(conn: psycopg.Connection[Any], queue_names: Sequence[str]) -> None:
    """Raise QueueNotFound for a name that no queue has: a misspelt one would otherwise be an empty result."""
    if not queue_names:
        return
    if row := conn.execute(query("unknown_queue"), {"queue_names": list(queue_names)}).fetchone():
        raise QueueNotFound(
            f"queue {row[0]!r} does not exist",
            f"Check its spelling. What a dropped queue has left in the archive comes with option where: "
            f"queue_name = '{row[0]}'.",
        )


def number(options: Mapping[str, str], name: str, default: int, *, at_most: int = 2**31 - 1) -> int:
    """Return a whole number of at least 1."""
    text = options.get(name, str(default))
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= at_most):
        raise InvalidArgument(f"option {name} is {text[:50]!r}. Give a whole number from 1 to {at_most}.")
    return int(text)


def moment(name: str, text: str, *, others: str = "") -> datetime:
    """Return the time in an option, ISO 8601 with its time zone; an error names `others`, which it may be too."""
    if moment_or_text(text):
        raise InvalidArgument(
            f"option {name} is {text[:50]!r}. Give {others}a time with its time zone, such as 2026-01-31T00:00:00Z."
        )
    return datetime.fromisoformat(text)


def names(options: Mapping[str, str], name: str, among: Collection[str] = ()) -> list[str]:
    """Return what stands between commas, each one of `among` if there are any; nothing if the option is not given."""
    value = options.get(name)
    if value is None:
        return []
    found = [part.strip() for part in value.split(",")]
    if not all(found):
        raise InvalidArgument(f"option {name} is {value[:50]!r}, with an empty name. Separate names by one comma.")
    for one in found:
        if among and one not in among:
            raise InvalidArgument(f"option {name} names {one[:50]!r}. Give some of {', '.join(among)}.")
    return found
