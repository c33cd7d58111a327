"""What the demo says of its flights at the end."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from tools.airflow import without_queue
from tools.reconciliation import read_account

Connection = psycopg.Connection[Any]


@pytest.fixture
def flights(conn: Connection) -> Connection:
    """Four flights: three departed, one of them after it was repaired, and one was dismissed."""
    conn.execute("CREATE SCHEMA flights; CREATE TABLE flights.departure (id bigint)")
    conn.execute("SELECT messages.create_queue('flights'), messages.create_queue('wakeups')")
    conn.execute("SELECT messages.publish_batch('flights', '[1, 2, 3, 4]')")
    _archive(conn, 2, "success")
    _archive(conn, 2, "rejected")
    conn.execute("SELECT messages.dismiss(lock_token, ARRAY[id], 'cancelled') FROM messages.lease_dead('flights', 1)")
    conn.execute("SELECT count(*) FROM messages.requeue_dead('flights', results => '{rejected}')")
    _archive(conn, 1, "success")
    conn.execute("INSERT INTO flights.departure VALUES (1), (2), (3)")
    return conn


def _archive(conn: Connection, messages: int, result: str) -> None:
    ended = conn.execute(
        "SELECT messages.archive(lock_token, ARRAY[id], result => %s) FROM messages.lease('flights', %s)",
        [result, messages],
    )
    assert ended.rowcount == messages


def test_the_demo_ends_with_what_became_of_the_flights(flights: Connection) -> None:
    assert read_account(flights).sentence == (
        "4 flights were published; none was lost or doubled: 3 departed, 1 dismissed with a reason."
        " 2 messages failed on purpose: 1 repaired and published again, 1 dismissed."
    )
    flights.execute("UPDATE messages.archive_rows SET attempts = 2 WHERE result = 'success'")
    assert read_account(flights).sentence.endswith(
        " 1 dismissed. Delivered again after a consumer failed or was killed: 3 messages."
    )


def test_a_stack_without_a_queue_says_what_to_do_first(empty_dsn: str, dsn: str) -> None:
    assert "pgqueue_setup" in str(without_queue(empty_dsn))
    assert without_queue(dsn) is None


@pytest.mark.parametrize(
    "mistake",
    [
        "INSERT INTO flights.departure VALUES (3)",
        "DELETE FROM messages.archive_rows WHERE id = (SELECT min(id) FROM messages.archive_rows)",
        "UPDATE messages.archive_rows SET resolution = NULL, resolved_at = NULL, resolved_by = NULL,"
        " dismissed_for = NULL WHERE resolution = 'dismissed'",
    ],
    ids=["an effect twice", "a message lost", "a dead message open"],
)
def test_the_demo_says_when_the_accounts_do_not_balance(flights: Connection, mistake: str) -> None:
    assert read_account(flights).balances
    flights.execute(mistake)  # type: ignore[arg-type]
    assert read_account(flights).sentence.startswith("The accounts do not balance. ")
