"""The verbs of the queue as methods, each on a connection of its own or on the caller's."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from datetime import timedelta
from types import TracebackType
from typing import Any, TypeVar
from uuid import UUID

import psycopg

from airflow_provider_pgqueue.core import statements
from airflow_provider_pgqueue.core.client import run
from airflow_provider_pgqueue.core.lease import Lease
from airflow_provider_pgqueue.core.message import DeadMessage, Finding, Message, QueueStatus, Requeued
from airflow_provider_pgqueue.core.outcome import Failed, Rejected, Success
from airflow_provider_pgqueue.core.statements import Statement

T = TypeVar("T")
Connection = psycopg.Connection[Any]
_ZERO = timedelta(0)


class QueueVerbs(ABC):
    """What can be done with the queue; the meaning and the errors of each verb are in `core.statements`.

    Each verb takes `conn`: with it the verb runs on that connection, inside its transaction if one is open, so that it
    takes effect or not together with the caller's own statements. Without it the verb has taken effect when it returns.
    """

    @abstractmethod
    def _session(self, conn: Connection | None) -> AbstractContextManager[Connection]: ...

    def perform(self, statement: Statement[T], *, conn: Connection | None = None) -> T:
        """Run any statement of `core.statements`."""
        with self._session(conn) as session:
            return run(session, statement)

    def create_queue(
        self,
        queue_name: str,
        *,
        max_attempts: int | None = None,
        lease_for: timedelta | None = None,
        notify: str | None = None,
        max_body_bytes: int | None = None,
        paused: bool | None = None,
        conn: Connection | None = None,
    ) -> bool:
        """Create a queue: True if it is new, False (and nothing changed) if it exists."""
        statement = statements.create_queue(
            queue_name,
            max_attempts=max_attempts,
            lease_for=lease_for,
            notify=notify,
            max_body_bytes=max_body_bytes,
            paused=paused,
        )
        return self.perform(statement, conn=conn)

    def alter_queue(
        self,
        queue_name: str,
        *,
        max_attempts: int | None = None,
        lease_for: timedelta | None = None,
        notify: str | None = None,
        max_body_bytes: int | None = None,
        paused: bool | None = None,
        conn: Connection | None = None,
    ) -> None:
        """Change the policy of a queue, for waiting messages too; None keeps a value."""
        statement = statements.alter_queue(
            queue_name,
            max_attempts=max_attempts,
            lease_for=lease_for,
            notify=notify,
            max_body_bytes=max_body_bytes,
            paused=paused,
        )
        self.perform(statement, conn=conn)

    def publish(
        self,
        queue_name: str,
        body: Any,
        *,
        priority: int = 0,
        delay: timedelta = _ZERO,
        expires_in: timedelta | None = None,
        headers: Mapping[str, Any] | None = None,
        reference: str | None = None,
        conn: Connection | None = None,
    ) -> int:
        """Publish one message and return its id."""
        statement = statements.publish(
            queue_name,
            body,
            priority=priority,
            delay=delay,
            expires_in=expires_in,
            headers=headers,
            reference=reference,
        )
        return self.perform(statement, conn=conn)

    def publish_batch(
        self,
        queue_name: str,
        bodies: Iterable[Any],
        *,
        priority: int = 0,
        delay: timedelta = _ZERO,
        expires_in: timedelta | None = None,
        headers: Mapping[str, Any] | None = None,
        references: Sequence[str | None] | None = None,
        conn: Connection | None = None,
    ) -> list[int]:
        """Publish many messages in one statement, all or none; their ids in order."""
        statement = statements.publish_batch(
            queue_name,
            bodies,
            priority=priority,
            delay=delay,
            expires_in=expires_in,
            headers=headers,
            references=references,
        )
        return self.perform(statement, conn=conn)

    def lease(
        self,
        queue_name: str,
        *,
        max_messages: int = 1,
        lease_for: timedelta = timedelta(minutes=5),
        locked_by: str | None = None,
        conn: Connection | None = None,
    ) -> Lease:
        """Take ready messages; use it in a `with` block.

        While the block runs the lease is renewed; at its end what was not settled is archived as success, or released
        if the block raised. Without `conn` the lease has a connection of its own, which the block closes.
        """
        with ExitStack() as stack:
            session = stack.enter_context(self._session(conn))
            statement = statements.lease(
                queue_name, max_messages=max_messages, lease_for=lease_for, locked_by=locked_by
            )
            messages = run(session, statement)
            # The session outlives this call only where there is something to hold.
            opened = stack.pop_all() if messages else ExitStack()
        return _HookLease(session, messages, lease_for=lease_for, handled_by=locked_by, opened=opened)

    def extend(
        self, lock_token: UUID, ids: Collection[int], *, lease_for: timedelta, conn: Connection | None = None
    ) -> list[int]:
        """Make leases last `lease_for` from now."""
        return self.perform(statements.extend(lock_token, ids, lease_for=lease_for), conn=conn)

    def archive(
        self,
        lock_token: UUID,
        ids: Collection[int],
        *,
        result: str = "success",
        details: str | None = None,
        handled_by: str | None = None,
        outcomes: Mapping[int, Success | Rejected | Failed] | None = None,
        conn: Connection | None = None,
    ) -> list[int]:
        """Finish leased messages; `outcomes` overrides result and details for single ids."""
        statement = statements.archive(
            lock_token, ids, result=result, details=details, handled_by=handled_by, outcomes=outcomes
        )
        return self.perform(statement, conn=conn)

    def release(
        self,
        lock_token: UUID,
        ids: Collection[int],
        *,
        delay: timedelta = _ZERO,
        count_attempt: bool = True,
        details: str | None = None,
        conn: Connection | None = None,
    ) -> list[int]:
        """Give leased messages back, now or after `delay`."""
        statement = statements.release(lock_token, ids, delay=delay, count_attempt=count_attempt, details=details)
        return self.perform(statement, conn=conn)

    def consume(
        self, queue_name: str, *, max_messages: int = 1, handled_by: str | None = None, conn: Connection
    ) -> list[Message]:
        """Take messages out and archive them as success in the caller's transaction; a rollback gives them back."""
        statement = statements.consume(queue_name, max_messages=max_messages, handled_by=handled_by)
        return self.perform(statement, conn=conn)

    def lease_dead(
        self,
        queue_name: str | None = None,
        *,
        max_messages: int = 100,
        lease_for: timedelta | None = None,
        locked_by: str | None = None,
        results: Collection[str] | None = None,
        conn: Connection | None = None,
    ) -> list[DeadMessage]:
        """Take dead messages that nobody decided about under one token, oldest first; then requeue or dismiss them."""
        statement = statements.lease_dead(
            queue_name, max_messages=max_messages, lease_for=lease_for, locked_by=locked_by, results=results
        )
        return self.perform(statement, conn=conn)

    def requeue(
        self,
        lock_token: UUID,
        ids: Collection[int],
        *,
        bodies: Mapping[int, Any] | None = None,
        delay: timedelta = _ZERO,
        remedied_by: str | None = None,
        conn: Connection | None = None,
    ) -> list[Requeued]:
        """Publish leased dead messages again, with a repaired body where `bodies` has one."""
        statement = statements.requeue(lock_token, ids, bodies=bodies, delay=delay, remedied_by=remedied_by)
        return self.perform(statement, conn=conn)

    def requeue_dead(
        self,
        queue_name: str | None = None,
        *,
        max_messages: int = 1000,
        results: Collection[str] | None = None,
        max_requeues: int | None = None,
        delay: timedelta = _ZERO,
        remedied_by: str | None = None,
        conn: Connection | None = None,
    ) -> list[Requeued]:
        """Lease dead messages (by default failed and lock_expired ones) and requeue them in one call."""
        statement = statements.requeue_dead(
            queue_name,
            max_messages=max_messages,
            results=results,
            max_requeues=max_requeues,
            delay=delay,
            remedied_by=remedied_by,
        )
        return self.perform(statement, conn=conn)

    def dismiss(
        self,
        lock_token: UUID,
        ids: Collection[int],
        reason: str,
        *,
        remedied_by: str | None = None,
        conn: Connection | None = None,
    ) -> list[int]:
        """Decide that nothing more is done about leased dead messages."""
        return self.perform(statements.dismiss(lock_token, ids, reason, remedied_by=remedied_by), conn=conn)

    def status(self, queue_name: str | None = None, *, conn: Connection | None = None) -> list[QueueStatus]:
        """Return each queue in numbers; counts every message."""
        return self.perform(statements.status(queue_name), conn=conn)

    def upkeep(self, *, conn: Connection | None = None) -> dict[str, Any]:
        """Archive what expired, ring for what waits; counts of each."""
        return self.perform(statements.upkeep(), conn=conn)

    def health(
        self,
        *,
        held_for: timedelta | None = None,
        waiting_for: timedelta | None = None,
        conn: Connection | None = None,
    ) -> list[Finding]:
        """Check everything that may go wrong: a finding for each check, with the SQL that cures it; only reads."""
        return self.perform(statements.health(held_for=held_for, waiting_for=waiting_for), conn=conn)

    def upkeep_mode(self, *, conn: Connection | None = None) -> str:
        """Say who does the upkeep: `pg_cron` or `airflow`."""
        return self.perform(statements.upkeep_mode(), conn=conn)


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
