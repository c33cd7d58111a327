"""Commands on a server that cannot be written to, or that goes away while they look."""

from __future__ import annotations

import re
from typing import Any

import psycopg
import pytest

from airflow_provider_pgqueue.core import run, verbs
from tests.core.cli.conftest import Pgqueue, Program
from tests.core.whole.test_transient import cut, set_read_only
from tests.waiting import until

Connection = psycopg.Connection[Any]


def test_doctor_finds_a_server_that_is_read_only(pgqueue: Pgqueue, conn: Connection) -> None:
    set_read_only(conn, "on")
    ended = pgqueue("doctor", "--json")
    (finding,) = (one for one in ended.json["findings"] if one["check_name"] == "server")
    assert finding["severity"] == "critical"
    assert "the server is read-only" in finding["finding"]
    assert "target_session_attrs=read-write" in finding["fix"]


@pytest.mark.parametrize(
    ("command", "more", "afterwards"),
    [
        ("tail", ["--since", "1m", "--poll-interval", "10ms"], '"result": "success"'),
        ("stats", ["--watch", "50ms"], '"depth": 0'),
    ],
)
def test_a_command_that_looks_until_ctrl_c_outlives_its_connection(
    program: Program,
    dsn: str,
    conn: Connection,
    command: str,
    more: list[str],
    afterwards: str,
) -> None:
    run(conn, verbs.publish_batch("default", [1, 2]))
    run(conn, verbs.consume("default", max_messages=1))
    with program(command, "--json", *more, dsn=dsn) as process:
        process.stdout.readline()
        until(lambda: cut(conn, "pgqueue cli"))
        said = process.stderr.readline()
        run(conn, verbs.consume("default", max_messages=1))
        assert any(afterwards in line for line in process.stdout)
        process.send_signal(2)
        _, err = process.communicate(timeout=50)
    assert re.fullmatch(r"lost the connection \(terminating connection [\w ]+\); next try in 0\.\d s\n", said)
    assert (process.returncode, err.strip()) == (130, "")
