"""The accounts of the demo: what was published against what became of it, read from the tables themselves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.rows import dict_row

from airflow_provider_pgqueue.core.quantity import quantity

_ACCOUNT = """
WITH every AS (
    SELECT requeued_from, 'still queued' AS result FROM messages.message WHERE queue_name = 'flights'
    UNION ALL
    SELECT requeued_from, result FROM messages.message_archive WHERE queue_name = 'flights')
SELECT count(*) FILTER (WHERE requeued_from IS NULL) AS published,
       count(*) FILTER (WHERE requeued_from IS NOT NULL) AS requeued,
       (SELECT jsonb_object_agg(result, n) FROM (SELECT result, count(*) AS n FROM every GROUP BY result) r) AS results
  FROM every
"""
_DETAIL = """
SELECT (SELECT count(*) - count(DISTINCT id) FROM messages.message_archive) AS archived_twice,
       (SELECT count(*) FROM messages.message JOIN messages.message_archive USING (id)) AS in_both,
       (SELECT count(*) FROM flights.departure) AS departures,
       (SELECT count(*) FROM messages.message_archive
         WHERE queue_name = 'flights' AND resolution = 'dismissed') AS dismissed,
       (SELECT count(*) FROM messages.message_archive WHERE queue_name = 'flights' AND attempts > 1) AS delivered_again,
       (SELECT count(DISTINCT handled_by) FROM messages.message_archive WHERE queue_name = 'flights') AS consumers,
       (SELECT extract(epoch FROM max(created_at) - min(created_at))::float FROM messages.message_archive
         WHERE queue_name = 'flights' AND requeued_from IS NULL) AS publish_seconds,
       (SELECT extract(epoch FROM max(archived_at) - min(leased_at))::float FROM messages.message_archive
         WHERE queue_name = 'flights' AND requeued_from IS NULL) AS consume_seconds
"""
_LATENCY = """
SELECT percentile_cont(ARRAY[0.5, 0.95]) WITHIN GROUP (ORDER BY extract(epoch FROM leased_at - created_at)) AS seconds
  FROM messages.message_archive WHERE queue_name = 'wakeups'
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """The results of the flights; times in seconds."""

    published: int
    requeued: int
    results: dict[str, int]
    archived_twice: int
    in_both: int
    departures: int
    dismissed: int
    delivered_again: int
    consumers: int
    publish_seconds: float
    consume_seconds: float
    until_leased: tuple[float, float]

    @property
    def balances(self) -> bool:
        """Whether each message is in exactly one place with one result, and each success left its one effect."""
        return (
            self.published + self.requeued == sum(self.results.values())
            and self.archived_twice == 0
            and self.in_both == 0
            and self.departures == self.results.get("success", 0)
        )

    @property
    def sentence(self) -> str:
        """What was sent, whether anything was lost or doubled, how many failed on purpose, and what became of these."""
        success, dead = self.results.get("success", 0), sum(self.results.values()) - self.results.get("success", 0)
        if not self.balances or dead != self.requeued + self.dismissed:
            return (
                f"The accounts do not balance. Published: {quantity(self.published, 'flight')}; requeued:"
                f" {self.requeued:,}; succeeded: {success:,}, with {quantity(self.departures, 'departure')};"
                f" failed or still waiting: {dead:,}, of which {self.dismissed:,} dismissed."
            )
        again = f" Delivered again after a consumer failed or was killed: {quantity(self.delivered_again)}."
        return (
            f"{quantity(self.published, 'flight')} were published; none was lost or doubled: {success:,} departed,"
            f" {self.dismissed:,} dismissed with a reason. {quantity(dead)} failed on purpose:"
            f" {self.requeued:,} repaired and published again, {self.dismissed:,} dismissed."
            + (again if self.delivered_again else "")
        )


def read_account(conn: psycopg.Connection[Any]) -> Account:
    """Read the account; counts every message, so it takes a second or two."""
    with conn.cursor(row_factory=dict_row) as cursor:
        account = cursor.execute(_ACCOUNT).fetchone() or {}
        detail = cursor.execute(_DETAIL).fetchone() or {}
        latency = cursor.execute(_LATENCY).fetchone() or {}
    p50, p95 = latency["seconds"] or (float("nan"), float("nan"))
    return Account(**account, **detail, until_leased=(p50, p95))
