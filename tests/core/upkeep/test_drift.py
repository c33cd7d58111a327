"""What somebody dropped or changed in the schema is named by health(), and made again by the next installation."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from airflow_provider_pgqueue.core import migrate, run, verbs
from tests.core.upkeep.test_health import check

Connection = psycopg.Connection[Any]


# Each with what is named then. Of those that stand together, none hides another.
DAMAGES = [
    {
        "DROP INDEX messages.message_order_idx": "index message_order_idx is missing",
        "DROP INDEX messages.message_archive_id_idx": "index message_archive_id_idx is missing",
        "DROP TRIGGER message_published ON messages.message": "trigger message.message_published is missing",
        "ALTER TABLE messages.lane DISABLE TRIGGER ALL": "constraint lane.lane_queue_name_fkey is changed",
        "ALTER TABLE messages.message DROP CONSTRAINT message_pkey": "constraint message.message_pkey is missing",
        "ALTER TABLE messages.queue DROP CONSTRAINT queue_notify_check": (
            "constraint queue.queue_notify_check is missing"
        ),
        "ALTER TABLE messages.queue ALTER max_attempts DROP DEFAULT": "column queue.max_attempts is changed",
        "DROP FUNCTION messages.upkeep()": "function messages.upkeep() is missing",
        "DROP VIEW messages.archive_overview": "view archive_overview is missing",
        "REVOKE EXECUTE ON FUNCTION messages.lease FROM messages_consumer": "is missing",
        "GRANT SELECT ON messages.message TO PUBLIC": "grant SELECT on messages.message to PUBLIC is added",
    },
    {
        "UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'messages.message_order_idx'::regclass": (
            "index message_order_idx is changed"
        ),
        "ALTER TABLE messages.message DISABLE TRIGGER message_changed": "trigger message.message_changed is changed",
        "ALTER TABLE messages.message_archive DISABLE TRIGGER message_archived": (
            "trigger message_archive.message_archived is changed"
        ),
        "ALTER TABLE messages.message ALTER message DROP NOT NULL": "column message.message is changed",
        "ALTER TABLE messages.message_rows ALTER visible_at DROP DEFAULT": "column message_rows.visible_at is changed",
        "ALTER TABLE messages.message_rows RESET (fillfactor), SET (autovacuum_vacuum_threshold = 1)": (
            "options message_rows is changed"
        ),
        "CREATE OR REPLACE FUNCTION messages.upkeep() RETURNS jsonb LANGUAGE sql AS 'SELECT NULL::jsonb'": (
            "function messages.upkeep() is changed"
        ),
        "CREATE OR REPLACE VIEW messages.session_reach AS SELECT true AS everything, ARRAY['all'] AS queue_names,"
        " true AS bodies, ARRAY['all'] AS body_queues": "view session_reach is changed",
        "ALTER VIEW messages.message_overview RESET (security_barrier)": "view message_overview is changed",
    },
    {"ALTER FUNCTION messages.upkeep() SECURITY INVOKER": "function messages.upkeep() is changed"},
    {
        "ALTER TABLE messages.message DETACH PARTITION messages.message_rows": "table message_rows is changed",
        "ALTER TABLE messages.message_archive DETACH PARTITION messages.archive_rows": "table archive_rows is changed",
    },
    {
        "ALTER FUNCTION messages.upkeep() OWNER TO postgres": "owner messages.upkeep() is changed",
        "GRANT EXECUTE ON FUNCTION messages.upkeep TO PUBLIC": "grant EXECUTE on messages.upkeep() to PUBLIC is added",
    },
]


def named(conn: Connection) -> set[str]:
    rows = conn.execute("SELECT format('%s %s is %s', kind, name, difference) FROM messages.release_differences()")
    return {line for (line,) in rows.fetchall()}


def catalog(conn: Connection) -> dict[tuple[str, str], str]:
    rows = conn.execute("SELECT kind, name, definition FROM messages.release_catalog()").fetchall()
    return {(kind, name): definition for kind, name, definition in rows}


@pytest.mark.parametrize("damages", DAMAGES, ids=["missing", "changed", "altered", "detached", "granted"])
def test_what_is_missing_or_changed_is_named_and_made_again(conn: Connection, damages: dict[str, str]) -> None:
    assert check(conn, "drift").severity == "ok"
    installed = catalog(conn)
    before: set[str] = set()
    for damage, finding in damages.items():
        conn.execute(damage.encode())
        after = named(conn)
        assert [line for line in after - before if finding in line], damage
        before = after
    found = check(conn, "drift")
    assert found.severity != "ok"
    assert found.finding.split("; ")[0] in before
    assert found.fix is not None
    migrate(conn)
    healed = check(conn, "drift")
    assert (healed.severity, healed.fix) == ("ok", None), healed.finding
    assert catalog(conn) == installed
    assert run(conn, verbs.create_queue("orders"))
    assert run(conn, verbs.publish("orders", 1))


def test_what_comes_and_goes_by_itself_is_no_drift(conn: Connection) -> None:
    run(conn, verbs.create_queue("orders", max_depth=10))
    run(conn, verbs.publish("orders", 1, priority=3))
    conn.execute("SELECT messages.stage_publish('a', 'orders')")
    run(conn, verbs.partition_archive("day"))
    migrate(conn)
    conn.execute("CREATE ROLE drift_shop; GRANT EXECUTE ON FUNCTION messages.publish TO drift_shop")
    try:
        conn.execute("SELECT messages.grant_queue('orders', 'drift_shop', 'consume')")
        run(conn, verbs.upkeep())
        found = check(conn, "drift")
        assert (found.severity, found.fix) == ("ok", None), found.finding
    finally:
        conn.execute("DROP OWNED BY drift_shop; DROP ROLE drift_shop")


def test_an_index_of_somebody_else_is_named_until_the_next_installation(conn: Connection) -> None:
    conn.execute("CREATE INDEX mine ON messages.message (locked_by)")
    found = check(conn, "drift")
    assert (found.severity, found.finding) == ("warning", "index mine is added")
    migrate(conn)
    assert check(conn, "drift").severity == "ok"


def test_a_column_that_is_gone_is_not_made_up_by_the_installation(conn: Connection) -> None:
    conn.execute("ALTER TABLE messages.message DROP COLUMN reference CASCADE")
    assert check(conn, "drift").severity == "critical"
    with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match=r"column message\.reference .* is missing"):
        migrate(conn)


def test_a_long_list_is_cut_off_with_its_number(conn: Connection) -> None:
    for name in range(13):
        conn.execute(f"CREATE INDEX extra_{name} ON messages.message (locked_by)".encode())
    assert check(conn, "drift").finding.endswith("; and 3 more")


def test_what_another_version_of_postgresql_wrote_down_is_not_compared(conn: Connection) -> None:
    conn.execute("UPDATE messages.release_object SET server = 9, definition = 'other'")
    found = check(conn, "drift")
    assert found.severity == "warning"
    assert found.finding.startswith("what was installed was recorded by PostgreSQL 9, this is ")
    migrate(conn)
    assert check(conn, "drift").severity == "ok"
