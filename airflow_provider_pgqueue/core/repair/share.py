"""The work of one process at a repair: leases its dead messages in batches, finds a remedy for each, settles."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

import psycopg

from airflow_provider_pgqueue.core import verbs
from airflow_provider_pgqueue.core.client import run
from airflow_provider_pgqueue.core.consumer.renewal import Renewal
from airflow_provider_pgqueue.core.errors import InvalidOutcome
from airflow_provider_pgqueue.core.message import DeadMessage
from airflow_provider_pgqueue.core.repair.answer import Remedy, RepairFunction, find_remedy
from airflow_provider_pgqueue.core.repair.dead_lease import DeadLease, Outcomes
from airflow_provider_pgqueue.core.repair.validator import Validator

_LOOKS_AGAIN: Final = 0.5  # seconds, for what somebody else holds
_LISTENS: Final = 0.1  # seconds, to `stop`


@dataclass(kw_only=True)
class RepairShare:
    """Repairs some of the dead messages of a repair. The function is called once for each.

    :param max_per_second: the part of the rate for this share; None for no limit.
    :param stop: when it returns True, the current message is finished, its batch settled and the rest given back.
    :param on_batch: called after each batch with the number of messages by how they ended so far.
    """

    conn: psycopg.Connection[Any]
    queue_name: str | None
    function: RepairFunction
    validator: Validator | None
    remedied_by: str
    max_requeues: int | None
    max_per_second: float | None
    delay: timedelta
    batch_size: int
    lease_for: timedelta
    dry_run: bool
    stop: Callable[[], bool]
    on_batch: Callable[[Counter[str]], None]
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
        size = self.batch_size if rate is None else min(self.batch_size, max(1, int(rate)))
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
            return {message.id: self._remedy(message).outcome for message in messages if not self.stop()}
        lease = DeadLease(self.conn, messages, lease_for=self.lease_for)
        # Ended before the lease is settled: the transaction would see a renewal that fails.
        with closing(Renewal()) as renewal:
            renewal.hold(lease, self.lease_for)
            try:
                remedies = {
                    message.id: self._remedy(message) if lease.holds(message) else Remedy("lost")
                    for message in messages
                    if not self.stop()
                }
            except InvalidOutcome:
                # Whoever mends the function and starts again need not wait for the end of the lease.
                lease.give_back()
                raise
        return lease.settle(remedies, delay=self.delay, remedied_by=self.remedied_by)

    def _remedy(self, message: DeadMessage) -> Remedy:
        most = self.max_requeues
        if most is not None and message.requeues >= most:
            return Remedy("left")
        return find_remedy(message, self.function, self.validator)

    def _lease(self, ids: Collection[int]) -> list[DeadMessage]:
        which = verbs.DeadFilter(self.queue_name, ids=ids)
        statement = verbs.lease_dead(which, max_messages=len(ids), lease_for=self.lease_for, locked_by=self.remedied_by)
        # A dry run leases the messages and gives them back at once, without an attempt.
        with self.conn.transaction(force_rollback=self.dry_run):
            return run(self.conn, statement)

    def _await(self, missing: set[int]) -> Outcomes:
        """Wait for what somebody holds, perhaps a process that died: at most twice `lease_for`."""
        outcomes: Outcomes = {}
        patience = time.monotonic() + 2 * self.lease_for.total_seconds()
        while missing := missing - outcomes.keys():
            outcomes |= self._remedied(missing)
            for batch in self._batches(sorted(missing - outcomes.keys())):
                outcomes |= self._treat(batch)
            if self.stop():
                return outcomes
            if time.monotonic() >= patience:
                break
            if missing - outcomes.keys():
                self._pause_until(time.monotonic() + _LOOKS_AGAIN)
        return outcomes | dict.fromkeys(missing - outcomes.keys(), "held")

    def _remedied(self, ids: Collection[int]) -> Outcomes:
        found = run(self.conn, verbs.remedies(ids))
        return {
            id_: remedy if remedied_by == self.remedied_by else "remedied"
            for id_, (remedy, remedied_by) in found.items()
        }

    def _pause_until(self, moment: float) -> None:
        while not self.stop() and (left := moment - time.monotonic()) > 0:
            time.sleep(min(left, _LISTENS))
