"""Drain: a backlog handled in parallel, each message archived once, whatever the function does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pandas as pd
import psycopg
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from airflow_provider_pgqueue.core import (
    HandlerBroken,
    InvalidArgument,
    QueuePaused,
    run,
    verbs,
)
from airflow_provider_pgqueue.core.migrations import code_version
from airflow_provider_pgqueue.core.tuning import TUNING
from airflow_provider_pgqueue.spark import __main__ as command_line
from airflow_provider_pgqueue.spark import drain
from airflow_provider_pgqueue.spark.package import package
from airflow_provider_pgqueue.spark.pipelines.drain.outcomes import outcomes_of
from tests.spark.functions import accept
from tests.waiting import until
from tools import ROOT

Connection = psycopg.Connection[Any]
Queue = Callable[..., str]
Drain = Callable[..., dict[str, Any]]
Effects = Callable[[], list[Any]]
SLOWLY = """
import time
import psycopg

def slowly(messages):
    with psycopg.connect(DSN) as conn:
        conn.execute("INSERT INTO effect (note) VALUES (NULL)")
    time.sleep(0.5)
"""
SUCCESS = {"success": 0, "rejected": 0, "failed": 0, "lock_expired": 0}


@pytest.fixture
def draining(spark: SparkSession, dsn: str) -> Drain:
    """Drain the queue `orders` as run `nightly`, with two consumers."""

    def start(function: Any, **options: Any) -> dict[str, Any]:
        given = {"queue": "orders", "run_id": "nightly", "parallelism": 2, "batch_size": 40} | options
        return drain(spark, function=function, dsn=dsn, **given)

    return start


@pytest.fixture
def effects(conn: Connection) -> Effects:
    """A table that functions write to, one row an effect."""
    conn.execute("CREATE TABLE effect (place bigint GENERATED ALWAYS AS IDENTITY, id bigint, note text)")
    return lambda: conn.execute("SELECT id, note FROM effect ORDER BY place").fetchall()


def noting(dsn: str) -> Callable[[pa.Table], None]:
    """A function with an effect for each message."""

    def note(messages: pa.Table) -> None:
        with psycopg.connect(dsn) as conn, conn.cursor() as cursor:
            cursor.executemany(
                "INSERT INTO effect (id, note) VALUES (%s, %s)",
                list(zip(messages["id"].to_pylist(), messages["message"].to_pylist(), strict=True)),
            )

    return note


def publish(conn: Connection, *bodies: Any, **options: Any) -> list[int]:
    return run(conn, verbs.publish_batch("orders", bodies, **options))


def archive(conn: Connection) -> dict[Any, Any]:
    rows = conn.execute("SELECT message, result, details, output, failure, handled_by FROM messages.message_archive")
    return {body: rest for body, *rest in rows.fetchall()}


def left(conn: Connection) -> list[Any]:
    return conn.execute("SELECT message, attempts, lock_token FROM messages.message ORDER BY id").fetchall()


def test_each_message_is_archived_once_with_one_effect(
    draining: Drain, conn: Connection, queue: Queue, dsn: str, effects: Effects
) -> None:
    queue("orders")
    ids = publish(conn, *range(300))
    summary = draining(noting(dsn))
    assert sorted(id_ for id_, _ in effects()) == ids
    assert {result for result, *_ in archive(conn).values()} == {"success"}
    assert all(handler.startswith("spark nightly ") for *_, handler in archive(conn).values())
    assert (summary["archived"], summary["results"]) == (300, SUCCESS | {"success": 300})
    assert (summary["ready"], summary["held"], summary["waiting"], summary["rounds"]) == (0, 0, 0, 1)
    assert summary["stopped"] is None
    assert summary["parallelism"] == 2
    worked = conn.execute("SELECT max(archived_at) - min(leased_at) FROM messages.message_archive").fetchone()
    assert worked
    assert summary["messages_per_second"] == pytest.approx(300 / worked[0].total_seconds(), rel=0.01)
    assert worked[0].total_seconds() < summary["seconds"]


def test_a_function_says_what_becomes_of_each_message(draining: Drain, conn: Connection, queue: Queue) -> None:
    queue("orders")
    publish(conn, "good", "plain", "invalid", "broken", "later")

    def judge(messages: pa.Table) -> pd.DataFrame:
        said = {
            '"good"': {"result": "success", "output": '{"parcel": 12}', "details": "sent"},
            '"invalid"': {"result": "rejected", "details": "no order"},
            '"broken"': {"result": "failed", "details": "out of stock"},
            '"later"': {"result": "retry", "delay_seconds": 3600},
        }
        rows = [{"id": row.id} | said[row.message] for row in messages.to_pandas().itertuples() if row.message in said]
        return pd.DataFrame(rows)

    summary = draining(judge, parallelism=1)
    found = {body: rest[:3] for body, rest in archive(conn).items()}
    assert found == {
        "good": ["success", "sent", {"parcel": 12}],
        "plain": ["success", None, None],
        "invalid": ["rejected", "no order", None],
        "broken": ["failed", "out of stock", None],
    }
    assert left(conn) == [("later", 1, None)]
    assert summary["results"] == SUCCESS | {"success": 2, "rejected": 1, "failed": 1}
    assert (summary["retried"], summary["waiting"], summary["died"]) == (1, 1, 1)


def test_a_group_is_handled_in_order_by_several_consumers(
    draining: Drain, conn: Connection, queue: Queue, dsn: str, effects: Effects
) -> None:
    queue("orders")
    bodies = [f"{group}{number}" for number in range(8) for group in "abcdefghij"]
    publish(conn, *bodies, group_keys=[body[0] for body in bodies])
    summary = draining(noting(dsn), parallelism=4)
    seen = defaultdict(list)
    for _, note in effects():
        seen[note[1]].append(int(note[2:-1]))
    assert seen == {group: list(range(8)) for group in "abcdefghij"}
    assert (summary["archived"], summary["waiting"]) == (80, 0)


def test_the_heads_of_all_groups_are_shared_by_the_consumers(
    draining: Drain, conn: Connection, queue: Queue, dsn: str, effects: Effects
) -> None:
    queue("orders")
    publish(conn, *range(20), group_keys=[str(number) for number in range(20)])
    note = noting(dsn)

    def meet(messages: pa.Table) -> None:
        note(messages)
        with psycopg.connect(dsn, autocommit=True) as own:
            until(lambda: own.execute("SELECT FROM effect").rowcount == 20, what="the other consumer's half")

    draining(meet, batch_size=1000)
    tasks = {handler.split()[-1].partition(".")[0] for *_, handler in archive(conn).values()}
    assert tasks == {"0", "1"}


def test_what_a_killed_try_of_the_run_held_comes_back_to_it_and_what_others_hold_stays(
    draining: Drain, conn: Connection, queue: Queue
) -> None:
    queue("orders")
    publish(conn, "ours", "theirs")
    for holder in ("spark nightly postgres 0.0:1@gone", "spark nightly 2 postgres 0.0:1@busy"):
        lease_for = timedelta(seconds=2) if "gone" in holder else timedelta(minutes=5)
        assert run(conn, verbs.lease("orders", lease_for=lease_for, locked_by=holder))
    summary = draining(lambda messages: None)
    assert list(archive(conn)) == ["ours"]
    assert (summary["archived"], summary["held"], summary["waiting"]) == (1, 0, 1)


def test_only_so_many(draining: Drain, conn: Connection, queue: Queue) -> None:
    queue("orders")
    publish(conn, *range(20))
    assert draining(lambda messages: None, max_messages=7)["archived"] == 7
    rest = draining(lambda messages: None, run_id="rest")
    assert (rest["archived"], rest["ready"], rest["waiting"]) == (13, 0, 0)


def sessions(conn: Connection) -> int:
    """Return how many sessions this database has had."""
    row = conn.execute("SELECT sessions FROM pg_stat_database WHERE datname = current_database()").fetchone()
    assert row
    return int(row[0])


def test_what_a_dying_try_of_the_run_archives_yet_is_not_taken_again(
    draining: Drain, conn: Connection, queue: Queue, connect: Callable[..., Connection]
) -> None:
    queue("orders")
    publish(conn, *range(20))
    holder = "spark nightly postgres 0.0:1@dying"
    held = run(conn, verbs.lease("orders", max_messages=6, locked_by=holder))

    def archive_late() -> None:
        own = connect()
        until(lambda: own.execute("SELECT FROM messages.pipeline_run").rowcount)
        looks = sessions(own) + 3
        until(lambda: sessions(own) >= looks, what="looks of the drain, each in a session of its own")
        ids = [message.id for message in held]
        run(own, verbs.archive(held[0].lock_token, ids, handled_by=holder))

    thread = threading.Thread(target=archive_late)
    thread.start()
    summary = draining(lambda messages: None, max_messages=6)
    thread.join()
    assert (summary["archived"], summary["ready"], summary["rounds"]) == (6, 14, 0)


def test_a_drain_that_gives_up_says_so(
    draining: Drain, queue: Queue, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TUNING, "drain_rounds", 0)
    run(conn, verbs.publish_batch(queue("orders"), [1, 2]))
    assert draining(lambda messages: None)["stopped"] == "messages were ready after 0 rounds"


def test_an_empty_queue_needs_no_job(draining: Drain, queue: Queue) -> None:
    queue("orders")
    assert draining(lambda messages: None)["rounds"] == 0


def test_a_paused_queue_is_said_before_anything_is_leased(draining: Drain, conn: Connection, queue: Queue) -> None:
    queue("orders")
    publish(conn, 1)
    conn.execute("SELECT messages.pause_queue('orders')")
    with pytest.raises(QueuePaused, match="'orders'"):
        draining(accept)
    assert left(conn) == [(1, 0, None)]
    assert conn.execute("SELECT finished_at FROM messages.pipeline_run").fetchall() == [(None,)]


def test_an_argument_that_cannot_be_is_named_and_costs_no_attempt(
    draining: Drain, conn: Connection, queue: Queue
) -> None:
    queue("orders")
    publish(conn, 1)
    wrong: dict[str, Any]
    for wrong, complaint in (
        ({"function": None}, "function is None.*Give a function"),
        ({"queue": ["orders"]}, r"queue is \['orders'\].*Give a text"),
        ({"lease_for": 0}, r"lease_for is 0\. Give a timedelta or a number of seconds, from 0:00:00.001000 to 12"),
        ({"batch_size": 10_001}, "batch_size is 10001.*Give"),
        ({"parallelism": 0}, "parallelism is 0.*Give"),
        ({"run_id": 5}, "run_id is 5.*Give a text"),
        ({"run_id": ""}, "run_id is ''.*Give a text"),
    ):
        with pytest.raises(InvalidArgument, match=complaint):
            draining(**{"function": accept} | wrong)
    assert left(conn) == [(1, 0, None)]
    assert conn.execute("SELECT FROM messages.pipeline_run").rowcount == 0


def test_a_finished_run_is_not_done_again_and_its_name_is_refused_for_another_queue(
    draining: Drain, conn: Connection, queue: Queue
) -> None:
    queue("orders")
    queue("bills")
    publish(conn, 1)
    first = draining(accept)
    assert "about" not in first
    publish(conn, 2)
    assert draining(accept) == first
    assert [body for body, *_ in left(conn)] == [2]
    with pytest.raises(InvalidArgument, match=r"run 'nightly' was about orders, not bills\. Give each run a name"):
        draining(accept, queue="bills")
    assert draining(accept, run_id="nightly 2")["archived"] == 1


def test_a_function_that_always_raises_ends_the_drain_and_costs_no_attempt(
    draining: Drain, conn: Connection, queue: Queue, capfd: pytest.CaptureFixture[str]
) -> None:
    queue("orders")
    publish(conn, *range(300))

    def fail(messages: pa.Table) -> None:
        raise KeyError(f"secret {messages['message'][0]}")

    with pytest.raises(HandlerBroken, match=r"'orders' failed on 100 messages .* with KeyError") as broken:
        draining(fail, batch_size=100)
    assert "secret" not in str(broken.value)
    assert sum(attempts for _, attempts, _ in left(conn)) <= 200, "a hundred for each task"
    assert {token for *_, token in left(conn)} == {None}
    assert capfd.readouterr().err.count("failed with") <= 2


def test_a_function_that_succeeded_in_an_earlier_try_is_not_broken_from_the_start(
    draining: Drain, conn: Connection, queue: Queue
) -> None:
    queue("orders", backoff_first="1 hour")
    publish(conn, *range(20))

    def stumble(messages: pa.Table) -> pa.Table:
        results = ["nothing known" if body == "19" else "success" for body in messages["message"].to_pylist()]
        return pa.table({"id": messages["id"], "result": results})

    def fail(messages: pa.Table) -> None:
        raise KeyError("order")

    with pytest.raises(InvalidArgument):
        draining(stumble, batch_size=1, parallelism=1)
    publish(conn, *range(30))
    assert draining(fail)["waiting"] == 31


@pytest.mark.parametrize(
    ("returned", "complaint"),
    [
        ("done", "returned a str"),
        (pa.table({"id": [1]}), "Give id and result"),
        (pa.table({"id": [1], "result": ["success"], "detail": ["x"]}), "the columns \\['detail'\\]"),
        (pa.table({"id": [9], "result": ["success"]}), "did not get: \\[9\\]"),
        (pa.table({"id": [1, 1], "result": ["success", "failed"]}), "two rows for one message"),
        (pd.DataFrame({"id": [1, None], "result": ["success", "failed"]}), "column id as double"),
        (pa.table({"id": ["1"], "result": ["success"]}), "column id as string"),
        (pa.table({"id": [1], "result": [None]}), "a row without a result"),
        (pd.DataFrame({"id": [1, 2], "result": ["success", 7]}), "is not a table"),
    ],
)
def test_something_unusable_is_named(returned: Any, complaint: str) -> None:
    with pytest.raises(InvalidArgument, match=complaint):
        outcomes_of(returned, [1, 2])


def test_an_interrupted_drain_finishes_the_batches_in_hand_and_holds_nothing(
    draining: Drain, conn: Connection, queue: Queue, dsn: str, effects: Effects
) -> None:
    queue("orders")
    ids = publish(conn, *range(1000))
    note = noting(dsn)

    def slowly(messages: pa.Table) -> None:
        note(messages)
        time.sleep(0.5)

    def interrupt() -> None:
        with psycopg.connect(dsn, autocommit=True) as own:
            until(lambda: own.execute("SELECT FROM effect LIMIT 1").rowcount)
        os.kill(os.getpid(), signal.SIGUSR1)

    def stop(number: int, frame: object) -> None:
        sys.exit(143)

    before = signal.signal(signal.SIGUSR1, stop)
    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        with pytest.raises(SystemExit):
            draining(slowly, batch_size=20)
    finally:
        thread.join()
        signal.signal(signal.SIGUSR1, before)
    waiting = left(conn)
    assert {(attempts, token) for _, attempts, token in waiting} == {(0, None)}
    assert len(waiting) + len(archive(conn)) == len(ids)
    assert sorted(int(note) for _, note in effects()) == sorted(archive(conn))
    summary = draining(noting(dsn))
    assert summary["archived"] == 1000  # of the whole run


def test_sigterm_ends_the_command_and_what_was_not_handled_is_free(
    conn: Connection, queue: Queue, dsn: str, effects: Effects, tmp_path: Path
) -> None:
    queue("orders")
    publish(conn, *range(400))
    (tmp_path / "slow.py").write_text(f"DSN = {dsn!r}\n{SLOWLY}")
    command = [sys.executable, "-m", "airflow_provider_pgqueue.spark", "--master", "local[1]", "drain"]
    command += ["--queue", "orders", "--function", "slow:slowly", "--batch-size", "10"]
    # The workers of a local Spark are of the Python that runs the command, which is on no path here.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK_")}
    environment |= {"PATH": "/usr/bin:/bin", "PGQUEUE_DSN": dsn, "PYTHONPATH": f"{tmp_path}:{ROOT}"}
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    try:
        until(effects, 180)
        process.terminate()
        assert process.wait(60) == 143
    finally:
        process.kill()
    assert {(attempts, token) for _, attempts, token in left(conn)} == {(0, None)}
    assert len(left(conn)) + len(archive(conn)) == 400


def test_a_dsn_on_the_command_line_is_refused_and_not_repeated(capsys: pytest.CaptureFixture[str]) -> None:
    secret = "postgresql://shop:geheim@db/shop"
    for arguments in (["--dsn", secret, "drain"], ["drain", f"--dsn={secret}", "--queue", "orders"]):
        assert command_line.run(arguments) == 2
        output = capsys.readouterr().err
        assert "PGQUEUE_DSN" in output
        assert "geheim" not in output
    assert command_line.run(["--help"]) == 0
    assert "no --dsn, on purpose" in " ".join(capsys.readouterr().out.split())


def test_the_zip_has_what_a_worker_needs_and_the_same_bytes_every_time(tmp_path: Path) -> None:
    first, second = package(tmp_path / "a.zip"), package(tmp_path / "b.zip")
    assert first.read_bytes() == second.read_bytes()
    look = (
        "import airflow_provider_pgqueue.spark.__main__, airflow_provider_pgqueue.spark.pipelines.drain.task as share;"
        "from airflow_provider_pgqueue.core.migrations import code_version;"
        "print(share.__file__, code_version())"
    )
    done = subprocess.run(
        [sys.executable, "-c", look], cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(first)}, capture_output=True
    )
    assert done.stdout.decode().startswith(str(first)), done.stderr.decode()
    assert int(done.stdout.split()[1]) == code_version()
