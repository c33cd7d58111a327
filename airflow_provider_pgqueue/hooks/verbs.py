"""The verbs of the queue as methods, each on a connection of its own or on the caller's."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping
from contextlib import AbstractContextManager, ExitStack
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, TypeVar, Unpack
from uuid import UUID

import psycopg

from airflow_provider_pgqueue.core import verbs
from airflow_provider_pgqueue.core.client import run
from airflow_provider_pgqueue.core.lease import Lease
from airflow_provider_pgqueue.core.message import (
    Archived,
    DeadCause,
    DeadMessage,
    Finding,
    Message,
    QueueStatus,
    Requeued,
    Schedule,
)
from airflow_provider_pgqueue.core.outcome import Failed, Rejected, Success
from airflow_provider_pgqueue.core.verbs import BatchOptions, Options, Policy, Statement, TopicOptions

T = TypeVar("T")
Connection = psycopg.Connection[Any]
_ZERO = timedelta(0)


class QueueVerbs(ABC):
    """What can be done with the queue; the meaning and the errors of each verb are in `core.verbs`.

    Each verb takes `conn`: with it the verb runs on that connection, inside its transaction if one is open, so that it
    takes effect or not together with the caller's own statements. Without it the verb has taken effect when it returns.
    """

    @abstractmethod
    def _session(self, conn: Connection | None) -> AbstractContextManager[Connection]: ...

    def perform(self, statement: Statement[T], *, conn: Connection | None = None) -> T:
        """Run any statement of `core.verbs`."""
        with self._session(conn) as session:
            return run(session, statement)

    def create_queue(self, queue_name: str, *, conn: Connection | None = None, **policy: Unpack[Policy]) -> bool:
        """Create a queue: True if it is new, False (and nothing changed) if it exists."""
        return self.perform(verbs.create_queue(queue_name, **policy), conn=conn)

    def alter_queue(self, queue_name: str, *, conn: Connection | None = None, **policy: Unpack[Policy]) -> None:
        """Change the policy of a queue, for waiting messages too; None keeps a value."""
        self.perform(verbs.alter_queue(queue_name, **policy), conn=conn)

    def pause_queue(self, queue_name: str, *, conn: Connection | None = None) -> None:
        """Let nothing be leased any more; publishing goes on."""
        self.perform(verbs.pause_queue(queue_name), conn=conn)

    def resume_queue(self, queue_name: str, *, conn: Connection | None = None) -> None:
        """End a pause and wake the consumers."""
        self.perform(verbs.resume_queue(queue_name), conn=conn)

    def purge_queue(self, queue_name: str, *, conn: Connection | None = None) -> int:
        """Delete the messages that nobody holds, without archiving them, and return how many there were."""
        return self.perform(verbs.purge_queue(queue_name), conn=conn)

    def drop_queue(self, queue_name: str, *, force: bool = False, conn: Connection | None = None) -> int:
        """Remove a queue; with `force` its unfinished messages too, and return how many there were."""
        return self.perform(verbs.drop_queue(queue_name, force=force), conn=conn)

    def publish(self, queue_name: str, body: Any, *, conn: Connection | None = None, **options: Unpack[Options]) -> int:
        """Publish one message and return its id, as a Duplicate if its dedup key is remembered."""
        return self.perform(verbs.publish(queue_name, body, **options), conn=conn)

    def publish_batch(
        self, queue_name: str, bodies: Iterable[Any], *, conn: Connection | None = None, **options: Unpack[BatchOptions]
    ) -> list[int]:
        """Publish many messages in one statement, all or none; their ids in order."""
        return self.perform(verbs.publish_batch(queue_name, bodies, **options), conn=conn)

    def publish_topic(
        self, topic: str, body: Any, *, conn: Connection | None = None, **options: Unpack[TopicOptions]
    ) -> dict[str, int]:
        """Publish one message to each queue that the topic reaches; the ids by queue."""
        return self.perform(verbs.publish_topic(topic, body, **options), conn=conn)

    def route_topic(self, topic: str, *, conn: Connection | None = None) -> list[str]:
        """Say which queues a topic reaches, without publishing anything."""
        return self.perform(verbs.route_topic(topic), conn=conn)

    def bind_topic(self, queue_name: str, pattern: str, *, conn: Connection | None = None) -> bool:
        """Let a queue get a copy of what is published under topics that the pattern matches; True if that is new."""
        return self.perform(verbs.bind_topic(queue_name, pattern), conn=conn)

    def unbind_topic(self, queue_name: str, pattern: str, *, conn: Connection | None = None) -> bool:
        """End a binding; True if there was one."""
        return self.perform(verbs.unbind_topic(queue_name, pattern), conn=conn)

    def lease(
        self,
        queue_name: str,
        *,
        max_messages: int = 1,
        lease_for: timedelta = timedelta(minutes=5),
        locked_by: str | None = None,
        topic: str | None = None,
        headers: Mapping[str, Any] | None = None,
        conn: Connection | None = None,
    ) -> Lease:
        """Take ready messages, all or those that match a topic pattern and headers; use it in a `with` block.

        While the block runs the lease is renewed; at its end what was not settled is archived as success, or released
        if the block raised. Without `conn` the lease has a connection of its own, which the block closes.
        """
        with ExitStack() as stack:
            session = stack.enter_context(self._session(conn))
            statement = verbs.lease(
                queue_name,
                max_messages=max_messages,
                lease_for=lease_for,
                locked_by=locked_by,
                topic=topic,
                headers=headers,
            )
            messages = run(session, statement)
            # The session outlives this call only where there is something to hold.
            opened = stack.pop_all() if messages else ExitStack()
        return _HookLease(session, messages, lease_for=lease_for, handled_by=locked_by, opened=opened)

    def extend(
        self, lock_token: UUID, ids: Collection[int], *, lease_for: timedelta, conn: Connection | None = None
    ) -> list[int]:
        """Make leases last `lease_for` from now."""
        return self.perform(verbs.extend(lock_token, ids, lease_for=lease_for), conn=conn)

    def archive(
        self,
        lock_token: UUID,
        ids: Collection[int],
        *,
        result: str = "success",
        details: str | None = None,
        handled_by: str | None = None,
        outcomes: Mapping[int, Success | Rejected | Failed] | None = None,
        output: Any = None,
        failure: Mapping[str, Any] | None = None,
        conn: Connection | None = None,
    ) -> list[int]:
        """Finish leased messages; `outcomes` overrides the rest for single ids."""
        statement = verbs.archive(
            lock_token,
            ids,
            result=result,
            details=details,
            handled_by=handled_by,
            outcomes=outcomes,
            output=output,
            failure=failure,
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
        failure: Mapping[str, Any] | None = None,
        back_off: bool = False,
        conn: Connection | None = None,
    ) -> list[int]:
        """Give leased messages back, now, after `delay` or after the back-off of the queue."""
        statement = verbs.release(
            lock_token,
            ids,
            delay=delay,
            count_attempt=count_attempt,
            details=details,
            failure=failure,
            back_off=back_off,
        )
        return self.perform(statement, conn=conn)

    def consume(
        self, queue_name: str, *, max_messages: int = 1, handled_by: str | None = None, conn: Connection
    ) -> list[Message]:
        """Take messages out and archive them as success in the caller's transaction; a rollback gives them back."""
        statement = verbs.consume(queue_name, max_messages=max_messages, handled_by=handled_by)
        return self.perform(statement, conn=conn)

    def once(self, consumer: str, message: Message | int, *, conn: Connection) -> bool:
        """Say whether this is the first time for a consumer and message, in the transaction of the effect."""
        return self.perform(verbs.once(consumer, message if isinstance(message, int) else message.id), conn=conn)

    def lease_dead(
        self,
        queue_name: str | None = None,
        *,
        max_messages: int = 100,
        lease_for: timedelta | None = None,
        locked_by: str | None = None,
        results: Collection[str] | None = None,
        fingerprint: str | None = None,
        conn: Connection | None = None,
    ) -> list[DeadMessage]:
        """Take dead messages that nobody decided about under one token, oldest first; then requeue or dismiss them."""
        statement = verbs.lease_dead(
            queue_name,
            max_messages=max_messages,
            lease_for=lease_for,
            locked_by=locked_by,
            results=results,
            fingerprint=fingerprint,
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
        statement = verbs.requeue(lock_token, ids, bodies=bodies, delay=delay, remedied_by=remedied_by)
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
        fingerprint: str | None = None,
        conn: Connection | None = None,
    ) -> list[Requeued]:
        """Lease dead messages (by default failed and lock_expired ones) and requeue them in one call."""
        statement = verbs.requeue_dead(
            queue_name,
            max_messages=max_messages,
            results=results,
            max_requeues=max_requeues,
            delay=delay,
            remedied_by=remedied_by,
            fingerprint=fingerprint,
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
        return self.perform(verbs.dismiss(lock_token, ids, reason, remedied_by=remedied_by), conn=conn)

    def dead_causes(self, queue_name: str | None = None, *, conn: Connection | None = None) -> list[DeadCause]:
        """Return why messages died about which nothing was decided yet; most frequent cause first."""
        return self.perform(verbs.dead_causes(queue_name), conn=conn)

    def search_archive(
        self,
        queue_name: str | None = None,
        *,
        id: int | None = None,
        reference: str | None = None,
        result: str | None = None,
        fingerprint: str | None = None,
        archived_from: datetime | None = None,
        archived_to: datetime | None = None,
        max_messages: int = 100,
        conn: Connection | None = None,
    ) -> list[Archived]:
        """Return finished messages, newest first, without their bodies."""
        statement = verbs.search_archive(
            queue_name,
            id=id,
            reference=reference,
            result=result,
            fingerprint=fingerprint,
            archived_from=archived_from,
            archived_to=archived_to,
            max_messages=max_messages,
        )
        return self.perform(statement, conn=conn)

    def status(self, queue_name: str | None = None, *, conn: Connection | None = None) -> list[QueueStatus]:
        """Return each queue in numbers; counts every message."""
        return self.perform(verbs.status(queue_name), conn=conn)

    def grant_queue(self, queue_name: str, role_name: str, privilege: str, *, conn: Connection | None = None) -> bool:
        """Let a role `publish`, `consume` or `observe` this queue, and from now on only queues granted to it."""
        return self.perform(verbs.grant_queue(queue_name, role_name, privilege), conn=conn)

    def revoke_queue(
        self, queue_name: str, role_name: str, privilege: str | None = None, *, conn: Connection | None = None
    ) -> int:
        """Take back one privilege or all of a role; it stays limited to its queues."""
        return self.perform(verbs.revoke_queue(queue_name, role_name, privilege), conn=conn)

    def upkeep(self, *, conn: Connection | None = None) -> dict[str, Any]:
        """Archive what expired, ring for what waits; counts of each."""
        return self.perform(verbs.upkeep(), conn=conn)

    def health(
        self,
        *,
        held_for: timedelta | None = None,
        waiting_for: timedelta | None = None,
        conn: Connection | None = None,
    ) -> list[Finding]:
        """Check everything that may go wrong: a finding for each check, with the SQL that cures it; only reads."""
        return self.perform(verbs.health(held_for=held_for, waiting_for=waiting_for), conn=conn)

    def upkeep_mode(self, *, conn: Connection | None = None) -> str:
        """Say who does the upkeep: `pg_cron` or `airflow`."""
        return self.perform(verbs.upkeep_mode(), conn=conn)

    def schedule(
        self,
        schedule_name: str,
        cron: str,
        queue_name: str,
        body: Any,
        *,
        time_zone: str = "UTC",
        priority: int = 0,
        headers: Mapping[str, Any] | None = None,
        paused: bool | None = None,
        conn: Connection | None = None,
    ) -> bool:
        """Publish a message at each tick of a cron expression: True if the schedule is new, False if it exists."""
        statement = verbs.schedule(
            schedule_name,
            cron,
            queue_name,
            body,
            time_zone=time_zone,
            priority=priority,
            headers=headers,
            paused=paused,
        )
        return self.perform(statement, conn=conn)

    def unschedule(self, schedule_name: str, *, conn: Connection | None = None) -> None:
        """End a schedule; what it published stays."""
        self.perform(verbs.unschedule(schedule_name), conn=conn)

    def pause_schedule(self, schedule_name: str, *, conn: Connection | None = None) -> None:
        """Let a schedule publish nothing until it is resumed."""
        self.perform(verbs.pause_schedule(schedule_name), conn=conn)

    def resume_schedule(self, schedule_name: str, *, conn: Connection | None = None) -> None:
        """Let a paused schedule go on with its next tick; what it missed is not made up for."""
        self.perform(verbs.resume_schedule(schedule_name), conn=conn)

    def schedules(self, *, conn: Connection | None = None) -> list[Schedule]:
        """List the schedules, without their bodies, with the next tick of each."""
        return self.perform(verbs.schedules(), conn=conn)

    def run_schedules(self, *, conn: Connection | None = None) -> int:
        """Publish what is due; how many messages. Where there is pg_cron, it does so every minute."""
        return self.perform(verbs.run_schedules(), conn=conn)


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
