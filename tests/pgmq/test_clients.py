"""PGMQ's clients do their usual work on our queues; what differs is named, with the reason."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.pgmq.conftest import call

Connection = psycopg.Connection[Any]
CLIENTS = Path(__file__).parent / "clients"
# What PGMQ has and we do not; all but these pass. docs/how-to/move-here.md
NOT_OFFERED = {
    "unlogged_queue": "pgmq.create_unlogged",
    "partitioned_queue": "pgmq.create_partitioned",
    "read_by_content": "a read by content",
    "read_in_groups": "pgmq.read_grouped",
    "topics": "pgmq.bind_topic",
    "notifications": "pgmq.enable_notify_insert",
}


def where(conn: Connection) -> list[str]:
    return [conn.info.host, str(conn.info.port), conn.info.dbname, conn.info.user]


def failed(printed: str) -> dict[str, str]:
    ended: dict[str, str] = json.loads(printed)
    assert len(ended) > 8
    return {case: error for case, error in ended.items() if error != "passed"}


@pytest.mark.parametrize("kind", ["sync", "async", "sqlalchemy", "sqlalchemy_async"])
def test_its_own_python_client_works_here(names: Connection, python_client: Path, kind: str) -> None:
    errors = failed(call(python_client, CLIENTS / "python_client.py", kind, *where(names)))
    assert {case: f"{NOT_OFFERED.get(case)} is not offered here, use" in error for case, error in errors.items()} == (
        dict.fromkeys(NOT_OFFERED, True)
    ), errors


@pytest.mark.npm
def test_a_client_from_npm_works_here(names: Connection, npm_client: Path) -> None:
    script = npm_client / "npm_client.mjs"
    script.write_text((CLIENTS / "npm_client.mjs").read_text())
    errors = failed(call("node", script, *where(names)))
    assert sorted(errors) == ["set_vt", "unlogged_queue"], errors
    # It gives no types, and PGMQ itself has had two functions that fit since it takes a time.
    assert "function pgmq.set_vt(unknown, unknown, unknown) is not unique" in errors["set_vt"]
    assert "pgmq.create_unlogged is not offered here, use" in errors["unlogged_queue"]
