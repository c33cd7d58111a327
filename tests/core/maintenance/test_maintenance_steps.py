"""Nothing that somebody does to one step of maintenance, or to one queue, stops the rest."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from airflow_provider_pgqueue.core import run, verbs
from airflow_provider_pgqueue.core.errors import ConnectionFailed
from tests.core.maintenance.test_health import check

Connection = psycopg.Connection[Any]
Queue = Callable[..., str]

OLD = """
CREATE TABLE messages.message_archive_202401 PARTITION OF messages.archive_rows
    FOR VALUES FROM ('2024-01-01') TO ('2024-02-01');
ALTER TABLE messages.message_archive_202401 OWNER TO messages_owner;
"""
VIEW = "CREATE VIEW public.mine AS SELECT id FROM messages.message_archive_202401"
FORBID = """
CREATE FUNCTION public.forbid() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'no DROP here'; END $$;
CREATE EVENT TRIGGER forbid ON sql_drop EXECUTE FUNCTION public.forbid();
"""
ARCHIVE_AND_DIE = """
INSERT INTO messages.message_archive (id, created_at, queue_name, result, message)
SELECT id, created_at, queue_name, 'failed', message FROM messages.message WHERE message = '"raw"'
"""
DETACH = """
DO $$ DECLARE last text := (SELECT max(partition::text) FROM messages.archive_partitions()); BEGIN
    EXECUTE format('ALTER TABLE messages.archive_rows DETACH PARTITION %s', last);
END $$
"""
VIEW_OF_A_STAGE = """
DO $$ DECLARE stage text := messages.stage_publish('stage', 'orders'); BEGIN
    EXECUTE format('CREATE VIEW public.mine AS SELECT 1 AS one FROM %s', stage);
    UPDATE messages.publish_stage SET expires_at = now();
END $$
"""
DROP_A_MARK = """
DO $$ BEGIN
    EXECUTE format('DROP SEQUENCE %s', (SELECT max(mark::text) FROM messages.lane WHERE queue_name = 'orders'));
END $$
"""
FAR_AHEAD = "SELECT setval(mark, 100000000000000000) FROM messages.lane WHERE mark IS NOT NULL"
NOT_ORDERS = "ALTER TABLE messages.{} ADD CHECK (queue_name <> 'orders') NOT VALID"

# What somebody does, and the step that cannot be done then; None if maintenance copes with it.
WAYS: dict[str, tuple[str, str | None]] = {
    "a raw worker that archives twice and dies": (f"{ARCHIVE_AND_DIE}; {ARCHIVE_AND_DIE}", None),
    "a view on a partition past retention": (OLD + VIEW, "apply_retention"),
    "an event trigger that forbids DROP": (f"{OLD} {FORBID}", "apply_retention"),
    "a partition that is detached under its name": (DETACH, "make_archive_partitions"),
    "a view on a table of a stage": (VIEW_OF_A_STAGE, "drop_or_empty_stage"),
    "a mark that is gone": (DROP_A_MARK, None),
    "a mark that lies far ahead": (FAR_AHEAD, None),
    "a publication of all tables": ("CREATE PUBLICATION everything FOR ALL TABLES", None),
    "a queue that nobody can look at": (NOT_ORDERS.format("dead_message"), "scan_next"),
    "a history that cannot be written": (NOT_ORDERS.format("history"), "record_history"),
}


@pytest.mark.parametrize("way", WAYS)
def test_maintenance_goes_on_beside_what_fails(conn: Connection, queue: Queue, way: str) -> None:
    statement, step = WAYS[way]
    queue("orders", max_attempts=1, retention=timedelta(days=30))
    queue("zebras")
    run(conn, verbs.publish("orders", "raw"))
    run(conn, verbs.publish("orders", "to die"))
    run(conn, verbs.lease("orders", max_messages=2))
    run(conn, verbs.publish("zebras", "ours"))
    run(conn, verbs.lease("zebras"))
    run(conn, verbs.maintain())
    conn.execute("UPDATE messages.archive_policy SET retention_applied_at = NULL")
    conn.execute(statement.encode())
    conn.execute("UPDATE messages.message SET lock_expires_at = now() - interval '1 s'")
    conn.execute("DELETE FROM messages.maintenance_run")
    done = run(conn, verbs.maintain())
    assert done["freed"] >= 1
    assert [message.body for message in run(conn, verbs.lease("zebras"))] == ["ours"]
    assert conn.execute("SELECT count(*) FROM messages.maintenance_run").fetchone() == (1,)
    failing = {row[0] for row in conn.execute("SELECT step FROM messages.maintenance_failure")}
    assert failing == ({step} if step else set())
    assert check(conn, "maintenance_steps").severity == ("warning" if step else "ok")
    assert (step or "") in check(conn, "maintenance_steps").finding


def test_everything_works_under_a_publication_of_all_tables(conn: Connection, queue: Queue) -> None:
    """PostgreSQL refuses to change a published row that a subscriber could not find."""
    conn.execute("CREATE PUBLICATION everything FOR ALL TABLES WITH (publish_via_partition_root = true)")
    queue("orders", max_attempts=1)
    for body in range(4):
        run(conn, verbs.publish("orders", body, priority=body, group_key="a", dedup_key=str(body)))
    leased = run(conn, verbs.lease("orders", lease_for=timedelta(seconds=60)))
    run(conn, verbs.archive(leased[0].lock_token, [leased[0].id]))
    run(conn, verbs.consume("orders"))
    leased = run(conn, verbs.lease("orders"))
    run(conn, verbs.archive(leased[0].lock_token, [leased[0].id], result="failed"))
    assert len(run(conn, verbs.requeue_dead("orders", max_messages=9))) == 1
    leased = run(conn, verbs.lease("orders"))
    run(conn, verbs.archive(leased[0].lock_token, [leased[0].id], result="failed"))
    run(conn, verbs.dismiss_dead("orders", reason="no", max_messages=9))
    conn.execute("DELETE FROM messages.message")
    conn.execute("DELETE FROM messages.timer")
    conn.execute("SELECT messages.partition_archive('day')")
    conn.execute("UPDATE messages.queue SET retention = '1 ms' WHERE queue_name = 'orders'")
    conn.execute("UPDATE messages.archive_policy SET retention_applied_at = NULL")
    run(conn, verbs.maintain())
    assert conn.execute("SELECT count(*) FROM messages.message_archive").fetchone() == (0,)
    assert run(conn, verbs.drop_queue("orders", force=True)) == 0
    assert conn.execute("SELECT * FROM messages.maintenance_failure").fetchall() == []


def test_a_failure_is_forgotten_when_the_step_succeeds(conn: Connection, queue: Queue) -> None:
    queue("orders")
    run(conn, verbs.publish("orders", 1))
    conn.execute("ALTER TABLE messages.history ADD CONSTRAINT broken CHECK (false) NOT VALID")
    run(conn, verbs.maintain())
    assert conn.execute("SELECT step FROM messages.maintenance_failure").fetchall() == [("record_history",)]
    conn.execute("ALTER TABLE messages.history DROP CONSTRAINT broken")
    run(conn, verbs.maintain())
    assert conn.execute("SELECT step FROM messages.maintenance_failure").fetchall() == []


def test_a_failure_that_does_not_come_again_is_forgotten(conn: Connection) -> None:
    """Its queue or partition is gone, so it can never succeed."""
    conn.execute(
        "INSERT INTO messages.maintenance_failure"
        " SELECT 'scan_next', 'q' || n, 'P0001', 'no' FROM generate_series(1, 7) n"
    )
    assert check(conn, "maintenance_steps").finding.endswith("; and 2 more in messages.maintenance_failure")
    run(conn, verbs.maintain())
    assert check(conn, "maintenance_steps").severity == "warning"
    conn.execute("UPDATE messages.maintenance_failure SET failed_at = now() - interval '3 hours'")
    run(conn, verbs.maintain())
    assert check(conn, "maintenance_steps").severity == "ok"


@pytest.mark.long
def test_a_statement_timeout_that_is_too_short_for_all_queues_leaves_some_to_the_next_maintenance_run(
    conn: Connection, queue: Queue
) -> None:
    for number in range(12):
        run(conn, verbs.publish_batch(queue(f"q{number:02}"), list(range(2500))))
    run(conn, verbs.maintain())
    conn.execute("UPDATE messages.message SET lock_expires_at = now() - interval '1 s'")
    began = time.monotonic()
    conn.execute("SELECT messages.scan_next('')")
    conn.execute("SELECT set_config('statement_timeout', %s, false)", [f"{round((time.monotonic() - began) * 6000)}ms"])
    freed = 2500
    for _ in range(100):
        with suppress(ConnectionFailed):  # when something else keeps the machine busy
            freed += run(conn, verbs.maintain())["freed"]
        if freed == 30_000:
            return
    pytest.fail(f"only {freed} were freed")
