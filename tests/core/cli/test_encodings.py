"""Terminals, sessions and locales that are not UTF-8: no command fails for a body, and JSON stays JSON."""

from __future__ import annotations

import asyncio
import io
import json
import os
import subprocess
import sys
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.rows import tuple_row

from airflow_provider_pgqueue.cli import main
from airflow_provider_pgqueue.core import (
    Consumer,
    Failed,
    InvalidArgument,
    InvalidMessage,
    Worker,
    connect,
    run,
    run_async,
    verbs,
)
from airflow_provider_pgqueue.core.client import fetch
from airflow_provider_pgqueue.export.connection import Database
from tests.core.cli.conftest import Ended, Pgqueue
from tools import ROOT

Connection = psycopg.Connection[Any]
NAME = "žluť 🐘"  # Latin-1 lacks the first letter, and UTF-16 writes the last one as two


@pytest.fixture(params=["latin-1", "ascii", "cp1252"])
def narrow(request: pytest.FixtureRequest, dsn: str, monkeypatch: pytest.MonkeyPatch) -> Pgqueue:
    """Run the program in a terminal that cannot show every letter."""
    monkeypatch.setenv("PGQUEUE_DSN", dsn)

    def call(*arguments: str, stdin: str = "") -> Ended:
        out, err = io.BytesIO(), io.BytesIO()
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
        monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(out, encoding=request.param))
        monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(err, encoding=request.param))
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        sys.stdout.flush()
        sys.stderr.flush()
        return Ended(
            int(ended.value.code or 0), out.getvalue().decode(request.param), err.getvalue().decode(request.param)
        )

    return call


def test_each_command_that_shows_text_of_users_does_so_in_a_narrow_terminal(
    narrow: Pgqueue, dsn: str, conn: Connection
) -> None:
    run(conn, verbs.create_queue("orders", max_attempts=1))
    first = run(conn, verbs.publish("orders", {"name": NAME}, reference=NAME, group_key=NAME, headers={"shop": NAME}))
    consumer = Consumer(queue_name="orders", handle=lambda _: Failed(NAME))
    Worker(conninfo=dsn, consumer=consumer).run(until_empty=True)
    waits = run(conn, verbs.publish("orders", {"name": NAME}, reference=NAME))
    for command in (
        "peek orders",
        f"show {first}",
        f"show {waits}",
        "tail orders --since 1h --no-follow",
        "dead orders",
        "stats orders",
        "queues",
        "doctor",
        "requeue orders --dry-run",
        f"dismiss orders --id {first} --yes --reason {NAME.replace(' ', '_')}",
        f"cancel orders {waits}",
    ):
        for output in ([], ["--json"]):
            ended = narrow(*command.split(), *output)
            assert ended.status in (0, 1), (command, ended)
            assert "UnicodeEncodeError" not in ended.err, (command, ended)
            assert "error" not in ended.err, (command, ended)
            assert all(json.loads(line) for line in ended.out.splitlines() if output)


def test_a_narrow_terminal_gets_letters_it_has_and_the_others_as_json_writes_them(dsn: str) -> None:
    command = [sys.executable, "-m", "airflow_provider_pgqueue.cli", "publish", "default", "--message", "1", "--json"]
    environment = os.environ | {"PGQUEUE_DSN": dsn, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "latin-1"}
    subprocess.run([*command, "--reference", NAME], env=environment, check=True, stdout=subprocess.DEVNULL)
    command[3:] = ["peek", "default", "--json"]
    shown = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE).stdout
    assert b"\\u017elu\\u0165 \\ud83d\\udc18" in shown
    assert json.loads(shown.decode("latin-1"))["messages"][0]["reference"] == NAME


def test_the_schema_is_installed_from_a_locale_that_is_not_utf_8(empty_dsn: str) -> None:
    environment = os.environ | {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": "C", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "airflow_provider_pgqueue.cli", "install", "--dsn", empty_dsn]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_the_sql_is_ascii_so_that_psql_installs_the_same_in_each_locale() -> None:
    assert [str(path) for path in (ROOT / "sql").rglob("*.sql") if not path.read_bytes().isascii()] == []


@pytest.mark.parametrize("given", ["client_encoding=LATIN1", "options='-c client_encoding=LATIN1'"])
def test_a_connection_string_with_another_encoding_still_transfers_every_letter(
    dsn: str, conn: Connection, given: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGCLIENTENCODING", "LATIN1")
    narrow = make_conninfo("", **conninfo_to_dict(dsn)) + " " + given
    with connect(narrow) as own:
        run(own, verbs.publish("default", {"name": NAME}, reference=NAME))
        assert run(own, verbs.lease("default", locked_by=NAME))[0].body == {"name": NAME}
    with Database(narrow).connect() as own:
        assert own.info.encoding == "utf-8"


def test_a_connection_of_the_caller_with_another_encoding_is_named_as_the_cause(dsn: str, conn: Connection) -> None:
    run(conn, verbs.publish("default", {"name": NAME}, reference=NAME))
    names = "client_encoding of the connection must be UTF8, not LATIN1"

    async def publish() -> None:
        async with await psycopg.AsyncConnection.connect(dsn, autocommit=True, client_encoding="LATIN1") as narrow:
            await run_async(narrow, verbs.publish("default", 1, reference=NAME))

    with pytest.raises(InvalidArgument, match=names):
        asyncio.run(publish())
    with psycopg.connect(dsn, autocommit=True, client_encoding="LATIN1") as narrow:
        with pytest.raises(InvalidArgument, match=names):
            run(narrow, verbs.publish("default", 1, reference=NAME))
        with pytest.raises(InvalidArgument, match=names) as refused:
            run(narrow, verbs.lease("default"))
        assert "0xc5" not in str(refused.value)
        with pytest.raises(InvalidMessage, match="without NaN, Infinity, NUL"):
            fetch(narrow, tuple_row, "SELECT messages.publish('default', %s)", ['"\\u0000"'])
