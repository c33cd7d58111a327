"""Who may look sees the class of an error; its text and traceback only who may read bodies."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from airflow_provider_pgqueue.core import run, verbs
from tests.core.roles.test_roles import OTHERS, Login, call_of, roles_of
from tools.chapters import functions

Connection = psycopg.Connection[Any]

FAILURE = {"error": "shop.CardError", "message": "CANARY of 4711", "traceback": "File CANARY"}
WAYS = {
    **{name: statement for name, (statement, allowed) in OTHERS.items() if "observer" in allowed.split()},
    "message_life of one that waits": "SELECT messages.message_life(2)",
    "message_life of one without a class": "SELECT messages.message_life(3)",
    "message_life of one that was dispatched": "SELECT messages.message_life(4)",
    "message_outcomes": "SELECT messages.message_outcomes(ARRAY[1, 2, 3, 4, 5], true)",
}
LOOKS = [*(name for name in functions() if "observer" in roles_of(name) and name not in WAYS), *WAYS]
SHOWN = {
    "message_life", "message_life of one that waits", "message_life of one without a class", "dead_causes",
    "message_life of one that was dispatched", "dead_trend", "search_messages",
    "message_overview", "archive_overview", "dispatch_overview", "retried_causes",
}  # fmt: skip
CLASSES = {
    "message_life", "message_life of one that waits", "dead_causes", "dead_trend",
    "search_messages", "message_overview", "archive_overview", "message_outcomes",
    "retried_causes",
}  # fmt: skip


@pytest.fixture
def orders(conn: Connection) -> Connection:
    """A queue in which messages died, failed and were rejected with a canary in what was said, in each place."""
    run(conn, verbs.create_queue("orders", max_attempts=5))
    for number in range(1, 7):
        run(conn, verbs.publish("orders", number))

    def lease(many: int) -> str:
        rows = conn.execute("SELECT lock_token::text, id FROM messages.lease('orders', %s)", [many]).fetchall()
        return str(rows[0][0])

    token = lease(6)
    end = "SELECT messages.archive(%s, %s, %s, %s, failure => %s)"
    conn.execute(end, [token, [1], "failed", "CANARY details", Jsonb(FAILURE)])
    conn.execute(end, [token, [6], "rejected", "CANARY without a class", None])
    conn.execute("SELECT messages.release(%s, '{2}', '1 hour', failure => %s)", [token, Jsonb(FAILURE)])
    conn.execute("SELECT messages.release(%s, '{3}', '1 hour', details => 'CANARY: said')", [token])
    conn.execute("SELECT messages.release(%s, '{5}', '1 hour', details => 'CANARY by hand')", [token])
    conn.execute("SELECT messages.release(%s, '{4}')", [token])
    conn.execute("SELECT messages.dispatch_messages('orders', 'pack')")
    (run_id,) = conn.execute("SELECT run_id FROM messages.dispatch").fetchone() or (None,)
    conn.execute("SELECT messages.end_dispatch('pack', %s, 'failed', 'CANARY of the run')", [run_id])
    # The statistics of the archive are read from the history, which maintenance makes.
    conn.execute(
        "INSERT INTO messages.history_cause (grain, bucket_at, queue_name, result, fingerprint, messages)"
        " SELECT 'minute', date_trunc('minute', archived_at), queue_name, result, fingerprint, 1"
        " FROM messages.archive_rows"
    )
    return conn


def said(session: Connection, way: str) -> str:
    """Return all that a way says, as text."""
    statement = (WAYS.get(way) or call_of(way, session)).replace("SELECT FROM", "SELECT * FROM")
    with session.transaction(force_rollback=True):
        # A trend has the text in small letters.
        return str(session.execute(statement.encode()).fetchall()).replace("canary", "CANARY")


def test_an_observer_sees_the_class_of_an_error_and_no_text_in_whatever_way(orders: Connection, login: Login) -> None:
    oncall = login("oncall", "messages_observer")
    found = {way: said(oncall, way) for way in LOOKS}
    assert {way for way, text in found.items() if "CANARY" in text} == set()
    assert {way for way, text in found.items() if "shop.CardError" in text} == CLASSES


def test_whoever_may_read_bodies_sees_the_text_of_an_error(orders: Connection, login: Login) -> None:
    for group in ("reader", "consumer", "admin", "raw"):
        oncall = login(f"oncall_{group}", "messages_observer", f"messages_{group}")
        assert {way for way in LOOKS if "CANARY" in said(oncall, way)} == SHOWN, group


def test_a_team_sees_the_texts_of_the_queues_that_it_consumes_from(orders: Connection, login: Login) -> None:
    team, viewers = login("team"), login("viewers")
    run(orders, verbs.create_queue("bills"))
    run(orders, verbs.grant_queue("orders", "team", "consume"))
    run(orders, verbs.grant_queue("orders", "viewers", "observe"))
    run(orders, verbs.grant_queue("bills", "viewers", "consume"))
    orders.execute("GRANT messages_observer TO team")
    assert {way for way in LOOKS if "CANARY" in said(team, way)} == SHOWN
    assert {way for way in LOOKS if "CANARY" in said(viewers, way)} == set()
    assert {way for way in LOOKS if "shop.CardError" in said(viewers, way)} == CLASSES


def test_a_login_can_leave_the_texts_out_and_cannot_ask_for_them(orders: Connection, login: Login) -> None:
    orders.execute("SET messages.bodies = off")
    assert {way for way in LOOKS if "CANARY" in said(orders, way)} == set()
    oncall = login("oncall", "messages_observer")
    oncall.execute("SET messages.bodies = on")
    assert {way for way in LOOKS if "CANARY" in said(oncall, way)} == set()


def test_a_text_is_never_taken_for_a_class(conn: Connection, login: Login) -> None:
    run(conn, verbs.create_queue("orders", max_attempts=100))
    run(conn, verbs.publish("orders", 1))
    oncall = login("oncall", "messages_observer")
    ways: tuple[dict[str, Any], ...] = (
        {"details": "CANARY"},
        {"details": "CANARY: a reason"},
        {"failure": Jsonb({"message": "CANARY: a reason"})},
        {"failure": Jsonb({"error": "", "message": "CANARY"})},
    )
    for given in ways:
        conn.execute(
            "SELECT messages.release(lock_token, ARRAY[id], details => %s, failure => %s)"
            " FROM messages.lease('orders')",
            [given.get("details"), given.get("failure")],
        )
        assert oncall.execute("SELECT last_error FROM messages.message_overview").fetchall() == [(None,)]
        ((text,),) = conn.execute("SELECT last_error FROM messages.message_overview").fetchall()
        assert text.startswith("CANARY")
