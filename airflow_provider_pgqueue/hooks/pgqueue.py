"""Opens the connections that everything else uses, installs the queue, and runs its verbs."""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import Any, Final, TypeVar, Unpack, cast, overload
from uuid import UUID

import psycopg
from airflow.providers.common.compat.sdk import AirflowNotFoundException
from airflow.providers.postgres.hooks.postgres import PostgresHook
from psycopg.rows import tuple_row

from airflow_provider_pgqueue.core import connection, installation, verbs
from airflow_provider_pgqueue.core.client import require, run
from airflow_provider_pgqueue.core.connection import conninfo_of
from airflow_provider_pgqueue.core.consumer.lease import Lease
from airflow_provider_pgqueue.core.consumer.loop import NEEDED
from airflow_provider_pgqueue.core.duration import Duration
from airflow_provider_pgqueue.core.errors import InvalidArgument, PermissionDenied, PgQueueError, SchemaError
from airflow_provider_pgqueue.core.message import BatchOptions, Options
from airflow_provider_pgqueue.core.outcome import Failed, Rejected, Success
from airflow_provider_pgqueue.core.thread import in_thread
from airflow_provider_pgqueue.core.verbs import Statement
from airflow_provider_pgqueue.hooks.connection_id import CONNECTION_STRING, NAME_IT

log = logging.getLogger(__name__)

T = TypeVar("T")
Connection = psycopg.Connection[Any]
_LONGEST_NAME: Final = 63  # bytes that PostgreSQL keeps of application_name


class PgQueueHook(PostgresHook):
    """Runs verbs of the queue through the connection `pgqueue_conn_id`, of type `pgqueue` or `postgres`.

    It supports everything that `PostgresHook` does (IAM and Azure tokens, SSL, service files). If the connection goes
    through a pooler, its extra `listen_conn_id` names a direct one to the same database, on which to wait; the extra
    `prepare_threshold` says whether statements are prepared, by default only without a pooler.
    Before its first verb the hook checks the version of the schema. Errors are PgQueueErrors.

    The everyday verbs are methods. `run` runs any verb of `core.verbs`: `hook.run(verbs.requeue_dead("orders"))`.
    """

    conn_name_attr = "pgqueue_conn_id"
    default_conn_name = "pgqueue_default"
    conn_type = "pgqueue"
    hook_name = "PostgreSQL message queue"
    ignored_extra_options = PostgresHook.ignored_extra_options | {"listen_conn_id"}
    _version_checked = False
    _may_consume = False

    @classmethod
    def get_ui_field_behaviour(cls) -> dict[str, Any]:
        """Return what the form of a connection shows on Airflow 3.1; later versions read the provider's information."""
        from airflow_provider_pgqueue.get_provider_info import get_provider_info

        (kind,) = get_provider_info()["connection-types"]
        return {"hidden_fields": [], **kind["ui-field-behaviour"]}

    @classmethod
    def get_connection(cls, conn_id: str) -> Any:
        """Return an Airflow connection; AirflowNotFoundException, with the fix, if there is none of this name."""
        with _defined(conn_id):
            return super().get_connection(conn_id)

    @classmethod
    async def aget_connection(cls, conn_id: str) -> Any:
        """Return what `get_connection` does, without blocking the event loop."""
        with _defined(conn_id):
            return await super().aget_connection(conn_id)

    def connect(self, *, check: bool = True) -> Connection:
        """Return a new autocommit psycopg 3 connection, which `with` closes; ConnectionFailed if it cannot be opened.

        Raises SchemaMissing, SchemaTooOld or SchemaTooNew unless `check` is False.
        """
        check = check and not self._version_checked
        with self._named(PgQueueError):
            conn = connection.connect(**self.connection_arguments(), check_schema=check)
        self._version_checked = self._version_checked or check
        return conn

    def connection_arguments(self) -> dict[str, Any]:
        """Return the arguments for `psycopg.connect`, with tokens and SSL, for async code and other programs."""
        arguments = self._postgres_arguments()
        # The extra `cursor` is about the rows of `get_conn`; the verbs bring their own.
        arguments.pop("row_factory", None)
        return {"application_name": _application_name()} | arguments

    def conninfo(self) -> str:
        """Return a libpq connection string, with secrets, for the environment of another program."""
        # The other program chooses its own application_name.
        arguments = self.connection_arguments() | {"application_name": None}
        given = {name: value for name, value in arguments.items() if value is not None or name == "prepare_threshold"}
        return conninfo_of(given)

    async def _aconnection_arguments(self) -> dict[str, Any]:
        """Return the arguments for `psycopg.AsyncConnection.connect` without blocking the event loop.

        The Airflow connection is read again each time, so that a changed password is used.
        """
        self._connection = await self.aget_connection(self.get_conn_id())
        # The rest masks secrets and may fetch a token from a cloud, which blocks.
        return await in_thread(self.connection_arguments)

    async def aconnect(self) -> psycopg.AsyncConnection[Any]:
        """Return a new autocommit async connection."""
        return await connection.connect_async(**await self._aconnection_arguments())

    async def alisten_arguments(self) -> dict[str, Any]:
        """Return the arguments of a connection on which notifications arrive, without blocking the event loop.

        They are those of `listen_conn_id` if the extra names one.
        """
        self._connection = await self.aget_connection(self.get_conn_id())
        extra = await in_thread(lambda: self.connection_extra)
        arguments: dict[str, Any]
        if direct := extra.get("listen_conn_id"):
            arguments = await type(self)(direct)._aconnection_arguments()
        else:
            arguments = await in_thread(self.connection_arguments)
        return arguments | {"application_name": extra.get("application_name") or "pgqueue:listener"}

    def get_conn(self) -> Any:
        """Return a connection as `PostgresHook` opens it, for methods of the base class such as `get_records`."""
        arguments = self._postgres_arguments()
        self.conn = super()._create_connection(arguments)
        if isinstance(self.conn, psycopg.Connection) and "prepare_threshold" not in arguments:
            # No check for a pooler here, because its query would begin the caller's transaction.
            self.conn.prepare_threshold = None
        return self.conn

    def _postgres_arguments(self) -> dict[str, Any]:
        if self.connection.conn_type not in (self.conn_type, PostgresHook.conn_type):
            raise InvalidArgument(
                f"connection {self.get_conn_id()!r} is of type {self.connection.conn_type!r}. "
                "Give one of type pgqueue or postgres."
            )
        return cast("dict[str, Any]", super().get_conn())

    def _create_connection(self, conn_args: dict[str, Any]) -> Any:
        # get_conn of the base class ends here, with finished arguments: hand them back instead of connecting.
        return conn_args

    def test_connection(self) -> tuple[bool, str]:  # type: ignore[override]  # the base class does not say its type
        """Connect and check the schema; return whether that worked, and a sentence for the user."""
        try:
            with self.connect() as conn:
                version, mode = connection.current_version(conn), run(conn, verbs.maintenance_mode())
        except (PgQueueError, psycopg.Error) as error:
            return False, str(error)
        return True, f"Connected. Schema messages has version {version}; maintenance by {mode}."

    def install(
        self, queues: str | Sequence[str | Mapping[str, Any]] = (), *, conn: Connection | None = None, **options: Any
    ) -> dict[str, Any]:
        """Install or upgrade the queue with the `options` of `core.install`, and return what was done."""
        with self._session(conn, check=False) as session:
            summary = installation.install(session, queues, **options)
        self.log.info("the queue %s: %s", "would be installed" if options.get("dry_run") else "is installed", summary)
        return summary

    @overload
    def run(self, sql: Statement[T], *, conn: Connection | None = None) -> T: ...
    @overload
    def run(self, sql: str | Iterable[str], *args: Any, **kwargs: Any) -> Any: ...
    def run(self, sql: Statement[T] | str | Iterable[str], *args: Any, **kwargs: Any) -> Any:
        """Run any verb of `core.verbs` and return its result; plain SQL runs as in `PostgresHook.run`.

        With `conn` the verb runs on that connection, inside its transaction if one is open: it takes effect together
        with the caller's own statements, or not at all. Without it the verb has taken effect when this returns.
        """
        if not isinstance(sql, Statement):
            return super().run(sql, *args, **kwargs)
        with self._session(**kwargs) as session:
            return run(session, sql)

    def publish(self, queue_name: str, body: Any, *, conn: Connection | None = None, **options: Unpack[Options]) -> int:
        """Publish one message and return its id, or a Duplicate if its dedup key is remembered."""
        with self._session(conn) as session:
            return run(session, verbs.publish(queue_name, body, **options))

    def publish_batch(
        self, queue_name: str, bodies: Iterable[Any], *, conn: Connection | None = None, **options: Unpack[BatchOptions]
    ) -> list[int]:
        """Publish many messages, all or none, and return their ids in order."""
        with self._session(conn) as session:
            return run(session, verbs.publish_batch(queue_name, bodies, **options))

    def lease(
        self,
        queue_name: str,
        *,
        max_messages: int = 1,
        lease_for: Duration | None = None,
        locked_by: str | None = None,
        conn: Connection | None = None,
    ) -> Lease:
        """Lease ready messages for a `with` block.

        Without `lease_for` a lease lasts as long as the policy of the queue says.
        The lease is renewed while the block runs. At the end of the block, messages that were not settled are archived
        as success, or released if the block raised.
        Without `conn` the lease opens a connection of its own, and closes it at the end of the block.
        """
        statement = verbs.lease(
            queue_name,
            max_messages=max_messages,
            lease_for=lease_for,
            locked_by=locked_by,
        )
        with ExitStack() as stack:
            session = stack.enter_context(self._session(conn))
            if not self._may_consume:
                require(session, NEEDED, queue_name)
                self._may_consume = True
            messages = run(session, statement)
            # The session outlives this call only where there is something to hold.
            opened = stack.pop_all() if messages else ExitStack()
        return _HookLease(session, messages, lease_for=lease_for, handled_by=locked_by, opened=opened)

    def archive(
        self,
        lock_token: UUID,
        ids: Collection[int],
        *,
        result: str = "success",
        details: str | None = None,
        outcomes: Mapping[int, Success | Rejected | Failed] | None = None,
        conn: Connection | None = None,
    ) -> list[int]:
        """Archive leased messages with a result; `outcomes` gives single ids an outcome of their own.

        LeaseLost has the ids of those that were lost; the others are archived.
        """
        statement = verbs.archive(lock_token, ids, result=result, details=details, outcomes=outcomes)
        return self.run(statement, conn=conn)

    @contextmanager
    def _session(self, conn: Connection | None = None, *, check: bool = True) -> Iterator[Connection]:
        """Give the caller's connection, or one of our own that is closed at the end, after checking the schema."""
        if conn is not None:
            if check:
                self._check_version(conn)
            yield conn
            return
        with self.connect(check=check) as own, self._named(PermissionDenied, SchemaError):
            yield own

    @contextmanager
    def _named(self, *kinds: type[PgQueueError]) -> Iterator[None]:
        """Name the Airflow connection in errors of these kinds."""
        try:
            yield
        except kinds as error:
            error.at(f"Airflow connection {self.get_conn_id()!r}")
            raise

    def _check_version(self, conn: Connection) -> None:
        if self._version_checked:
            return
        # The caller's connection may give rows of another kind.
        rows, conn.row_factory = conn.row_factory, tuple_row
        try:
            connection.check_version(conn)
        finally:
            conn.row_factory = rows
        self._version_checked = True


class _HookLease(Lease):
    """A lease that closes at its end what the hook opened for it."""

    def __init__(self, *args: Any, opened: ExitStack, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._opened = opened

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with self._opened:
            super().__exit__(kind, error, traceback)


@contextmanager
def _defined(conn_id: str) -> Iterator[None]:
    if CONNECTION_STRING.search(conn_id):
        raise AirflowNotFoundException(f"the id of an Airflow connection is a URI or a connection string. {NAME_IT}")
    try:
        yield
    except AirflowNotFoundException as error:
        raise AirflowNotFoundException(
            f"Airflow has no connection {conn_id!r}. Define it, of type pgqueue or postgres: under Admin > Connections,"
            f" or as AIRFLOW_CONN_{conn_id.upper()}. Or give the id of another one."
        ) from error


def _application_name() -> str:
    """Return a name for the session: that of the task that runs in this process, if any."""
    names = [os.environ.get(f"AIRFLOW_CTX_{part}_ID") for part in ("DAG", "TASK")]
    name = "pgqueue:" + ".".join(filter(None, names)) if any(names) else "pgqueue"
    return name.encode()[:_LONGEST_NAME].decode(errors="ignore")
