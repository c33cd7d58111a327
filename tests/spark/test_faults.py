"""Faults on a real cluster: whatever is killed, frozen or started twice, each message is archived exactly once."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from pyspark.sql import SparkSession

from airflow_provider_pgqueue.core import statements
from airflow_provider_pgqueue.core.client import run
from airflow_provider_pgqueue.core.message import Message
from airflow_provider_pgqueue.spark.database import Database
from airflow_provider_pgqueue.spark.pipelines.drain import DrainOptions, drain
from tests.core.test_worker import until
from tools.standalone import Standalone

Connection = psycopg.Connection[Any]
Queue = Callable[..., str]
SECOND = timedelta(seconds=1)
SLOW = 180  # seconds; a Spark that starts beside others takes its time
PASSWORD = "geheim-4711"

# What the tasks import: an effect for each message, with the executor that had it, before and after some work.
FUNCTIONS = """
import os, time
import psycopg

def executor():
    with open(f"/proc/{os.getppid()}/stat") as stat:
        return int(stat.read().rpartition(")")[2].split()[1])

def work(messages, seconds):
    with psycopg.connect(DSN, autocommit=True) as conn, conn.cursor() as cursor:
        rows = [(id_, executor()) for id_ in messages["id"].to_pylist()]
        cursor.executemany("INSERT INTO effect (id, executor) VALUES (%s, %s)", rows)
    time.sleep(seconds)

def steady(messages):
    work(messages, 0.25)

def one_slow(messages):
    work(messages, 5 if 1 in map(int, messages["message"].to_pylist()) else 0.1)
"""


@pytest.fixture
def effects(conn: Connection) -> Callable[[], list[tuple[int, int]]]:
    """A table that the functions write to: message and executor, one row an effect."""
    conn.execute("CREATE TABLE effect (place bigint GENERATED ALWAYS AS IDENTITY, id bigint, executor bigint)")
    return lambda: conn.execute("SELECT id, executor FROM effect ORDER BY place").fetchall()


@pytest.fixture
def submit(standalone: Standalone, dsn: str, tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Drain `orders` with two consumers by spark-submit, as run `nightly`: `submit("steady", name="first")`."""
    functions = tmp_path / "functions.py"
    functions.write_text(f"DSN = {dsn!r}\n{FUNCTIONS}")
    started: list[subprocess.Popen[bytes]] = []

    def start(function: str, name: str, conf: dict[str, str] | None = None) -> subprocess.Popen[bytes]:
        arguments = ["drain", "--queue", "orders", "--function", f"functions:{function}", "--run-id", "nightly"]
        arguments += ["--parallelism", "2", "--batch-size", "10", "--lease-for", "3s"]
        secret = make_conninfo(dsn, password=PASSWORD)
        started.append(standalone.submit(name, *arguments, dsn=secret, functions=functions, conf=conf))
        return started[-1]

    yield start
    for process in started:
        standalone.kill(process)


def publish(conn: Connection, number: int) -> list[int]:
    return run(conn, statements.publish_batch("orders", range(number)))


def accounts_balance(conn: Connection, published: list[int]) -> bool:
    row = conn.execute("SELECT count(*), count(DISTINCT id), min(result), max(result) FROM messages.message_archive")
    waiting = conn.execute("SELECT FROM messages.message").rowcount
    return (*(row.fetchone() or ()), waiting) == (len(published), len(published), "success", "success", 0)


def repeated(effects: list[tuple[int, int]]) -> int:
    return sum(Counter(id_ for id_, _ in effects).values()) - len({id_ for id_, _ in effects})


def summary(standalone: Standalone, name: str) -> dict[str, Any]:
    # spark-submit mixes standard error of the driver into standard output: the summary is the last line.
    found: dict[str, Any] = json.loads(standalone.output(name).splitlines()[-1])
    return found


def test_kill_9_of_an_executor_loses_nothing(
    standalone: Standalone, submit: Any, conn: Connection, queue: Queue, effects: Any
) -> None:
    queue("orders")
    published = publish(conn, 200)
    driver = submit("steady", "killed-executor")
    (_, victim), *_ = until(lambda: len(effects()) >= 40 and effects(), SLOW)
    os.kill(victim, signal.SIGKILL)
    assert driver.wait(SLOW) == 0
    assert accounts_balance(conn, published)
    assert {id_ for id_, _ in effects()} == set(published)
    assert repeated(effects()) <= 10
    assert len({executor for _, executor in effects()}) >= 2
    assert summary(standalone, "killed-executor")["archived"] == 200


def test_speculation_does_not_repeat_a_slow_task_and_the_connection_stands_nowhere(
    standalone: Standalone, submit: Any, conn: Connection, queue: Queue, effects: Any
) -> None:
    queue("orders")
    published = publish(conn, 40)
    speculating = {
        "spark.speculation": "true",
        "spark.speculation.interval": "100ms",
        # At once, however long a cold start makes the other task take.
        "spark.speculation.multiplier": "0.01",
        "spark.speculation.efficiency.enabled": "false",
        "spark.speculation.quantile": "0.5",
        "spark.speculation.minTaskRuntime": "100ms",
    }
    driver = submit("one_slow", "speculation", speculating)
    until(effects, SLOW)
    assert PASSWORD not in commands_and_environments()
    assert driver.wait(SLOW) == 0
    assert accounts_balance(conn, published)
    assert repeated(effects()) == 0
    written = [file.read_text() for file in standalone.home.rglob("*") if file.is_file() and file.suffix != ".zip"]
    assert any('"Speculative":true' in text for text in written)
    assert not any(PASSWORD in text for text in written)


def commands_and_environments() -> str:
    """Return the command lines of all processes, and the environments of the executors and of their children."""
    commands: dict[str, str] = {}
    parents: dict[str, str] = {}
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, UnicodeDecodeError):
            parents[process.name] = (process / "stat").read_text().rpartition(")")[2].split()[1]
            commands[process.name] = (process / "cmdline").read_text()
    executors = {pid for pid, command in commands.items() if "CoarseGrainedExecutorBackend" in command}
    assert executors
    texts = list(commands.values())
    for pid in executors | {pid for pid, parent in parents.items() if parent in executors}:
        with contextlib.suppress(OSError, UnicodeDecodeError):
            texts.append(Path("/proc", pid, "environ").read_text())
    return "\n".join(texts)


def test_a_killed_driver_is_started_again_and_finishes_the_run(
    standalone: Standalone, submit: Any, conn: Connection, queue: Queue, effects: Any
) -> None:
    queue("orders")
    published = publish(conn, 200)
    first = submit("steady", "killed-driver")
    until(lambda: len(effects()) >= 40, SLOW)
    standalone.kill(first)
    again = submit("steady", "driver-again")
    assert again.wait(SLOW) == 0
    assert accounts_balance(conn, published)
    assert {id_ for id_, _ in effects()} == set(published)
    assert repeated(effects()) <= 20
    found = summary(standalone, "driver-again")
    assert (found["archived"], found["results"]["success"]) == (200, 200)


def test_a_task_frozen_past_its_lease_changes_nothing_when_it_goes_on(
    spark: SparkSession, dsn: str, conn: Connection, queue: Queue
) -> None:
    queue("orders")
    (published,) = publish(conn, 1)
    conn.execute("CREATE TABLE effect (pid bigint)")

    def freeze(messages: Any) -> None:
        with psycopg.connect(dsn) as own:
            own.execute("INSERT INTO effect VALUES (%s)", [os.getpid()])
        # Time to be frozen in, which renewals bridge as long as the process lives.
        with psycopg.connect(dsn, autocommit=True) as own:
            until(lambda: own.execute("SELECT FROM effect").rowcount == 2, SLOW)

    options = DrainOptions(queue_name="orders", function=freeze, run_id="nightly", parallelism=1, lease_for=SECOND)
    with ThreadPoolExecutor() as pool:
        draining = pool.submit(drain, spark, options, Database(dsn))
        ((pid,),) = until(lambda: conn.execute("SELECT pid FROM effect").fetchall(), SLOW)
        os.kill(pid, signal.SIGSTOP)
        try:
            (taken,) = until(lambda: leased(conn), 20)
            run(conn, statements.archive(taken.lock_token, [taken.id], handled_by="another"))
            conn.execute("INSERT INTO effect VALUES (0)")
        finally:
            os.kill(pid, signal.SIGCONT)
        found = draining.result(SLOW)
    assert (found["archived"], found["lost"]) == (0, 1)
    rows = conn.execute("SELECT id, handled_by FROM messages.message_archive").fetchall()
    assert rows == [(published, "another")]


def leased(conn: Connection) -> list[Message]:
    return run(conn, statements.lease("orders"))
