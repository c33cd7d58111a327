"""Faults on a real cluster: whatever is killed, frozen or started twice, each message is archived exactly once."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import psycopg
import pyarrow.parquet as pq
import pytest
from psycopg.conninfo import make_conninfo

from airflow_provider_pgqueue.core import Message, run, verbs
from tests.archive import make_partition, rows_in_archive
from tests.spark.resident import Order, Resident
from tests.waiting import until
from tools.postgres import Cluster
from tools.standalone import Standalone

Connection = psycopg.Connection[Any]
Queue = Callable[..., str]
Record = Callable[..., None]
SLOW = 180  # seconds; a Spark that starts next to others takes its time
PASSWORD = "geheim-4711"
# A driver speculates when this share of the tasks has ended: all of them, which is never, or half if an order wants it.
SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    # At once, however long a cold start makes the other task take.
    "spark.speculation.multiplier": "0.01",
    "spark.speculation.efficiency.enabled": "false",
    "spark.speculation.quantile": "1.0",
    "spark.speculation.minTaskRuntime": "100ms",
}
SPECULATING = {"spark.speculation.quantile": "0.5"}

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

def together(messages):
    work(messages, 0)
    with psycopg.connect(DSN, autocommit=True) as conn:
        while conn.execute("SELECT DISTINCT executor FROM effect").rowcount < 2:
            time.sleep(0.05)

def one_slow(messages):
    work(messages, 5 if 1 in map(int, messages["message"].to_pylist()) else 0.1)

def freeze(messages):
    work(messages, 0)
    with psycopg.connect(DSN, autocommit=True) as conn:
        conn.execute("INSERT INTO frozen VALUES (%s)", [os.getpid()])
        # Time to be frozen in, which renewals bridge as long as the process lives.
        while conn.execute("SELECT FROM frozen").rowcount < 2:
            time.sleep(0.05)
"""


@pytest.fixture
def effects(conn: Connection) -> Callable[[], list[tuple[int, int]]]:
    """A table that the functions write to: message and executor, one row an effect."""
    conn.execute("CREATE TABLE effect (place bigint GENERATED ALWAYS AS IDENTITY, id bigint, executor bigint)")
    return lambda: conn.execute("SELECT id, executor FROM effect ORDER BY place").fetchall()


@pytest.fixture(scope="module")
def residents(standalone: Standalone, cluster: Cluster) -> Iterator[Callable[..., Resident]]:
    """Return a driver that stays, the usual one or another; a new one if it is gone."""
    found: dict[str, Resident] = {}
    numbers = count(1)

    def resident(which: str = "usual") -> Resident:
        if which not in found or not found[which].is_alive:
            dsn = make_conninfo(cluster.dsn(), password=PASSWORD)
            found[which] = Resident(standalone, f"resident-{next(numbers)}", dsn=dsn, conf=SPECULATION)
        return found[which]

    yield resident
    for each in found.values():
        each.kill()


@pytest.fixture
def functions(dsn: str, tmp_path: Path) -> Path:
    """What the tasks import, under a name that no other test has."""
    path = tmp_path / f"functions_{Path(dsn).name}.py"
    path.write_text(f"DSN = {dsn!r}\n{FUNCTIONS}")
    return path


@pytest.fixture
def order(dsn: str, functions: Path) -> Iterator[Callable[..., Order]]:
    """Let a driver drain `orders` with two consumers, as run `nightly`: `order(resident, "steady", name="first")`."""
    given: list[Order] = []

    def begin(resident: Resident, function: str, *more: str, name: str, conf: dict[str, str] | None = None) -> Order:
        arguments = ["drain", "--queue", "orders", "--function", f"{functions.stem}:{function}", "--run-id", "nightly"]
        arguments += ["--parallelism", "2", "--batch-size", "10", "--lease-for", "3s", *more]
        place = make_conninfo(dsn, password=PASSWORD)
        given.append(resident.run(name, *arguments, dsn=place, file=functions, conf=conf))
        return given[-1]

    yield begin
    for each in given:
        if not each.has_ended:
            each.resident.kill()  # a test that failed must not hold up the next


def publish(conn: Connection, number: int) -> list[int]:
    return run(conn, verbs.publish_batch("orders", range(number)))


def succeeded(conn: Connection) -> list[int]:
    """Return what is archived, when nothing waits any more and all is a success."""
    assert conn.execute("SELECT FROM messages.message").rowcount == 0
    assert conn.execute("SELECT DISTINCT result FROM messages.message_archive").fetchall() == [("success",)]
    return [id_ for (id_,) in conn.execute("SELECT id FROM messages.message_archive")]


def handled(effects: list[tuple[int, int]]) -> list[int]:
    return [id_ for id_, _ in effects]


def test_kill_9_of_an_executor_loses_nothing(
    residents: Any,
    order: Any,
    conn: Connection,
    queue: Queue,
    effects: Any,
    fault: Record,
) -> None:
    queue("orders")
    published = publish(conn, 200)
    drained = order(residents(), "steady", name="killed-executor")
    (_, victim), *_ = until(lambda: len(effects()) >= 40 and effects(), SLOW)
    os.kill(victim, signal.SIGKILL)
    assert drained.wait() == 0
    assert len({executor for _, executor in effects()}) >= 2
    fault(
        "kill -9 of an executor in a drain",
        where="cluster",
        times=1,
        published=published,
        found=succeeded(conn),
        effects=handled(effects()),
        allowed=10,
    )
    assert drained.summary["archived"] == 200


def test_speculation_does_not_repeat_a_slow_task_and_the_connection_stands_nowhere(
    standalone: Standalone,
    residents: Any,
    order: Any,
    conn: Connection,
    queue: Queue,
    effects: Any,
    fault: Record,
) -> None:
    queue("orders")
    published = publish(conn, 40)
    resident = residents()
    before = resident.speculated()
    drained = order(resident, "one_slow", name="speculation", conf=SPECULATING)
    until(effects, SLOW)
    assert PASSWORD not in commands_and_environments()
    assert drained.wait() == 0
    fault(
        "speculation in a drain",
        where="cluster",
        times=until(lambda: resident.speculated() - before, what="a task that is started twice"),
        published=published,
        found=succeeded(conn),
        effects=handled(effects()),
    )
    written = [file.read_bytes() for file in standalone.home.rglob("*") if file.is_file() and file.suffix != ".zip"]
    assert not any(PASSWORD.encode() in content for content in written)


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


def partition_of_many_parts(conn: Connection) -> str:
    """Make a partition of 4,000 rows that an export cuts into many parts."""
    name = make_partition(conn, 40, 4000)
    # A task exports as many pages as seem to have 250,000 rows: let a few pages seem to.
    conn.execute(f"ANALYZE messages.{name}".encode())
    conn.execute("UPDATE pg_class SET reltuples = 50000 * relpages WHERE relname = %s", [name])
    return name


def test_kill_9_of_an_executor_leaves_no_hole_and_no_duplicate_in_an_export(
    residents: Any, dsn: str, conn: Connection, functions: Path, tmp_path: Path, fault: Record
) -> None:
    name = partition_of_many_parts(conn)
    target = tmp_path / "export"
    arguments = ["--target", str(target), "--parallelism", "2"]
    resident = residents()
    exported = resident.run("killed-export", "export", *arguments, dsn=dsn, file=functions)
    until(lambda: len(list(target.glob("_staging/**/*.parquet"))) >= 5, SLOW)
    os.kill(resident.executors()[0], signal.SIGKILL)
    assert not (target / "_manifests").exists()
    assert exported.wait() == 0
    fault(
        "kill -9 of an executor in an export",
        where="cluster",
        times=1,
        published=[row[0] for row in rows_in_archive(conn, name)],
        found=pq.read_table(target / "data", columns=["id"])["id"].to_pylist(),
        place="export",
    )
    assert exported.summary["exported"] == [name]


def test_two_tries_of_a_task_at_once_share_the_run(
    residents: Any, order: Any, conn: Connection, queue: Queue, effects: Any, fault: Record
) -> None:
    queue("orders")
    published = publish(conn, 200)
    tries = [
        order(residents(which), "together", "--parallelism", "1", name=f"{which}-try") for which in ("usual", "other")
    ]
    assert [each.wait() for each in tries] == [0, 0]
    fault(
        "two tries of one DAG task at once",
        where="cluster",
        times=2,
        published=published,
        found=succeeded(conn),
        effects=handled(effects()),
    )
    assert len({executor for _, executor in effects()}) == 2
    assert tries[0].summary == tries[1].summary


def test_a_killed_driver_is_started_again_and_finishes_the_run(
    residents: Any, order: Any, conn: Connection, queue: Queue, effects: Any, fault: Record
) -> None:
    queue("orders")
    published = publish(conn, 200)
    victim = residents("other")
    order(victim, "steady", name="killed-driver")
    until(lambda: len(effects()) >= 40, SLOW)
    victim.kill()
    again = order(residents(), "steady", name="driver-again")
    assert again.wait() == 0
    fault(
        "kill -9 of the driver in a drain",
        where="cluster",
        times=1,
        published=published,
        found=succeeded(conn),
        effects=handled(effects()),
        allowed=20,
    )
    assert (again.summary["archived"], again.summary["results"]["success"]) == (200, 200)


def test_a_task_frozen_past_its_lease_changes_nothing_when_it_goes_on(
    residents: Any, order: Any, conn: Connection, queue: Queue, effects: Any, fault: Record
) -> None:
    queue("orders")
    (published,) = publish(conn, 1)
    conn.execute("CREATE TABLE frozen (pid bigint)")
    drained = order(residents(), "freeze", "--parallelism", "1", "--lease-for", "1s", name="frozen")
    ((pid,),) = until(lambda: conn.execute("SELECT pid FROM frozen").fetchall(), SLOW)
    os.kill(pid, signal.SIGSTOP)
    try:
        (taken,) = until(lambda: leased(conn))
        run(conn, verbs.archive(taken.lock_token, [taken.id], handled_by="another"))
        conn.execute("INSERT INTO frozen VALUES (0)")
    finally:
        os.kill(pid, signal.SIGCONT)
    assert drained.wait() == 0
    lost = drained.summary["lost"]
    assert (drained.summary["archived"], lost) == (0, 1)
    rows = conn.execute("SELECT id, handled_by FROM messages.message_archive").fetchall()
    assert rows == [(published, "another")]
    fault(
        "a task frozen for longer than its lease",
        where="cluster",
        times=lost,
        published=[published],
        found=succeeded(conn),
        effects=handled(effects()),
    )


def leased(conn: Connection) -> list[Message]:
    return run(conn, verbs.lease("orders"))
