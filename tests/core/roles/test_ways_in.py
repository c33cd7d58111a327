"""Each way in which a member of messages_owner has become a superuser, or could, when one installs or uninstalls."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest

from airflow_provider_pgqueue.core import PermissionDenied, install, migrate, migrations

Connection = psycopg.Connection[Any]
ROOT = Path(__file__).parents[3]

# What eve wants to be run by a superuser: as a function, as a trigger function, and as a text.
DEED = "BEGIN IF current_user <> 'messages_owner' OR session_user <> current_user THEN RESET ROLE; END IF;"
DEED += " IF (SELECT rolsuper FROM pg_roles WHERE rolname = current_user) THEN ALTER ROLE eve SUPERUSER; END IF;"
DEED += " EXCEPTION WHEN OTHERS THEN NULL; END;"
PREPARE = f"""
    CREATE SCHEMA lair;
    GRANT ALL ON SCHEMA lair TO PUBLIC;
    CREATE FUNCTION lair.deed() RETURNS integer LANGUAGE plpgsql AS $deed$ BEGIN {DEED} RETURN 1; END $deed$;
    CREATE FUNCTION lair.fixed() RETURNS integer IMMUTABLE LANGUAGE plpgsql AS 'BEGIN RETURN lair.deed(); END';
    CREATE FUNCTION lair.same(text, text) RETURNS boolean LANGUAGE sql AS 'SELECT lair.deed() = 1';
    CREATE OPERATOR lair.~~~ (FUNCTION = lair.same, LEFTARG = text, RIGHTARG = text);
    CREATE FUNCTION lair.fired() RETURNS trigger LANGUAGE plpgsql AS '
    BEGIN PERFORM lair.deed(); RETURN coalesce(NEW, OLD); END';
    CREATE DOMAIN lair.checked AS integer CHECK (lair.deed() = 1);
    CREATE VIEW lair.seen AS SELECT lair.deed() AS deed
"""
TABLE = "messages.release_object"
HIDDEN = "query_to_xml('SELECT lair.deed()', true, true, '') IS NOT NULL"
# Each as the owner of the schema, with what the refusal names.
CODE = {
    f"CREATE TRIGGER t BEFORE INSERT OR DELETE ON {TABLE} FOR EACH ROW EXECUTE FUNCTION lair.fired()": "trigger t on",
    f"CREATE TRIGGER t AFTER DELETE ON {TABLE} EXECUTE FUNCTION lair.fired()": "trigger t on",
    f"CREATE CONSTRAINT TRIGGER t AFTER INSERT ON {TABLE} DEFERRABLE INITIALLY DEFERRED"
    " FOR EACH ROW EXECUTE FUNCTION lair.fired()": "trigger t on",
    "CREATE TRIGGER t AFTER INSERT ON messages.archive_rows FOR EACH ROW EXECUTE FUNCTION lair.fired()": "trigger t on",
    "CREATE OR REPLACE TRIGGER message_published AFTER INSERT ON messages.message FOR EACH ROW"
    f" WHEN ({HIDDEN}) EXECUTE FUNCTION messages.message_published()": ("trigger message_published on"),
    f"ALTER TABLE {TABLE} ADD extra integer DEFAULT lair.deed()": "default of column",
    f"ALTER TABLE {TABLE} ADD extra boolean; ALTER TABLE {TABLE} ALTER extra SET DEFAULT ({HIDDEN})": (
        "default of column"
    ),
    f"ALTER TABLE {TABLE} ADD extra boolean DEFAULT (set_config('search_path', 'lair', false) = '')": (
        "default of column"
    ),
    f"ALTER TABLE {TABLE} ADD extra integer GENERATED ALWAYS AS (lair.fixed()) STORED": "generated column",
    f"ALTER TABLE {TABLE} ADD CONSTRAINT c CHECK (lair.deed() = 1) NOT VALID": "constraint c on",
    f"ALTER TABLE {TABLE} ADD CONSTRAINT c CHECK (name OPERATOR(lair.~~~) name) NOT VALID": "constraint c on",
    f"ALTER TABLE {TABLE} ADD extra lair.checked": "column messages.release_object.extra",
    f"CREATE INDEX i ON {TABLE} (lair.fixed())": "index messages.i",
    f"CREATE INDEX i ON {TABLE} (name) WHERE lair.fixed() = 1": "index messages.i",
    f"CREATE RULE r AS ON INSERT TO {TABLE} DO ALSO SELECT lair.deed()": "rule r on",
    f"CREATE POLICY p ON {TABLE} USING (lair.deed() = 1)": "policy p on",
    f"CREATE TABLE lair.c (kind text, name text, FOREIGN KEY (kind, name) REFERENCES {TABLE} ON DELETE CASCADE)": (
        "refers to messages.release_object"
    ),
    f"CREATE TABLE lair.c () INHERITS ({TABLE});"
    "CREATE TRIGGER t AFTER DELETE ON lair.c FOR EACH ROW EXECUTE FUNCTION lair.fired()": "trigger t on lair.c",
    "ALTER TABLE messages.inbox RENAME TO gone;"
    "CREATE VIEW messages.inbox AS SELECT *, lair.deed() FROM messages.gone": "VIEW messages.inbox",
    "CREATE VIEW messages.extra AS SELECT lair.deed()": "VIEW messages.extra",
    "CREATE FUNCTION messages.create_queue(queue_name text) RETURNS boolean LANGUAGE sql AS 'SELECT lair.deed() = 1'": (
        "function messages.create_queue(text)"
    ),
    "DROP FUNCTION messages.create_queue;"
    "CREATE FUNCTION messages.create_queue(queue_name text) RETURNS boolean LANGUAGE sql AS 'SELECT lair.deed() = 1'": (
        "function messages.create_queue(text)"
    ),
}


@pytest.fixture
def eve(conn: Connection) -> Iterator[Connection]:
    """A session with all that the owner of the schema has, and nothing else."""
    conn.execute("CREATE ROLE eve LOGIN IN ROLE messages_owner")
    conn.execute(PREPARE.encode())
    try:
        with psycopg.connect(conn.info.dsn, user="eve", autocommit=True) as session:
            session.execute("SET ROLE messages_owner")
            yield session
    finally:
        conn.execute("DROP OWNED BY eve; DROP ROLE eve")


def is_superuser(conn: Connection) -> bool:
    return conn.execute("SELECT FROM pg_roles WHERE rolname = 'eve' AND rolsuper").rowcount == 1


@pytest.mark.parametrize("code", CODE)
def test_code_on_a_table_is_refused_with_a_fix_that_the_owner_runs(
    conn: Connection, eve: Connection, code: str
) -> None:
    eve.execute(code.encode())
    with pytest.raises(PermissionDenied, match="would run as postgres") as refused:
        migrate(conn)
    assert not is_superuser(conn)
    assert CODE[code] in str(refused.value)
    eve.execute((refused.value.fix or "").encode())
    assert not is_superuser(conn)


# What was written into the record, to be run when an index is made again.
MENDS = [
    "CREATE TABLE lair.t (a integer); CREATE CONSTRAINT TRIGGER t AFTER INSERT ON lair.t DEFERRABLE INITIALLY DEFERRED"
    " FOR EACH ROW EXECUTE FUNCTION lair.fired(); INSERT INTO lair.t VALUES (1)",
    f"CREATE CONSTRAINT TRIGGER t AFTER INSERT ON {TABLE} DEFERRABLE INITIALLY DEFERRED"
    " FOR EACH ROW EXECUTE FUNCTION lair.fired()",
    f"CREATE TRIGGER t AFTER DELETE ON {TABLE} EXECUTE FUNCTION lair.fired()",
    "DECLARE c CURSOR WITH HOLD FOR SELECT lair.deed()",
    "SELECT lair.deed()",
    "CREATE FUNCTION lair.version() RETURNS text LANGUAGE sql AS 'SELECT lair.deed()::text';"
    "SET search_path = lair, pg_catalog",
]


@pytest.mark.parametrize("mend", MENDS)
def test_what_the_record_has_to_make_again_leaves_nothing_in_the_session(
    conn: Connection, eve: Connection, mend: str
) -> None:
    before = conn.execute("SHOW search_path").fetchone()
    change = "UPDATE messages.release_object SET mend = %s || '; ' || mend WHERE name = 'message_order_idx'"
    eve.execute(change, [mend])
    eve.execute("DROP INDEX messages.message_order_idx")
    with suppress(PermissionDenied, psycopg.Error):
        migrate(conn)
    conn.execute("SELECT version()")
    assert not is_superuser(conn)
    assert conn.execute("SHOW search_path").fetchone() == before


def replaced(eve: Connection, function: str, returns: str, value: str) -> None:
    eve.execute(
        f"CREATE OR REPLACE FUNCTION messages.{function} RETURNS {returns} LANGUAGE plpgsql"
        f" AS $f$ BEGIN PERFORM lair.deed(); RETURN {value}; END $f$".encode()
    )


def test_replaced_functions_are_not_run_by_the_superuser_who_uninstalls(conn: Connection, eve: Connection) -> None:
    replaced(eve, "uninstall_cron()", "integer", "0")
    replaced(eve, "latest_migration()", "integer", "1")
    replaced(eve, "schema_version()", "integer", "1")
    eve.close()
    migrations.uninstall(conn)
    assert not is_superuser(conn)
    assert conn.execute("SELECT to_regnamespace('messages')").fetchone() == (None,)


# Each with what it returns, and a value of that.
FUNCTIONS = {
    "make_archive_partitions()": "NULL",
    "show_cron_jobs_to_owner()": "true",
    "upkeep_mode()": "'airflow'",
    "uninstall_cron()": "0",
    "latest_migration()": "1",
    "schema_version()": "1",
    "lock_all_or_none(VARIADIC tables regclass[])": "",
}
RESULT = """
    SELECT pg_get_function_result(oid) FROM pg_proc
     WHERE pronamespace = 'messages'::regnamespace AND proname = split_part(%s, '(', 1)
"""


def test_replaced_functions_are_not_run_by_the_superuser_who_installs(conn: Connection, eve: Connection) -> None:
    for function, value in FUNCTIONS.items():
        ((result,),) = eve.execute(RESULT, [function]).fetchall()
        replaced(eve, function, result, value)
    install(conn)
    assert not is_superuser(conn)


def test_no_function_can_be_replaced_between_an_installation_and_its_calls(conn: Connection, eve: Connection) -> None:
    eve.execute("SET lock_timeout = '50ms'")
    with conn.transaction():
        install(conn, ["orders"])
        with pytest.raises(psycopg.errors.LockNotAvailable):
            replaced(eve, "upkeep_mode()", "text", "'airflow'")


def test_nobody_hangs_code_on_a_table_while_a_superuser_installs(conn: Connection, eve: Connection) -> None:
    eve.execute("SET lock_timeout = '50ms'")
    with conn.transaction():
        migrate(conn)
        for table in ("release_object", "schema_migration", "queue", "message", "message_rows", "archive_rows"):
            with pytest.raises(psycopg.errors.LockNotAvailable):
                eve.execute(f"CREATE TRIGGER t AFTER INSERT ON messages.{table} EXECUTE FUNCTION lair.fired()".encode())
        with pytest.raises(psycopg.errors.LockNotAvailable):
            eve.execute(f"CREATE TABLE lair.c () INHERITS ({TABLE})".encode())
    assert not is_superuser(conn)
