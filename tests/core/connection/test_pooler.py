"""The queue through PgBouncer in transaction mode, where each transaction may have another session of the server."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from airflow_provider_pgqueue.cli.program import run_program
from airflow_provider_pgqueue.core import (
    ConnectionFailed,
    Consumer,
    Worker,
    connect,
    connect_async,
    run,
    run_async,
    verbs,
)
from airflow_provider_pgqueue.core.listener import Listener
from tests.core.consumer.test_worker import working
from tests.waiting import async_until, until
from tools import pgbouncer
from tools.postgres import Cluster

Connection = psycopg.Connection[Any]
Queue = Callable[..., str]

pytestmark = [pytest.mark.pooler, pytest.mark.long]


def archived(conn: Connection) -> dict[str, int]:
    rows = conn.execute("SELECT result::text, count(*) FROM messages.message_archive GROUP BY 1").fetchall()
    return dict(rows)


def test_eight_consumers_share_three_sessions(pooled_dsn: str, conn: Connection, queue: Queue) -> None:
    run(conn, verbs.publish_batch(queue("orders"), list(range(1200))))

    def consume(_: int) -> Counter[str]:
        with connect(pooled_dsn) as own:
            return Consumer(queue_name="orders", handle=lambda message: None, batch_size=10).drain(own)

    with ThreadPoolExecutor(8) as pool:
        counts = sum(pool.map(consume, range(8)), Counter())
    assert counts == {"success": 1200}
    assert archived(conn) == {"success": 1200}


def test_eight_publishers_share_three_sessions(pooled_dsn: str, conn: Connection, queue: Queue) -> None:
    queue("orders")

    def publish(number: int) -> None:
        with connect(pooled_dsn) as own:
            for turn in range(50):
                run(own, verbs.publish("orders", [number, turn]))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(publish, range(8)))
    assert run(conn, verbs.status("orders"))[0].depth == 400


def test_workers_drain_and_then_poll(
    pooled_dsn: str, conn: Connection, queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    run(conn, verbs.publish_batch(queue("orders"), list(range(400))))
    consumer = Consumer(queue_name="orders", handle=lambda message: None, batch_size=5)
    workers = [Worker(conninfo=pooled_dsn, consumer=consumer, poll_interval=0.2) for _ in range(4)]
    with ExitStack() as stack:
        for worker in workers:
            stack.enter_context(working(worker))
        until(lambda: archived(conn) == {"success": 400})
        for number in range(20):
            run(conn, verbs.publish("orders", number))
        until(lambda: archived(conn) == {"success": 420})
    assert sum((worker.counts for worker in workers), Counter()) == {"success": 420}
    said = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(said) == len(workers)
    assert all("connection pooler" in text for text in said)


def test_a_listener_looks_in_another_session_each_time(
    pooled_dsn: str, queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    queue("orders")
    looks: list[int] = []

    async def listen() -> None:
        async with await connect_async(pooled_dsn) as other:

            async def look(own: psycopg.AsyncConnection[Any]) -> timedelta:
                await run_async(own, verbs.scan(["orders"]))
                # The other client takes the session that was used last.
                async with other.transaction():
                    await other.execute("SELECT")
                    await run_async(own, verbs.scan(["orders"]))
                looks.append(1)
                return timedelta(milliseconds=1)

            listening = asyncio.create_task(Listener(lambda: connect_async(pooled_dsn), look).run())
            await async_until(lambda: listening.done() or len(looks) > 20)
            listening.cancel()
            with pytest.raises(asyncio.CancelledError):
                await listening

    asyncio.run(listen())
    assert "lost the connection" not in caplog.text


def test_statements_are_prepared_only_where_the_session_stays(dsn: str, pooled_dsn: str) -> None:
    with connect(dsn) as direct, connect(pooled_dsn) as pooled:
        assert direct.prepare_threshold == 5
        assert pooled.prepare_threshold is None
    with connect(pooled_dsn, prepare_threshold=3) as told:
        assert told.prepare_threshold == 3
    with connect(f"{pooled_dsn} prepare_threshold=3") as told:
        assert told.prepare_threshold == 3
    with connect(f"{dsn}?prepare_threshold=none&connect_timeout=3") as told:
        assert told.prepare_threshold is None
        assert told.info.get_parameters()["connect_timeout"] == "3"


def test_a_prepared_statement_that_got_lost_is_transient_and_names_the_fix(
    pooled_dsn: str, conn: Connection, queue: Queue
) -> None:
    queue("orders")
    with connect(pooled_dsn, prepare_threshold=0) as one, connect(pooled_dsn, prepare_threshold=0) as other:
        run(one, verbs.publish("orders", 1))
        with other.transaction(), pytest.raises(ConnectionFailed, match="prepare_threshold"):
            # The other has the same name for the same statement, in the session that was used last.
            run(other, verbs.publish("orders", 2))
        run(one, verbs.publish("orders", 3))
    assert run(conn, verbs.status("orders"))[0].depth == 2


def test_behind_a_pooler_a_role_that_is_serializable_consumes_as_others_do(
    pooled_dsn: str, conn: Connection, queue: Queue
) -> None:
    """A verb that waited for a lock has to see what the others did meanwhile, and two that lease must not collide."""
    conn.execute(f"ALTER DATABASE {conn.info.dbname} SET default_transaction_isolation = 'serializable'".encode())
    queue("orders")
    levels: list[str] = []

    def consume(number: int) -> int:
        done = 0
        with connect(pooled_dsn) as own:
            with own.transaction():
                row = own.execute("SELECT current_setting('transaction_isolation')").fetchone()
                levels.append(row[0] if row else "")
            run(own, verbs.publish_batch("orders", range(50), dedup_keys=[f"{n}" for n in range(50)]))
            if number % 2:
                return Consumer(queue_name="orders", handle=lambda message: None, batch_size=3).drain(own)["success"]
            while messages := run(own, verbs.lease("orders", max_messages=3)):
                done += len(run(own, verbs.archive(messages[0].lock_token, [message.id for message in messages])))
        return done

    async def level() -> str:
        async with await connect_async(pooled_dsn) as own, own.transaction():
            row = await (await own.execute("SELECT current_setting('transaction_isolation')")).fetchone()
            assert await run_async(own, verbs.status("orders"))
            return str(row and row[0])

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(consume, range(4))) == 50
    assert {*levels, asyncio.run(level())} == {"read committed"}


def test_what_a_database_sets_changes_no_message_and_we_change_no_session(
    pooled_dsn: str, conn: Connection, queue: Queue
) -> None:
    queue("orders")
    settings = {
        "array_nulls": "off",
        "default_transaction_isolation": "serializable",
        "IntervalStyle": "sql_standard",
        "DateStyle": "German",
        "bytea_output": "escape",
        "extra_float_digits": "-5",
    }
    for name, value in settings.items():
        conn.execute(f"ALTER DATABASE {conn.info.dbname} SET {name} = '{value}'".encode())
    shown = "SELECT array_agg(current_setting(name) ORDER BY name) FROM unnest(%s::text[]) name"
    with psycopg.connect(pooled_dsn, autocommit=True, prepare_threshold=None) as neighbour:
        before = neighbour.execute(shown, [list(settings)]).fetchone()
        for _ in range(6):
            with connect(pooled_dsn) as own:
                keys = {"group_keys": [None, None, "g"], "references": [None, "r", None]}
                run(own, verbs.publish_batch("orders", [1, 2, 3], **keys))
                run(own, verbs.publish_batch("orders", [4], group_keys=[None], references=[None]))
            assert neighbour.execute(shown, [list(settings)]).fetchone() == before
    found = conn.execute("SELECT DISTINCT message, group_key, reference FROM messages.message ORDER BY 1").fetchall()
    assert found == [(1, None, None), (2, None, "r"), (3, "g", None), (4, None, None)]


LOOKS = [
    *("queues", "peek orders", "peek orders --headers-only", "tail orders --since 1h --stop-after 1", "stats orders"),
    *("stats --workers", "metrics", "dead orders", "peek orders --state done", "show {id}"),
]


@pytest.mark.parametrize(
    "settings", [{"DateStyle": "German, DMY"}, {"IntervalStyle": "iso_8601"}, {"IntervalStyle": "sql_standard"}]
)
def test_every_command_that_shows_something_reads_it_in_the_style_that_a_database_sets(
    pooled_dsn: str, conn: Connection, queue: Queue, capsys: pytest.CaptureFixture[str], settings: dict[str, str]
) -> None:
    queue("orders", retention=timedelta(days=400))
    (_, id) = run(conn, verbs.publish_batch("orders", [1, 2]))
    run(conn, verbs.consume("orders"))
    for name, value in settings.items():
        conn.execute(f"ALTER DATABASE {conn.info.dbname} SET {name} = '{value}'".encode())
    for look in LOOKS:
        assert (run_program([*look.format(id=id).split(), "--dsn", pooled_dsn]), capsys.readouterr().err) == (0, ""), (
            look
        )


@pytest.fixture
def other_pooler(cluster: Cluster) -> Iterator[Callable[[str], pgbouncer.Pooler]]:
    """Start a PgBouncer with settings of its own."""
    with ExitStack() as stack:

        def start(more: str) -> pgbouncer.Pooler:
            pooler = pgbouncer.Pooler(cluster.directory / "other_pgbouncer", cluster.port, more)
            stack.callback(pooler.stop)
            pooler.start()
            return pooler

        yield start


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ("default_pool_size = 1\nquery_wait_timeout = 1", "default_pool_size"),
        ("max_client_conn = 1", "Raise max_client_conn"),
    ],
)
def test_what_a_pooler_that_is_full_refuses_names_its_setting(
    dsn: str, queue: Queue, other_pooler: Callable[[str], pgbouncer.Pooler], settings: str, named: str
) -> None:
    queue("orders")
    pooled = other_pooler(settings).dsn(dsn)
    with connect(pooled) as holder, holder.transaction():
        holder.execute("SELECT")
        with pytest.raises(ConnectionFailed, match=named) as raised:
            connect(pooled)
    assert "Check the connection" not in str(raised.value)


def test_a_pooler_that_cannot_reach_the_server_says_so(
    dsn: str, other_pooler: Callable[[str], pgbouncer.Pooler]
) -> None:
    pooled = other_pooler("client_login_timeout = 1\n[databases]\naway = host=127.0.0.1 port=1").dsn(dsn)
    with pytest.raises(ConnectionFailed, match="PgBouncer cannot") as raised:
        connect(pooled, dbname="away")
    assert "Check the connection" not in str(raised.value)


def test_a_pooler_that_closes_idle_clients_names_its_setting_in_the_log_of_a_worker(
    dsn: str,
    conn: Connection,
    queue: Queue,
    other_pooler: Callable[[str], pgbouncer.Pooler],
    caplog: pytest.LogCaptureFixture,
) -> None:
    queue("orders")
    pooled = other_pooler("client_idle_timeout = 1").dsn(dsn)
    consumer = Consumer(queue_name="orders", handle=lambda message: None)
    with working(Worker(conninfo=pooled, consumer=consumer, poll_interval=2)):  # it is told when it looks again
        until(lambda: "client_idle_timeout" in caplog.text)


def test_a_transaction_in_statement_mode_names_the_mode(
    dsn: str,
    queue: Queue,
    other_pooler: Callable[[str], pgbouncer.Pooler],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    queue("orders")
    lines = tmp_path / "orders.jsonl"
    lines.write_text("1\n2\n")
    pooled = other_pooler("pool_mode = statement").dsn(dsn)
    assert run_program(["publish", "orders", str(lines), "--dsn", pooled]) == 1
    assert "Set pool_mode" in capsys.readouterr().err


def test_doctor_tells_of_the_pooler_and_finds_no_fault_with_it(
    pooled_dsn: str, conn: Connection, capsys: pytest.CaptureFixture[str]
) -> None:
    run(conn, verbs.maintain())
    run_program(["doctor", "--json", "--dsn", pooled_dsn])
    findings = json.loads(capsys.readouterr().out)["findings"]
    assert [one["severity"] for one in findings if one["check_name"] == "pooler"] == ["notice"]
