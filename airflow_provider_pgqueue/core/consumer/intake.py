"""The source of a consumer's messages: leases of a batch, alone or in the call that archives the batch before."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import partial
from typing import Any, Final
from uuid import UUID

import psycopg
from psycopg.pq import Format
from psycopg.pq.abc import PGresult
from psycopg.rows import tuple_row
from psycopg.types.json import JsonbBinaryLoader

from airflow_provider_pgqueue.core.client import fetch, is_alone, require, run
from airflow_provider_pgqueue.core.connection import JSONB
from airflow_provider_pgqueue.core.duration import Duration, as_timedelta
from airflow_provider_pgqueue.core.errors import PgQueueError, refused
from airflow_provider_pgqueue.core.json_text import read_json
from airflow_provider_pgqueue.core.message import LeasePolicy, Message
from airflow_provider_pgqueue.core.outcome import PLAIN, Failed, Rejected, Success, is_plain, outcomes_as_json
from airflow_provider_pgqueue.core.quantity import quantity
from airflow_provider_pgqueue.core.query import query
from airflow_provider_pgqueue.core.verbs.lease import release

log = logging.getLogger(__name__)

NEEDED: Final = ("lease", "abandoned", "lease_policy", "extend", "archive", "archive_and_lease", "release")
"""The functions that a consumer calls."""
_POLICY_LASTS: Final = 10.0  # seconds until a changed policy of the queue is noticed
_AT_ONCE: Final = 1_000_000  # characters of JSON that are read together: a second copy in memory
_VERSION: Final = b"\1"  # that the driver expects before the text of a jsonb in binary

_Cursor = psycopg.RawCursor[tuple[Any, ...]]


class Intake:
    """The messages of one queue, as one consumer takes them over one connection.

    It sends three statements again and again, with one cursor, and reads their rows by position: for ten messages a
    call of `run` takes longer in Python than in the server (docs/decisions/0015-leases-are-not-flushed.md).
    """

    def __init__(
        self,
        conn: psycopg.Connection[Any],
        queue_name: str,
        *,
        lease_for: Duration | None = None,
        handler_timeout: Duration | None = None,
        handled_by: str | None = None,
    ) -> None:
        self.conn = conn
        self._queue_name = queue_name
        self._handled_by = handled_by
        self._lease_for = None if lease_for is None else as_timedelta(lease_for)
        self._handler_timeout = None if handler_timeout is None else as_timedelta(handler_timeout)
        self._read_json = _json_reader(conn)
        self._cursor = psycopg.RawCursor(conn, row_factory=tuple_row)
        self._late: list[PGresult] = []
        self.held: UUID | None = None
        """The token of the messages that were handed out last; their holder gives them back after an exception."""
        self._policy: LeasePolicy | None = None
        self._policy_ends = 0.0

    def prepare(self) -> None:
        """Check, before anything is leased, that the login may call all functions of a consumer."""
        if self._policy is None:
            require(self.conn, NEEDED, self._queue_name)

    @property
    def policy(self) -> LeasePolicy:
        """The policy of the queue, at most ten seconds old, with what this consumer says otherwise."""
        now = time.monotonic()
        if self._policy is None or now >= self._policy_ends:
            # Another cursor, because the usual one has the rows that were leased last.
            cursor = psycopg.RawCursor(self.conn, row_factory=tuple_row)
            ((lease_for, handler_timeout, counts_leases, limits_rate),) = self._fetch(
                "lease_policy", [self._queue_name], cursor
            )
            self._policy, self._policy_ends = (
                LeasePolicy(
                    lease_for=self._lease_for or lease_for,
                    handler_timeout=self._handler_timeout or handler_timeout,
                    counts_leases=counts_leases,
                    limits_rate=limits_rate,
                ),
                now + _POLICY_LASTS,
            )
        return self._policy

    @property
    def limits_rate(self) -> bool:
        """Whether the queue had a rate when a message was last leased from it."""
        return self._policy is not None and self._policy.limits_rate

    @property
    def can_exchange(self) -> bool:
        """Whether `exchange` is possible, and hinders no other consumer.

        In a transaction of the caller, an error would undo more than the exchange. With a max_leased no other consumer
        can lease until the commit, and the commit of an exchange waits for the disk.
        """
        return is_alone(self.conn) and not self.policy.counts_leases

    def lease(self, max_messages: int) -> list[Message]:
        """Lease up to so many messages, as `verbs.lease` does."""
        rows = self._fetch("lease_batch", [*self._wanted(max_messages), is_alone(self.conn)])
        return _messages(rows, self._read_json)

    def exchange(
        self, lock_token: UUID, outcomes: Mapping[int, Success | Rejected | Failed | None], max_messages: int
    ) -> tuple[set[int], list[Message]] | None:
        """Archive messages and lease others; return which of the ids were lost, and the messages.

        Both take effect, or after an error neither does; None if it is not possible now. An outcome of None is success.
        """
        if not self.can_exchange:
            return None
        ids = list(outcomes)
        # Compared by identity first, because most outcomes are plain and a call for each message takes longer.
        special = {
            id_: outcome
            for id_, outcome in outcomes.items()
            if outcome and outcome is not PLAIN and not is_plain(outcome)
        }
        said = outcomes_as_json(special) if special else None
        arguments = [*self._wanted(max_messages), lock_token, _array(ids), said]
        rows = self._fetch("archive_and_lease_batch", arguments)
        archived = rows[0][-1]
        lost = set[int]() if archived is None else set(ids).difference(archived)
        found = [row[:-1] for row in rows if row[0] is not None]
        return lost, _messages(found, self._read_json)

    def give_back(self) -> None:
        """After an exception, release leased messages that were not handed out yet, without an attempt.

        The exception may have come from a signal at any time, such as while the rows were read.
        """
        late, self._late = self._late, []
        for result in (*late, self._cursor.pgresult):
            if result is None or not result.ntuples or (token := result.get_value(0, _TOKEN)) is None:
                continue
            if (lock_token := UUID(bytes=token)) == self.held:
                continue
            self.held = lock_token
            ids = [int.from_bytes(result.get_value(row, 0) or b"") for row in range(result.ntuples)]
            try:
                run(self.conn, release(lock_token, ids, count_attempt=False))
            except (PgQueueError, psycopg.Error) as failed:
                # The earlier error matters more.
                log.warning("could not release %s (%s)", quantity(len(ids)), type(failed).__name__)

    def _wanted(self, max_messages: int) -> list[Any]:
        return [self._queue_name, max_messages, self._lease_for, self._handled_by]

    def _fetch(self, name: str, arguments: list[Any], cursor: _Cursor | None = None) -> list[tuple[Any, ...]]:
        # With its own cursor, whose last rows `give_back` may need.
        late, cursor = (self._late, self._cursor) if cursor is None else (None, cursor)
        fix = partial(refused, verb="lease", queue_name=self._queue_name)
        return fetch(self.conn, tuple_row, query(name), arguments, cursor=cursor, fix=fix, late=late)


def _array(ids: Sequence[int]) -> str:
    # Ten times as fast as the driver, which checks each number for the smallest type that holds all of them.
    return "{" + ",".join(map(str, ids)) + "}"


_NAMES: Final = [field.name for field in fields(Message)]
_BODY: Final = _NAMES.index("body")
_HEADERS: Final = _NAMES.index("headers")
_TOKEN: Final = _NAMES.index("lock_token")


def _messages(rows: list[tuple[Any, ...]], read_all: Callable[[list[str]], list[Any]]) -> list[Message]:
    """Return rows with the fields of a Message in order, body and headers as JSON text, as messages."""
    # One call for all costs less than a call for each message.
    texts = [row[_BODY] for row in rows] + [text for row in rows if (text := row[_HEADERS]) is not None]
    values = iter(read_all(texts)) if texts else iter(())
    found = [Message(*row) for row in rows]
    for message in found:
        message.body = next(values)
    for message in found:
        if message.headers is not None:
            message.headers = next(values)
    return found


def _json_reader(conn: psycopg.Connection[Any]) -> Callable[[list[str]], list[Any]]:
    """Return what reads the JSON texts of a batch, in one call unless the caller chose how the connection reads."""
    loader = conn.adapters.get_loader(JSONB, Format.BINARY)
    if loader is None or loader is JsonbBinaryLoader or getattr(loader, "_loads", None) is read_json:
        return _read_all_json
    load = loader(JSONB, conn).load
    return lambda texts: [load(_VERSION + text.encode()) for text in texts]


def _read_all_json(texts: list[str]) -> list[Any]:
    if len(texts) > 1 and sum(map(len, texts)) <= _AT_ONCE:
        try:
            found: list[Any] = json.loads(f"[{','.join(texts)}]")
            return found
        except (ValueError, RecursionError):
            pass  # one text is unreadable: only reading each of them shows which one
    return [read_json(text) for text in texts]
