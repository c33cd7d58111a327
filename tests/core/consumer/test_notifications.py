"""A worker is notified of every queue, and asks only so often for its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from airflow_provider_pgqueue.core import Consumer, Worker, run, verbs
from tests.waiting import until

Connection = psycopg.Connection[Any]
CALLS = "SELECT calls FROM pg_stat_user_functions WHERE schemaname = 'messages' AND funcname = 'lease'"


@pytest.mark.long
def test_a_worker_that_is_notified_another_queue_asks_about_ten_times_a_second(
    dsn: str, conn: Connection, queue: Callable[..., str]
) -> None:
    queue("busy"), queue("quiet")
    worker = Worker(
        conninfo=make_conninfo(dsn, options="-c track_functions=all"),
        consumer=Consumer(queue_name="quiet", handle=lambda message: None),
    )

    def calls() -> int:
        conn.execute("SELECT pg_stat_clear_snapshot()")
        return sum(number for (number,) in conn.execute(CALLS))

    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        until(lambda: calls() > 0)
        before, began = calls(), time.monotonic()
        while time.monotonic() < began + 3:
            run(conn, verbs.publish("busy", 1))
    finally:
        worker.stop()
        thread.join(10)  # its session sends its numbers when it ends
    until(lambda: calls() > before)
    assert calls() - before <= 45
