"""The work of one process at a repair: leases its dead messages in batches, finds a remedy for each, settles."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any, Final

import psycopg

from airflow_provider_pgqueue.core import verbs
from airflow_provider_pgqueue.core.client import run
from airflow_provider_pgqueue.core.function import load_function
from airflow_provider_pgqueue.core.message import DeadMessage
from airflow_provider_pgqueue.core.renewal import Renewal
from airflow_provider_pgqueue.core.repair.answer import Remedy, find_remedy
from airflow_provider_pgqueue.core.repair.dead_lease import DeadLease, Outcomes
from airflow_provider_pgqueue.core.repair.validator import load_validator

if TYPE_CHECKING:
    from airflow_provider_pgqueue.core.repair.repair import Repair

_LOOKS_AGAIN: Final = 0.5  # seconds, for what somebody else holds
_LISTENS: Final = 0.1  # seconds, to `stop`


class RepairShare:
    """Repairs some of the dead messages of a repair. The function is called once for each.

    :param max_per_second: the part of the rate for this share; None for no limit.
    :param stop: when it returns True, the current message is finished, its batch settled and the rest given back.
    :param on_batch: called after each batch with the number of messages by how they ended so far.
    """

    def __init__(
        self,
        repair: Repair,
        conn: psycopg.Connection[Any],
        *,
        max_per_second: float | None,
        stop: Callable[[], bool] = lambda: False,
        on_batch: Callable[[Counter[str]], None] = lambda outcomes: None,
    ) -> None:
        self._repair = repair
        self._conn = conn
        self._rate = max_per_second
        self._due = time.monotonic()  # for the next batch
        self._stop = stop
        self._on_batch = on_batch
        self._function = load_function(repair.function) if isinstance(repair.function, str) else repair.function
        self._validator = load_validator(repair.validator)

    def work(self, ids: Sequence[int]) -> Outcomes:
        """Repair these messages, and return what became of each; those that `stop` left out are missing.

        After a kill what was leased can be leased again after `lease_for`; what was settled stays settled.
        """
        outcomes: Outcomes = {}
        for batch in self._batches(ids):
            outcomes |= self._treat(batch)
            self._on_batch(Counter(outcomes.values()))
        if self._stop():
            return outcomes
        missing = set(ids) - outcomes.keys()
        return outcomes | (dict.fromkeys(missing, "held") if self._repair.dry_run else self._await(missing))

    def _batches(self, ids: Sequence[int]) -> Iterator[Sequence[int]]:
        """Divide ids into batches, each when the rate allows it, until told to stop."""
        # At most what a second may bring, so that a rate is not a burst each minute.
        size = self._repair.batch_size if self._rate is None else min(self._repair.batch_size, max(1, int(self._rate)))
        for place in range(0, len(ids), size):
            self._pause_until(self._due)
            if self._stop():
                return
            yield ids[place : place + size]

    def _treat(self, ids: Collection[int]) -> Outcomes:
        messages = self._lease(ids)
        if not messages:
            return {}
        if self._rate is not None:
            self._due = max(self._due, time.monotonic()) + len(messages) / self._rate
        repair = self._repair
        if repair.dry_run:
            return {message.id: self._remedy(message).outcome for message in messages if not self._stop()}
        lease = DeadLease(self._conn, messages, lease_for=repair.lease_for)
        with _renewed(lease, repair):
            remedies = {
                message.id: self._remedy(message) if lease.holds(message) else Remedy("lost")
                for message in messages
                if not self._stop()
            }
        return lease.settle(remedies, delay=repair.delay, remedied_by=repair.remedied_by)

    def _remedy(self, message: DeadMessage) -> Remedy:
        most = self._repair.max_requeues
        if most is not None and message.requeues >= most:
            return Remedy("left")
        return find_remedy(message, self._function, self._validator)

    def _lease(self, ids: Collection[int]) -> list[DeadMessage]:
        repair = self._repair
        statement = verbs.lease_dead(
            repair.queue_name, ids=ids, max_messages=len(ids), lease_for=repair.lease_for, locked_by=repair.remedied_by
        )
        # A dry run takes them and gives them back at once, as if nothing had been.
        with self._conn.transaction(force_rollback=repair.dry_run):
            return run(self._conn, statement)

    def _await(self, missing: set[int]) -> Outcomes:
        """Wait for what somebody holds, perhaps a process that died: at most twice `lease_for`."""
        outcomes: Outcomes = {}
        patience = time.monotonic() + 2 * self._repair.lease_for.total_seconds()
        while missing := missing - outcomes.keys():
            outcomes |= self._remedied(missing)
            for batch in self._batches(sorted(missing - outcomes.keys())):
                outcomes |= self._treat(batch)
            if self._stop():
                return outcomes
            if time.monotonic() >= patience:
                break
            if missing - outcomes.keys():
                self._pause_until(time.monotonic() + _LOOKS_AGAIN)
        return outcomes | dict.fromkeys(missing - outcomes.keys(), "held")

    def _remedied(self, ids: Collection[int]) -> Outcomes:
        found = run(self._conn, verbs.remedies(ids))
        return {
            id_: remedy if remedied_by == self._repair.remedied_by else "remedied"
            for id_, (remedy, remedied_by) in found.items()
        }

    def _pause_until(self, moment: float) -> None:
        while not self._stop() and (left := moment - time.monotonic()) > 0:
            time.sleep(min(left, _LISTENS))


@contextmanager
def _renewed(lease: DeadLease, repair: Repair) -> Iterator[None]:
    # Ended before the lease is settled: the transaction would see a renewal that fails.
    with closing(Renewal()) as renewal:
        renewal.hold(lease, repair.lease_for)
        yield
