"""What a verb is, and the two drivers that run it: one for a sync connection, one for an async one."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import partial
from typing import Any, Final, Generic, TypeVar
from uuid import UUID

import psycopg
from psycopg import generators
from psycopg.abc import Params
from psycopg.pq import PipelineStatus, TransactionStatus
from psycopg.pq.abc import PGresult
from psycopg.rows import RowFactory, dict_row

from airflow_provider_pgqueue.core.duration import as_timedelta
from airflow_provider_pgqueue.core.errors import InvalidArgument, InvalidMessage, LeaseLost, refused
from airflow_provider_pgqueue.core.message import Duplicate, Row

log = logging.getLogger(__name__)

T = TypeVar("T")
ZERO: Final = timedelta(0)
_UNREADABLE: Final = ("22P02", "22007", "22008", "22003", "22015")
_PATIENCE: Final = 5.0  # seconds for the server to take a cancel, as the driver grants after Ctrl-C


def _as_text(value: Any) -> str:
    """Return the text of a value that JSON has no type for, with all its digits."""
    if isinstance(value, date | time):  # a datetime is a date
        return value.isoformat()
    if isinstance(value, Decimal) and not value.is_finite():
        raise ValueError("Out of range float values are not JSON compliant")
    if isinstance(value, UUID | Decimal):
        return str(value)
    raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")


_JSON_LITERALS: Final = json.JSONEncoder(allow_nan=False, ensure_ascii=False, separators=(",", ":"), default=_as_text)
ZONED: Final = "Give a datetime with a time zone, such as datetime(2027, 1, 1, tzinfo=UTC)."
DURATIONS: Final = {
    "audit_for", "backoff_first", "backoff_max", "days_for", "dedup_window", "delay", "expires_in", "handler_timeout",
    "held_for", "hours_for", "lease_for", "minutes_for", "older_than", "period", "rate_period", "retention",
    "retry_after", "step", "waiting_for",
}  # fmt: skip
"""The arguments of verbs that are durations."""
TYPES: Final = {
    name: type_
    for type_, names in {
        "bigint[]": "dispatch_ids ids",
        "text[]": "dedup_keys failed_tasks fingerprints group_keys names queue_names references results topics",
        "jsonb": "arguments causes failure headers manifest message messages outcomes output partitions rows summary"
        " weights winner winners",
    }.items()
    for name in names.split()
}
"""The arguments of verbs whose type the server could not tell from their values."""
_OBJECTS: Final = ("failure", "headers", "weights")  # of which no text is JSON already
_PLAIN: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,40}")
_LONGEST_PATH: Final = 200
_NUL: Final = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")


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

    @property
    def sql(self) -> str:
        """The SQL text, with named arguments, so that a function may grow new ones; None leaves the default."""
        return self._sql("")

    @property
    def sql_alone(self) -> str:
        """The SQL text for a transaction of its own, whose commit does not wait for the disk unless it is durable."""
        # In the same statement, because BEGIN, SET LOCAL and COMMIT would be three more round trips.
        return self._sql("" if self.durable else "pg_catalog.set_config('synchronous_commit', 'off', true), ")

    def _sql(self, before: str) -> str:
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
    if isinstance(value, date) and not is_zoned(value):
        # Each session would read it in its own time zone.
        raise InvalidArgument(f"{name} is {value!r}", ZONED)
    if isinstance(value, int | float) and name in DURATIONS:
        try:
            return as_timedelta(value)
        except ValueError as error:
            raise InvalidArgument(f"{name} is {value!r}", str(error)) from None
    return len(value) if _is_all_null(value) else value


def is_zoned(value: Any) -> bool:
    """Return whether this is a time that is the same for everybody: a datetime with a time zone."""
    return isinstance(value, datetime) and value.utcoffset() is not None


def _placeholder(name: str, value: Any, type_: str | None) -> str:
    # The setting array_nulls decides whether NULL in the text of an array is NULL; behind a pooler we cannot pin it.
    # So texts go in binary, and nothing but NULL, of which the driver always makes text, as its number.
    if _is_all_null(value):
        return f"pg_catalog.array_fill(NULL::{(type_ or 'text[]').removesuffix('[]')}, ARRAY[%({name})s::integer])"
    form = "b" if isinstance(value, list) and any(isinstance(item, str) for item in value) else "s"
    return f"%({name}){form}" + (f"::{type_}" if type_ else "")


def _is_all_null(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(item is None for item in value)


def run(conn: psycopg.Connection[Any], statement: Statement[T]) -> T:
    """Run a verb and return its result, inside the caller's transaction if one is open.

    Raises a PgQueueError. LeaseLost is raised after the call took effect for the messages that were not lost.
    """
    fix = partial(_translated, statement=statement)
    return statement.decode(fetch(conn, dict_row, _text(conn, statement), statement.given, fix=fix))


def fetch(
    conn: psycopg.Connection[Any],
    rows: RowFactory[T],
    text: str | bytes,
    arguments: Params,
    *,
    cursor: psycopg.Cursor[T] | None = None,
    fix: Callable[[psycopg.Connection[Any], psycopg.Error], Exception] = refused,
    late: list[PGresult] | None = None,
) -> list[T]:
    """Return the rows of a statement, in binary, inside the caller's transaction if one is open.

    Raises what `fix` makes of an error of the driver. After another exception the statement is canceled, and `late`
    gets its results, in case it had finished already.
    """
    try:
        cursor = cursor or conn.cursor(row_factory=rows)
        # A single statement needs a transaction behind a pooler whose role is not READ COMMITTED.
        if conn.isolation_level is not None and is_alone(conn):
            with conn.transaction():
                return cursor.execute(text, arguments, binary=True).fetchall()
        return cursor.execute(text, arguments, binary=True).fetchall()
    except psycopg.Error as error:
        raise fix(conn, error) from error
    except BaseException:
        results = end_statement(conn)
        if late is not None:
            late += results
        raise


def end_statement(conn: psycopg.Connection[Any]) -> list[PGresult]:
    """Cancel the statement that an exception left running; return its results, in case it had finished already.

    The driver does so after KeyboardInterrupt and SystemExit, but not after what another signal raises, such as
    AirflowTaskTimeout: no call over the connection would succeed any more, and nobody would read what this one did.
    """
    if not _is_running(conn):
        return []
    results: list[PGresult] = []
    # A thread that waits for the lock may find that the other statement has ended: then there is nothing to cancel.
    with conn.lock:
        try:
            if _is_running(conn):
                conn.cancel_safe(timeout=_PATIENCE)
                results = conn.wait(generators.execute(conn.pgconn))
        except psycopg.Error as error:
            log.warning("could not cancel a statement (%s): closing the connection", type(error).__name__)
        finally:
            if _is_running(conn):
                conn.close()
    if conn.isolation_level is not None and conn.autocommit and not is_alone(conn):
        # That of `fetch`; inside one of the caller the driver refuses.
        with suppress(psycopg.Error):
            conn.rollback()
            return []
    return results


def _is_running(conn: psycopg.Connection[Any]) -> bool:
    pgconn = conn.pgconn
    return pgconn.transaction_status == TransactionStatus.ACTIVE and pgconn.pipeline_status == PipelineStatus.OFF


async def run_async(conn: psycopg.AsyncConnection[Any], statement: Statement[T]) -> T:
    """Run a verb on an async connection and return its result, as `run` does."""
    try:
        alone = conn.isolation_level is not None and is_alone(conn)
        own = conn.transaction() if alone else nullcontext()
        async with own, conn.cursor(row_factory=dict_row, binary=True) as cursor:
            await cursor.execute(_text(conn, statement), statement.given)
            rows = await cursor.fetchall()
    except psycopg.Error as error:
        raise _translated(conn, error, statement) from error
    return statement.decode(rows)


def _translated(
    conn: psycopg.Connection[Any] | psycopg.AsyncConnection[Any], error: psycopg.Error, statement: Statement[Any]
) -> Exception:
    """Translate an error of the driver; name the argument whose number is out of range."""
    if isinstance(error, psycopg.errors.UndefinedFunction):
        for name, value in statement.given.items():
            if type(value) is int and not -(2**31) <= value < 2**31:
                return InvalidArgument(f"{name} is {value}", "Give a number in the range of its type.")
    found = refused(conn, error, verb=statement.function, queue_name=statement.given.get("queue_name"))
    if isinstance(found, InvalidArgument) and error.sqlstate in _UNREADABLE:
        # The server quotes the value, and does not say of which argument.
        quoted = [
            one for one, value in statement.given.items() if isinstance(value, str) and f'"{value}"' in str(found)
        ]
        if quoted:
            found.at(quoted[0])
    return found


def _text(conn: psycopg.Connection[Any] | psycopg.AsyncConnection[Any], statement: Statement[Any]) -> str:
    # The setting lasts to the end of the transaction, and would make the commit of other statements less durable.
    return statement.sql_alone if is_alone(conn) else statement.sql


def savepoint(conn: psycopg.Connection[Any]) -> AbstractContextManager[object]:
    """Return a savepoint in the transaction of the caller, so that it survives a refusal; nothing where there is none.

    LeaseLost must not leave it: that would undo what took effect.
    """
    # On an idle connection psycopg would begin a transaction, and commit it.
    return conn.transaction() if conn.pgconn.transaction_status == TransactionStatus.INTRANS else nullcontext()


def is_alone(conn: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> bool:
    """Return whether the next statement is a transaction of its own: not the caller's, nor part of a pipeline."""
    pgconn = conn.pgconn
    alone = conn.autocommit and pgconn.transaction_status == TransactionStatus.IDLE
    return alone and pgconn.pipeline_status == PipelineStatus.OFF


class JsonText(str):
    """A body that is JSON text already. It is sent unchanged, so that no number loses a digit.

    It is not checked: make one only of valid JSON.
    """

    __slots__ = ()


def to_json(body: Any) -> str:
    """Return a body as JSON text; InvalidMessage gives the reason, but not the body, if that is impossible.

    A datetime, date or time becomes its ISO text, a UUID or Decimal its text, with all digits.
    """
    if isinstance(body, JsonText):
        return str(body)
    try:
        text = _JSON_LITERALS.encode(body)
        # The encoder passes lone surrogates, which no connection can send.
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidMessage(
            f"the value has half of a surrogate pair{_place(body)}", "Publish text that is valid Unicode."
        ) from error
    except ValueError as error:
        text = str(error)  # after a colon, the value
        if "Circular" in text:
            raise InvalidMessage("the value is not JSON: it contains itself", "Break the cycle.") from error
        if "float" in text:
            problem = f"the value is not JSON: it has NaN or Infinity{_place(body)}"
            raise InvalidMessage(problem, "Give None or a text in its place.") from error
        raise InvalidMessage(
            f"the value is not JSON: {text.partition(':')[0]}{_place(body)}", "Give a long number as a text."
        ) from error
    except TypeError as error:
        raise InvalidMessage(
            f"the value is not JSON: {error}{_place(body)}",
            "Convert it to a text, number, bool, None, list, dict, datetime or UUID.",
        ) from error
    except RecursionError as error:
        raise InvalidMessage("the value is nested too deep. Flatten it.") from error
    except Exception as error:
        # A value of a class that computes what it holds, such as a row of a closed session.
        raise InvalidMessage(f"the value is not JSON: to convert it raised {type(error).__name__}.") from error
    return text


def all_to_json(bodies: Iterable[Any]) -> Iterator[str]:
    """Yield bodies as `to_json` does; InvalidMessage also says which one it is about."""
    for number, body in enumerate(bodies):
        try:
            text = to_json(body)
        except InvalidMessage as error:
            error.at(f"messages[{number}]")
            raise
        yield text


def _place(body: Any) -> str:
    """Return where in a body the first part is that is not JSON: `, at .lines[3].price`; nothing if it is all of it.

    A key that is not a plain name may be somebody's data, and is named by its number.
    """
    path = ""
    while len(path) < _LONGEST_PATH and (found := next(filter(_is_refused, _parts(body)), None)):
        step, body = found
        path += step
    return path and f", at {path}"


def _parts(body: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(body, dict):
        for number, (key, value) in enumerate(body.items()):
            yield (f".{key}" if isinstance(key, str) and _PLAIN.fullmatch(key) else f".(key {number + 1})"), value
    elif isinstance(body, list | tuple):
        for number, value in enumerate(body):
            yield f"[{number}]", value


def _is_refused(part: tuple[str, Any]) -> bool:
    try:
        _JSON_LITERALS.encode(part[1]).encode()
    except Exception:
        return True
    return False


def has_nul(text: str) -> bool:
    """Return whether a JSON text has a NUL in a string or key, which the database refuses to store."""
    return "\\u0000" in text and _NUL.search(text) is not None


def nothing(rows: list[Row]) -> None:
    return None


def _only(row: Row) -> Any:
    (value,) = row.values()
    return value


def one(rows: list[Row]) -> Any:
    return _only(rows[0])


def only_row(rows: list[Row]) -> Row:
    (row,) = rows
    return row


def onlys(rows: list[Row]) -> list[Any]:
    return [_only(row) for row in rows]


def ids_of(rows: list[Row]) -> list[int]:
    return onlys(rows)


def list_of(kind: Callable[..., T]) -> Callable[[list[Row]], list[T]]:
    """Return a decoder that makes each row an instance of a class, whose fields are the columns."""
    return lambda rows: [kind(**row) for row in rows]


def messages_of(kind: Callable[..., T]) -> Callable[[list[Row]], list[T]]:
    """Return a decoder like `list_of` for messages: the column `message` in SQL is the field `body` in Python."""
    return lambda rows: [kind(body=row.pop("message"), **row) for row in rows]


def ids_or_duplicates(rows: list[Row]) -> list[int]:
    return [Duplicate(row["id"]) if row["duplicate"] else row["id"] for row in rows]


def unless_lost(
    ids: Collection[int], found: Callable[[list[Row]], list[int] | None] = ids_of
) -> Callable[[list[Row]], list[int]]:
    """Return a decoder of ids that raises LeaseLost if some of `ids` did not come back; `found` reads the rows."""

    def decode(rows: list[Row]) -> list[int]:
        done = found(rows) or []
        if lost := set(ids) - set(done):
            raise LeaseLost(lost)
        return done

    return decode
