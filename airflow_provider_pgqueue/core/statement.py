"""A verb as a value: the call of one function of the schema, without a connection."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from datetime import date
from typing import Any, Final, Generic, TypeVar

from airflow_provider_pgqueue.core.argument import check, moment, timed
from airflow_provider_pgqueue.core.duration import as_timedelta
from airflow_provider_pgqueue.core.errors import LeaseLost
from airflow_provider_pgqueue.core.json_text import JsonText, to_json
from airflow_provider_pgqueue.core.message import PLURALS, Duplicate, Row

T = TypeVar("T")
DURATIONS: Final = {
    "audit_for", "backoff_first", "backoff_max", "days_for", "dedup_window", "delay", "expires_in", "handler_timeout",
    "held_for", "hours_for", "lease_for", "minutes_for", "older_than", "period", "rate_period", "retention",
    "step", "waiting_for",
}  # fmt: skip
"""The arguments of verbs that are durations."""
TYPES: Final = dict.fromkeys(PLURALS.values(), "text[]") | {
    name: type_
    for type_, names in {
        "bigint[]": "dispatch_ids ids",
        "text[]": "failed_tasks fingerprints names queue_names results",
        "jsonb": "failure headers manifest message messages outcomes output summary winners",
    }.items()
    for name in names.split()
}
"""The arguments of verbs whose type the server could not tell from their values."""
_OBJECTS: Final = ("failure", "headers")  # of which no text is JSON already


@dataclass(frozen=True, slots=True)
class Statement(Generic[T]):
    """A call of one function of schema `messages`, to be run by `run` or `run_async`.

    `decode` turns the rows into the result; `columns` says what they hold of the function, which is `found`. `types`
    has what differs from `TYPES`. A crash of the server may undo a call that is not `durable`:
    docs/decisions/0015-leases-are-not-flushed.md. InvalidMessage for an object that is not JSON.
    """

    function: str
    arguments: Mapping[str, Any]
    decode: Callable[[list[Row]], T]
    types: Mapping[str, str] = field(default_factory=dict)
    durable: bool = True
    columns: str = "found.*"

    def __post_init__(self) -> None:
        arguments = {name: _plain(name, value) for name, value in self.arguments.items()}
        object.__setattr__(self, "arguments", arguments)

    def text(self, *, alone: bool = False) -> str:
        """Return the SQL, with named arguments, so that a function may grow new ones; None leaves the default.

        `alone` in its transaction, a call that is not durable does not wait for the disk at the commit.
        """
        # In the same statement, because BEGIN, SET LOCAL and COMMIT would be three more round trips. Where it is not
        # alone, it would make the statements of others less durable, too.
        before = "pg_catalog.set_config('synchronous_commit', 'off', true), " if alone and not self.durable else ""
        types = {**TYPES, **self.types}
        named = ", ".join(
            f'"{name}" => {_placeholder(name, self.arguments[name], types.get(name))}' for name in self.given
        )
        return f"SELECT {self.columns} FROM {before}messages.{self.function}({named}) found"  # noqa: S608 no text of others

    @property
    def given(self) -> dict[str, Any]:
        """The arguments that are not left to the default of the function, as the driver takes them.

        InvalidArgument for a naive time, and for a duration that is none.
        """
        return {name: _sent(name, value) for name, value in self.arguments.items() if value is not None}


def _plain(name: str, value: Any) -> Any:
    """Return an object as JSON text, and any other collection as a list."""
    if isinstance(value, Mapping) or (value is not None and name in _OBJECTS):
        return JsonText(to_json(value))
    return list(value) if isinstance(value, Collection) and not isinstance(value, str | bytes) else value


def _sent(name: str, value: Any) -> Any:
    if isinstance(value, date):
        # Each session would read a time without a time zone in its own.
        check({name: value}, {name: moment})
    if isinstance(value, int | float) and name in DURATIONS:
        check({name: value}, {name: timed})
        return as_timedelta(value)
    return len(value) if _is_all_null(value) else value


def _placeholder(name: str, value: Any, type_: str | None) -> str:
    # The setting array_nulls decides whether NULL in the text of an array is NULL; behind a pooler we cannot pin it.
    # So texts go in binary, and nothing but NULL, of which the driver always makes text, as its number.
    if _is_all_null(value):
        return f"pg_catalog.array_fill(NULL::{(type_ or 'text[]').removesuffix('[]')}, ARRAY[%({name})s::integer])"
    form = "b" if isinstance(value, list) and any(isinstance(item, str) for item in value) else "s"
    return f"%({name}){form}" + (f"::{type_}" if type_ else "")


def _is_all_null(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(item is None for item in value)


def nothing(rows: list[Row]) -> None:
    """Decode the rows of a function that returns nothing."""


def one(rows: list[Row]) -> Any:
    """Return the only value of the first row."""
    (value,) = rows[0].values()
    return value


def only_row(rows: list[Row]) -> Row:
    """Return the only row."""
    (row,) = rows
    return row


def column(rows: list[Row]) -> list[Any]:
    """Return the only value of each row."""
    return [one([row]) for row in rows]


def list_of(kind: Callable[..., T]) -> Callable[[list[Row]], list[T]]:
    """Return a decoder that makes each row an instance of a class, whose fields are the columns."""
    return lambda rows: [kind(**row) for row in rows]


def messages_of(kind: Callable[..., T]) -> Callable[[list[Row]], list[T]]:
    """Return a decoder like `list_of` for messages: the column `message` in SQL is the field `body` in Python."""
    return lambda rows: [kind(body=row.pop("message"), **row) for row in rows]


def ids_or_duplicates(rows: list[Row]) -> list[int]:
    """Return the ids, each as a Duplicate where nothing was published."""
    return [Duplicate(row["id"]) if row["duplicate"] else row["id"] for row in rows]


def unless_lost(
    ids: Collection[int], found: Callable[[list[Row]], list[int] | None] = column
) -> Callable[[list[Row]], list[int]]:
    """Return a decoder of ids that raises LeaseLost if some of `ids` did not come back; `found` reads the rows."""

    def decode(rows: list[Row]) -> list[int]:
        done = found(rows) or []
        if lost := set(ids) - set(done):
            raise LeaseLost(lost)
        return done

    return decode
