"""Opens the connections that everything else uses, and gives the verbs of the queue to tasks."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, cast

import psycopg
from airflow.providers.postgres.hooks.postgres import PostgresHook
from psycopg.conninfo import make_conninfo
from psycopg.rows import tuple_row

from airflow_provider_pgqueue.core import connection, verbs
from airflow_provider_pgqueue.core.client import run
from airflow_provider_pgqueue.core.errors import CronUnavailable, InvalidArgument, PermissionDenied, PgQueueError
from airflow_provider_pgqueue.core.migrations import check_version, current_version, migrate
from airflow_provider_pgqueue.core.roles import check_owner, grant_group, leave_out_roles
from airflow_provider_pgqueue.hooks.verbs import Connection, QueueVerbs

_LONGEST_NAME: Final = 63  # bytes that PostgreSQL keeps of application_name


class PgQueueHook(QueueVerbs, PostgresHook):
    """Works with the queue through a connection of type `pgqueue` or `postgres`.

    What `PostgresHook` knows (IAM and Azure tokens, SSL, service files) works here. The extra `listen_conn_id` names a
    direct connection to the same database for those who wait, where this one goes through a pooler. Before its first
    verb a hook checks that the schema in the database fits this package. Errors are those of `core.errors`.

    :param pgqueue_conn_id: the Airflow connection of the database that holds the queue.
    """

    conn_name_attr = "pgqueue_conn_id"
    default_conn_name = "pgqueue_default"
    conn_type = "pgqueue"
    hook_name = "PostgreSQL message queue"
    ignored_extra_options = PostgresHook.ignored_extra_options | {"listen_conn_id"}

    def __init__(self, pgqueue_conn_id: str = default_conn_name, **kwargs: Any) -> None:
        super().__init__(pgqueue_conn_id=pgqueue_conn_id, **kwargs)
        self._version_checked = False

    # Connections ------------------------------------------------------------------------------------------------------

    def connect(self, *, check: bool = True) -> Connection:
        """Return a new autocommit psycopg 3 connection, which `with` closes; ConnectionFailed if none is to be had.

        Raises SchemaMissing, SchemaTooOld or SchemaTooNew unless `check` is False.
        """
        conn = connection.connect(**self.connection_arguments())
        if check:
            try:
                self._check_version(conn)
            except BaseException:
                conn.close()
                raise
        return conn

    def connection_arguments(self) -> dict[str, Any]:
        """Return what `psycopg.connect` needs, tokens and SSL included: for async code and other programs."""
        arguments = self._postgres_arguments()
        # The extra `cursor` is about the rows of `get_conn`; the verbs bring their own.
        arguments.pop("row_factory", None)
        return {"application_name": _application_name()} | arguments

    def conninfo(self) -> str:
        """Return the same as a libpq connection string, secrets included: for the environment of another program."""
        arguments = self.connection_arguments() | {"application_name": None}
        return make_conninfo("", **{name: value for name, value in arguments.items() if value is not None})

    async def aconnection_arguments(self) -> dict[str, Any]:
        """Do the same without blocking the event loop; asks for the Airflow connection anew each time."""
        self._connection = await self.aget_connection(self.get_conn_id())
        # The rest masks secrets and may fetch a token from a cloud, and both block.
        return await asyncio.to_thread(self.connection_arguments)

    async def aconnect(self, **arguments: Any) -> psycopg.AsyncConnection[Any]:
        """Return a new autocommit async connection; `arguments` override those of the Airflow connection."""
        return await connection.connect_async(**(await self.aconnection_arguments() | arguments))

    async def aconnect_to_listen(self) -> psycopg.AsyncConnection[Any]:
        """Return an async connection on which notifications arrive: by `listen_conn_id` where there is one."""
        self._connection = await self.aget_connection(self.get_conn_id())
        extra = await asyncio.to_thread(lambda: self.connection_extra)
        direct = type(self)(extra["listen_conn_id"]) if extra.get("listen_conn_id") else self
        return await direct.aconnect(application_name=extra.get("application_name") or "pgqueue:listener")

    def get_conn(self) -> Any:
        """Return a connection as `PostgresHook` makes it, for its own methods such as `get_records`."""
        self.conn = super()._create_connection(self._postgres_arguments())
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
        """Connect, check the schema, and say who does the upkeep."""
        try:
            with self.connect() as conn:
                version, mode = current_version(conn), run(conn, verbs.upkeep_mode())
        except (PgQueueError, psycopg.Error) as error:
            return False, str(error)
        return True, f"Connected. Schema messages has version {version}; upkeep by {mode}."

    # Installation -----------------------------------------------------------------------------------------------------

    def install(
        self,
        queues: Iterable[str | Mapping[str, Any]] = (),
        *,
        cron: bool | None = None,
        roles: bool | None = None,
        grants: Mapping[str, str | Iterable[str]] | None = None,
        queue_grants: Mapping[str, Mapping[str, str | Iterable[str]]] | None = None,
        conn: Connection | None = None,
    ) -> dict[str, Any]:
        """Install or upgrade the schema, create queues, and let pg_cron do the upkeep where there is one.

        Twice does no harm. Returns schema_version, migrations_applied, queues_created and upkeep_mode, which is
        `pg_cron` or `airflow`; in the second case the upkeep operator has to run every minute.

        :param queues: names, or arguments of `create_queue`, which are applied to a queue that exists, too.
        :param cron: True raises CronUnavailable where there is no pg_cron; False removes its jobs.
        :param roles: True raises PermissionDenied where the group roles cannot be made; False makes none.
        :param grants: users by group role, such as `{"publisher": ["shop"], "consumer": ["packer"]}`.
        :param queue_grants: users by queue and privilege, such as `{"orders": {"consume": ["packer"]}}`; those users
            reach no other queue.
        """
        with self._connected(conn) as session:
            applied = _migrate(session, roles)
            created = [_name(queue) for queue in queues if _create(session, queue)]
            _grant(session, grants or {}, queue_grants or {})
            self._install_cron(session, cron)
            summary = {
                "schema_version": current_version(session),
                "migrations_applied": applied,
                "queues_created": created,
                "upkeep_mode": run(session, verbs.upkeep_mode()),
            }
        self.log.info("the queue is installed: %s", summary)
        return summary

    def _install_cron(self, session: Connection, wanted: bool | None) -> None:
        if wanted is False:
            run(session, verbs.uninstall_cron())
            return
        try:
            with session.transaction():
                run(session, verbs.install_cron())
        except (CronUnavailable, PermissionDenied) as error:
            if wanted:
                raise
            self.log.info("no upkeep through pg_cron: %s", error)

    # For the verbs ----------------------------------------------------------------------------------------------------

    @contextmanager
    def _session(self, conn: Connection | None) -> Iterator[Connection]:
        """Give the caller's connection, or one of our own that is closed at the end, to a schema that fits."""
        with self._connected(conn) as session:
            self._check_version(session)
            yield session

    @contextmanager
    def _connected(self, conn: Connection | None) -> Iterator[Connection]:
        if conn is not None:
            yield conn
            return
        with self.connect(check=False) as own:
            yield own

    def _check_version(self, session: Connection) -> None:
        if self._version_checked:
            return
        # The caller's connection may give rows of another kind.
        rows, session.row_factory = session.row_factory, tuple_row
        try:
            check_version(session)
        finally:
            session.row_factory = rows
        self._version_checked = True


def _name(queue: str | Mapping[str, Any]) -> str:
    return queue if isinstance(queue, str) else queue["queue_name"]


def _create(session: Connection, queue: str | Mapping[str, Any]) -> bool:
    policy = {} if isinstance(queue, str) else {key: value for key, value in queue.items() if key != "queue_name"}
    if run(session, verbs.create_queue(_name(queue), **policy)):
        return True
    if policy:
        run(session, verbs.alter_queue(_name(queue), **policy))
    return False


def _migrate(session: Connection, roles: bool | None) -> list[int]:
    with session.transaction():
        if roles is False:
            leave_out_roles(session)
        applied = migrate(session)
        if roles:
            check_owner(session)
    return applied


def _grant(
    session: Connection,
    grants: Mapping[str, str | Iterable[str]],
    queue_grants: Mapping[str, Mapping[str, str | Iterable[str]]],
) -> None:
    for group, users in grants.items():
        grant_group(session, group, users)
    for queue_name, privileges in queue_grants.items():
        for privilege, users in privileges.items():
            for user in [users] if isinstance(users, str) else users:
                run(session, verbs.grant_queue(queue_name, user, privilege))


def _application_name() -> str:
    """Name the session after the task that runs in this process, if one does."""
    names = [os.environ.get(f"AIRFLOW_CTX_{part}_ID") for part in ("DAG", "TASK")]
    name = "pgqueue:" + ".".join(filter(None, names)) if any(names) else "pgqueue"
    return name.encode()[:_LONGEST_NAME].decode(errors="ignore")
