"""Faults on a real cluster: whatever is killed, frozen or started twice, each message is archived exactly once."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pyarrow.parquet as pq
import pytest
from psycopg.conninfo import make_conninfo
from pyspark.sql import SparkSession

from airflow_provider_pgqueue.core import Message, run, verbs
from airflow_provider_pgqueue.spark import drain
from tests.spark.test_export import make_partition, rows_in_archive
from tests.waiting import until
from tools.standalone import Standalone

Connection = psycopg.Connection[Any]
Queue = Callable[..., str]
Record = Callable[..., None]
SECOND = timedelta(seconds=1)
SLOW = 180  # seconds; a Spark that starts beside others takes its time
PASSWORD = "geheim-4711"
SPECULATING = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    # At once, however long a cold start makes the other task take.
    "spark.speculation.multiplier": "0.01",
    "spark.speculation.efficiency.enabled": "false",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.minTaskRuntime": "100ms",
}

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

# A driver that writes; the first attempt of a task does not end when it has staged its rows.
SLOW_WRITER = """
import time
from pyspark import TaskContext
from pyspark.sql import SparkSession
from airflow_provider_pgqueue.spark.database import Database
from airflow_provider_pgqueue.spark.source.data_source import data_source
from airflow_provider_pgqueue.spark.source.writer import PublishOptions, PublishWriter

class SlowWriter(PublishWriter):
    def write(self, iterator):
        staged = super().write(iterator)
        task = TaskContext.get()
        if task.partitionId() == 0 and task.attemptNumber() == 0:
            time.sleep(600)
        return staged

    def commit(self, messages):
        with self._stage.database.connect() as conn:
            conn.execute("INSERT INTO staged SELECT count(DISTINCT attempt) FROM messages.publish_stage_1")
        super().commit(messages)

class Source(data_source(Database())):
    def writer(self, schema, overwrite):
        return SlowWriter(self.database, PublishOptions.of(self.options, schema, overwrite=overwrite))

spark = SparkSession.builder.getOrCreate()
spark.dataSource.register(Source)
frame = spark.range(0, 20, 1, 2).selectExpr("cast(id AS string) AS message")
frame.write.format("pgqueue").mode("append").options(queue="orders", runId="nightly").save()
spark.stop()
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

    def start(
        function: str, name: str, conf: dict[str, str] | None = None, *, transactional: bool = False
    ) -> subprocess.Popen[bytes]:
        arguments = ["drain", "--queue", "orders", "--function", f"functions:{function}", "--run-id", "nightly"]
        arguments += ["--parallelism", "2", "--batch-size", "10", "--lease-for", "3s"]
        arguments += ["--transactional"] * transactional
        secret = make_conninfo(dsn, password=PASSWORD)
        started.append(standalone.submit(name, *arguments, dsn=secret, functions=functions, conf=conf))
        return started[-1]

    yield start
    for process in started:
        standalone.kill(process)


def publish(conn: Connection, number: int) -> list[int]:
    return run(conn, verbs.publish_batch("orders", range(number)))


def succeeded(conn: Connection) -> list[int]:
    """Return what is archived, when nothing waits any more and all is a success."""
    assert conn.execute("SELECT FROM messages.message").rowcount == 0
    assert conn.execute("SELECT DISTINCT result FROM messages.message_archive").fetchall() == [("success",)]
    return [id_ for (id_,) in conn.execute("SELECT id FROM messages.message_archive")]


def handled(effects: list[tuple[int, int]]) -> list[int]:
    return [id_ for id_, _ in effects]


def summary(standalone: Standalone, name: str) -> dict[str, Any]:
    # spark-submit mixes standard error of the driver into standard output: the summary is the last line.
    found: dict[str, Any] = json.loads(standalone.output(name).splitlines()[-1])
    return found


@pytest.mark.parametrize("transactional", [False, True])
def test_kill_9_of_an_executor_loses_nothing(
    standalone: Standalone,
    submit: Any,
    conn: Connection,
    queue: Queue,
    effects: Any,
    fault: Record,
    transactional: bool,
) -> None:
    queue("orders")
    published = publish(conn, 200)
    name = f"killed-executor-{transactional}"
    driver = submit("steady", name, transactional=transactional)
    (_, victim), *_ = until(lambda: len(effects()) >= 40 and effects(), SLOW)
    os.kill(victim, signal.SIGKILL)
    assert driver.wait(SLOW) == 0
    assert len({executor for _, executor in effects()}) >= 2
    fault(
        f"kill -9 of an executor in a {'transactional ' * transactional}drain",
        where="cluster",
        times=1,
        published=published,
        found=succeeded(conn),
        effects=handled(effects()),
        allowed=10,
    )
    assert summary(standalone, name)["archived"] == 200


@pytest.mark.parametrize("transactional", [False, True])
def test_speculation_does_not_repeat_a_slow_task_and_the_connection_stands_nowhere(
    standalone: Standalone,
    submit: Any,
    conn: Connection,
    queue: Queue,
    effects: Any,
    fault: Record,
    transactional: bool,
) -> None:
    queue("orders")
    published = publish(conn, 40)
    driver = submit("one_slow", f"speculation-{transactional}", SPECULATING, transactional=transactional)
    until(effects, SLOW)
    assert PASSWORD not in commands_and_environments()
    assert driver.wait(SLOW) == 0
    fault(
        f"speculation in a {'transactional ' * transactional}drain",
        where="cluster",
        times=speculated(standalone),
        published=published,
        found=succeeded(conn),
        effects=handled(effects()),
    )
    written = [file.read_text() for file in standalone.home.rglob("*") if file.is_file() and file.suffix != ".zip"]
    assert not any(PASSWORD in text for text in written)


def speculated(standalone: Standalone) -> int:
    """Return how many tasks of the newest application Spark started a second time."""
    newest = max((standalone.home / "events").iterdir(), key=lambda folder: folder.stat().st_mtime)
    events = [line for log in newest.glob("events_*") for line in log.read_text().splitlines()]
    return sum('"SparkListenerTaskStart"' in event and '"Speculative":true' in event for event in events)


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


def test_speculation_publishes_one_of_two_attempts_of_a_task(
    standalone: Standalone, dsn: str, conn: Connection, queue: Queue, tmp_path: Path, fault: Record
) -> None:
    queue("orders")
    conn.execute("CREATE TABLE staged (attempts bigint)")
    script = tmp_path / "slow_writer.py"
    script.write_text(SLOW_WRITER)
    driver = standalone.submit("slow-writer", dsn=dsn, application=str(script), conf=SPECULATING)
    try:
        assert driver.wait(SLOW) == 0
    finally:
        standalone.kill(driver)
    ((attempts,),) = conn.execute("SELECT attempts FROM staged").fetchall()
    assert speculated(standalone) >= 1
    fault(
        "speculation in a write, both attempts staged",
        where="cluster",
        times=attempts - 2,
        published=range(20),
        found=[body for (body,) in conn.execute("SELECT message FROM messages.message")],
        place="queue",
    )


def test_kill_9_of_an_executor_leaves_no_hole_and_no_duplicate_in_an_export(
    standalone: Standalone, spark: SparkSession, dsn: str, conn: Connection, tmp_path: Path, fault: Record
) -> None:
    name = make_partition(conn, 40, 6000)
    # A task exports as many pages as seem to have 250,000 rows: let a few pages seem to.
    conn.execute(f"ANALYZE messages.{name}".encode())
    conn.execute("UPDATE pg_class SET reltuples = 50000 * relpages WHERE relname = %s", [name])
    target = tmp_path / "export"
    arguments = ["--target", str(target), "--parallelism", "2"]
    driver = standalone.submit("killed-export", "export", *arguments, dsn=dsn)
    try:
        until(lambda: len(list(target.glob("_staging/**/*.parquet"))) >= 10, SLOW)
        os.kill(standalone.executors()[0], signal.SIGKILL)
        assert not (target / "_manifests").exists()
        assert driver.wait(SLOW) == 0
    finally:
        standalone.kill(driver)
    fault(
        "kill -9 of an executor in an export",
        where="cluster",
        times=1,
        published=[row[0] for row in rows_in_archive(conn, name)],
        found=pq.read_table(target / "data", columns=["id"])["id"].to_pylist(),
        place="export",
    )
    assert summary(standalone, "killed-export")["exported"] == [name]


def test_a_killed_driver_is_started_again_and_finishes_the_run(
    standalone: Standalone, submit: Any, conn: Connection, queue: Queue, effects: Any, fault: Record
) -> None:
    queue("orders")
    published = publish(conn, 200)
    first = submit("steady", "killed-driver")
    until(lambda: len(effects()) >= 40, SLOW)
    standalone.kill(first)
    again = submit("steady", "driver-again")
    assert again.wait(SLOW) == 0
    fault(
        "kill -9 of the driver in a drain",
        where="cluster",
        times=1,
        published=published,
        found=succeeded(conn),
        effects=handled(effects()),
        allowed=20,
    )
    found = summary(standalone, "driver-again")
    assert (found["archived"], found["results"]["success"]) == (200, 200)


def test_two_tries_of_a_task_at_once_share_the_run(
    standalone: Standalone, submit: Any, conn: Connection, queue: Queue, effects: Any, fault: Record
) -> None:
    queue("orders")
    published = publish(conn, 200)
    tries = [submit("steady", f"try-{number}", {"spark.cores.max": "1"}) for number in (1, 2)]
    assert [driver.wait(SLOW) for driver in tries] == [0, 0]
    fault(
        "two tries of one DAG task at once",
        where="cluster",
        times=2,
        published=published,
        found=succeeded(conn),
        effects=handled(effects()),
    )
    assert len({executor for _, executor in effects()}) == 2
    assert summary(standalone, "try-1") == summary(standalone, "try-2")


def test_a_task_frozen_past_its_lease_changes_nothing_when_it_goes_on(
    spark: SparkSession, dsn: str, conn: Connection, queue: Queue, fault: Record
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

    options: dict[str, Any] = {"queue": "orders", "function": freeze, "run_id": "nightly", "dsn": dsn}
    with ThreadPoolExecutor() as pool:
        draining = pool.submit(drain, spark, parallelism=1, lease_for=SECOND, **options)
        ((pid,),) = until(lambda: conn.execute("SELECT pid FROM effect").fetchall(), SLOW)
        os.kill(pid, signal.SIGSTOP)
        try:
            (taken,) = until(lambda: leased(conn))
            run(conn, verbs.archive(taken.lock_token, [taken.id], handled_by="another"))
            conn.execute("INSERT INTO effect VALUES (0)")
        finally:
            os.kill(pid, signal.SIGCONT)
        found = draining.result(SLOW)
    assert (found["archived"], found["lost"]) == (0, 1)
    rows = conn.execute("SELECT id, handled_by FROM messages.message_archive").fetchall()
    assert rows == [(published, "another")]
    fault(
        "a task frozen for longer than its lease",
        where="local[2]",
        times=found["lost"],
        published=[published],
        found=succeeded(conn),
        effects=[published for _ in conn.execute("SELECT FROM effect")],
        allowed=1,
    )


def leased(conn: Connection) -> list[Message]:
    return run(conn, verbs.lease("orders"))
