"""The plans of the hot statements, as the server makes them inside the functions."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import product
from typing import Any

import psycopg
import pytest

from airflow_provider_pgqueue.cli.show import peeking

pytestmark = pytest.mark.contrib  # auto_explain

Connection = psycopg.Connection[Any]
Queue = Callable[..., str]
SWITCHES = ("jit", "enable_indexscan", "enable_nestloop", "enable_material")  # jit is off anyway


@pytest.fixture
def plans(conn: Connection) -> Callable[[str], list[str]]:
    """Run a statement and return the plans of those inside it: `plans("SELECT messages.lease('orders')")`."""
    notices: list[str] = []
    conn.add_notice_handler(lambda notice: notices.append(notice.message_primary or ""))
    conn.execute("LOAD 'auto_explain'")
    conn.execute("SET auto_explain.log_nested_statements = on")

    def plans_of(statement: str) -> list[str]:
        notices.clear()
        conn.execute("SET auto_explain.log_min_duration = 0; SET client_min_messages = log")
        conn.execute(statement.encode())
        conn.execute("SET auto_explain.log_min_duration = -1; SET client_min_messages = warning")
        return notices

    return plans_of


def fill(conn: Connection, queue_name: str, messages: int = 20000) -> None:
    """Publish to a table of which the server has no statistics and will make none."""
    conn.execute("ALTER TABLE messages.message_rows SET (autovacuum_enabled = off)")
    conn.execute(
        "SELECT messages.publish_batch(%s, (SELECT jsonb_agg(n) FROM generate_series(1, %s) n))", [queue_name, messages]
    )


def only(plans: list[str], part: str) -> str:
    (plan,) = [plan for plan in plans if part in plan]
    return plan


def test_a_peek_reads_no_more_than_it_shows(conn: Connection, queue: Queue) -> None:
    fill(conn, queue("orders"))
    plan = conn.execute(b"EXPLAIN (ANALYZE, BUFFERS) " + peeking("peek"), ["orders", 5]).fetchall()
    text = "\n".join(line for (line,) in plan)
    assert "message_order_idx" in text
    assert int(re.findall(r"shared hit=(\d+)", text)[0]) < 100, text


@pytest.mark.parametrize("analysed", [False, True])
def test_what_is_leased_is_found_by_a_walk_along_the_index(
    conn: Connection, queue: Queue, plans: Callable[[str], list[str]], analysed: bool
) -> None:
    """Whatever the statistics say, and whatever somebody switched off for a role or a database."""
    fill(conn, queue("orders"))
    if analysed:
        conn.execute("ANALYZE messages.message_rows")
    for off, verb in product(SWITCHES, ("lease", "consume")):
        conn.execute(f"DISCARD PLANS; SET {off} = off".encode())
        found = plans(f"SELECT messages.{verb}('orders', 100)")
        conn.execute(f"RESET {off}".encode())
        walks = [plan for plan in found if "FOR UPDATE SKIP LOCKED" in plan and "l.begins" in plan]
        writes = [plan for plan in found if "UPDATE messages.message_rows m" in plan and "f (tid)" in plan]
        assert walks
        assert writes
        for plan in writes:
            assert "Tid Scan on message_rows" in plan
        for plan in walks:
            assert "Index Scan using message_order_idx" in plan
            # Lanes are sorted, messages never.
            assert not re.search(r"Sort Key: (?!\w+\.priority)|(Seq|Heap) Scan on message_rows", plan)


@pytest.mark.parametrize(
    ("verb", "call"),
    [
        ("archive", "SELECT messages.archive(%s, ARRAY[{}])"),
        ("extend", "SELECT messages.extend(%s, ARRAY[{}], '1 minute')"),
        ("release", "SELECT messages.release(%s, ARRAY[{}])"),
    ],
)
def test_a_plan_made_while_the_queue_was_empty_still_finds_messages_by_their_id(
    conn: Connection, queue: Queue, plans: Callable[[str], list[str]], verb: str, call: str
) -> None:
    """The plan of a session lives on. With the id in a second index it walked all of that: 120 ms instead of 0.1."""
    queue("orders")
    nobody = "'00000000-0000-0000-0000-000000000000'"
    conn.execute((call.format(1) % nobody).encode())
    fill(conn, "orders")
    row = conn.execute("SELECT lock_token, id FROM messages.lease('orders')").fetchone()
    found = [
        plan
        for plan in plans(call.format(row[1]) % f"'{row[0]}'")
        if re.search("(DELETE FROM|UPDATE) messages.message_rows m", plan)
    ]
    assert found
    for plan in found:
        assert "message_rows_pkey" in plan
        assert not re.search(r"message_order_idx|Seq Scan on message_rows", plan)


def test_a_dispatch_walks_along_the_messages_of_its_queue_only(
    conn: Connection, queue: Queue, plans: Callable[[str], list[str]]
) -> None:
    fill(conn, queue("orders"), 100)
    # Without a name of its own it has that of the login, whose type has another collation than the index.
    found = plans("SELECT messages.dispatch_messages('orders', 'pack')")
    walks = [plan for plan in found if "message_order_idx" in plan]
    assert walks
    assert [plan for plan in walks if not re.search(r"Index Cond: \(\(+queue_name = ", plan)] == []


def test_what_became_of_messages_is_found_by_their_ids(
    conn: Connection, queue: Queue, plans: Callable[[str], list[str]]
) -> None:
    fill(conn, queue("orders"), 100)
    conn.execute("SELECT messages.archive(lock_token, ARRAY[id]) FROM messages.lease('orders', 50)")
    plan = only(plans("SELECT messages.message_outcomes(ARRAY[1, 99])"), "chain")
    assert "message_rows_pkey" in plan
    assert not re.search(r"Seq Scan on (messages\.)?message", plan)


@pytest.mark.parametrize("analysed", [False, True])
def test_messages_of_a_reference_are_counted_along_its_index(
    conn: Connection, queue: Queue, plans: Callable[[str], list[str]], analysed: bool
) -> None:
    queue("orders")
    for reference in ("sunday", "monday"):
        conn.execute(
            "SELECT messages.publish_batch('orders', (SELECT jsonb_agg(n) FROM generate_series(1, 2000) n),"
            ' "references" => array_fill(%s::text, ARRAY[2000]))',
            [reference],
        )
    conn.execute(
        "SELECT messages.archive(l.lock_token, array_agg(l.id)) FROM messages.lease('orders', 3000) l"
        " GROUP BY l.lock_token"
    )
    if analysed:
        conn.execute("ANALYZE messages.message_rows, messages.archive_rows")
    plan = only(plans("SELECT messages.outcome_counts(reference => 'monday')"), "reach AS")
    assert "message_reference_idx" in plan
    assert re.search(r"message_archive_\d+_reference_idx", plan)
    assert not re.search(r"Seq Scan on (messages\.)?(message|archive)", plan)


def test_a_plan_made_while_a_queue_was_empty_reads_the_places_of_a_group_and_not_all_that_waits(
    conn: Connection, queue: Queue, plans: Callable[[str], list[str]]
) -> None:
    queue("orders", max_leased_per_group=2)
    conn.execute("ALTER TABLE messages.message_rows SET (autovacuum_enabled = off)")
    for number in (1, 1, 500):  # the first ones leave the plans
        keys = ", group_keys => array_fill('a'::text, ARRAY[%s])"
        bodies = "(SELECT jsonb_agg(n) FROM generate_series(1, %s) n)"
        conn.execute(f"SELECT messages.publish_batch('orders', {bodies}{keys})".encode(), [number, number])
        conn.execute("UPDATE messages.message_rows SET visible_at = 'infinity', place = NULL WHERE id % 2 = 0")
        conn.execute("SELECT setval(scan_due, 1) FROM messages.queue")
        found = plans("SELECT messages.lease('orders', 10)")
    reads = [plan for plan in found if "m.place IS NOT NULL" in plan or "m.place > most" in plan]
    assert len(reads) == 3
    for plan in reads:
        assert "message_place_idx" in plan
        assert "Sort" not in plan


@pytest.mark.parametrize("collation", ["C", "POSIX"])  # "C" is that of session_user and of all names in the catalog
def test_the_collation_of_an_argument_changes_no_plan(
    conn: Connection, queue: Queue, plans: Callable[[str], list[str]], collation: str
) -> None:
    fill(conn, queue("orders"), 2000)
    queue("me")
    conn.execute("SELECT messages.publish_batch('orders', '[1, 2]', group_keys => ARRAY['a', 'a'])")

    def scans(call: str, collated: str) -> set[str]:
        # What the call before has set a timer for would be more work for one of them.
        conn.execute("SELECT setval(scan_due, 1) FROM messages.queue; DELETE FROM messages.timer")
        text = "\n".join(plans("SELECT messages." + call.replace("'me'", collated)))
        return set(re.findall(r"Scan .*? on \w+|Sort  |Index Cond: .*?(?==)", text.replace("(", "")))

    for call in (
        "lease('orders', 1, '1 hour', 'me')",
        "consume('orders', 1, 'me')",
        "publish('orders', '1', reference => 'me')",
        "publish('orders', '1', group_key => 'me')",
        "publish_batch('orders', '[1, 2]', group_keys => ARRAY['a', 'me'])",
        "publish('orders', '1', dedup_key => 'me', on_conflict => 'replace')",
        "dead_causes('me')",
    ):
        scans(call, "'me'")  # so that both find what the first one left
        assert scans(call, f"'me' COLLATE \"{collation}\"") == scans(call, "'me'"), call
    for verb in ("status", "purge_queue", "alter_queue", "drop_queue"):
        force = ", true" if verb == "drop_queue" else ""
        conn.execute(f"SELECT messages.{verb}('orders' COLLATE \"{collation}\"{force})".encode())
