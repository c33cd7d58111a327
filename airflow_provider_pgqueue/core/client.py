"""What a verb is, and the two drivers that run it: one for a sync connection, one for an async one."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final, Generic, TypeVar

import psycopg
from psycopg.pq import PipelineStatus, TransactionStatus
from psycopg.rows import dict_row

from airflow_provider_pgqueue.core.errors import InvalidMessage, LeaseLost, translate
from airflow_provider_pgqueue.core.message import Row

T = TypeVar("T")
ZERO: Final = timedelta(0)
_JSON_LITERALS: Final = json.JSONEncoder(allow_nan=False, ensure_ascii=False, separators=(",", ":"))


@dataclass(frozen=True, slots=True)
class Statement(Generic[T]):
    """A call of one function of schema `messages`; `decode` makes the result of all its rows.

    What is not `durable` may be undone by a crash of the server: docs/decisions/0015-leases-are-not-flushed.md.
    """

    function: str
    arguments: Mapping[str, Any]
    decode: Callable[[list[Row]], T]
    types: Mapping[str, str] = field(default_factory=dict)
    durable: bool = True

    @property
    def sql(self) -> str:
        """The text to run: named arguments, so that the functions may grow new ones; NULL leaves the default."""
        return f"SELECT * FROM {self._call}"  # noqa: S608 names from this module only

    @property
    def sql_alone(self) -> str:
        """The text for a transaction of its own, whose commit need not wait for the disk unless it is durable."""
        if self.durable:
            return self.sql
        return f"SELECT found.* FROM set_config('synchronous_commit', 'off', true), {self._call} found"  # noqa: S608

    @property
    def _call(self) -> str:
        named = ", ".join(
            f'"{name}" => %({name})s' + (f"::{self.types[name]}" if name in self.types else "") for name in self.given
        )
        return f"messages.{self.function}({named})"

    @property
    def given(self) -> dict[str, Any]:
        """The arguments that are not left to the default of the function."""
        return {name: value for name, value in self.arguments.items() if value is not None}


def run(conn: psycopg.Connection[Any], statement: Statement[T]) -> T:
    """Return what the statement gives, in the caller's transaction if one is open.

    Raises an error of the tree in `errors`; LeaseLost after the rest of the call took effect.
    """
    try:
        with conn.cursor(row_factory=dict_row) as cursor:
            rows = cursor.execute(_text(conn, statement), statement.given).fetchall()
    except psycopg.Error as error:
        raise translate(error) from error
    return statement.decode(rows)


async def run_async(conn: psycopg.AsyncConnection[Any], statement: Statement[T]) -> T:
    """Do the same on an async connection."""
    try:
        async with conn.cursor(row_factory=dict_row) as cursor:
            await cursor.execute(_text(conn, statement), statement.given)
            rows = await cursor.fetchall()
    except psycopg.Error as error:
        raise translate(error) from error
    return statement.decode(rows)


def _text(conn: psycopg.Connection[Any] | psycopg.AsyncConnection[Any], statement: Statement[Any]) -> str:
    # In a pipeline several statements may share a transaction.
    pgconn = conn.pgconn
    alone = conn.autocommit and pgconn.transaction_status == TransactionStatus.IDLE
    return statement.sql_alone if alone and pgconn.pipeline_status == PipelineStatus.OFF else statement.sql


class JsonText(str):
    """JSON that is text already: it goes to PostgreSQL as it is, so that no number loses a digit.

    Whoever makes one has checked that it is JSON.
    """

    __slots__ = ()


def to_json(body: Any) -> str:
    """Return a body as JSON text; raise InvalidMessage with the reason, without the body, if it is none."""
    if isinstance(body, JsonText):
        return str(body)
    try:
        text = _JSON_LITERALS.encode(body)
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidMessage("a body has a lone surrogate. Publish text that is valid Unicode.") from error
    except ValueError as error:
        raise InvalidMessage(
            f"a body is not JSON: {_reason(error)}. Replace NaN and Infinity, and break cycles."
        ) from error
    except TypeError as error:
        raise InvalidMessage(
            f"a body is not JSON: {error}. Convert it to str, int, float, bool, None, list or dict."
        ) from error
    except RecursionError as error:
        raise InvalidMessage("a body is nested too deep. Flatten it.") from error
    return text


def _reason(error: ValueError) -> str:
    return str(error).split(":", 1)[0]


def nothing(rows: list[Row]) -> None:
    return None


def only(row: Row) -> Any:
    (value,) = row.values()
    return value


def one(rows: list[Row]) -> Any:
    return only(rows[0])


def only_row(rows: list[Row]) -> Row:
    (row,) = rows
    return row


def onlys(rows: list[Row]) -> list[Any]:
    return [only(row) for row in rows]


def ids_of(rows: list[Row]) -> list[int]:
    return onlys(rows)


def list_of(kind: Callable[..., T]) -> Callable[[list[Row]], list[T]]:
    """Decode rows whose columns are the fields of a class."""
    return lambda rows: [kind(**row) for row in rows]


def messages_of(kind: Callable[..., T]) -> Callable[[list[Row]], list[T]]:
    """Decode rows with the JSON of a message, which is the column `message` in SQL and `body` in Python."""
    return lambda rows: [kind(body=row.pop("message"), **row) for row in rows]


def unless_lost(ids: Collection[int]) -> Callable[[list[Row]], list[int]]:
    """Decode ids; raise LeaseLost for those that were asked for and did not come back."""

    def decode(rows: list[Row]) -> list[int]:
        done = ids_of(rows)
        if lost := set(ids) - set(done):
            raise LeaseLost(lost)
        return done

    return decode
