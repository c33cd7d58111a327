"""`make sizing`: what a message costs in disk, WAL and time, and what a million of them cost."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import psycopg

from airflow_provider_pgqueue.core import Consumer, Message, migrate, run, verbs
from tools import STATE
from tools.postgres import Cluster

BODY: Final = {"order_id": 7, "note": "x" * 170}  # about 200 bytes of JSON
DAY: Final = 1_000_000
_QUEUE: Final = "SELECT pg_total_relation_size('messages.message_rows')"
_ARCHIVE: Final = "SELECT sum(pg_total_relation_size(relid)) FROM pg_partition_tree('messages.message_archive')"
_WAL: Final = "SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """The cost of one message: bytes, and seconds of one session that publishes or consumes."""

    waiting: float
    archived: float
    wal: float
    publish: float
    consume: float
    vacuum: float


def measure(conn: psycopg.Connection[Any], messages: int, *, batch_size: int = 10) -> Cost:
    """Publish messages one by one, handle them in batches with a function that does nothing, and vacuum the queue."""
    run(conn, verbs.create_queue("sizing", notify="off"))
    wal, archive, queue = (_number(conn, query) for query in (_WAL, _ARCHIVE, _QUEUE))
    started = time.perf_counter()
    for _ in range(messages):
        run(conn, verbs.publish("sizing", BODY))
    published = time.perf_counter()
    waiting = _number(conn, _QUEUE) - queue
    consumer = Consumer(queue_name="sizing", handle=_nothing, batch_size=batch_size)
    before = time.perf_counter()
    consumer.drain(conn)
    consumed = time.perf_counter()
    conn.execute("VACUUM messages.message_rows")
    vacuumed = time.perf_counter()
    return Cost(
        waiting=waiting / messages,
        archived=(_number(conn, _ARCHIVE) - archive) / messages,
        wal=(_number(conn, _WAL) - wal) / messages,
        publish=(published - started) / messages,
        consume=(consumed - before) / messages,
        vacuum=(vacuumed - consumed) / messages,
    )


def table(cost: Cost) -> Iterator[str]:
    """Yield a line for each cost: of one message, and of a million."""
    yield f"{'':34}{'a message':>12}{'a million':>12}"
    for name, size in (
        ("disk while it waits", cost.waiting),
        ("disk in the archive", cost.archived),
        ("WAL, publish to archive", cost.wal),
    ):
        yield f"{name:34}{size:>10,.0f} B{size * DAY / 1e9:>9,.2f} GB"
    for name, seconds in (
        ("one publisher, one at a time", cost.publish),
        ("one consumer, ten at a time", cost.consume),
        ("vacuum of the queue", cost.vacuum),
    ):
        yield f"{name:34}{seconds * 1e6:>9,.0f} µs{seconds * DAY:>10,.0f} s"


def _number(conn: psycopg.Connection[Any], query: str) -> float:
    row = conn.execute(query.encode()).fetchone()
    return float(row[0]) if row else 0.0


def _nothing(message: Message) -> None:
    """Handle a message without any effect."""


def main() -> None:
    """Measure on a server of its own, with the settings of a new installation."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=20_000)
    messages = parser.parse_args().messages
    cluster = Cluster(STATE / "sizing", durable=True)
    try:
        cluster.start()
        with psycopg.connect(cluster.create_database("sizing"), autocommit=True) as conn:
            migrate(conn)
            print(f"{messages:,} messages of {len(json.dumps(BODY))} bytes, PostgreSQL {cluster.binaries.version}")
            print("\n".join(table(measure(conn, messages))))
    finally:
        cluster.destroy()


if __name__ == "__main__":
    main()
