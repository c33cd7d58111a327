"""The work of one task of reprocess: lease its dead messages in batches, ask the repair, settle."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import psycopg

from airflow_provider_pgqueue.core import verbs
from airflow_provider_pgqueue.core.client import run
from airflow_provider_pgqueue.core.message import DeadMessage
from airflow_provider_pgqueue.core.renewal import Renewal
from airflow_provider_pgqueue.spark.database import Database
from airflow_provider_pgqueue.spark.jobs.dead.dead_lease import DeadLease
from airflow_provider_pgqueue.spark.jobs.dead.remedy import Repair, Validator, Verdict, judge, load

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)

Outcomes = dict[int, str]
_LOOKS_AGAIN: Final = 0.5  # seconds, for what somebody else holds
_OURS: Final = """
SELECT id, CASE WHEN remedied_by = %s THEN remedy ELSE 'decided' END
  FROM messages.message_archive WHERE id = ANY (%s) AND remedy IS NOT NULL
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Repairs:
    """What all tasks share. Each has ids of its own: it asks about a message once, however the repair decides."""

    database: Database
    ids: Sequence[int]
    tasks: int
    repair: str | Repair
    validator: str | Validator | None
    remedied_by: str
    queue_name: str | None
    batch_size: int
    lease_for: timedelta
    delay: timedelta
    per_second: float | None
    max_requeues: int | None
    dry_run: bool

    def work(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Do the part of the ids that the number of the task says; for `mapInArrow`."""
        import pyarrow as pa

        for batch in batches:
            for number in batch.column(0).to_pylist():
                outcomes = self.part(self.ids[number :: self.tasks])
                yield pa.RecordBatch.from_arrays(
                    [pa.array(outcomes.keys(), pa.int64()), pa.array(outcomes.values(), pa.string())], ["id", "outcome"]
                )

    def part(self, ids: Sequence[int]) -> Outcomes:
        """Decide about these messages and return what became of each.

        Killed in the middle, what is leased comes round again after `lease_for`, and what is settled stays settled.
        """
        outcomes: Outcomes = {}
        share = None if self.per_second is None else self.per_second / self.tasks
        size = self.batch_size if share is None else min(self.batch_size, max(1, int(share)))
        with self.database.connect("pgqueue reprocess") as conn:
            started = time.monotonic()
            for place in range(0, len(ids), size):
                if share is not None:
                    time.sleep(max(0.0, started + place / share - time.monotonic()))
                outcomes |= self._treat(conn, ids[place : place + size])
            missing = set(ids) - outcomes.keys()
            return outcomes | (dict.fromkeys(missing, "held") if self.dry_run else self._await(conn, missing))

    def _treat(self, conn: psycopg.Connection[Any], ids: Collection[int]) -> Outcomes:
        messages = self._lease(conn, ids)
        if not messages:
            return {}
        lease = DeadLease(conn, messages, lease_for=self.lease_for)
        repair = load(self.repair)
        validator = load(self.validator) if self.validator else None
        if self.dry_run:
            return {message.id: self._judge(message, repair, validator).outcome for message in messages}
        with Renewal(self.lease_for) as renewal:
            renewal.hold(lease)
            verdicts = {message.id: self._judge(message, repair, validator) for message in messages}
        return lease.settle(verdicts, delay=self.delay, remedied_by=self.remedied_by)

    def _judge(self, message: DeadMessage, repair: Callable[..., Any], validator: Callable[..., Any] | None) -> Verdict:
        if self.max_requeues is not None and message.requeues >= self.max_requeues:
            return Verdict("left")
        return judge(message, repair, validator)

    def _lease(self, conn: psycopg.Connection[Any], ids: Collection[int]) -> list[DeadMessage]:
        # A dry run takes them and gives them back at once, as if nothing had been.
        with conn.transaction(force_rollback=self.dry_run):
            return run(
                conn,
                verbs.lease_dead(
                    self.queue_name,
                    ids=ids,
                    max_messages=len(ids),
                    lease_for=self.lease_for,
                    locked_by=self.remedied_by,
                ),
            )

    def _await(self, conn: psycopg.Connection[Any], missing: set[int]) -> Outcomes:
        """Wait for what somebody holds, who may be dead: until it is decided or leased, at most twice `lease_for`."""
        outcomes: Outcomes = {}
        patience = time.monotonic() + 2 * self.lease_for.total_seconds()
        while missing := missing - outcomes.keys():
            outcomes |= dict(conn.execute(_OURS, [self.remedied_by, list(missing)]).fetchall())
            for place in range(0, len(waiting := sorted(missing - outcomes.keys())), self.batch_size):
                outcomes |= self._treat(conn, waiting[place : place + self.batch_size])
            if time.monotonic() >= patience:
                break
            if missing - outcomes.keys():
                time.sleep(_LOOKS_AGAIN)
        return outcomes | dict.fromkeys(missing - outcomes.keys(), "held")
