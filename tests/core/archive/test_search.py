"""Finding messages: by state, in pages, at a cost that does not grow with the queue."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from airflow_provider_pgqueue.core import InvalidArgument, run, verbs
from tests.archive import without_beginning

pytestmark = pytest.mark.rolled_back

Connection = psycopg.Connection[Any]
Queue = Callable[..., str]
MINUTE = timedelta(minutes=1)
STATES = ("ready", "delayed", "leased", "done", "dead")


@pytest.fixture
def ids(conn: Connection, queue: Queue) -> dict[str, list[int]]:
    """The messages of `orders`, five of each state, and as many in `bills`."""
    found: dict[str, list[int]] = {}
    for name in ("bills", "orders"):
        queue(name, max_attempts=1)
        found = {"dead": publish(conn, name), "done": publish(conn, name)}
        for end, result in (("dead", "failed"), ("done", "success")):
            for one in run(conn, verbs.lease(name, max_messages=5)):
                failure = {"error": f"Odd{one.id % 2}", "message": "no stock"} if end == "dead" else None
                run(conn, verbs.archive(one.lock_token, [one.id], result=result, failure=failure))
        found["leased"] = publish(conn, name)
        run(conn, verbs.lease(name, max_messages=5, locked_by="packer"))
        found["ready"] = publish(conn, name)
        found["delayed"] = publish(conn, name, delay=timedelta(hours=1))
    return found


def publish(conn: Connection, name: str, **given: Any) -> list[int]:
    return [run(conn, verbs.publish(name, {"n": n}, reference=f"ref-{n}", topic=f"eu.{n}", **given)) for n in range(5)]


def pages(conn: Connection, state: str, **given: Any) -> list[int]:
    """Return the ids of a list that is read two at a time."""
    found: list[dict[str, Any]] = []
    while rows := run(
        conn,
        verbs.search_messages(
            "orders",
            state=state,
            max_messages=2,
            after_id=found[-1]["id"] if found else None,
            after_place=found[-1]["place"] if found else None,
            **given,
        ),
    ):
        found += rows
        assert len(found) <= 25, "it does not end"
    return [row["id"] for row in found]


def test_a_list_of_a_state_is_read_in_pages_without_a_gap_or_a_repetition(
    conn: Connection, ids: dict[str, list[int]]
) -> None:
    for state in STATES:
        order = ids[state] if state in ("delayed", "leased") else ids[state][::-1]
        assert pages(conn, state) == order, state
        assert pages(conn, state, since=datetime.now(UTC) - MINUTE) == order, state
        assert pages(conn, state, until=datetime.now(UTC) - MINUTE) == [], state
        (found,) = run(conn, verbs.search_messages("orders", state=state, reference="ref-3"))
        assert (found["id"], found["reference"], found["topic"]) == (ids[state][3], "ref-3", "eu.3")
        (found,) = run(conn, verbs.search_messages("orders", message_id=ids[state][3]))
        assert found["id"] == ids[state][3]
        assert run(conn, verbs.search_messages("bills", message_id=ids[state][3])) == [], state


@pytest.mark.usefixtures("dsn")
def test_messages_of_one_time_are_read_in_pages_too(conn: Connection, ids: dict[str, list[int]]) -> None:
    before = conn.execute("SELECT now() - interval '1 minute'").fetchone()
    conn.execute("UPDATE messages.message_rows SET visible_at = %s WHERE visible_at < now()", before)
    conn.execute("UPDATE messages.message_rows SET visible_at = 'infinity' WHERE visible_at > now()")
    without_beginning(conn)
    conn.execute("UPDATE messages.archive_rows SET archived_at = %s", before)
    conn.execute("UPDATE messages.dead_message SET archived_at = %s", before)
    assert {state: sorted(pages(conn, state)) for state in STATES} == ids


def test_a_message_behind_another_of_its_group_is_delayed_without_an_end(conn: Connection, queue: Queue) -> None:
    run(conn, verbs.publish_batch(queue("orders"), ["head", "next"], group_keys=["a", "a"]))
    run(conn, verbs.lease("orders"))
    (waits,) = run(conn, verbs.search_messages("orders", state="delayed"))
    assert (waits["state"], waits["ends_at"]) == ("behind", None)


def test_all_messages_of_a_cause_are_found(conn: Connection, ids: dict[str, list[int]]) -> None:
    rows = run(conn, verbs.search_messages("orders", state="dead"))
    causes = {row["cause"]: [one["id"] for one in rows if one["cause"] == row["cause"]] for row in rows}
    assert len(causes) == 2
    for cause, members in causes.items():
        assert pages(conn, "dead", fingerprint=cause) == pages(conn, "failed", fingerprint=cause) == members
    run(conn, verbs.dismiss_dead(verbs.DeadFilter("orders", ids=ids["dead"][:1]), "known"))
    assert pages(conn, "dead") == ids["dead"][:0:-1]
    assert ids["dead"][0] in pages(conn, "done")
    assert pages(conn, "ready", fingerprint=next(iter(causes))) == []


def test_a_state_that_there_is_not_is_refused(conn: Connection) -> None:
    with pytest.raises(InvalidArgument, match=r"state is 'eaten'.*ready, delayed"):
        run(conn, verbs.search_messages(state="eaten"))


@pytest.mark.long
@pytest.mark.usefixtures("dsn")
def test_a_list_walks_along_an_index_and_ends_early(conn: Connection, queue: Queue) -> None:
    """Half of the queue is leased, and the archive is full of messages of another queue."""
    queue("orders")
    queue("bills")
    conn.execute(
        "INSERT INTO messages.message_rows (queue_name, message, visible_at, lock_expires_at, leased_at)"
        " SELECT 'orders', '{}', now() - n * interval '1 ms', leased, now() FROM (SELECT n,"
        " CASE WHEN n > 30000 THEN now() + interval '1 hour' END AS leased FROM generate_series(1, 60000) n) m"
    )
    conn.execute(
        "INSERT INTO messages.archive_rows (queue_name, message, created_at, archived_at, result, fingerprint)"
        " SELECT 'bills', '{}', now(), now(), 'failed', 'f' || n % 3000 FROM generate_series(1, 30000) n"
    )
    conn.execute(
        "INSERT INTO messages.dead_message (id, archived_at, queue_name, result, fingerprint)"
        " SELECT id, archived_at, queue_name, result, fingerprint FROM messages.archive_rows"
    )
    conn.execute("VACUUM ANALYZE messages.message_rows, messages.dead_message")
    conn.execute("VACUUM ANALYZE messages.archive_rows")
    asks = [f"'orders', state => '{state}'" for state in ("ready", "leased", "delayed")]
    asks += [f"'bills', state => '{state}'" for state in ("dead", "done", "failed")]
    for asked in (*asks, "'bills', state => 'dead', fingerprint => 'f7'", "message_id => 7", "reference => 'a'"):
        plan = conn.execute(
            f"EXPLAIN (ANALYZE, BUFFERS) SELECT * FROM messages.search_messages({asked}, max_messages => 50)".encode()  # noqa: S608
        ).fetchall()
        text = "\n".join(line for (line,) in plan)
        buffers = sum(map(int, re.findall(r"shared hit=(\d+)", text.partition("Planning")[0])[:1]))
        # Those that match nothing look at 10,000 or 30,000 of them.
        assert buffers < (2500 if "done" in asked else 900), f"{asked}: {text}"
