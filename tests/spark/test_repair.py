"""A repair on Spark: tasks share out what `tests/core/dead` shows for one process; what dies is done again."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from pyspark.sql import SparkSession

from airflow_provider_pgqueue.core import KEEP, LEAVE, InvalidArgument, PgQueueError, run, verbs
from airflow_provider_pgqueue.spark import repair
from tests.core.roles.test_roles import logins

Connection = psycopg.Connection[Any]
Die = Callable[..., list[int]]
Repairs = Callable[..., dict[str, Any]]
Queue = Callable[..., str]


@pytest.fixture
def repaired(spark: SparkSession, dsn: str) -> Repairs:
    """Repair dead messages of orders with two tasks, and return the summary: `repaired(lambda message: KEEP)`."""

    def call(function: Any, run_id: str = "night 1", **given: Any) -> dict[str, Any]:
        arguments = {"queue": "orders", "dsn": dsn, "parallelism": 2} | given
        return repair(spark, function=function, run_id=run_id, **arguments)

    return call


@pytest.fixture
def dead(conn: Connection, queue: Queue) -> Die:
    """Let messages with the bodies {"n": 0}, {"n": 1}, … die: `dead(10)`; returns their ids."""
    queue("orders", max_attempts=1)

    def die(number: int, *, details: str = "no city") -> list[int]:
        run(conn, verbs.publish_batch("orders", [{"n": n} for n in range(number)]))
        rows = conn.execute(
            "SELECT id, messages.archive(lock_token, ARRAY[id], 'failed', details => %s)"
            " FROM (SELECT * FROM messages.lease('orders', 10000) ORDER BY id) AS leased",
            [details],
        ).fetchall()
        return [row[0] for row in rows]

    return die


def resolutions(conn: Connection) -> dict[str | None, int]:
    return dict(conn.execute("SELECT resolution, count(*) FROM messages.message_archive GROUP BY 1").fetchall())


def test_tasks_share_out_the_messages_and_the_archive_names_the_run(
    repaired: Repairs, conn: Connection, dead: Die
) -> None:
    ids = dead(25)
    summary = repaired(lambda message: message.body | {"city": "Bern"}, batch_size=5)
    assert (summary["requeued"], summary["ids"]) == (25, {"requeued": ids})
    bodies = conn.execute("SELECT requeued_from, message FROM messages.message ORDER BY 1").fetchall()
    assert bodies == [(id_, {"n": n, "city": "Bern"}) for n, id_ in enumerate(ids)]
    assert conn.execute("SELECT DISTINCT resolved_by FROM messages.message_archive").fetchall() == [("repair night 1",)]


def test_the_canary_comes_before_the_tasks_get_the_others(repaired: Repairs, conn: Connection, dead: Die) -> None:
    ids = dead(10)
    summary = repaired(lambda message: KEEP, canary=3, canary_wait=timedelta(milliseconds=10))
    assert (summary["stopped"], summary["ids"]) == ("the canary was not finished in time", {"requeued": ids[:3]})
    assert resolutions(conn) == {"requeued": 3, None: 7}


def test_a_dry_run_changes_nothing_not_even_its_own_run(repaired: Repairs, conn: Connection, dead: Die) -> None:
    ids = dead(4)
    tables = ("message", "message_archive", "dead_message", "pipeline_run")
    before = [conn.execute(f"TABLE messages.{table}".encode()).fetchall() for table in tables]
    summary = repaired(lambda message: KEEP if message.body["n"] % 2 else LEAVE, dry_run=True)
    assert [conn.execute(f"TABLE messages.{table}".encode()).fetchall() for table in tables] == before
    assert summary["ids"] == {"requeued": [ids[1], ids[3]], "left": [ids[0], ids[2]]}
    assert repaired(lambda message: KEEP)["requeued"] == 4


def test_tasks_share_the_rate(repaired: Repairs, conn: Connection, dead: Die) -> None:
    dead(20)
    repaired(lambda message: KEEP, max_per_second=10)
    row = conn.execute("SELECT max(resolved_at) - min(resolved_at) FROM messages.message_archive").fetchone()
    assert row is not None
    assert row[0] >= timedelta(seconds=0.9)


def test_a_role_needs_to_be_consumer_and_pipeline(repaired: Repairs, dsn: str, dead: Die) -> None:
    dead(1)
    eve = make_conninfo(dsn, user="repair_eve")
    with logins(dsn) as login:
        login("repair_eve", "messages_pipeline")
        with pytest.raises(PgQueueError, match="messages_consumer"):
            repaired(lambda message: KEEP, dsn=eve)
        login("repair_eve", "messages_consumer")
        assert repaired(lambda message: KEEP, dsn=eve)["requeued"] == 1


@pytest.mark.parametrize("wrong", [{"function": None}, {"queue": ["orders"]}, {"cause": "x"}])
def test_an_argument_that_is_none_is_named(repaired: Repairs, dead: Die, wrong: dict[str, Any]) -> None:
    dead(1)
    with pytest.raises(InvalidArgument, match=f"^{next(iter(wrong))} is .*Give a"):
        repaired(**{"function": lambda message: KEEP} | wrong)


def test_no_task_is_refused(repaired: Repairs) -> None:
    with pytest.raises(InvalidArgument, match="parallelism is 0"):
        repaired(lambda message: KEEP, parallelism=0)
