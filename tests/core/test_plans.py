"""The plans of the hot statements, as the server makes them inside the functions."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

pytestmark = pytest.mark.contrib  # auto_explain

Connection = psycopg.Connection[Any]
Queue = Callable[..., str]
HOSTILE = ("enable_indexscan", "enable_tidscan", "enable_nestloop", "enable_material")


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
    conn.execute("ALTER TABLE messages.message SET (autovacuum_enabled = off)")
    conn.execute(
        "SELECT messages.publish_batch(%s, (SELECT jsonb_agg(n) FROM generate_series(1, %s) n))", [queue_name, messages]
    )


def only(plans: list[str], part: str) -> str:
    (plan,) = [plan for plan in plans if part in plan]
    return plan


@pytest.mark.parametrize("verb", ["lease", "consume"])
@pytest.mark.parametrize("analysed", [False, True])
@pytest.mark.parametrize("hostile", [False, True])
def test_what_is_leased_is_found_by_a_walk_along_the_index(
    conn: Connection, queue: Queue, plans: Callable[[str], list[str]], verb: str, analysed: bool, hostile: bool
) -> None:
    fill(conn, queue("orders"))
    if analysed:
        conn.execute("ANALYZE messages.message")
    if hostile:
        for setting in HOSTILE:
            conn.execute(f"SET {setting} = off")
    found = [plan for plan in plans(f"SELECT messages.{verb}('orders', 100)") if "ready AS" in plan]
    assert len(found) == (2 if verb == "lease" else 1)  # the short way and the long one
    for plan in found:
        assert "Index Scan using message_order_idx" in plan
        assert "Tid Scan on message" in plan
        assert not re.search(r"Sort|Seq Scan|Bitmap|Hash", plan)


@pytest.mark.parametrize("analysed", [False, True])
def test_the_named_leases_of_done_batches_are_found_among_those_that_still_hold_messages(
    conn: Connection, queue: Queue, plans: Callable[[str], list[str]], analysed: bool
) -> None:
    conn.execute("ALTER TABLE messages.named_lease SET (autovacuum_enabled = off)")
    queue("orders")
    conn.execute("INSERT INTO messages.named_lease SELECT 'packer/0/0', 'orders', NULL, '{}', now()")
    conn.execute("ANALYZE messages.named_lease")
    for _ in range(10):  # from the sixth on it keeps the plan
        conn.execute("SELECT messages.end_named_leases('packer', 'orders', 1)")
    conn.execute(
        "INSERT INTO messages.named_lease (lease_name, queue_name, lock_token, expires_at)"
        " SELECT format('packer/%s/0', n), 'orders', CASE WHEN n > 4990 THEN gen_random_uuid() END, now()"
        " FROM generate_series(1, 5000) n"
    )
    if analysed:
        conn.execute("ANALYZE messages.named_lease")
    plan = only(plans("SELECT messages.end_named_leases('packer', 'orders', 4996)"), "Update on named_lease")
    assert re.search(r"Index Scan (using|on) named_lease_held_idx", plan)
    assert "Index Cond: ((split_part(lease_name" in plan
    assert "Seq Scan" not in plan
    assert conn.execute("SELECT count(*) FROM messages.named_lease WHERE lock_token IS NOT NULL").fetchone() == (5,)


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
    assert row is not None
    found = [
        plan
        for plan in plans(call.format(row[1]) % f"'{row[0]}'")
        if re.search("(DELETE FROM|UPDATE) messages.message m", plan)
    ]
    assert found
    for plan in found:
        assert "message_pkey" in plan
        assert not re.search(r"message_order_idx|Seq Scan on message ", plan)


def test_the_first_lease_on_a_queue_of_20000_reads_no_more_than_it_takes(conn: Connection, queue: Queue) -> None:
    fill(conn, queue("orders"))
    with conn.transaction():
        conn.execute("SELECT count(*) FROM messages.lease('orders', 100)")
        row = conn.execute(
            "SELECT seq_tup_read, idx_tup_fetch FROM pg_stat_xact_user_tables"
            " WHERE relid = 'messages.message'::regclass"
        ).fetchone()
    assert row is not None
    assert row[0] == 0
    assert row[1] < 300


@pytest.mark.parametrize("verb", ["lease", "consume"])
@pytest.mark.parametrize("analysed", [False, True])
def test_the_look_at_a_band_descends_to_its_mark_in_each_priority(
    conn: Connection, queue: Queue, plans: Callable[[str], list[str]], verb: str, analysed: bool
) -> None:
    """A range over all priorities walked what was finished in each: 3.7 ms instead of 0.2 under a held snapshot."""
    queue("orders")
    for priority in range(6):
        conn.execute("SELECT messages.publish('orders', '1', %s)", [priority])
    conn.execute("SELECT messages.consume('orders', 10)")
    conn.execute("SELECT messages.store_moment(sweep_due, 'epoch') FROM messages.queue_priority")
    conn.execute("SELECT messages.lease('orders')")
    fill(conn, "orders")
    if analysed:
        conn.execute("ANALYZE messages.message")
    look = only(plans(f"SELECT messages.{verb}('orders')"), "m.priority = ANY (first_of_band.band)")
    assert re.search(r"Index Cond: .*priority = ANY .* AND \(visible_at >= ", look)
    assert "Index Scan using message_order_idx" in look
    assert not re.search(r"Sort|Seq Scan|Bitmap|Hash", look)


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
    assert "message_pkey" in plan
    assert not re.search(r"Seq Scan on (messages\.)?message", plan)


@pytest.mark.parametrize("collation", ["C", "POSIX"])  # "C" is that of session_user and of all names in the catalog
def test_the_collation_of_an_argument_changes_no_plan(
    conn: Connection, queue: Queue, plans: Callable[[str], list[str]], collation: str
) -> None:
    fill(conn, queue("orders"), 2000)
    queue("me")
    conn.execute("SELECT messages.publish_batch('orders', '[1, 2]', group_keys => ARRAY['a', 'a'])")

    def scans(call: str, collated: str) -> set[str]:
        conn.execute("SELECT messages.store_moment(sweep_due, 'epoch') FROM messages.queue_priority")
        text = "\n".join(plans("SELECT messages." + call.replace("'me'", collated)))
        return set(re.findall(r"Scan .*? on \w+|Sort  |Index Cond: .*?(?==)", text.replace("(", "")))

    for call in (
        "lease('orders', 1, '1 hour', 'me')",
        "consume('orders', 1, 'me')",
        "publish('orders', '1', reference => 'me')",
        "publish('orders', '1', group_key => 'me')",
        "publish_batch('orders', '[1, 2]', group_keys => ARRAY['a', 'me'])",
        "publish('orders', '1', dedup_key => 'me', on_conflict => 'replace')",
        "lease_named('me', 'orders', 1)",
        "dead_causes('me')",
    ):
        scans(call, "'me'")  # so that both find what the first one left
        assert scans(call, f"'me' COLLATE \"{collation}\"") == scans(call, "'me'"), call
    for verb in ("status", "purge_queue", "alter_queue", "drop_queue"):
        force = ", true" if verb == "drop_queue" else ""
        conn.execute(f"SELECT messages.{verb}('orders' COLLATE \"{collation}\"{force})".encode())


def test_many_dead_heads_of_groups_are_requeued_in_one_walk(
    conn: Connection, queue: Queue, plans: Callable[[str], list[str]]
) -> None:
    """Looking through all that is requeued for each head took seven seconds for 10,000 of them."""
    queue("orders", max_attempts=1)
    conn.execute("SELECT messages.publish_batch('orders', '[1, 2]', group_keys => ARRAY['a', 'b'])")
    conn.execute("SELECT messages.archive(lock_token, ARRAY[id], 'failed') FROM messages.lease('orders', 2)")
    plan = only(plans("SELECT messages.requeue_dead('orders')"), "Update on group_head")
    assert "SubPlan" not in plan
    assert conn.execute("SELECT count(*) FROM messages.group_head JOIN messages.message USING (id)").fetchone() == (2,)


@pytest.mark.parametrize("analysed", [False, True])
def test_an_upkeep_looks_for_what_is_over_along_the_index(
    conn: Connection, queue: Queue, plans: Callable[[str], list[str]], analysed: bool
) -> None:
    """Only in what is ready: it looked at all that is delayed, and hashed all messages to see which queues have any."""
    fill(conn, queue("orders"))
    conn.execute("UPDATE messages.message SET visible_at = visible_at + interval '1 hour'")
    if analysed:
        conn.execute("ANALYZE messages.message")
    for call in ("sweep_queues()", "upkeep()"):
        plan = only(plans(f"SELECT messages.{call}"), "occupied_priority")
        assert "Index Scan using message_order_idx on message m" in plan
        assert not re.search(r"(Seq|Heap) Scan on message ", plan)
        assert "visible_at <= " in plan.partition("Index Cond: ((queue_name = p")[2]


@pytest.mark.parametrize("exact", [False, True])
def test_what_lock_ready_locked_is_looked_up_in_a_hash(
    conn: Connection, queue: Queue, plans: Callable[[str], list[str]], exact: bool
) -> None:
    """Comparing each message with each locked one took half a minute for 60,000 and 40,000."""
    fill(conn, queue("orders"), 100)
    conn.execute("SET auto_explain.log_verbose = on")  # with what is in the FILTER of an aggregate
    plan = only(plans(f"SELECT messages.status('orders', {exact})"), "upkeep_run")
    assert "hashed SubPlan" in plan
    assert not re.search(r"\bid (=|<>) (ANY|ALL) ", plan)
