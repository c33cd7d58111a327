"""A queue of PGMQ moves here while its publishers continue; the real PGMQ, of which PyPI has the SQL."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from airflow_provider_pgqueue.core import run, verbs
from airflow_provider_pgqueue.core.errors import InUse, InvalidQueueName, QueueNotFound
from airflow_provider_pgqueue.core.pgmq import adopt
from airflow_provider_pgqueue.core.tuning import TUNING
from tests.pgmq.conftest import call
from tests.waiting import until
from tools import ROOT
from tools.postgres import Cluster

Connection = psycopg.Connection[Any]


@pytest.fixture
def extension(conn: Connection, python_client: Path) -> Connection:
    """A session to the test's database, in which PGMQ itself is installed, with a queue orders."""
    conn.execute(call(python_client, "-c", "import pgmq; print(pgmq.get_embedded_install_sql())").encode())
    conn.execute("SELECT pgmq.create('orders')")
    return conn


def bodies(conn: Connection) -> list[Any]:
    found = list[Any]()
    while messages := run(conn, verbs.lease("orders", max_messages=10_000)):
        found += [message.body for message in messages]
    return found


def test_all_that_it_has_moves_in_its_order(extension: Connection) -> None:
    conn = extension
    conn.execute("SELECT pgmq.send_batch('orders', ARRAY(SELECT to_jsonb(n) FROM generate_series(1, 2500) n))")
    conn.execute("SELECT pgmq.send('orders', '\"late\"', '{\"trace\": \"a\"}'::jsonb, 3600), pgmq.send('orders', NULL)")
    conn.execute("SELECT pgmq.archive('orders', msg_id) FROM pgmq.read('orders', 30, 5)")
    conn.execute("UPDATE pgmq.a_orders SET archived_at = '2020-02-03', enqueued_at = '2020-02-02' WHERE msg_id = 1")
    conn.execute("SELECT pgmq.read('orders', 0, 10)")

    adopted = adopt(conn, "orders", "orders")

    assert (adopted.moved, adopted.archived, adopted.leased) == (2497, 5, 0)
    late = conn.execute(
        "SELECT message, headers, visible_at > now() + interval '59 minutes', reference FROM messages.message"
        " WHERE visible_at > now()"
    )
    assert late.fetchall() == [("late", {"trace": "a"}, True, "pgmq 2501")]
    assert bodies(conn) == [*range(6, 2501), None]
    archived = conn.execute(
        "SELECT message, attempts, result, reference, created_at < '2021-01-01', details FROM messages.message_archive"
        " ORDER BY id"
    )
    rows = archived.fetchall()
    assert [row[:5] for row in rows] == [(n, 1, "success", f"pgmq {n}", n == 1) for n in range(1, 6)]
    assert rows[0][5].startswith("archived by PGMQ at 2020-02-03")


def test_publishers_continue_and_each_message_is_here_once_in_its_order(
    extension: Connection, connect: Callable[..., Connection]
) -> None:
    conn, publisher, done, sent = extension, connect(), threading.Event(), list[int]()

    def publish() -> None:
        while not done.is_set() and len(sent) < 50_000:  # as fast as it can, so that a move without an end is seen
            (id_,) = publisher.execute("SELECT pgmq.send('orders', %s::jsonb)", [str(len(sent))]).fetchone() or (0,)
            sent.append(id_)

    thread = threading.Thread(target=publish)
    thread.start()
    try:
        until(lambda: len(sent) > 1500)
        adopt(conn, "orders", "orders")
        there = len(sent)
        assert there < 20_000
        until(lambda: len(sent) > there + 100)
    finally:
        done.set()
        thread.join()

    assert sent == sorted(set(sent))
    assert conn.execute("SELECT count(*) FROM pgmq.q_orders").fetchone() == (0,)
    assert bodies(conn) == list(range(len(sent)))


def test_what_a_worker_has_is_left_to_it_until_its_vt(extension: Connection) -> None:
    conn = extension
    conn.execute("SELECT pgmq.send_batch('orders', ARRAY['1', '2', '3']::jsonb[])")
    conn.execute("SELECT pgmq.read('orders', 600, 2)")

    adopted = adopt(conn, "orders", "orders")
    assert (adopted.moved, adopted.leased) == (1, 2)
    assert adopted.leased_until is not None
    assert conn.execute("SELECT pgmq.archive('orders', 1)").fetchone() == (True,)
    conn.execute("SELECT pgmq.set_vt('orders', 2::bigint, 0)")

    adopted = adopt(conn, "orders", "orders")
    assert (adopted.moved, adopted.archived, adopted.leased, adopted.leased_until) == (1, 1, 0, None)
    assert bodies(conn) == [3, 2]


def test_then_the_names_of_pgmq_take_its_place(extension: Connection, cluster: Cluster, dsn: str) -> None:
    adopt(extension, "orders", "orders")
    extension.execute("SELECT pgmq.send('orders', '1')")
    psql = (cluster.binaries.folder / "psql", "-X", "-q", "-v", "ON_ERROR_STOP=1", "-c", "BEGIN")
    call(*psql, "-c", "DROP SCHEMA pgmq CASCADE", "-f", ROOT / "sql" / "pgmq.sql", dsn)
    extension.execute("SELECT pgmq.send('orders', '2')")
    assert bodies(extension) == [1, 2]


def test_a_queue_that_cannot_move_stays_as_it_is(
    extension: Connection, connect: Callable[..., Connection], monkeypatch: pytest.MonkeyPatch
) -> None:
    extension.execute("SELECT pgmq.send('orders', '1')")
    with pytest.raises(QueueNotFound, match="no queue 'nope'"):
        adopt(extension, "nope", "nope")
    extension.execute("SELECT pgmq.create('Orders-EU')")
    with pytest.raises(InvalidQueueName):
        adopt(extension, "Orders-EU", "Orders-EU")
    extension.execute("SELECT pgmq.send('Orders-EU', '2')")
    assert adopt(extension, "Orders-EU", "orders_eu").moved == 1
    with connect(autocommit=False) as holder:
        holder.execute("LOCK TABLE pgmq.q_orders IN ROW EXCLUSIVE MODE")
        monkeypatch.setattr(TUNING, "adopt_tries", 1)
        with pytest.raises(InUse, match="Run it again"):
            adopt(extension, "orders", "orders")
    assert adopt(extension, "orders", "orders").moved == 0
    assert bodies(extension) == [1]
