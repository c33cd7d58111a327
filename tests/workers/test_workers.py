"""The workers in other languages, as their pages have them."""

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
PAGES = ROOT / "docs" / "how-to"
HANDLE_TS = """
export async function handle(body: any, lost: AbortSignal): Promise<void> {
  console.log(body);
  await new Promise((resolve) => setTimeout(resolve, 1000 * (body.seconds ?? 0)));
  if (body.fails) throw new Error("no such order");
}
"""
HANDLE_GO = """
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

func handle(lost context.Context, body json.RawMessage) error {
	fmt.Println(string(body))
	var order struct {
		Seconds float64
		Fails   bool
	}
	if err := json.Unmarshal(body, &order); err != nil {
		return err
	}
	time.Sleep(time.Duration(order.Seconds * float64(time.Second)))
	if order.Fails {
		return errors.New("no such order")
	}
	return nil
}
"""
LANGUAGES = [pytest.param("typescript", marks=pytest.mark.npm), pytest.param("go", marks=pytest.mark.debian)]


def block(page: str, mark: str) -> str:
    (code,) = re.findall(rf"^<!-- {mark} -->\n```\w+\n(.*?)^```$", (PAGES / page).read_text(), re.M | re.S)
    return str(code)


def typescript(folder: Path) -> list[str]:
    """Compile the worker in TypeScript next to its libraries."""
    page = "worker-typescript.md"
    with made_once("typescript") as (libraries, empty):
        if empty:
            setup = block(page, "shell: setup").replace("install", "install --silent --no-audit --no-fund")
            call("sh", "-ec", setup, cwd=libraries)
    (folder / "node_modules").symlink_to(libraries / "node_modules")
    (folder / "package.json").write_text('{"type": "module"}')
    (folder / "worker.ts").write_text(block(page, "file: worker.ts"))
    (folder / "handle.ts").write_text(HANDLE_TS)
    call("sh", "-ec", block(page, "shell: start").splitlines()[0], cwd=folder)
    return [shutil.which("node") or "node", "worker.js", "orders"]


def go(folder: Path) -> list[str]:
    """Compile the worker in Go with Debian's packages, which are unpacked and not installed."""
    page, packages = "worker-go.md", ("golang-1.19-go", "golang-1.19-src", "golang-github-lib-pq-dev")
    with made_once("go") as (root, empty):
        if empty:
            call("apt-get", "-q", "download", *packages, cwd=root)
            for file in root.glob("*.deb"):
                call("dpkg-deb", "--extract", file, root)
    (folder / "worker.go").write_text(block(page, "file: worker.go"))
    (folder / "handle.go").write_text(HANDLE_GO)
    build = block(page, "shell: start").splitlines()[0].replace("/usr/share/gocode", f"{root}/usr/share/gocode")
    place = root / "usr" / "lib" / "go-1.19"
    called = f"export GOROOT={place} GOCACHE={root}/cache CGO_ENABLED=0 PATH={place}/bin:$PATH; {build}"
    call("sh", "-ec", called, cwd=folder)
    return ["./worker", "orders"]


@pytest.fixture(scope="module", params=LANGUAGES)
def program(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """A folder with the compiled worker, and how it is called there."""
    folder = tmp_path_factory.mktemp(request.param)
    return folder, {"typescript": typescript, "go": go}[request.param](folder)


@pytest.fixture
def worker(conn: Connection, program: tuple[Path, list[str]]) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start workers with a lease of so many seconds."""
    started: list[subprocess.Popen[str]] = []
    info, (folder, command) = conn.info, program
    given = {"PGHOST": info.host, "PGPORT": str(info.port), "PGDATABASE": info.dbname, "PGUSER": info.user}
    environment = os.environ | given | {"PGSSLMODE": "disable"}

    def start(seconds: int) -> subprocess.Popen[str]:
        lease = str(seconds) if command[0] != "./worker" else f"{seconds}s"
        process = subprocess.Popen(
            [*command, lease],
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def results(conn: Connection) -> list[tuple[Any, ...]]:
    return conn.execute(
        "SELECT result, attempts, left(handled_by, 6) FROM messages.message_archive ORDER BY id"
    ).fetchall()


def stopped(process: subprocess.Popen[str]) -> str:
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    return errors


def test_it_prints_what_its_page_shows(
    conn: Connection,
    queue: Callable[..., str],
    program: tuple[Path, list[str]],
    worker: Callable[..., subprocess.Popen[str]],
) -> None:
    page = "worker-go.md" if program[1][0] == "./worker" else "worker-typescript.md"
    (shown,) = re.findall(r"^```text\n(.*?)^```$", (PAGES / page).read_text(), re.M | re.S)
    queue("orders")
    run(conn, verbs.publish("orders", {"order_id": 7}))
    process = worker(60)
    until(lambda: len(results(conn)) == 1)
    process.send_signal(signal.SIGTERM)
    assert process.communicate(timeout=60)[0] == shown


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
    assert results(conn) == [("success", 1, "worker")] * 2
    failed = conn.execute("SELECT attempts, lower(last_error), lock_token FROM messages.message").fetchall()
    assert failed == [(1, "error: no such order", None)]
    assert stopped(process) == ""


def test_it_renews_the_lease_while_it_works_and_stops_after_the_message_at_hand(
    conn: Connection, queue: Callable[..., str], worker: Callable[..., subprocess.Popen[str]]
) -> None:
    queue("orders")
    run(conn, verbs.publish_batch("orders", [{"seconds": 4}, {"order_id": 8}]))
    process = worker(1)
    until(lambda: conn.execute("SELECT FROM messages.message WHERE lock_token IS NOT NULL").rowcount == 1)
    assert stopped(process) == ""
    assert results(conn) == [("success", 1, "worker")]
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
