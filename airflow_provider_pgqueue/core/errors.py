"""The error tree, and the one table that maps what PostgreSQL raises to it.

PgQueueError
 +-- QueueError
 |    +-- QueueNotFound       no such queue
 |    +-- QueuePaused         nothing can be leased from it now
 |    +-- InvalidQueueName    no queue can have this name
 |    +-- QueueNotEmpty       it has messages and may not be dropped
 |    +-- Unroutable          the topic reaches no queue
 +-- InvalidArgument          a number, duration or result out of range
 |    +-- InvalidOutcome      a handler returned something that is not an outcome
 +-- InvalidMessage           the body cannot be stored as JSON
 |    +-- MessageTooLarge     the body is larger than the queue allows, or the headers than 64 kB
 +-- DispatchNotFound         the run has no dispatch, or another run has its messages
 +-- BeforeArchive            older than what the archive keeps
 +-- StageIncomplete         rows that were staged are gone; nothing was published
 +-- ExportError              an export of the archive cannot be written or read
 |    +-- ExportDamaged       its manifest is incomplete
 |    +-- ExportDiffers       it differs from the archive
 |    +-- OpenDeadMessages    the partition has open dead messages
 |    +-- ForeignPartition    another role owns it
 +-- InUse                    transactions of others held a lock for seconds, or wait for this one; nothing was changed
 +-- TransactionTooLarge      it would lock more than the server has room for
 +-- HandlerBroken            a handler fails on nearly every message, or hangs; consuming stopped
 +-- TransactionLeftOpen      a handler returned inside a transaction on the connection of its consumer
 +-- LeaseLost                somebody else may have the messages now; nothing was changed
 +-- SchemaError
 |    +-- SchemaMissing       the schema `messages` is not installed
 |    +-- SchemaTooOld        upgrade the schema
 |    +-- ForeignSchema       the schema `messages` is not ours, or older than the first release
 |    +-- SchemaTooNew        upgrade the package
 +-- PermissionDenied         the role lacks a privilege
 +-- CronUnavailable          there is no pg_cron in this database
 +-- ConnectionFailed         no connection, or it broke, or the server cannot do it now: another try may succeed

Each message names the value and the fix. The error of the driver stays the cause.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any, Final

import psycopg

from airflow_provider_pgqueue.core.privilege import fix_of, lacking
from airflow_provider_pgqueue.core.quantity import quantity


class PgQueueError(Exception):
    """The base of all errors of the queue.

    :param problem: what is wrong, without a full stop if a fix follows.
    :param fix: how to solve it; `str()` of the error is the problem and the fix.
    """

    def __init__(self, problem: str, fix: str | None = None) -> None:
        super().__init__(f"{problem}{'' if problem.endswith('?') else '.'} {fix}" if fix else problem)
        self.problem = problem
        self.fix = fix

    def __reduce__(self) -> tuple[Any, ...]:
        # For pickle and copy, which would give the text to a class that takes something else, such as LeaseLost.
        return _again, (type(self), self.args), self.__dict__

    def at(self, place: str) -> None:
        """Prefix the problem with its place, for callers with several databases or queues."""
        self.problem = f"{place}: {self.problem}"
        self.args = (f"{place}: {self}",)


def _again(kind: type[PgQueueError], texts: tuple[str, ...]) -> PgQueueError:
    return kind.__new__(kind, *texts)


class QueueError(PgQueueError):
    """The base of the errors that concern one queue."""


class QueueNotFound(QueueError):
    """No queue has this name."""


class QueuePaused(QueueError):
    """The queue is paused: nothing can be leased, but publishing continues."""


class InvalidQueueName(QueueError):
    """The name breaks the rule for queue names."""


class QueueNotEmpty(QueueError):
    """The queue has unfinished messages, so it is only dropped with `force`."""


class Unroutable(QueueError):
    """No queue is bound to the topic: nothing was published."""


class BeforeArchive(PgQueueError):
    """The time is before the oldest that the archive keeps."""


class ExportError(PgQueueError):
    """An export of the archive cannot be written or read."""


class ExportDamaged(ExportError):
    """The manifest of an export is incomplete, so the valid files are unknown."""


class ExportDiffers(ExportError):
    """An export differs from the archive: nothing was dropped."""


class OpenDeadMessages(ExportError):
    """An archive partition has open dead messages: it was not dropped."""


class ForeignPartition(ExportError):
    """An archive partition belongs to another role: it was not dropped."""


class InvalidArgument(PgQueueError, ValueError):
    """An argument is out of range."""


class InvalidOutcome(InvalidArgument):
    """A handler returned something that is not an outcome: a bug of the handler, which costs no message an attempt."""


class InvalidMessage(PgQueueError, ValueError):
    """A body cannot be stored as JSON."""


class MessageTooLarge(InvalidMessage):
    """A body is larger than the queue allows, or the headers than 64 kB."""


class DispatchNotFound(PgQueueError):
    """No messages were dispatched to the run, or another has or has finished them."""


class StageIncomplete(PgQueueError):
    """Rows that tasks had staged are gone: nothing was published."""


class InUse(PgQueueError):
    """Transactions of others held a needed lock for seconds, or wait for this one.

    Nothing was changed, and another try may succeed: of the call, or of the whole transaction where it has others.
    """


class TransactionTooLarge(PgQueueError):
    """A transaction would lock more than the server has room for; the hint says what to set or how many to do."""


class LeaseLost(PgQueueError):
    """The lease ended before the call: another consumer may have the messages; the call changed nothing for them.

    :param ids: the messages that were lost; the others of the call, if any, were done.
    """

    def __init__(self, ids: Collection[int]) -> None:
        self.ids = tuple(sorted(ids))
        shown = ", ".join(map(str, self.ids[:10])) + (", …" if len(self.ids) > 10 else "")
        super().__init__(
            f"the lease of {quantity(len(self.ids))} ended: {shown}",
            "Lease for longer, or extend the lease while you work.",
        )


class HandlerBroken(PgQueueError):
    """A handler fails on nearly every message with one error, or its calls hang: consuming stopped."""


class TransactionLeftOpen(PgQueueError):
    """A handler returned inside a transaction on the connection of its consumer: it was rolled back."""

    def __init__(self) -> None:
        super().__init__(
            "the handler left a transaction open on the connection of the consumer, which was rolled back",
            "Commit it before returning, as `with conn.transaction():` does.",
        )


class SchemaError(PgQueueError):
    """The schema is missing, or this package cannot work with its version."""


class SchemaMissing(SchemaError):
    """The schema is not installed in this database."""


class SchemaTooOld(SchemaError):
    """The schema is older than this package needs."""


class ForeignSchema(SchemaError):
    """The schema `messages`, or something in it, is not ours, or it is older than the first release."""


class SchemaTooNew(SchemaError):
    """The schema is newer than this package knows."""


class PermissionDenied(PgQueueError):
    """The role of the connection may not do this."""


class CronUnavailable(PgQueueError):
    """pg_cron cannot run maintenance for this database."""


class ConnectionFailed(PgQueueError):
    """PostgreSQL could not be reached, refused the connection, or the connection broke: another try may succeed.

    Also when a pooler gave the session of another client, with other prepared statements, when the server is read-only
    or lacks a resource, and when a time limit, a deadlock or an isolation level ended the transaction.
    """


_BY_SQLSTATE: dict[str, type[PgQueueError]] = {
    "PQ001": QueueNotFound,
    "PQ002": QueuePaused,
    "PQ003": InvalidQueueName,
    "PQ004": InvalidArgument,
    "PQ005": MessageTooLarge,
    "PQ006": CronUnavailable,
    "PQ008": Unroutable,
    "PQ010": QueueNotEmpty,
    "PQ012": StageIncomplete,
    "PQ013": ExportDiffers,
    "PQ014": OpenDeadMessages,
    "PQ015": ForeignPartition,
    "PQ016": InUse,
    "PQ017": DispatchNotFound,
    "PQ018": TransactionTooLarge,
    "PQ019": ForeignSchema,
    "42501": PermissionDenied,  # insufficient_privilege
    "3F000": SchemaMissing,  # invalid_schema_name
    "22P02": InvalidMessage,  # invalid_text_representation: not JSON
    "22P05": InvalidMessage,  # untranslatable_character: \u0000
    "22021": InvalidMessage,  # character_not_in_repertoire
    "54000": InvalidMessage,  # program_limit_exceeded: too large for jsonb
    "54001": InvalidMessage,  # statement_too_complex: nested too deep
    "23514": InvalidArgument,  # check_violation: a result in outcomes
    "22007": InvalidArgument,  # invalid_datetime_format: a text for a duration or time
    "22008": InvalidArgument,  # datetime_field_overflow
    "22015": InvalidArgument,  # interval_field_overflow
    "22003": InvalidArgument,  # numeric_value_out_of_range
}
# duplicate_prepared_statement and invalid_sql_statement_name; the statement did not run.
_OF_A_POOLER: Final = ("42P05", "26000")
INSTALL: Final = "Run pgqueue install, the setup DAG, or psql -f sql/install.sql."
UPGRADE: Final = "Upgrade airflow-provider-pgqueue."
_REFUSED_PARAMETER: Final = (
    "Leave it out of the connection and set it with ALTER ROLE: PgBouncer would silently drop what "
    "ignore_startup_parameters names."
)
# PgBouncer gives all its refusals the same SQLSTATE, 08P01: only the words tell them apart.
_FIXES_BY_WORDS: Final[dict[str, str]] = {
    "unsupported startup parameter": _REFUSED_PARAMETER,
    "query_wait_timeout": "All sessions of the pool were busy: find who keeps transactions open (SHOW CLIENTS in "
    "PgBouncer), or raise its default_pool_size, and try again.",
    "max_client_conn": "Raise max_client_conn of PgBouncer, or open fewer connections, and try again.",
    "server_login_retry": "PgBouncer cannot log in to the server, and its log says why; it tries again after "
    "server_login_retry.",
    "client_login_timeout": "PgBouncer cannot reach the server, and its log says why; try again.",
    "client_idle_timeout": "Raise client_idle_timeout of PgBouncer above the poll interval, and try again.",
    "idle transaction timeout": "Raise idle_transaction_timeout of PgBouncer, or commit sooner, and try again.",
    "query timeout": "Raise query_timeout of PgBouncer, and try again.",
    "statement pooling": "Set pool_mode of PgBouncer to transaction for this database or user.",
}
READ_ONLY: Final = "the server is read-only: a standby, or default_transaction_read_only is on"
TO_THE_PRIMARY: Final = "Connect to the primary, for example with target_session_attrs=read-write."
# The connection may be sound, but the server ended this transaction, or refuses to write: another try may succeed.
_TRANSIENT: Final[dict[str, str]] = {
    "25006": TO_THE_PRIMARY,  # read_only_sql_transaction
    "25P03": "Raise idle_in_transaction_session_timeout for this role, or commit sooner, and try again.",
    "25P04": "Raise transaction_timeout for this role, or commit sooner, and try again.",
    "40001": "Repeat the transaction; keep default_transaction_isolation at read committed for this role.",
    "40P01": "Repeat the transaction; the log of the server has both statements of the deadlock.",
    "55P03": "Try again; pg_blocking_pids() names who holds the lock. If this role sets it, raise lock_timeout.",
    "57014": "Try again, or raise statement_timeout for this role, unless somebody canceled it.",
    "57P05": "Raise idle_session_timeout for this role, or close a connection that waits for long, and try again.",
}
_FIXES: dict[type[PgQueueError], str] = {
    SchemaMissing: INSTALL,
    InvalidMessage: "Publish JSON without NaN, Infinity, NUL characters (\\u0000) and halves of surrogate pairs, "
    "nested less than a thousand deep.",
}
_FIXES_BY_SQLSTATE: Final[dict[str, str]] = {
    "22P02": "Give each argument a value of its type.",
    "22007": "Give a duration such as '5 minutes', or a time such as '2026-01-31 12:00+00'.",
    "22008": "Give a time that PostgreSQL can store.",
    "22003": "Give numbers in the range of their type; in JSON write one of more than 131,072 digits as a text.",
}


def translate(error: Exception) -> Exception:
    """Return the PgQueueError for an error of the driver; an error that has none is returned as it is.

    The driver's error, which stays the cause, loses what may quote a body; its `diag` keeps it.
    """
    if not isinstance(error, psycopg.Error):
        return error
    _forget_values(error)
    state, text = error.sqlstate, text_without_values(error)
    if state in _BY_SQLSTATE:
        # A value that is not JSON has another fix than a value that is not a number.
        kind = InvalidArgument if state == "22P02" and "json" not in text else _BY_SQLSTATE[state]
        own = state.startswith("PQ") or kind is PermissionDenied
        fix = (error.diag.message_hint if own else None) or _FIXES.get(kind) or _FIXES_BY_SQLSTATE.get(state)
        if kind is PermissionDenied and fix is None and (group := lacking(text)):
            fix = f"Ask an admin for messages_{group}."
        return kind(text, fix)
    if state is None and (isinstance(error, psycopg.DataError) or str(error).startswith("cannot adapt")):
        # The driver refused it before it was sent.
        return InvalidArgument(
            f"an argument cannot be sent: {error}", "Give text without NUL and numbers in their range."
        )
    if state == "42883":  # undefined_function: the driver chooses the type of a number by its size
        fix = f"Give numbers in the range of their type; if they are, the schema has another version. {INSTALL}"
        return InvalidArgument(text, fix)
    if state in _OF_A_POOLER:
        return ConnectionFailed(
            f"{text}: a pooler gave the session of another client",
            "Set prepare_threshold to None where the connection is opened (none in a connection string, null in the "
            "extra of an Airflow connection), or connect without the pooler.",
        )
    if state in _TRANSIENT:
        return ConnectionFailed(f"{text}: {READ_ONLY}" if state == "25006" else text, _TRANSIENT[state])
    if state is not None and state[:2] in ("53", "58"):  # insufficient resources, system error
        return ConnectionFailed(text, "Free what the server lacks, which its log names, and try again.")
    if isinstance(error, psycopg.OperationalError) and (state is None or state[:2] in ("08", "57")):
        # Without a state the text is libpq's: a line for each host, with the question "Is the server running …?".
        text = error.diag.message_primary or " ".join(str(error).split()).rstrip(".") or text
        fix = next((fix for words, fix in _FIXES_BY_WORDS.items() if words in text), None)
        return ConnectionFailed(text, fix or "Check the connection and try again.")
    return error


def refused(
    conn: psycopg.Connection[Any] | psycopg.AsyncConnection[Any],
    error: psycopg.Error | PgQueueError,
    *,
    verb: str = "",
    wants: str | None = None,
    queue_name: Any = None,
) -> Exception:
    """Return an error as `translate` does, and of a refused privilege the statement that gives it to this login.

    :param verb: the function that was called.
    :param wants: the group role that may do what was tried, if it was not a verb.
    """
    known = translate(error)
    driver = error if isinstance(error, psycopg.Error) else error.__cause__
    # The server quotes the letter; \u0000 in JSON has the same SQLSTATE.
    if isinstance(driver, psycopg.Error) and driver.diag.source_function == "report_untranslatable_char":
        return wrong_encoding(conn) or known
    # Errors of the schema itself have their fix as a hint.
    if isinstance(known, PermissionDenied) and not (isinstance(driver, psycopg.Error) and driver.diag.message_hint):
        fix = fix_of(conn, known.problem, verb=verb, wants=wants, queue_name=queue_name)
        return known if fix is None else PermissionDenied(known.problem, fix)
    return known


def wrong_encoding(conn: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> InvalidArgument | None:
    """Return an error if this connection, which the caller opened, cannot transfer every message."""
    encoding = conn.info.parameter_status("client_encoding")
    if encoding in (None, "UTF8"):
        return None
    return InvalidArgument(
        f"client_encoding of the connection must be UTF8, not {encoding}, which lacks a letter of a message",
        "Connect with client_encoding=UTF8.",
    )


def text_without_values(error: Exception) -> str:
    """Return what the server says of an error without DETAIL and CONTEXT, which may quote a body; else its class."""
    diag = error.diag if isinstance(error, psycopg.Error) else None
    return (diag and diag.message_primary) or type(error).__name__


def _forget_values(error: psycopg.Error) -> None:
    """Take DETAIL and CONTEXT out of the text of an error, because a log prints the cause of an error too.

    DETAIL may have a row, and CONTEXT has the parameters of the statement under log_parameter_max_length_on_error.
    """
    text = str(error)
    for part in (error.diag.context, error.diag.message_detail):
        if part:
            # The label before it is in the language of the server.
            text = re.sub(rf"\n[^\n]*{re.escape(part)}", "", text)
    if text != str(error):
        error.args = (text,)


def why_again(error: Exception, *, had_one: bool = True) -> str:
    """Return in one line why something is tried again: that the connection was lost, or what the server refused.

    Without `had_one` there was no connection yet.
    """
    known = translate(error)
    driver = error if isinstance(error, psycopg.Error) else error.__cause__
    if isinstance(known, InUse) or (
        isinstance(known, ConnectionFailed) and getattr(driver, "sqlstate", None) in _TRANSIENT
    ):
        return str(known).rstrip(".")
    reason = known.problem if isinstance(known, ConnectionFailed) else type(error).__name__
    return f"{'lost the connection' if had_one else 'cannot connect yet'} ({reason})"
