"""SIGKILL for a driver in the middle of everything that it may do: what it does is done again, and each once.

One driver does all of it, each in a database of its own, until all of it is where it shall be killed.
"""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest
from pyspark.sql import DataFrame, SparkSession

from airflow_provider_pgqueue.core import run, verbs
from airflow_provider_pgqueue.spark import export, repair
from tests.archive import ids_in_data, make_partition, rows_in_archive
from tests.clones import Clones
from tests.spark.driver import driver
from tests.spark.test_export import rows_in_export
from tests.spark.test_writer import bodies, numbers, publish
from tests.waiting import until, until_nobody_else_writes
from tools.postgres import Cluster

Connection = psycopg.Connection[Any]
Record = Callable[..., None]
WHERE = "local[8]"
FAULTS = ("before", "stream")  # the queues of faulty_publisher.py
SCRIPTS: Final = {
    "publish": """
from tests.spark.faulty_publisher import main
main(spark, DSN, Path(FOLDER))
""",
    "stream": """
import psycopg
from pyspark.errors import StreamingQueryException
from airflow_provider_pgqueue.spark import register

def keep(batch, number):
    rows = [(number, row.id) for row in batch.select("id").collect()]
    with psycopg.connect(DSN) as conn:
        conn.execute("DELETE FROM public.kept WHERE batch = %s", [number])
        conn.cursor().executemany("INSERT INTO public.kept VALUES (%s, %s)", rows)
    if number == 1:
        pause("log")

register(spark, DSN)
log = spark.readStream.format("pgqueue").options(table="archive", columns="id", maxMessagesPerTrigger="10")
writer = log.load().writeStream.foreachBatch(keep).option("checkpointLocation", FOLDER + "/checkpoint")
while not Path(FOLDER, "log").exists():
    query = writer.start()
    try:
        while not (query.awaitTermination(0.2) or Path(FOLDER, "log").exists()):
            pass
    except StreamingQueryException as error:  # Spark waits no longer than 10 s for a Python that starts
        if "connect back" not in str(error):
            raise
""",
    # The half of one task is repaired, and some of the other's.
    "repair": """
import threading
from datetime import timedelta
from airflow_provider_pgqueue.spark import repair

def keep(message):
    if message.body["n"] == 45:
        threading.Event().wait()
    return message.body

repair(spark, queue="orders", function=keep, run_id="night 1", parallelism=2, batch_size=10, max_messages=100,
       lease_for=timedelta(seconds=3), dsn=DSN)
""",
    # No driver dies in these two. A task does in the first, and Spark tries it again.
    "drain": """
import json, os, signal
from datetime import timedelta
from airflow_provider_pgqueue.spark import drain

def dies(messages):
    import psycopg
    with psycopg.connect(DSN, autocommit=True) as conn:
        note = " ".join(f"{one['id']}/{one['attempts']}" for one in messages.to_pylist())
        (place,) = conn.execute("INSERT INTO effect (note) VALUES (%s) RETURNING place", [note]).fetchone()
    if place == 3:
        os.kill(os.getpid(), signal.SIGKILL)

summary = drain(spark, queue="orders", function=dies, batch_size=5, lease_for=timedelta(seconds=3), max_messages=20,
                parallelism=1, dsn=DSN)
Path(FOLDER, "summary.part").write_text(json.dumps(summary))
Path(FOLDER, "summary.part").rename(Path(FOLDER, "summary"))
""",
    # The target is copied before each change of a file: a kill then would leave just that.
    "export": """
import os, shutil
from airflow_provider_pgqueue.export.connection import Database
from airflow_provider_pgqueue.spark import export
from airflow_provider_pgqueue.export.target import Target

target, moments = FOLDER + "/target", []

def after_a_copy(act):
    def copy_and_act(*arguments):
        moments.append(act.__name__)
        if moments.count("remove_file") == 2:
            os.killpg(0, signal.SIGKILL)
        if os.path.exists(target):
            shutil.copytree(target, f"{target} {len(moments):03} {act.__name__}")
        return act(*arguments)
    return copy_and_act

for name in ("move", "remove_file", "remove_folder"):
    setattr(Target, name, after_a_copy(getattr(Target, name)))

export(spark, target=target, dsn=DSN)
with Database(DSN).connect() as conn:
    conn.execute(f"UPDATE messages.{Path(FOLDER, 'partition').read_text()} SET details = 'changed' WHERE id % 2 = 0")
export(spark, target=target, dsn=DSN)
""",
}


@dataclass(slots=True)
class Killed:
    """What one script was to do, and where it was left."""

    dsn: str
    folder: Path
    conn: Connection
    facts: dict[str, Any] = field(default_factory=dict)


# What is there before, and what has to have happened ------------------------------------------------------------------


def prepare_publish(one: Killed) -> None:
    for name in FAULTS:
        run(one.conn, verbs.create_queue(name))


def prepare_stream(one: Killed) -> None:
    conn = one.conn
    conn.execute("SELECT messages.create_queue('mail', notify => 'off')")
    conn.execute("SELECT messages.publish_batch('mail', (SELECT jsonb_agg(n) FROM generate_series(1, 25) n))")
    one.facts["mail"] = [id_ for _ in range(25) for (id_,) in conn.execute("SELECT id FROM messages.consume('mail')")]
    conn.execute("CREATE TABLE public.kept (batch bigint, id bigint)")


def prepare_repair(one: Killed) -> None:
    one.conn.execute("SELECT messages.create_queue('orders', max_attempts => 1)")
    run(one.conn, verbs.publish_batch("orders", [{"n": n} for n in range(120)]))
    rows = one.conn.execute(
        "SELECT id, messages.archive(lock_token, ARRAY[id], 'failed')"
        " FROM (SELECT * FROM messages.lease('orders', 1000) ORDER BY id) AS leased"
    ).fetchall()
    one.facts["dead"] = [id_ for id_, _ in rows]


def prepare_drain(one: Killed) -> None:
    one.conn.execute("CREATE TABLE effect (place bigint GENERATED ALWAYS AS IDENTITY, note text)")
    run(one.conn, verbs.create_queue("orders"))
    run(one.conn, verbs.publish_batch("orders", range(100)))


def prepare_export(one: Killed) -> None:
    one.facts["partition"] = make_partition(one.conn, 40, 300)
    one.facts["older"] = rows_in_archive(one.conn, one.facts["partition"])


REACHED: Final[dict[str, Callable[[Killed], Any]]] = {
    "publish": lambda one: all((one.folder / fault).exists() for fault in FAULTS),
    "stream": lambda one: (one.folder / "log").exists(),
    "repair": lambda one: resolutions(one.conn).get("requeued", 0) >= 60,
    "drain": lambda one: (one.folder / "summary").exists(),
}
PREPARED: Final = {
    "publish": prepare_publish,
    "stream": prepare_stream,
    "repair": prepare_repair,
    "drain": prepare_drain,
    "export": prepare_export,
}


@pytest.fixture(scope="module")
def all_killed(
    cluster: Cluster, clones: Clones, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Killed]]:
    """Everything, where the driver left it."""
    folder = tmp_path_factory.mktemp("killed")
    with ExitStack() as stack:
        there: dict[str, Killed] = {}
        for name, prepare in PREPARED.items():
            dsn = cluster.dsn(stack.enter_context(clones.one()))
            conn = stack.enter_context(psycopg.connect(dsn, autocommit=True))
            there[name] = Killed(dsn, folder / name, conn)
            prepare(there[name])
        with driver(folder, {name: (text, there[name].dsn) for name, text in SCRIPTS.items()}) as process:
            (folder / "export" / "partition").write_text(there["export"].facts["partition"])
            for name in SCRIPTS:
                (folder / name / "begin").touch()
                if name in REACHED:
                    await_one(there[name], REACHED[name], name, process)
            assert process.wait(300) == -signal.SIGKILL, (folder / "driver.log").read_text()[-4000:]
        leased = "SELECT FROM messages.dead_message WHERE lock_expires_at > now()"
        there["repair"].facts["leased"] = there["repair"].conn.execute(leased).rowcount
        yield there


def await_one(one: Killed, is_reached: Callable[[Killed], Any], name: str, process: subprocess.Popen[bytes]) -> None:
    until(lambda: is_reached(one), 300, f"{name}, see {one.folder.parent / 'driver.log'}", process=process)


@pytest.fixture
def killed(request: pytest.FixtureRequest, all_killed: dict[str, Killed]) -> Killed:
    """What one script was to do."""
    return all_killed[request.param]


@pytest.fixture
def dsn(killed: Killed) -> str:
    """The database of the script, to which `spark` is connected now."""
    return killed.dsn


# What becomes of it ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("killed", ["publish"], indirect=True)
def test_each_row_is_published_once_whenever_a_task_or_the_driver_dies(
    spark: SparkSession, killed: Killed, fault: Record
) -> None:
    conn = killed.conn
    assert bodies(conn, "before") == []
    assert sorted(bodies(conn, "stream")) == list(range(10))

    publish(numbers(spark), queue="before", runId="before")
    assert bodies(conn, "before") == list(range(10))

    arrivals = spark.readStream.schema("message string").parquet(str(killed.folder / "in"))
    options = {"queue": "stream", "checkpointLocation": str(killed.folder / "checkpoint")}
    stream = arrivals.writeStream.format("pgqueue").trigger(availableNow=True).options(**options)
    replayed = stream.start()
    replayed.awaitTermination()
    assert [progress["batchId"] for progress in replayed.recentProgress][:1] == [0]
    assert sorted(bodies(conn, "stream")) == list(range(10))

    spark.sql("SELECT '10' AS message").write.mode("append").parquet(str(killed.folder / "in"))
    stream.start().awaitTermination()
    assert sorted(bodies(conn, "stream")) == list(range(11))
    remembered = "SELECT summary -> 'batch' FROM messages.pipeline_run WHERE run_id = %s"
    assert conn.execute(remembered, [str(replayed.id)]).fetchall() == [(1,)]
    for what, name, number in (
        ("kill -9 between staging and commit of a write, run again", "before", 10),
        ("kill -9 between the publishing sink's and the checkpoint's commit", "stream", 11),
    ):
        found = bodies(conn, name)
        fault(what, where=WHERE, times=1, published=range(number), found=found, place="queue")


@pytest.mark.parametrize("killed", ["stream"], indirect=True)
def test_a_stream_of_a_killed_driver_goes_on_where_it_was_and_loses_and_doubles_nothing(
    spark: SparkSession, killed: Killed, fault: Record
) -> None:
    conn, checkpoint = killed.conn, killed.folder / "checkpoint"
    assert conn.execute("SELECT count(*) FROM public.kept").fetchone() == (20,)
    assert committed(checkpoint) == ("0",)

    def keep(batch: DataFrame, number: int) -> None:
        conn.execute("DELETE FROM public.kept WHERE batch = %s", [number])
        for row in batch.select("id").collect():
            conn.execute("INSERT INTO public.kept VALUES (%s, %s)", [number, row.id])

    log = spark.readStream.format("pgqueue").options(table="archive", columns="id", maxMessagesPerTrigger="10")
    until_nobody_else_writes(conn)
    writer = log.load().writeStream.foreachBatch(keep).option("checkpointLocation", str(checkpoint))
    assert writer.trigger(availableNow=True).start().awaitTermination(120)
    kept = [id_ for (id_,) in conn.execute("SELECT id FROM public.kept")]
    what = "kill -9 in a batch of the log stream"
    fault(what, where=WHERE, times=1, published=killed.facts["mail"], found=kept, place="sink")


def committed(checkpoint: Path) -> tuple[str, ...]:
    return tuple(sorted(path.name for path in (checkpoint / "commits").glob("[0-9]*")))


@pytest.mark.parametrize("killed", ["repair"], indirect=True)
def test_a_repair_that_is_killed_and_run_again_gives_each_message_one_resolution(
    spark: SparkSession, killed: Killed, fault: Record
) -> None:
    conn, ids = killed.conn, killed.facts["dead"]
    assert 20 <= resolutions(conn)["requeued"] < 100
    assert killed.facts["leased"] > 0
    options: dict[str, Any] = {"run_id": "night 1", "max_messages": 100, "lease_for": timedelta(seconds=3)}
    summary = repair(spark, queue="orders", function=lambda message: message.body, dsn=killed.dsn, **options)
    assert (summary["requeued"], summary["held"]) == (100, 0)
    again = [row[0] for row in conn.execute("SELECT requeued_from FROM messages.message ORDER BY 1").fetchall()]
    assert again == ids[:100]
    fault("kill -9 of the driver in a repair", where=WHERE, times=1, published=ids[:100], found=again, place="queue")
    assert resolutions(conn) == {"requeued": 100, None: 20}


def resolutions(conn: Connection) -> dict[str | None, int]:
    return dict(conn.execute("SELECT resolution, count(*) FROM messages.message_archive GROUP BY 1").fetchall())


@pytest.mark.parametrize("killed", ["drain"], indirect=True)
def test_a_task_that_is_tried_again_archives_no_more_than_was_asked_for(killed: Killed) -> None:
    summary = json.loads((killed.folder / "summary").read_text())
    assert (summary["archived"], summary["held"], summary["rounds"]) == (20, 0, 2)
    # Four batches of five messages; those of the batch whose process ended come again, each alone.
    calls = [note for (note,) in killed.conn.execute("SELECT note FROM effect ORDER BY place").fetchall()]
    assert 5 < len(calls) <= 10, ", ".join(calls)
    assert killed.conn.execute("SELECT FROM messages.message_archive").rowcount == 20
    assert killed.conn.execute("SELECT FROM messages.message").rowcount == 80


@pytest.mark.parametrize("killed", ["export"], indirect=True)
def test_kill_9_at_any_moment_leaves_the_old_or_the_new_export_whole_and_the_next_run_completes_it(
    spark: SparkSession, killed: Killed, fault: Record
) -> None:
    name, older = killed.facts["partition"], killed.facts["older"]
    newer = rows_in_archive(killed.conn, name)
    left = [*sorted(killed.folder.glob("target *")), killed.folder / "target"]
    valid = [rows_in_export(spark, folder) if (folder / "_manifests").exists() else None for folder in left]
    steps = [("none", "older", "newer")[[None, older, newer].index(rows)] for rows in valid]
    assert steps == sorted(steps, key=["none", "older", "newer"].index)
    assert min(steps.count("none"), steps.count("older"), steps.count("newer")) >= 2
    found = [ids_in_data(folder) for folder in left]
    assert all(len(ids) == len(set(ids)) for ids, step in zip(found, steps, strict=True) if step == "none")

    half_moved = next(i for i, ids in enumerate(found) if 0 < len(ids) < 300)
    half_moved_again = next(i for i, ids in enumerate(found) if 300 < len(ids) < 600 and steps[i] == "older")
    assert 300 < len(found[-1]) < 600
    for i, what in ((half_moved, "exported"), (half_moved_again, "exported"), (-1, "skipped")):
        assert export(spark, target=str(left[i]), dsn=killed.dsn)[what] == [name]
        assert rows_in_export(spark, left[i]) == newer
        assert len(ids_in_data(left[i])) == 300
        assert not (left[i] / "_staging" / name).exists()
    assert export(spark, target=str(killed.folder / "target"), dsn=killed.dsn, drop=True)["dropped"] == [name]
    for i, what in (
        (half_moved, "kill -9 while an export's files are moved"),
        (half_moved_again, "kill -9 while a second export takes the place of the first"),
        (-1, "kill -9 while the files of the first are removed"),
    ):
        found_now = ids_in_data(left[i])
        fault(what, where=WHERE, times=1, published=[row[0] for row in newer], found=found_now, place="export")
