"""Runs of the pipelines: who may finish which, and what they may be called."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from airflow_provider_pgqueue.core import InvalidArgument, run
from airflow_provider_pgqueue.core.client import Statement, one
from tests.core.test_roles import Login, logins

Connection = psycopg.Connection[Any]


@pytest.fixture
def login(dsn: str) -> Iterator[Login]:
    with logins(dsn) as login:
        yield login


def begin(conn: Connection, run_id: str, pipeline: str = "export") -> Any:
    return run(conn, Statement("begin_run", {"run_id": run_id, "pipeline": pipeline}, one))


def finish(conn: Connection, run_id: str, summary: str = '{"rows": 1}') -> Any:
    return run(conn, Statement("finish_run", {"run_id": run_id, "summary": summary}, one, {"summary": "jsonb"}))


def summary_of(conn: Connection, run_id: str, pipeline: str = "export") -> Any:
    return run(conn, Statement("run_summary", {"run_id": run_id, "pipeline": pipeline}, one))


def test_who_started_a_run_goes_on_with_it_and_nobody_else_but_an_admin(login: Login) -> None:
    mine, stranger = login("mine", "messages_pipeline"), login("stranger", "messages_pipeline")
    assert begin(mine, "nightly") is None
    for act in (begin, finish):
        with pytest.raises(InvalidArgument, match=r"run 'nightly' was started by another role\. Go on with it as"):
            act(stranger, "nightly")
    assert summary_of(stranger, "nightly") is None
    assert begin(mine, "nightly") is None
    assert finish(mine, "nightly") == begin(stranger, "nightly") == summary_of(stranger, "nightly") == {"rows": 1}
    begin(mine, "weekly")
    assert finish(login("boss", "messages_admin"), "weekly") == {"rows": 1}


@pytest.mark.parametrize("pipeline", ["publish", "publish stream"])
def test_a_run_that_publishes_is_finished_by_its_commit_alone(conn: Connection, pipeline: str) -> None:
    begin(conn, "load", pipeline)
    with pytest.raises(InvalidArgument, match=r"run 'load' publishes, and is finished by messages\.publish_staged"):
        finish(conn, "load")
    assert summary_of(conn, "load", pipeline) is None


def test_looking_at_a_run_does_not_begin_it(conn: Connection) -> None:
    assert summary_of(conn, "nightly") is None
    assert begin(conn, "nightly", "drain") is None
    with pytest.raises(InvalidArgument, match="belongs to pipeline drain, not to export"):
        summary_of(conn, "nightly")


@pytest.mark.parametrize("run_id", ["", "x" * 251])
def test_a_name_of_a_run_that_cannot_be_says_how_long_it_may_be(conn: Connection, run_id: str) -> None:
    with pytest.raises(InvalidArgument, match=rf"has {len(run_id)} characters\. Give a text of 1 to 250"):
        begin(conn, run_id)
    assert begin(conn, "x" * 250) is None
