"""Leases messages as a table, and renews, settles and gives back what a task of a drain holds."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from datetime import timedelta
from functools import cached_property
from typing import Any, Final
from uuid import UUID

import psycopg
import pyarrow as pa
from psycopg.rows import tuple_row

from airflow_provider_pgqueue.core import verbs
from airflow_provider_pgqueue.core.client import run
from airflow_provider_pgqueue.core.consumer.settle import Outcomes, settle
from airflow_provider_pgqueue.core.errors import LeaseLost, PgQueueError, refused
from airflow_provider_pgqueue.core.outcome import Retry
from airflow_provider_pgqueue.core.quantity import quantity
from airflow_provider_pgqueue.core.query import query

log = logging.getLogger(__name__)

_MESSAGES: Final = pa.schema(
    [
        ("id", pa.int64()),
        ("message", pa.string()),
        ("reference", pa.string()),
        ("attempts", pa.int32()),
        ("headers", pa.string()),
        ("topic", pa.string()),
        ("group_key", pa.string()),
        ("created_at", pa.timestamp("us", tz="UTC")),
    ]
)


def lease_table(
    conn: psycopg.Connection[Any],
    queue_name: str,
    *,
    max_messages: int,
    lease_for: timedelta,
    locked_by: str,
    topic: str | None,
) -> TableLease | None:
    """Lease messages; None if nothing was ready.

    JSON comes as its text and by columns: an object for each message would cost more than the server does.
    """
    try:
        with conn.cursor(row_factory=tuple_row, binary=True) as cursor:
            rows = cursor.execute(query("lease_rows"), locals()).fetchall()
    except psycopg.Error as error:
        raise refused(conn, error, verb="lease", queue_name=queue_name) from error
    return TableLease(conn, rows, lease_for=lease_for, handled_by=locked_by) if rows else None


class TableLease:
    """Leased messages as a table: `renew` is for a Renewal, and what is not settled is given back."""

    def __init__(
        self, conn: psycopg.Connection[Any], rows: list[tuple[Any, ...]], *, lease_for: timedelta, handled_by: str
    ) -> None:
        *self._columns, max_attempts, tokens = zip(*rows, strict=True)
        self.held: set[int] = set(self._columns[0])
        self._max_attempts: int = max_attempts[0]
        self._token: UUID = tokens[0]
        self._conn = conn
        self._lease_for = lease_for
        self._handled_by = handled_by
        self._calling = threading.Lock()

    @cached_property
    def table(self) -> pa.Table:
        """What a function gets."""
        # When it is asked for, and the lease is renewed by then: the first one imports for as long as a lease may last.
        return pa.table(self._columns, schema=_MESSAGES)

    def renew(self) -> None:
        """Extend what is still held, and log a warning instead of raising if that fails or messages were lost."""
        # A renewal during another call would find what that settles gone, and call it lost.
        with self._calling:
            try:
                if self.held:
                    run(self._conn, verbs.extend(self._token, self.held, lease_for=self._lease_for))
            except LeaseLost as error:
                log.warning("%s; another consumer may have them now", error.problem)
            except (PgQueueError, psycopg.Error) as error:
                log.warning("could not extend the lease of %s: %s", quantity(len(self.held)), type(error).__name__)

    def settle(self, outcomes: Outcomes) -> Counter[str]:
        """Give messages their outcomes, and return how many ended how; those that were lost are delivered again."""
        with self._calling:
            counts, lost = settle(self._conn, self._token, outcomes, handled_by=self._handled_by)
            self.held.difference_update(outcomes)
        if lost:
            log.warning("%s; they are delivered again", LeaseLost(lost).problem)
        again = counts.pop("retry", 0)
        last = self._out_of_attempts({id_: outcomes[id_] for id_ in outcomes.keys() - lost}) if again else 0
        return counts + Counter(retried=again - last, failed=last)

    def _out_of_attempts(self, outcomes: Outcomes) -> int:
        """Count the retries after a last attempt, which are archived as failed instead."""
        attempts = dict(zip(self.table["id"].to_pylist(), self.table["attempts"].to_pylist(), strict=True))
        retries = ((id_, outcome) for id_, outcome in outcomes.items() if isinstance(outcome, Retry))
        return sum(retry.count_attempt and attempts[id_] >= self._max_attempts for id_, retry in retries)

    def give_back(self, *, count_attempt: bool) -> None:
        """Release what is still held, and log a warning instead of raising if that fails."""
        with self._calling:
            ids, self.held = self.held, set()
            try:
                if ids:
                    run(self._conn, verbs.release(self._token, ids, count_attempt=count_attempt))
            except LeaseLost as error:
                log.debug("%s", error)
            except (PgQueueError, psycopg.Error) as error:
                log.warning(
                    "could not release %s (%s): delivered again later", quantity(len(ids)), type(error).__name__
                )
