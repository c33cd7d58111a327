"""Dead messages that are published again with another body, and canaries that go first."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from airflow_provider_pgqueue.core import run, verbs
from tests.core.cli.conftest import Pgqueue, Program
from tests.core.cli.test_commands import kill
from tests.dead_messages import handling

Connection = psycopg.Connection[Any]
Connect = Callable[..., Connection]
Queue = Callable[..., str]
PRECISE = '{\n  "price": 12345678901234567890.10\n}\n'


@pytest.fixture
def orders(conn: Connection, queue: Queue) -> str:
    """The queue orders with five dead messages."""
    queue("orders", max_attempts=1)
    kill(conn, "orders", "a", "b", "c", "d", "e")
    return "orders"


def dead(conn: Connection) -> list[int]:
    return run(conn, verbs.dead_ids("orders"))


def test_a_message_is_requeued_with_another_body(pgqueue: Pgqueue, conn: Connection, orders: str) -> None:
    first, second, *_ = dead(conn)
    done = pgqueue("requeue", "--id", str(first), "--message", PRECISE, "--json").json
    pgqueue("requeue", "orders", "--id", str(second), "--message", "-", stdin='"by hand"')
    new = [body for (body,) in conn.execute("SELECT message::text FROM messages.message ORDER BY id").fetchall()][-2:]
    assert (done["requeued"], new) == (1, ['{"price": 12345678901234567890.10}', '"by hand"'])
    kept = conn.execute("SELECT message FROM messages.message_archive WHERE id = %s", [first]).fetchone()
    assert kept == ({"reason": "a"},), "the archive keeps the old body"
    entries = conn.execute("SELECT affected, arguments -> 'ids' FROM messages.audit WHERE action = 'requeue_dead'")
    assert entries.fetchall() == [(1, [first]), (1, [second])]


@pytest.mark.parametrize(
    ("arguments", "stdin", "status", "says"),
    [
        ([], "1", 2, "--message is for one dead message: name it with --id"),
        (["--id", "1", "--id", "2"], "1", 2, "--message is for one dead message: name it with --id"),
        (["--id", "1"], '{\n"secret"', 1, "--message is not JSON: Expecting ':' delimiter at line 2, column 9."),
        (["--id", "1"], b'"\xff"', 1, "--message is not UTF-8"),
        (["--id", "999999"], "1", 1, "no dead message of orders has the id 999999"),
    ],
)
def test_another_body_that_cannot_be_published_changes_nothing(
    pgqueue: Pgqueue, conn: Connection, orders: str, arguments: list[str], stdin: str | bytes, status: int, says: str
) -> None:
    ended = pgqueue("requeue", "orders", *arguments, "--message", "-", stdin=stdin)
    assert (ended.status, len(dead(conn))) == (status, 5)
    assert says in ended.err
    assert "secret" not in ended.err


def test_the_others_follow_a_canary_that_lives(
    pgqueue: Pgqueue, conn: Connection, connect: Connect, orders: str
) -> None:
    with handling(connect()):
        done = pgqueue("requeue", "orders", "--canary", "2", "--max", "4", "--json").json
    assert (done["requeued"], done["remaining"], done["canary"]) == (4, 1, {"requeued": 2, "died_again": 0})


def test_a_canary_that_dies_again_stops_the_command(
    pgqueue: Pgqueue, conn: Connection, connect: Connect, orders: str
) -> None:
    with handling(connect(), "failed"):
        ended = pgqueue("requeue", "orders", "--canary", "2")
    told = "requeued 2 messages of orders; stopped: the canary died again; 3 more remain.\n"
    assert (ended.status, ended.out) == (1, told)
    with handling(connect(), "failed"):
        again = pgqueue("requeue", "orders", "--canary", "1", "--stop-when-failing", "100", "--json")
    assert (again.status, again.json["requeued"]) == (1, 1), "an earlier canary is not counted"
    assert again.json["stopped"] == "the canary died again"
    with handling(connect()):
        assert pgqueue("requeue", "orders", "--canary", "1", "--json").json["requeued"] == 5


def test_a_canary_that_nobody_handles_stops_the_command(pgqueue: Pgqueue, conn: Connection, orders: str) -> None:
    ended = pgqueue("requeue", "orders", "--canary", "2", "--canary-wait", "10ms")
    assert ended.status == 1
    assert "stopped: the canary was not finished in time; 3 more remain" in ended.out


def test_a_canary_that_nothing_waits_for_is_not_waited_for(pgqueue: Pgqueue, conn: Connection, orders: str) -> None:
    assert pgqueue("requeue", "orders", "--canary", "5", "--canary-wait", "1d").status == 0
    assert dead(conn) == []


def test_ctrl_c_ends_the_wait_for_a_canary_and_says_what_was_done(program: Program, dsn: str, orders: str) -> None:
    with program("requeue", "orders", "--canary", "1", dsn=dsn) as process:
        assert "canary of pgqueue" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert process.returncode == 1, err
    assert re.fullmatch(r"requeued 1 message of orders, as \d+; stopped: told to stop; 4 more remain.\n", out)
