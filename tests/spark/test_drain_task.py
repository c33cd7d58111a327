"""One task of a drain in this process: what it takes, and how that ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from airflow_provider_pgqueue.core import HandlerBroken, InvalidArgument, run, verbs
from airflow_provider_pgqueue.export.connection import Database
from airflow_provider_pgqueue.spark.pipelines.drain.task import Share
from tests.waiting import until, until_leases_expire, until_past
from tools import ROOT

Connection = psycopg.Connection[Any]
Queue = Callable[..., str]
NewShare = Callable[..., Share]
HOLDER = "spark nightly "


def share_of(dsn: str, function: Any, **options: Any) -> Share:
    given: dict[str, Any] = {
        "database": Database(dsn),
        "queue": "orders",
        "function": function,
        "parallelism": 1,
        "batch_size": 40,
        "lease_for": None,
        "max_messages": None,
        "give_up_after": 20,
        "holder": HOLDER,
        "stop_key": 77,
    }
    return Share(**(given | options))


@pytest.fixture
def share(dsn: str) -> NewShare:
    """Make the share of a task."""
    return partial(share_of, dsn)


def publish(conn: Connection, count: int, **options: Any) -> list[int]:
    return run(conn, verbs.publish_batch("orders", range(count), **options))


def results(conn: Connection) -> Counter[str]:
    return Counter(result for (result,) in conn.execute("SELECT result FROM messages.message_archive"))


def left(conn: Connection) -> set[Any]:
    return set(conn.execute("SELECT attempts, lock_token FROM messages.message").fetchall())


def test_a_function_sees_the_whole_message_and_every_digit_of_it(
    share: NewShare, conn: Connection, queue: Queue
) -> None:
    queue("orders")
    conn.execute(
        "SELECT messages.publish('orders', '{\"n\": 1.2345678901234567890123}', reference => 'r', topic => 'shop.eu',"
        " group_key => 'g', headers => '{\"h\": 1}')"
    )

    def see(messages: pa.Table) -> pa.Table:
        (seen,) = messages.to_pylist()
        seen["created_at"] = seen["created_at"].isoformat()
        return pa.table({"id": [seen["id"]], "result": ["success"], "output": [json.dumps(seen)]})

    share(see).run(0)
    row = conn.execute("SELECT id, created_at, output FROM messages.message_archive").fetchone()
    assert row is not None
    assert json.loads(row[2].pop("headers")) == {"h": 1}
    assert row[2] == {
        "id": row[0],
        "message": '{"n": 1.2345678901234567890123}',
        "reference": "r",
        "attempts": 1,
        "topic": "shop.eu",
        "group_key": "g",
        "created_at": row[1].isoformat(),
    }


def test_a_task_leases_as_the_queue_says(share: NewShare, conn: Connection, queue: Queue) -> None:
    queue("orders", lease_for="100 seconds")
    publish(conn, 10)
    seen: list[Any] = []
    lengths = "SELECT DISTINCT lock_expires_at - leased_at FROM messages.message"
    share(lambda messages: seen.extend(conn.execute(lengths).fetchall())).run(0)
    assert seen == [(timedelta(seconds=100),)]


def test_bad_messages_at_the_head_of_a_queue_keep_no_task_from_its_end(
    share: NewShare, conn: Connection, queue: Queue
) -> None:
    queue("orders", max_attempts=3, backoff_first="1 hour")
    publish(conn, 400)

    def pack(messages: pa.Table) -> None:
        for number in map(int, messages["message"].to_pylist()):
            if number < 50:
                raise ValueError(f"no address in {number}")

    for _ in range(3):
        share(pack, batch_size=200, give_up_after=100).run(0)
        conn.execute("UPDATE messages.message SET visible_at = clock_timestamp()")
    assert results(conn) == {"success": 350, "failed": 50}


def test_what_is_raised_retried_or_cannot_be_kept_ends_its_own_message(
    share: NewShare, conn: Connection, queue: Queue
) -> None:
    queue("orders", max_attempts=2, backoff_first="1 millisecond")
    publish(conn, 100)

    def judge(messages: pa.Table) -> pa.Table:
        numbers = [int(message) for message in messages["message"].to_pylist()]
        if {7, 30, 31}.intersection(numbers):
            raise ValueError("no order \0")
        results = ["retry" if number == 60 else "rejected" if number % 10 == 5 else "success" for number in numbers]
        outputs = ["{" if number == 50 else '{"a": 1}' for number in numbers]
        return pa.table({"id": messages["id"], "result": results, "output": outputs})

    counts = share(judge).run(0)
    until(lambda: counts.update(share(judge).run(0)) or not left(conn))
    assert results(conn) == {"success": 85, "rejected": 10, "failed": 5}
    assert (counts["failed"], counts["retried"], counts["lost"]) == (5, 4, 0)
    raised = "SELECT failure FROM messages.message_archive WHERE failure ->> 'error' = 'ValueError'"
    assert ["in judge" in failure["traceback"] for (failure,) in conn.execute(raised)] == [True] * 3


def test_a_broken_function_costs_few_attempts(share: NewShare, conn: Connection, queue: Queue) -> None:
    queue("orders")
    publish(conn, 300)

    def fail(messages: pa.Table) -> None:
        raise KeyError("order")

    with pytest.raises(HandlerBroken, match="on 20 messages in a row"):
        share(fail, batch_size=100).run(0)
    assert left(conn) == {(0, None), (1, None)}
    with pytest.raises(InvalidArgument, match="'sucess'"):
        share(lambda messages: pa.table({"id": messages["id"], "result": ["sucess"] * len(messages)})).run(0)
    assert left(conn) == {(0, None), (1, None)}


def test_outcomes_that_cannot_be_stored_end_a_task(share: NewShare, conn: Connection, queue: Queue) -> None:
    queue("orders")
    publish(conn, 200)

    def judge(messages: pa.Table) -> pa.Table:
        many = len(messages)
        return pa.table({"id": messages["id"], "result": ["success"] * many, "output": ['"\\u0000"'] * many})

    with pytest.raises(HandlerBroken, match="on 40 messages in a row, the last with outcomes that cannot be stored"):
        share(judge, give_up_after=10).run(0)
    assert left(conn) == {(0, None)}


def test_a_share_of_so_many_is_not_exceeded(share: NewShare, conn: Connection, queue: Queue) -> None:
    queue("orders")
    publish(conn, 100)
    assert share(lambda messages: None, max_messages=55).run(0)["leased"] == 55


def test_a_call_that_hangs_is_left(share: NewShare, conn: Connection, queue: Queue) -> None:
    queue("orders", handler_timeout="500 milliseconds", lease_for="1 second", max_attempts=1)
    publish(conn, 40)

    def hang(messages: pa.Table) -> None:
        if "7" in messages["message"].to_pylist():
            time.sleep(5)

    counts = share(hang).run(0)
    assert (counts["success"], counts["lock_expired"]) == (39, 1)
    assert results(conn) == {"success": 39, "lock_expired": 1}


def test_a_lease_is_renewed_while_the_function_works(share: NewShare, dsn: str, conn: Connection, queue: Queue) -> None:
    queue("orders", lease_for="1 second")
    publish(conn, 3)

    def slow(messages: pa.Table) -> None:
        with psycopg.connect(dsn, autocommit=True) as own:
            (end,) = own.execute("SELECT max(lock_expires_at) FROM messages.message").fetchone() or (None,)
            until_past(own, end)
            assert own.execute("SELECT messages.lease('orders', 3)").rowcount == 0

    assert share(slow).run(0) == {"success": 3, "leased": 3}


def test_what_is_handled_meanwhile_is_settled_each_second(
    share: NewShare, dsn: str, conn: Connection, queue: Queue
) -> None:
    queue("orders")
    publish(conn, 40)

    def slow(messages: pa.Table) -> None:
        if len(messages) > 10:
            raise ValueError("too many")
        if 39 in map(int, messages["message"].to_pylist()):
            with psycopg.connect(dsn, autocommit=True) as own:
                until(lambda: own.execute("SELECT FROM messages.message_archive").rowcount)
        time.sleep(0.6)

    assert share(slow).run(0)["success"] == 40


def test_a_lost_message_is_counted_once_though_it_had_no_attempt_left(
    share: NewShare, dsn: str, conn: Connection, queue: Queue
) -> None:
    queue("orders", max_attempts=2)
    lost, _ = publish(conn, 2)
    conn.execute("UPDATE messages.message SET attempts = 1 WHERE id = %s", [lost])

    def lose_one(messages: pa.Table) -> pa.Table:
        with psycopg.connect(dsn, autocommit=True) as own:
            steal = "UPDATE messages.message SET lock_token = gen_random_uuid(), locked_by = 'thief' WHERE id = %s"
            own.execute(steal, [lost])
        return pa.table({"id": messages["id"], "result": ["retry"] * 2, "delay_seconds": [3600.0] * 2})

    assert share(lose_one).run(0) == Counter(retried=1, lost=1, leased=2)


def test_a_twin_waits_for_the_other_attempt_and_takes_over_when_that_dies(
    share: NewShare, dsn: str, conn: Connection, queue: Queue
) -> None:
    queue("orders", lease_for="2 seconds")
    publish(conn, 10)
    first = process("work_forever", dsn)
    try:
        until(lambda: run(conn, verbs.run_backlog(HOLDER, "orders"))["held"] == 10, 180)
        with ThreadPoolExecutor() as pool:
            twin = pool.submit(share(lambda messages: None).run, 0)
            looks = "SELECT FROM pg_stat_activity WHERE application_name ~ 'pgqueue drain' AND query ~ 'run_backlog'"
            until(lambda: conn.execute(looks.encode()).rowcount)
            assert not twin.done()
            first.kill()
            counts = twin.result(180)
    finally:
        first.kill()
        first.wait()
    # Where the lease ended between two looks of the twin, the next round takes over.
    until(lambda: counts.update(share(lambda messages: None).run(0)) or not left(conn))
    assert counts == Counter(success=10, leased=10)
    rows = conn.execute("SELECT DISTINCT attempts FROM messages.message_archive").fetchall()
    assert rows == [(2,)]


def process(function: str, dsn: str) -> subprocess.Popen[bytes]:
    """Start a process that calls a function of this module."""
    code = f"from tests.spark.test_drain_task import {function}; {function}({dsn!r})"
    return subprocess.Popen([sys.executable, "-c", code], cwd=ROOT)


def work_forever(dsn: str) -> None:
    share_of(dsn, lambda messages: time.sleep(3600)).run(0)


def test_a_message_that_kills_its_process_is_dead_in_the_end(dsn: str, conn: Connection, queue: Queue) -> None:
    queue("orders", lease_for="1 second", max_attempts=2)
    publish(conn, 20)
    ends: list[int] = []
    while left(conn):
        ends.append(process("die_of_seven", dsn).wait(180))
        until_leases_expire(conn)
    assert ends == [-signal.SIGKILL, -signal.SIGKILL, 0]
    assert results(conn) == {"lock_expired": 1, "success": 19}
    rows = conn.execute("SELECT DISTINCT attempts FROM messages.message_archive WHERE result = 'lock_expired'")
    assert rows.fetchall() == [(2,)]


def test_a_function_that_ends_its_process_by_itself_uses_an_attempt(
    share: NewShare, conn: Connection, queue: Queue
) -> None:
    queue("orders")
    publish(conn, 20)

    def end(messages: pa.Table) -> None:
        sys.exit(3)

    with pytest.raises(SystemExit):
        share(end).run(0)
    assert left(conn) == {(1, None)}


def die_of_seven(dsn: str) -> None:
    def function(messages: pa.Table) -> None:
        if "7" in messages["message"].to_pylist():
            os.kill(os.getpid(), signal.SIGKILL)

    share_of(dsn, function, batch_size=5).run(0)
