"""Runs of the pipelines: who may finish which, and what they may be called."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from airflow_provider_pgqueue.core import InvalidArgument, run, verbs
from airflow_provider_pgqueue.core.statement import Statement, one
from tests.core.roles.test_roles import Login

Connection = psycopg.Connection[Any]


def begin(conn: Connection, run_id: str, pipeline: str = "export") -> Any:
    return run(conn, Statement("begin_run", {"run_id": run_id, "pipeline": pipeline}, one))


def finish(conn: Connection, run_id: str, summary: str = '{"rows": 1}') -> Any:
    return run(conn, Statement("finish_run", {"run_id": run_id, "summary": summary}, one, {"summary": "jsonb"}))


def summary_of(conn: Connection, run_id: str, pipeline: str = "export") -> Any:
    return run(conn, Statement("run_summary", {"run_id": run_id, "pipeline": pipeline}, one))


def test_each_login_has_runs_of_its_own(login: Login) -> None:
    mine, theirs = login("mine", "messages_pipeline"), login("theirs", "messages_pipeline", "messages_admin")
    assert begin(mine, "nightly") is None
    for act in (summary_of, begin, summary_of):
        assert act(theirs, "nightly") is None
    assert finish(theirs, "nightly", '{"rows": 2}') == {"rows": 2}
    assert summary_of(mine, "nightly") is begin(mine, "nightly") is None
    assert finish(mine, "nightly") == summary_of(mine, "nightly") == {"rows": 1}
    assert begin(theirs, "nightly") == {"rows": 2}
    assert begin(theirs, "weekly", "drain") is begin(mine, "weekly", "export") is None


def test_what_a_run_holds_and_archived_is_not_that_of_another_login_under_the_same_name(
    conn: Connection, login: Login, queue: Callable[..., str]
) -> None:
    run(conn, verbs.publish_batch(queue("orders"), range(5)))
    mine, theirs = (login(name, "messages_pipeline", "messages_consumer") for name in ("mine", "theirs"))
    for session, leased in ((mine, 2), (theirs, 3)):
        begin(session, "nightly", "drain")
        holder = run(session, verbs.run_holder("nightly")) + "0.0:1@host"
        messages = run(session, verbs.lease("orders", max_messages=leased, locked_by=holder))
        run(session, verbs.archive(messages[0].lock_token, [messages[0].id], handled_by=holder))
    for session, held in ((mine, 1), (theirs, 2)):
        backlog = run(session, verbs.run_backlog(run(session, verbs.run_holder("nightly")), "orders"))
        assert backlog == {"ready": 0, "held": held, "waiting": 3 - held}
        assert run(session, verbs.run_archived("nightly"))["success"] == 1


def test_a_run_that_is_forgotten_takes_none_of_another_login_with_the_same_name_along(
    conn: Connection, login: Login
) -> None:
    for name in ("mine", "theirs"):
        begin(login(name, "messages_pipeline"), "nightly")
    conn.execute("UPDATE messages.pipeline_run SET started_at = now() - interval '91 days' WHERE started_by = 'mine'")
    conn.execute("SELECT messages.maintain()")
    assert conn.execute("SELECT started_by FROM messages.pipeline_run").fetchall() == [("theirs",)]


def test_a_run_that_this_login_did_not_begin_cannot_be_finished(login: Login) -> None:
    mine, stranger = login("mine", "messages_pipeline"), login("stranger", "messages_pipeline")
    begin(mine, "nightly")
    with pytest.raises(InvalidArgument, match=r"there is no run 'nightly'\. Finish it as the login that began it"):
        finish(stranger, "nightly")
    assert summary_of(mine, "nightly") is None


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
