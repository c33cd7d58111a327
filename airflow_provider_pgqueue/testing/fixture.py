"""What a test gets from the fixture `pgqueue`."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from types import TracebackType
from typing import Any, Self, TypeVar

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import class_row

from airflow_provider_pgqueue.core.client import run
from airflow_provider_pgqueue.core.connection import connect
from airflow_provider_pgqueue.core.consumer.batch import Handler
from airflow_provider_pgqueue.core.consumer.loop import Consumer
from airflow_provider_pgqueue.core.duration import Duration, as_timedelta
from airflow_provider_pgqueue.core.errors import InvalidArgument
from airflow_provider_pgqueue.core.message import Message
from airflow_provider_pgqueue.core.query import query
from airflow_provider_pgqueue.core.verbs import Statement

T = TypeVar("T")
Connection = psycopg.Connection[Any]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ArchivedMessage:
    """A finished message as the archive has it, with its body."""

    id: int
    queue_name: str
    result: str
    created_at: datetime
    leased_at: datetime | None
    archived_at: datetime
    attempts: int
    handled_by: str | None
    details: str | None
    reference: str | None
    requeues: int
    requeued_from: int | None
    remedy: str | None
    remedied_at: datetime | None
    remedied_by: str | None
    requeued_as: int | None
    dismissed_for: str | None
    body_bytes: int
    topic: str | None
    group_key: str | None
    fingerprint: str | None
    output: Any
    failure: dict[str, Any] | None
    body: Any
    headers: Any

    def __repr__(self) -> str:
        """Name the message without its body, which must not reach a log."""
        return f"<ArchivedMessage {self.id} of {self.queue_name}, {self.result}>"


class PgQueueFixture:
    """A queue in a database of its own: any verb of `core.verbs` through `run`, and helpers for tests.

    The verbs and helpers use a session of their own, so they do not see what the code under test did not commit.

    :param dsn: URI of a database with the schema installed.
    """

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self._at_end = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._at_end.close()

    # Sessions ---------------------------------------------------------------------------------------------------------

    def connect(self, **arguments: Any) -> Connection:
        """Return one more psycopg session, autocommit unless `arguments` differ; closed at the end of the test."""
        conn = psycopg.connect(self.dsn, **({"autocommit": True} | arguments))
        self._at_end.callback(conn.close)
        return conn

    @cached_property
    def conn(self) -> Connection:
        """An autocommit psycopg session for the code under test."""
        return self.connect()

    @cached_property
    def _own(self) -> Connection:
        conn = connect(self.dsn, application_name="pgqueue test")
        self._at_end.callback(conn.close)
        return conn

    def run(self, statement: Statement[T], *, conn: Connection | None = None) -> T:
        """Run a verb, such as `verbs.publish("orders", {"order_id": 7})`, on a session of its own or on `conn`."""
        return run(conn or self._own, statement)

    def airflow_connection(self, conn_id: str = "pgqueue_default", **fields: Any) -> str:
        """Make this database an Airflow connection until the end of the test, and return its id.

        :param fields: override those of the connection, such as `conn_type="postgres"` or `extra={…}`.
        """
        known = conninfo_to_dict(self.dsn)
        connection = {
            "conn_type": "pgqueue",
            "host": known.pop("host", None),
            "port": int(known.pop("port", None) or 5432),
            "login": known.pop("user", None),
            "password": known.pop("password", None),
            "schema": known.pop("dbname", None),
            "extra": known | fields.pop("extra", {}),
        }
        environment = self._at_end.enter_context(pytest.MonkeyPatch.context())
        environment.setenv(f"AIRFLOW_CONN_{conn_id.upper()}", json.dumps(connection | fields))
        return conn_id

    # Consuming --------------------------------------------------------------------------------------------------------

    def drain(self, queue_name: str, *, max_messages: int | None = None) -> list[Message]:
        """Lease what is ready, archive it as success, and return it in the order of delivery."""
        delivered: list[Message] = []
        self.work(queue_name, delivered.append, max_messages=max_messages)
        return delivered

    def work(
        self, queue_name: str, handle: Handler | None = None, *, max_messages: int | None = None, **options: Any
    ) -> Counter[str]:
        """Handle what is ready as the consume operator and the worker do, and return how many had which end.

        An exception of the handler is a failed attempt, as there: it does not reach the test.

        :param options: those of `core.consumer.Consumer`, such as `handle_batch`, `batch_size`, `lease_for`.
        """
        consumer = Consumer(queue_name=queue_name, handle=handle, **({"handled_by": "pgqueue test"} | options))
        return consumer.drain(self._own, max_messages=max_messages)

    # Looking ----------------------------------------------------------------------------------------------------------

    def results(self, queue_name: str | None = None) -> dict[str, int]:
        """Return how many messages, of one queue or of all, were archived with which result."""
        return dict(self._own.execute(query("testing/results"), {"queue_name": queue_name}).fetchall())

    def archived(self, queue_name: str | None = None) -> list[ArchivedMessage]:
        """Return the finished messages, of one queue or of all, oldest end first."""
        return self._archive(queue_name, dead=False)

    def dead(self, queue_name: str | None = None) -> list[ArchivedMessage]:
        """Return the dead messages without a remedy, and leave them there."""
        return self._archive(queue_name, dead=True)

    def _archive(self, queue_name: str | None, *, dead: bool) -> list[ArchivedMessage]:
        with self._own.cursor(row_factory=class_row(ArchivedMessage), binary=True) as cursor:
            return cursor.execute(query("testing/archived"), {"queue_name": queue_name, "dead": dead}).fetchall()

    # Time -------------------------------------------------------------------------------------------------------------

    def pass_time(self, by: Duration) -> None:
        """Make it `by` later: delayed and retried messages become ready, leases and messages expire.

        No doorbell rings. `upkeep()` rings, and archives messages that have expired.
        """
        length = as_timedelta(by)
        if length < timedelta(0):
            raise InvalidArgument(f"cannot pass {by}: time goes forward. Give a positive duration.")
        with self._own.transaction():
            self._own.execute("SET LOCAL lock_timeout = '5s'")
            for (statement,) in self._own.execute(query("testing/moves_of_time")).fetchall():
                self._own.execute(statement.encode(), {"by": length})
        self._own.execute(query("testing/reset_marks"))
