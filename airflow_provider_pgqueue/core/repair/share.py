"""The share of one process in a repair: leases dead messages in batches, finds a resolution for each, and settles."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

import psycopg

from airflow_provider_pgqueue.core import verbs
from airflow_provider_pgqueue.core.client import run
from airflow_provider_pgqueue.core.consumer.lease_base import LeaseBase
from airflow_provider_pgqueue.core.consumer.renewal import Renewal
from airflow_provider_pgqueue.core.errors import InvalidMessage, InvalidOutcome, LeaseLost
from airflow_provider_pgqueue.core.message import DeadMessage
from airflow_provider_pgqueue.core.repair.answer import KEEP, RepairFunction, Resolution, resolve
from airflow_provider_pgqueue.core.repair.validator import Validator
from airflow_provider_pgqueue.core.verbs import DeadFilter, Statement

Outcomes = dict[int, str]

_POLL_AGAIN: Final = 0.5  # seconds between two polls for messages that another process holds
_LISTENS: Final = 0.1  # seconds, to `stop`


@dataclass(kw_only=True)
class RepairShare:
    """Repairs some of the dead messages of a repair, in this process. The function is called once for each.

    :param max_per_second: the part of the rate for this share; None for no limit.
    :param stop: when it returns True, the current message is finished, its batch settled and the rest given back.
    :param on_batch: called after each batch with the number of messages by how they ended so far.
    """

    conn: psycopg.Connection[Any]
    function: RepairFunction
    validator: Validator | None
    which: DeadFilter
    resolved_by: str
    lease_for: timedelta
    batch_size: int
    delay: timedelta
    dry_run: bool
    max_per_second: float | None
    stop: Callable[[], bool] = lambda: False
    on_batch: Callable[[Counter[str]], None] = lambda outcomes: None
    _due: float = field(init=False, default_factory=time.monotonic)
    """When the next batch may begin."""

    def work(self, ids: Sequence[int]) -> Outcomes:
        """Repair these messages, and return what became of each; those that `stop` left out are missing.

        After a kill what was leased can be leased again after `lease_for`; what was settled stays settled.
        """
        outcomes: Outcomes = {}
        for batch in self._batches(ids):
            outcomes |= self._treat(batch)
            self.on_batch(Counter(outcomes.values()))
        if self.stop():
            return outcomes
        missing = set(ids) - outcomes.keys()
        return outcomes | (dict.fromkeys(missing, "held") if self.dry_run else self._await(missing))

    def _batches(self, ids: Sequence[int]) -> Iterator[Sequence[int]]:
        """Divide ids into batches, each when the rate allows it, until told to stop."""
        # A batch has at most what one second allows, so that the rate is even.
        rate = self.max_per_second
        most = self.batch_size
        size = most if rate is None else min(most, max(1, int(rate)))
        for place in range(0, len(ids), size):
            self._pause_until(self._due)
            if self.stop():
                return
            yield ids[place : place + size]

    def _treat(self, ids: Collection[int]) -> Outcomes:
        messages = self._lease(ids)
        if not messages:
            return {}
        if self.max_per_second is not None:
            self._due = max(self._due, time.monotonic()) + len(messages) / self.max_per_second
        if self.dry_run:
            return {message.id: self._resolution(message).outcome for message in messages if not self.stop()}
        lease = DeadLease(self.conn, messages, lease_for=self.lease_for)
        resolutions: dict[int, Resolution] = {}
        ended: BaseException | None = None
        # Ended before the lease is settled: the transaction would see a renewal that fails.
        with closing(Renewal()) as renewal:
            renewal.hold(lease, self.lease_for)
            try:
                for message in messages:
                    if self.stop():
                        break
                    held = lease.holds(message)
                    resolutions[message.id] = self._resolution(message) if held else Resolution("lost")
            except InvalidOutcome:
                # Release at once, so that a run with a fixed function need not wait for the end of the lease.
                lease.give_back()
                raise
            except BaseException as error:
                # A time-out of the task, for example: the next try continues where this one ends.
                ended = error
        try:
            return lease.settle(resolutions, delay=self.delay, resolved_by=self.resolved_by)
        finally:
            if ended is not None:
                raise ended

    def _resolution(self, message: DeadMessage) -> Resolution:
        most = self.which.max_requeues
        if most is not None and message.requeues >= most:
            return Resolution("left")
        return resolve(message, self.function, self.validator)

    def _lease(self, ids: Collection[int]) -> list[DeadMessage]:
        which, holder = DeadFilter(self.which.queue_name, ids=ids), self.resolved_by
        statement = verbs.lease_dead(which, max_messages=len(ids), lease_for=self.lease_for, locked_by=holder)
        # A dry run leases the messages and gives them back at once, without an attempt.
        with self.conn.transaction(force_rollback=self.dry_run):
            return run(self.conn, statement)

    def _await(self, missing: set[int]) -> Outcomes:
        """Wait at most twice `lease_for` for messages that another process holds, which may have died."""
        outcomes: Outcomes = {}
        patience = time.monotonic() + 2 * self.lease_for.total_seconds()
        while missing := missing - outcomes.keys():
            outcomes |= self._resolved(missing)
            for batch in self._batches(sorted(missing - outcomes.keys())):
                outcomes |= self._treat(batch)
            if self.stop():
                return outcomes
            if time.monotonic() >= patience:
                break
            if missing - outcomes.keys():
                self._pause_until(time.monotonic() + _POLL_AGAIN)
        return outcomes | dict.fromkeys(missing - outcomes.keys(), "held")

    def _resolved(self, ids: Collection[int]) -> Outcomes:
        found = run(self.conn, verbs.resolutions(ids))
        return {
            id_: resolution if resolved_by == self.resolved_by else "resolved"
            for id_, (resolution, resolved_by) in found.items()
        }

    def _pause_until(self, moment: float) -> None:
        while not self.stop() and (left := moment - time.monotonic()) > 0:
            time.sleep(min(left, _LISTENS))


class DeadLease(LeaseBase):
    """The messages of one `lease_dead` call. What is not settled can be leased again when the lease expires."""

    _extension = staticmethod(verbs.extend_dead)

    def __init__(self, conn: psycopg.Connection[Any], messages: Sequence[DeadMessage], *, lease_for: timedelta) -> None:
        super().__init__(conn, messages[0].lock_token, [message.id for message in messages], lease_for=lease_for)

    def holds(self, message: DeadMessage) -> bool:
        """Return whether the message is still leased, as of the last renewal."""
        return message.id in self._held

    def settle(self, resolutions: Mapping[int, Resolution], *, delay: timedelta, resolved_by: str) -> Outcomes:
        """Apply all resolutions in one transaction, and return what became of each message.

        A message is `lost` if its lease had ended. A body that PostgreSQL refuses is `invalid`: that message alone
        stays dead. Held messages without a resolution are given back.
        """
        outcomes = {id_: resolution.outcome for id_, resolution in resolutions.items()}
        bodies = {id_: resolution.body for id_, resolution in resolutions.items() if resolution.outcome == "requeued"}
        reasons: dict[str, list[int]] = {}
        for id_, resolution in resolutions.items():
            if resolution.outcome == "dismissed":
                reasons.setdefault(resolution.reason, []).append(id_)
        with self._conn.transaction():
            if bodies:
                outcomes |= self._requeue(bodies, delay, resolved_by)
            for reason, ids in reasons.items():
                outcomes |= self._ask(verbs.dismiss(self._require_token(), ids, reason, resolved_by=resolved_by))
            self._release({id_ for id_ in self._held if outcomes.get(id_) in (None, "left", "invalid", "raised")})
        return outcomes

    def _requeue(self, bodies: Mapping[int, Any], delay: timedelta, resolved_by: str) -> Outcomes:
        """Requeue them. If the call is refused, try each half, until the body that is refused is alone."""
        new = {id_: body for id_, body in bodies.items() if body is not KEEP}
        statement = verbs.requeue(self._require_token(), list(bodies), bodies=new, delay=delay, resolved_by=resolved_by)
        try:
            with self._conn.transaction():
                return dict.fromkeys(bodies, "requeued") | self._ask(statement)
        except InvalidMessage:
            if len(bodies) == 1:
                return dict.fromkeys(bodies, "invalid")
        ids = list(bodies)
        outcomes: Outcomes = {}
        for half in (ids[: len(ids) // 2], ids[len(ids) // 2 :]):
            outcomes |= self._requeue({id_: bodies[id_] for id_ in half}, delay, resolved_by)
        return outcomes

    def give_back(self) -> None:
        """Give all held messages back without a resolution."""
        with self._calling:
            self._release(self._held)

    def _release(self, ids: Collection[int]) -> None:
        if ids:
            self._ask(verbs.release_dead(self._require_token(), ids))

    def _ask(self, statement: Statement[Any]) -> Outcomes:
        """Run the verb and return the lost ids; LeaseLost is caught here, so that the transaction keeps the rest."""
        try:
            run(self._conn, statement)
        except LeaseLost as error:
            return dict.fromkeys(error.ids, "lost")
        return {}
