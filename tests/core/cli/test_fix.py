"""The command line tells its users commands where other callers are told SQL."""

from __future__ import annotations

import logging
import re
from typing import Any

import psycopg
import pytest

from airflow_provider_pgqueue.cli.fix import LogFormat, in_commands
from airflow_provider_pgqueue.core import run, verbs
from tests.core.cli.conftest import Pgqueue
from tools import ROOT

Connection = psycopg.Connection[Any]
# The verbs that a command does: SQL that calls one of them has no place in what the command line prints.
DONE_BY_A_COMMAND = {
    *("create_queue", "alter_queue", "drop_queue", "pause_queue", "resume_queue", "purge_queue", "status", "publish"),
    *("dead_causes", "requeue_dead", "dismiss_dead", "message_life", "health", "metrics", "granted_queues", "maintain"),
    *("search_messages", "workers"),
}


def hints() -> list[str]:
    """Return the hints of the functions, with a name in each place."""
    found = []
    for file in sorted((ROOT / "sql").rglob("*.sql")):
        for text in re.findall(r"HINT = (?:format\()?'((?:[^']|'')*)'", file.read_text()):
            found.append(text.replace("''", "'").replace("%L", "'orders'").replace("%s", "'orders'"))
    return found


def test_no_hint_sends_a_user_of_the_shell_to_sql_that_a_command_does() -> None:
    assert len(hints()) > 80
    sql = {(one, name) for one in hints() for name in re.findall(r"messages\.(\w+)", in_commands(one))}
    assert not {(text, name) for text, name in sql if name in DONE_BY_A_COMMAND}
    assert "pgqueue queues resume orders" in {in_commands(one).removeprefix("Resume it: ") for one in hints()}


@pytest.mark.parametrize(
    ("arguments", "fix"),
    [
        (["worker", "default", "json:dumps", "--until-empty"], "Resume it: pgqueue queues resume default"),
    ],
)
def test_an_error_names_the_command(
    pgqueue: Pgqueue, conn: Connection, arguments: list[str], fix: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    run(conn, verbs.pause_queue("default"))
    ended = pgqueue(*arguments)
    logged = "\n".join(map(LogFormat("%(message)s").format, caplog.records))
    assert fix in ended.err + logged
