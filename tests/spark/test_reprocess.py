"""Dead messages are repaired, checked and published again: each has one remedy, whatever dies in the middle."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from airflow_provider_pgqueue.core import InvalidArgument, PgQueueError, run, verbs
from airflow_provider_pgqueue.spark.database import Database
from airflow_provider_pgqueue.spark.jobs.dead import reprocess as module
from airflow_provider_pgqueue.spark.jobs.dead.remedy import KEEP, LEAVE, Dismiss, MatchesSchema
from airflow_provider_pgqueue.spark.jobs.dead.reprocess import ReprocessOptions, reprocess
from airflow_provider_pgqueue.spark.jobs.dead.task import Repairs
from tools import ROOT

Connection = psycopg.Connection[Any]
Repair = Callable[[Any], Any]


@pytest.fixture
def database(dsn: str) -> Database:
    return Database(dsn)


@pytest.fixture
def dead(conn: Connection, queue: Callable[..., str]) -> Callable[..., list[int]]:
    """Let messages with the bodies {"n": 0}, {"n": 1}, … die: `dead(10)`; returns their ids."""
    queue("orders", max_attempts=1)

    def die(number: int, *, result: str = "failed", details: str = "no city") -> list[int]:
        conn.execute(
            "SELECT messages.publish_batch('orders', (SELECT jsonb_agg(jsonb_build_object('n', n, 'secret', 'canary'))"
            " FROM generate_series(0, %s - 1) n))",
            [number],
        )
        rows = conn.execute(
            "SELECT id, messages.archive(lock_token, ARRAY[id], %s, details => %s) FROM messages.lease('orders', 10000)"
            " ORDER BY id",
            [result, details],
        ).fetchall()
        return [row[0] for row in rows]

    return die


def options(repair: Any, run_id: str = "night 1", **given: Any) -> ReprocessOptions:
    return ReprocessOptions(run_id=run_id, repair=repair, **({"queue_name": "orders", "tasks": 2} | given))


def waiting(conn: Connection) -> list[Any]:
    return [row[0] for row in conn.execute("SELECT message FROM messages.message ORDER BY requeued_from").fetchall()]


def remedies(conn: Connection) -> dict[str | None, int]:
    return dict(conn.execute("SELECT remedy, count(*) FROM messages.message_archive GROUP BY 1").fetchall())


def handle(conn: Connection, *, until: Callable[[], bool], result: str = "success") -> None:
    """Finish what is in the queue, until told to stop."""
    while not until():
        conn.execute("SELECT messages.archive(lock_token, ARRAY[id], %s) FROM messages.lease('orders', 100)", [result])
        time.sleep(0.02)


def test_a_repaired_message_succeeds_and_both_versions_stay(
    spark: SparkSession, database: Database, conn: Connection, dead: Callable[..., list[int]]
) -> None:
    ids = dead(25)

    def add_city(message: Any) -> Any:
        assert message.attempts == 1
        return message.body | {"city": "Bern"}

    summary = reprocess(spark, options(add_city), database)
    assert {name: summary[name] for name in ("requeued", "ids", "stopped")} == {
        "requeued": 25,
        "ids": {"requeued": ids},
        "stopped": None,
    }
    conn.execute("SELECT messages.archive(lock_token, ARRAY[id]) FROM messages.lease('orders', 100)")
    rows = conn.execute(
        """
        SELECT old.id, old.message ->> 'city', new.message ->> 'city', new.result, old.remedied_by
          FROM messages.message_archive old JOIN messages.message_archive new ON new.requeued_from = old.id
         ORDER BY old.id
        """
    ).fetchall()
    assert rows == [(id_, None, "Bern", "success", "reprocess night 1") for id_ in ids]


def test_each_decision_has_its_outcome_and_what_is_left_is_free_for_others(
    spark: SparkSession, database: Database, conn: Connection, dead: Callable[..., list[int]], caplog: Any
) -> None:
    ids = dead(12)

    def decide(message: Any) -> Any:
        match message.body["n"]:
            case 0:
                return KEEP
            case 1:
                return LEAVE
            case 2:
                return Dismiss("not ours")
            case 3:
                raise ValueError(f"look: {message.body}")
            case 4:
                return float("nan")
            case 5:
                return {"nul": "\0"}
            case 6:
                return None
            case 7:
                return "x" * 2_000_000
            case 8:
                return Dismiss(" ")
        return {"n": message.body["n"], "new": True}

    with caplog.at_level(logging.DEBUG):
        summary = reprocess(spark, options(decide), database)
    assert summary["ids"] == {
        "requeued": [ids[0], ids[9], ids[10], ids[11]],
        "dismissed": [ids[2]],
        "left": [ids[1]],
        "invalid": [ids[4], ids[5], ids[7]],
        "raised": [ids[3], ids[6], ids[8]],
    }
    assert waiting(conn)[:2] == [{"n": 0, "secret": "canary"}, {"n": 9, "new": True}]
    assert {one.id for one in run(conn, verbs.lease_dead("orders"))} == {ids[n] for n in (1, 3, 4, 5, 6, 7, 8)}
    assert "canary" not in caplog.text + json.dumps(summary)


def test_an_invalid_repair_stays_dead_and_is_named(
    spark: SparkSession, database: Database, conn: Connection, dead: Callable[..., list[int]], tmp_path: Path
) -> None:
    ids = dead(6)
    schema = tmp_path / "order.json"
    schema.write_text(json.dumps({"type": "object", "properties": {"n": {"type": "integer", "maximum": 3}}}))
    summary = reprocess(spark, options(lambda message: KEEP, validator=str(schema)), database)
    assert summary["ids"] == {"requeued": ids[:4], "invalid": ids[4:]}

    def no_five(body: Any) -> str | None:
        return "five" if body["n"] == 5 else None

    summary = reprocess(spark, options(lambda message: KEEP, "night 2", validator=no_five), database)
    assert summary["ids"] == {"requeued": [ids[4]], "invalid": [ids[5]]}
    assert remedies(conn) == {"requeued": 5, None: 1}


def test_only_what_was_chosen_is_reprocessed_oldest_first(
    spark: SparkSession, database: Database, conn: Connection, dead: Callable[..., list[int]]
) -> None:
    rejected, failed = dead(3, result="rejected"), dead(5, details="disk full")
    dead(2)
    (fingerprint,) = conn.execute(
        "SELECT fingerprint FROM messages.dead_message WHERE id = %s", [failed[0]]
    ).fetchone() or ("",)
    summary = reprocess(spark, options(lambda m: KEEP, fingerprints=(fingerprint,), max_messages=2), database)
    assert summary["ids"] == {"requeued": failed[:2]}
    summary = reprocess(spark, options(lambda m: KEEP, "night 2", results=("rejected",), max_requeues=1), database)
    assert summary["ids"] == {"requeued": rejected}
    conn.execute("SELECT messages.archive(lock_token, ARRAY[id], 'rejected') FROM messages.lease('orders', 100)")
    summary = reprocess(spark, options(lambda m: KEEP, "night 3", results=("rejected",), max_requeues=1), database)
    assert (summary["requeued"], summary["left"]) == (0, 5)


def test_a_cause_of_the_last_triage_is_reprocessed(
    spark: SparkSession, database: Database, conn: Connection, dead: Callable[..., list[int]]
) -> None:
    from airflow_provider_pgqueue.spark.jobs.dead.triage import TriageOptions, triage

    ids = dead(2, details="no address in Athens for order 1") + dead(1, details="no address in Bern for order 2")
    dead(1, details="disk full")
    (cause,) = [one for one in triage(spark, TriageOptions(run_id="t"), database)["largest"] if one["dead"] == 3]
    given = {"queue_name": None, "cause": cause["cause"]}
    done = reprocess(spark, options(lambda m: KEEP, **given), database)
    assert done["ids"] == {"requeued": ids}
    conn.execute("SELECT messages.record_triage_causes('a later triage, in which nothing died of it', '[]')")
    assert reprocess(spark, options(lambda m: KEEP, **given), database) == done
    with pytest.raises(InvalidArgument, match="no cause 'nope'"):
        reprocess(spark, options(lambda m: KEEP, "night 2", queue_name=None, cause="nope"), database)
    with pytest.raises(InvalidArgument, match="either it or them"):
        reprocess(spark, options(lambda m: KEEP, "night 2", cause="nope"), database)


def test_a_dry_run_changes_nothing_and_says_what_would_be(
    spark: SparkSession, database: Database, conn: Connection, dead: Callable[..., list[int]]
) -> None:
    ids = dead(4)
    leased = run(conn, verbs.lease_dead("orders", max_messages=1))
    before = [conn.execute(f"TABLE messages.{table}".encode()).fetchall() for table in TABLES]
    summary = reprocess(spark, options(lambda m: KEEP if m.body["n"] % 2 else LEAVE, dry_run=True), database)
    assert [conn.execute(f"TABLE messages.{table}".encode()).fetchall() for table in TABLES] == before
    assert summary["dry_run"]
    assert summary["ids"] == {"requeued": [ids[1], ids[3]], "left": [ids[2]], "held": [leased[0].id]}
    run(conn, verbs.release_dead(leased[0].lock_token, [leased[0].id]))
    assert reprocess(spark, options(lambda m: KEEP), database)["requeued"] == 4


TABLES = ("message", "message_archive", "dead_message", "pipeline_run")


def test_a_run_that_finished_is_not_done_again(
    spark: SparkSession, database: Database, conn: Connection, dead: Callable[..., list[int]]
) -> None:
    dead(2)
    first = reprocess(spark, options(lambda m: KEEP), database)
    dead(2)
    assert reprocess(spark, options(lambda m: KEEP), database) == first
    assert remedies(conn)["requeued"] == 2


def test_a_canary_that_dies_again_stops_the_run(
    spark: SparkSession, database: Database, conn: Connection, connect: Callable[..., Connection], dead: Any
) -> None:
    dead(30)
    finished = threading.Event()
    worker = threading.Thread(target=handle, args=(connect(),), kwargs={"until": finished.is_set, "result": "failed"})
    worker.start()
    try:
        summary = reprocess(spark, options(lambda m: KEEP, canary=5), database)
    finally:
        finished.set()
        worker.join()
    assert (summary["requeued"], summary["stopped"]) == (5, "the canary died again")
    assert remedies(conn) == {"requeued": 5, None: 30}


def test_a_canary_that_lives_lets_the_others_follow(
    spark: SparkSession, database: Database, conn: Connection, connect: Callable[..., Connection], dead: Any
) -> None:
    dead(30)
    finished = threading.Event()
    worker = threading.Thread(target=handle, args=(connect(),), kwargs={"until": finished.is_set})
    worker.start()
    try:
        summary = reprocess(spark, options(lambda m: KEEP, canary=5), database)
    finally:
        finished.set()
        worker.join()
    assert (summary["requeued"], summary["stopped"]) == (30, None)
    assert summary["canary"] == {"requeued": 5, "died_again": 0}


def test_a_canary_that_nobody_handles_in_time_stops_the_run(
    spark: SparkSession, database: Database, conn: Connection, dead: Callable[..., list[int]]
) -> None:
    dead(10)
    given = options(lambda m: KEEP, canary=2, canary_wait=timedelta(milliseconds=10))
    assert reprocess(spark, given, database)["stopped"] == "the canary was not finished in time"
    assert remedies(conn) == {"requeued": 2, None: 8}


def test_a_rate_is_not_exceeded(
    spark: SparkSession, database: Database, conn: Connection, dead: Callable[..., list[int]]
) -> None:
    dead(20)
    reprocess(spark, options(lambda m: KEEP, max_per_second=10), database)
    row = conn.execute("SELECT max(remedied_at) - min(remedied_at) FROM messages.message_archive").fetchone()
    assert row is not None
    assert row[0] >= timedelta(seconds=0.9)


def test_two_at_once_give_each_message_one_remedy(
    spark: SparkSession, database: Database, conn: Connection, dead: Callable[..., list[int]]
) -> None:
    ids = dead(200)
    summaries: list[dict[str, Any]] = []

    def start(run_id: str) -> None:
        given = options(lambda m: time.sleep(0.002) or KEEP, run_id, batch_size=7, tasks=1)
        summaries.append(reprocess(spark, given, database))

    threads = [threading.Thread(target=start, args=(f"night {number}",)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(summary["requeued"] for summary in summaries) == len(ids)
    assert conn.execute("SELECT count(*), count(DISTINCT requeued_from) FROM messages.message").fetchone() == (200, 200)
    assert remedies(conn) == {"requeued": 200}


def test_a_lease_is_renewed_while_the_repair_works(
    spark: SparkSession, database: Database, conn: Connection, dead: Callable[..., list[int]]
) -> None:
    dead(3)
    given = options(lambda m: time.sleep(0.5) or KEEP, lease_for=timedelta(milliseconds=600), tasks=1)
    assert reprocess(spark, given, database)["requeued"] == 3


def test_a_task_waits_for_what_somebody_else_holds(
    database: Database, conn: Connection, dead: Callable[..., list[int]]
) -> None:
    ids = dead(3)
    given_back, dismissed = run(conn, verbs.lease_dead("orders", ids=ids[:2]))
    repairs = Repairs(
        database=database,
        ids=ids,
        tasks=1,
        repair=lambda message: KEEP,
        validator=None,
        remedied_by="reprocess night 1",
        queue_name="orders",
        batch_size=10,
        lease_for=timedelta(minutes=1),
        delay=timedelta(0),
        per_second=None,
        max_requeues=None,
        dry_run=False,
    )
    outcomes: dict[int, str] = {}
    task = threading.Thread(target=lambda: outcomes.update(repairs.part(ids)))
    task.start()
    while "requeued" not in remedies(conn):
        time.sleep(0.02)
    time.sleep(0.3)  # long enough for a task that does not wait to end
    run(conn, verbs.release_dead(given_back.lock_token, [given_back.id]))
    run(conn, verbs.dismiss(dismissed.lock_token, [dismissed.id], "not ours"))
    task.join()
    assert outcomes == {given_back.id: "requeued", dismissed.id: "decided", ids[2]: "requeued"}


def test_killed_in_the_middle_and_run_again_each_message_has_one_remedy(
    spark: SparkSession,
    database: Database,
    dsn: str,
    conn: Connection,
    dead: Any,
    tmp_path: Path,
    fault: Callable[..., None],
) -> None:
    ids = dead(120)
    (tmp_path / "slow_repair.py").write_text(
        "import time\ndef keep(message):\n    time.sleep(0.05)\n    return message.body\n"
    )
    script = textwrap.dedent(
        """
        from datetime import timedelta
        from pyspark.sql import SparkSession
        from airflow_provider_pgqueue.spark.jobs.dead.reprocess import ReprocessOptions, reprocess

        spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
        options = ReprocessOptions(run_id="night 1", repair="slow_repair:keep", queue_name="orders", tasks=2,
                                   batch_size=10, max_messages=100, lease_for=timedelta(seconds=3))
        reprocess(spark, options)
        """
    )
    env = os.environ | {"PGQUEUE_DSN": dsn, "PYTHONPATH": f"{ROOT}:{tmp_path}"}
    driver = subprocess.Popen([sys.executable, "-c", script], env=env, start_new_session=True, cwd=tmp_path)
    try:
        patience = time.monotonic() + 120
        while (done := remedies(conn).get("requeued", 0)) < 20 and time.monotonic() < patience:
            assert driver.poll() is None
            time.sleep(0.02)
    finally:
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()
    assert 20 <= done < 100
    assert conn.execute("SELECT count(*) FROM messages.dead_message WHERE lock_expires_at > now()").fetchone() != (0,)
    summary = reprocess(
        spark, options(lambda m: m.body, max_messages=100, lease_for=timedelta(seconds=3), tasks=2), database
    )
    assert (summary["requeued"], summary["held"]) == (100, 0)
    rows = conn.execute("SELECT requeued_from FROM messages.message ORDER BY 1").fetchall()
    again = [row[0] for row in rows]
    assert again == ids[:100]
    fault(
        "kill -9 of the driver in a reprocess",
        where="local[2]",
        times=1,
        published=ids[:100],
        found=again,
        place="queue",
    )
    assert remedies(conn) == {"requeued": 100, None: 20}


def test_the_command_reprocesses_and_prints_the_summary(
    spark: SparkSession, dsn: str, dead: Callable[..., list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGQUEUE_DSN", dsn)
    monkeypatch.setattr(SparkSession, "stop", lambda session: None)  # it is the session of all tests
    ids = dead(2)
    arguments = ["--queue", "orders", "--repair", "operator:attrgetter"]
    result = CliRunner().invoke(module.command, [*arguments, "--dry-run"], catch_exceptions=False)
    assert json.loads(result.stdout)["ids"] == {"raised": ids}
    with pytest.raises(InvalidArgument, match=r"module 'nowhere' cannot be imported"):
        CliRunner().invoke(module.command, ["--repair", "nowhere:f"], catch_exceptions=False)


def test_a_role_needs_to_be_consumer_and_pipeline(
    spark: SparkSession, dsn: str, conn: Connection, dead: Callable[..., list[int]]
) -> None:
    dead(1)
    conn.execute("CREATE ROLE reprocess_bob LOGIN; GRANT messages_pipeline TO reprocess_bob")
    bob = Database(psycopg.conninfo.make_conninfo(dsn, user="reprocess_bob"))
    try:
        with pytest.raises(PgQueueError, match="messages_consumer"):
            reprocess(spark, options(lambda m: KEEP), bob)
        conn.execute("GRANT messages_consumer TO reprocess_bob")
        assert reprocess(spark, options(lambda m: KEEP), bob)["requeued"] == 1
    finally:
        conn.execute("DROP OWNED BY reprocess_bob; DROP ROLE reprocess_bob")


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"max_messages": 0}, "max_messages is 0"),
        ({"stop_when_failing": 0.0}, "stop_when_failing is 0"),
        ({"max_per_second": 0.0}, "max_per_second is 0"),
    ],
)
def test_what_cannot_be_is_refused(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        options("a:b", **wrong)


def test_a_schema_that_is_none_is_refused_and_references_are_not_followed(tmp_path: Path) -> None:
    path = tmp_path / "schema.json"
    path.write_text('{"type": 7}')
    with pytest.raises(InvalidArgument, match="is no JSON Schema"):
        MatchesSchema.of(path)
    path.write_text('{"$ref": "http://localhost:9/schema.json"}')
    with pytest.raises(Exception, match="Unresolvable"):
        MatchesSchema.of(path)({})
