"""When what was handled of a lease is settled, counted, and told to the breaker."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Final

import psycopg

from airflow_provider_pgqueue.core.consumer.breaker import Breaker
from airflow_provider_pgqueue.core.consumer.calls import TimeIsUp
from airflow_provider_pgqueue.core.consumer.held import Held
from airflow_provider_pgqueue.core.errors import PgQueueError
from airflow_provider_pgqueue.core.outcome import Outcome

log = logging.getLogger(__name__)

# Settling each message at once would cost a commit for each; settling only at the end of a batch would let a killed
# consumer of slow messages repeat them all.
_SETTLE_EVERY: Final = 1.0  # seconds


@dataclass(slots=True, kw_only=True, eq=False)
class Settler:
    """Settles what was handled of a lease: what comes in within a second together, and the rest at the end.

    :param counts: how messages ended is added here.
    """

    lease: Held
    breaker: Breaker
    counts: Counter[str]
    _due: float = field(init=False, default_factory=lambda: time.monotonic() + _SETTLE_EVERY)

    def gather(self, id_: int, outcome: Outcome) -> None:
        """Settle the message with this outcome, later."""
        # In the lease, for whoever settles it next to a handler that hangs.
        self.lease.handled[id_] = outcome

    def judge(self, ids: Iterable[int]) -> None:
        """Tell the breaker the outcomes of one call, after all are gathered, because it may raise at any of them."""
        for id_ in ids:
            self.breaker.record(id_, self.lease.handled[id_], attempts=self.lease.attempt(id_))

    def leave(self, id_: int, why: TimeIsUp) -> None:
        """Stop renewing the message of a call that hangs, or archive it after its last attempt."""
        self.counts[self.lease.leave(id_, f"the call took longer than {why.limit}")] += 1
        self.breaker.record_hanging(id_, why)

    def settle_when_due(self) -> None:
        """Settle what is gathered if that was last done a second ago."""
        if time.monotonic() >= self._due:
            self.settle()
            self._due = time.monotonic() + _SETTLE_EVERY

    def settle(self) -> None:
        """Settle what is gathered, and count it."""
        lease = self.lease
        if not lease.handled:
            return
        lease.finish(lease.handled)
        # Cleared only now: after an error it is tried again.
        counted = self._count()
        for id_ in sorted(lease.unkept & counted):
            self.breaker.record_unkept(id_, attempts=lease.attempt(id_))

    def wind_up(self, error: BaseException, *, begun: Collection[int]) -> None:
        """Settle what was handled before an error, and give the rest back, with an attempt of those that were begun."""
        try:
            # What was handled has had its effect: it must not be delivered again because of what came after it, nor
            # because a first call failed, for example after lock_timeout.
            self.settle()
        except (PgQueueError, psycopg.Error) as failed:
            # The error matters more: a SystemExit would end as one of a lost connection, which a worker survives.
            log.warning("could not settle what was handled before %s (%s)", type(error).__name__, type(failed).__name__)
            held = self.lease.held_ids
            ended = {id_: outcome for id_, outcome in self.lease.handled.items() if id_ not in held}
            self.counts.update(self.lease.ends(ended))
        finally:
            self.lease.release_after(error, begun=begun)

    def _count(self) -> set[int]:
        """Count what was handled, which is settled by now, and return the ids."""
        lease = self.lease
        handled, lease.handled = lease.handled, {}
        self.counts.update(lease.ends(handled))
        return set(handled)
