"""`pgqueue repair`: a function from the current directory, what is printed, the exit status, Ctrl-C."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from airflow_provider_pgqueue.core import run, verbs
from tests.core.cli.conftest import Pgqueue, Program

Connection = psycopg.Connection[Any]
REPAIRS = """
import time
from airflow_provider_pgqueue.core import KEEP, LEAVE, Dismiss

def choose(message):
    n = message.body["n"]
    return {0: KEEP, 1: LEAVE, 2: Dismiss("no")}.get(n, message.body | {"city": "Bern"})

def keep(message):
    return KEEP

def slow(message):
    print("asked", flush=True)
    time.sleep(0.2)
    return KEEP

def no_four(body):
    return "four" if body["n"] == 4 else None
"""


@pytest.fixture
def dead(conn: Connection, queue: Callable[..., str]) -> Callable[[int], list[int]]:
    """Let messages with the bodies {"n": 0}, {"n": 1}, … die in queue orders."""
    queue("orders", max_attempts=1)

    def die(number: int) -> list[int]:
        run(conn, verbs.publish_batch("orders", [{"n": n} for n in range(number)]))
        rows = conn.execute(
            "SELECT id, messages.archive(lock_token, ARRAY[id], 'failed', details => 'no city')"
            " FROM (SELECT * FROM messages.lease('orders', 10000) ORDER BY id) AS leased"
        ).fetchall()
        return [row[0] for row in rows]

    return die


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current directory, which has the module `repairs`, for this test alone."""
    (tmp_path / "repairs.py").write_text(REPAIRS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    sys.modules.pop("repairs", None)
    yield tmp_path
    sys.modules.pop("repairs", None)


@pytest.mark.usefixtures("folder")
def test_a_function_of_the_current_directory_repairs(
    pgqueue: Pgqueue, conn: Connection, dead: Callable[[int], list[int]]
) -> None:
    ids = dead(6)
    arguments = ("repair", "orders", "--function", "repairs:choose", "--validator", "repairs:no_four")
    dry = pgqueue(*arguments, "--dry-run", "--run-id", "night 1")
    assert (dry.status, dry.out) == (
        0,
        "would go through 6 dead messages: 3 requeued, 1 dismissed, 1 left, 1 invalid (run night 1).\n",
    )
    assert len(run(conn, verbs.dead_ids("orders"))) == 6
    done = pgqueue(*arguments, "--run-id", "night 1", "--json")
    assert (done.status, done.json["run_id"], done.json["ids"]) == (
        0,
        "night 1",
        {"requeued": [ids[0], ids[3], ids[5]], "dismissed": [ids[2]], "left": [ids[1]], "invalid": [ids[4]]},
    )
    named = conn.execute("SELECT DISTINCT remedied_by FROM messages.message_archive WHERE remedy IS NOT NULL")
    assert named.fetchall() == [("repair night 1",)]
    assert pgqueue("repair", "orders", "--function", "repairs:choose", "--result", "rejected").out.startswith(
        "went through 0 dead messages (run "
    )


@pytest.mark.usefixtures("folder")
def test_a_canary_that_stops_the_run_is_exit_status_1(pgqueue: Pgqueue, dead: Callable[[int], list[int]]) -> None:
    dead(3)
    wait = ("--canary", "1", "--canary-wait", "10ms")
    ended = pgqueue("repair", "orders", "--function", "repairs:keep", *wait, "--run-id", "x")
    assert (ended.status, ended.out) == (
        1,
        "went through 1 dead message: 1 requeued; stopped: the canary was not finished in time (run x).\n",
    )


@pytest.mark.usefixtures("folder")
def test_ctrl_c_finishes_the_message_in_hand(
    program: Program, dsn: str, conn: Connection, dead: Callable[[int], list[int]]
) -> None:
    ids = dead(50)
    with program("repair", "orders", "--function", "repairs:slow", "--run-id", "x", dsn=dsn) as process:
        assert process.stdout.readline() == "asked\n"
        os.kill(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert process.returncode == 1, err
    assert "stopped: told to stop (run x)." in out
    done = 50 - len(run(conn, verbs.dead_ids("orders")))
    assert 1 <= done < 50
    assert [one.id for one in run(conn, verbs.lease_dead("orders"))] == ids[done:]


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        (["--function", "repairs:keep"], 2, "name a QUEUE or a --cause"),
        (["--cause", "c0ffee", "--function", "repairs:keep"], 1, "no cause 'c0ffee'"),
        (["orders", "--function", "repairs:keeep"], 2, "has no function 'keeep'"),
        (["orders", "--function", "repairs:keep", "--validator", "nowhere:f"], 2, "module 'nowhere' cannot be"),
        (["orders", "--function", "repairs:keep", "--validator", "nowhere.json"], 1, "is not a JSON Schema"),
        (["orders"], 2, "--function"),
        (["nope", "--function", "repairs:keep"], 1, "nope"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(pgqueue: Pgqueue, arguments: list[str], status: int, says: str) -> None:
    refused = pgqueue("repair", *arguments)
    assert refused.status == status
    assert says in refused.err.splitlines()[-1]
