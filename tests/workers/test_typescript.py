"""The worker in TypeScript, as its page has it."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from airflow_provider_pgqueue.core import run, verbs
from tests.pgmq.conftest import call, made_once
from tests.waiting import until
from tools import ROOT

Connection = psycopg.Connection[Any]
pytestmark = pytest.mark.npm
PAGE = (ROOT / "docs" / "how-to" / "worker-typescript.md").read_text()
HANDLE = """
export async function handle(body: any, lost: AbortSignal): Promise<void> {
  await new Promise((resolve) => setTimeout(resolve, 1000 * (body.seconds ?? 0)));
  if (body.fails) throw new TypeError("no such order");
}
"""


def block(mark: str) -> str:
    (code,) = re.findall(rf"^<!-- {mark} -->\n```\w+\n(.*?)^```$", PAGE, re.M | re.S)
    return str(code)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the compiled worker, next to its libraries."""
    with made_once("typescript") as (libraries, empty):
        if empty:
            call(
                "sh",
                "-ec",
                block("shell: setup").replace("install", "install --silent --no-audit --no-fund"),
                cwd=libraries,
            )
    folder = tmp_path_factory.mktemp("typescript")
    (folder / "node_modules").symlink_to(libraries / "node_modules")
    (folder / "package.json").write_text('{"type": "module"}')
    (folder / "worker.ts").write_text(block("file: worker.ts"))
    (folder / "handle.ts").write_text(HANDLE)
    compiling, _ = block("shell: start").splitlines()
    call("sh", "-ec", compiling, cwd=folder)
    return folder


@pytest.fixture
def worker(conn: Connection, program: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start workers with a lease of so many seconds."""
    started: list[subprocess.Popen[str]] = []
    info, node = conn.info, shutil.which("node") or "node"
    given = {"PGHOST": info.host, "PGPORT": str(info.port), "PGDATABASE": info.dbname, "PGUSER": info.user}

    def start(seconds: int) -> subprocess.Popen[str]:
        command = [node, "worker.js", "orders", str(seconds)]
        process = subprocess.Popen(
            command, cwd=program, env=os.environ | given, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def results(conn: Connection) -> list[tuple[Any, ...]]:
    return conn.execute("SELECT result, attempts, handled_by FROM messages.message_archive ORDER BY id").fetchall()


def stopped(process: subprocess.Popen[str]) -> str:
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    return errors


def test_it_finishes_what_comes_and_gives_back_what_fails(
    conn: Connection, queue: Callable[..., str], worker: Callable[..., subprocess.Popen[str]]
) -> None:
    queue("orders", backoff_first="1 hour")
    run(conn, verbs.publish("orders", {"order_id": 7}))
    process = worker(60)
    until(lambda: len(results(conn)) == 1)
    # It waits by now, for half a minute at most.
    run(conn, verbs.publish_batch("orders", [{"fails": True}, {"order_id": 8}]))
    until(lambda: len(results(conn)) == 2, timeout=20)
    assert results(conn) == [("success", 1, "worker.ts")] * 2
    failed = conn.execute("SELECT attempts, last_error, lock_token FROM messages.message").fetchall()
    assert failed == [(1, "TypeError: no such order", None)]
    assert stopped(process) == ""


def test_it_renews_the_lease_while_it_works_and_stops_after_the_message_at_hand(
    conn: Connection, queue: Callable[..., str], worker: Callable[..., subprocess.Popen[str]]
) -> None:
    queue("orders")
    run(conn, verbs.publish_batch("orders", [{"seconds": 4}, {"order_id": 8}]))
    process = worker(1)
    until(lambda: conn.execute("SELECT FROM messages.message WHERE lock_token IS NOT NULL").rowcount == 1)
    assert stopped(process) == ""
    assert results(conn) == [("success", 1, "worker.ts")]
    assert conn.execute("SELECT message, attempts FROM messages.message").fetchall() == [({"order_id": 8}, 0)]


def test_it_says_that_it_lost_a_lease_and_changes_nothing(
    conn: Connection, queue: Callable[..., str], worker: Callable[..., subprocess.Popen[str]]
) -> None:
    queue("orders")
    id_ = run(conn, verbs.publish("orders", {"seconds": 3}))
    process = worker(60)
    until(lambda: conn.execute("SELECT FROM messages.message WHERE lock_token IS NOT NULL").rowcount == 1)
    run(conn, verbs.cancel("orders", [id_]))
    assert stopped(process) == f"message {id_}: its lease was lost\n"
    assert [row[0] for row in results(conn)] == ["cancelled"]
