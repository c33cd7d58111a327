"""The messages of a batch as a table, in the hands of a function: leased and renewed, or locked; settled by columns."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Collection, Mapping
from datetime import timedelta
from functools import cached_property
from typing import Any, Final
from uuid import UUID

import psycopg
import pyarrow as pa
from psycopg.rows import tuple_row

from airflow_provider_pgqueue.core import verbs
from airflow_provider_pgqueue.core.client import run
from airflow_provider_pgqueue.core.errors import LeaseLost, PgQueueError, translate
from airflow_provider_pgqueue.core.quantity import quantity
from airflow_provider_pgqueue.core.query import query
from airflow_provider_pgqueue.core.settlement import Outcomes, settle

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


class Held:
    """Messages that are leased or locked; `lock_token` is the right to finish them."""

    def __init__(self, rows: list[tuple[Any, ...]]) -> None:
        *self._columns, max_attempts, tokens = zip(*rows, strict=True)
        self.ids: list[int] = list(self._columns[0])
        self.max_attempts: int = max_attempts[0]
        self.lock_token: UUID = tokens[0]

    @cached_property
    def table(self) -> pa.Table:
        """What a function gets."""
        # When it is asked for, and the lease is renewed by then: the first one imports for as long as a lease may last.
        return pa.table(self._columns, schema=_MESSAGES)


def held(conn: psycopg.Connection[Any], name: str, arguments: Mapping[str, Any]) -> Held | None:
    """Lease or lock by a query of sql/queries; None if nothing was ready.

    JSON comes as its text and by columns: an object for each message would cost more than the server does.
    """
    try:
        with conn.cursor(row_factory=tuple_row, binary=True) as cursor:
            rows = cursor.execute(query(name), arguments).fetchall()
    except psycopg.Error as error:
        raise translate(error) from error
    return Held(rows) if rows else None


class TableLease:
    """Holds leased messages: `renew` is for a Renewal, and what is not settled is given back."""

    def __init__(self, conn: psycopg.Connection[Any], messages: Held, *, lease_for: timedelta, handled_by: str) -> None:
        self.messages = messages
        self._conn = conn
        self._lease_for = lease_for
        self._handled_by = handled_by
        self.held = set(messages.ids)
        self._calling = threading.Lock()

    def renew(self) -> None:
        """Extend what is still held, and log a warning instead of raising if that fails or messages were lost."""
        # A renewal during another call would find what that settles gone, and call it lost.
        with self._calling:
            try:
                if self.held:
                    run(self._conn, verbs.extend(self.messages.lock_token, self.held, lease_for=self._lease_for))
            except LeaseLost as error:
                log.warning("%s; another consumer may have them now", error.problem)
            except (PgQueueError, psycopg.Error) as error:
                log.warning("could not extend the lease of %s: %s", quantity(len(self.held)), type(error).__name__)

    def settle(self, outcomes: Outcomes) -> Counter[str]:
        """Give messages their outcomes, and return how many ended how; those that were lost are delivered again."""
        with self._calling:
            counts, lost = settle(self._conn, self.messages.lock_token, outcomes, handled_by=self._handled_by)
            self.held.difference_update(outcomes.ids, outcomes.retries)
        if lost:
            log.warning("%s; they are delivered again", LeaseLost(lost).problem)
        again = counts.pop("retry", 0)
        last = self._out_of_attempts(outcomes, lost) if again else 0
        return counts + Counter(retried=again - last, failed=last)

    def _out_of_attempts(self, outcomes: Outcomes, lost: Collection[int]) -> int:
        """Count the retries after a last attempt, which are archived as failed instead."""
        attempts = dict(zip(self.messages.ids, self.messages.table.column("attempts").to_pylist(), strict=True))
        kept = {id_: retry for id_, retry in outcomes.retries.items() if id_ not in lost}
        return sum(retry.count_attempt and attempts[id_] >= self.messages.max_attempts for id_, retry in kept.items())

    def give_back(self, *, count_attempt: bool) -> None:
        """Release what is still held, and log a warning instead of raising if that fails."""
        with self._calling:
            ids, self.held = self.held, set()
            try:
                if ids:
                    run(self._conn, verbs.release(self.messages.lock_token, ids, count_attempt=count_attempt))
            except LeaseLost as error:
                log.debug("%s", error)
            except (PgQueueError, psycopg.Error) as error:
                log.warning(
                    "could not release %s (%s): delivered again later", quantity(len(ids)), type(error).__name__
                )
