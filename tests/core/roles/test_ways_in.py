"""Whoever may write to the schema becomes no superuser when one installs or uninstalls."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest

from airflow_provider_pgqueue.core import PermissionDenied, install, migrate, migrations
from airflow_provider_pgqueue.core.errors import ForeignSchema
from tools.postgres import Cluster

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
    CREATE FUNCTION lair.fired() RETURNS trigger LANGUAGE plpgsql AS '
    BEGIN PERFORM lair.deed(); RETURN coalesce(NEW, OLD); END'
"""
# Each with what a superuser runs for eve to have it.
WRITERS = {
    "member": "GRANT messages_owner TO eve",
    "member of a member": "CREATE ROLE team; GRANT messages_owner TO team; GRANT team TO eve",
    "member who does not inherit": "ALTER ROLE eve NOINHERIT; GRANT messages_owner TO eve",
    "may create functions": "GRANT CREATE ON SCHEMA messages TO eve",
    "everybody may": "GRANT CREATE ON SCHEMA messages TO PUBLIC",
    "may create triggers": "GRANT TRIGGER ON messages.queue TO eve",
    "owns the schema": "ALTER SCHEMA messages OWNER TO eve",
    "owns a table": "ALTER TABLE messages.maintenance_run OWNER TO eve",
    "owns a function": "ALTER FUNCTION messages.latest_migration() OWNER TO eve",
    "owns a partition": "CREATE TABLE lair.part PARTITION OF messages.archive_rows"
    " FOR VALUES FROM ('2001-01-01') TO ('2001-02-01'); ALTER TABLE lair.part OWNER TO eve",
    "owns a part of a partition": "CREATE TABLE lair.whole PARTITION OF messages.archive_rows"
    " FOR VALUES FROM ('2001-01-01') TO ('2001-03-01') PARTITION BY RANGE (archived_at);"
    "CREATE TABLE lair.part PARTITION OF lair.whole DEFAULT; ALTER TABLE lair.part OWNER TO eve",
}
# What eve leaves there as the owner, for whoever installs to run.
TRAPS = {
    "trigger": "UPDATE messages.maintenance_run SET server = NULL;"
    " CREATE TRIGGER t BEFORE UPDATE ON messages.maintenance_run FOR EACH ROW EXECUTE FUNCTION lair.fired()",
    "check": "UPDATE messages.maintenance_run SET server = NULL;"
    " ALTER TABLE messages.maintenance_run ADD CHECK (lair.deed() = 1) NOT VALID",
    "overload": "CREATE FUNCTION messages.create_queue(queue_name text) RETURNS boolean"
    " LANGUAGE sql AS 'SELECT lair.deed() = 1'",
    "body": "CREATE OR REPLACE FUNCTION messages.make_archive_partitions() RETURNS integer"
    " LANGUAGE sql AS 'SELECT lair.deed()'",
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


@pytest.mark.parametrize("way", WRITERS)
def test_a_superuser_does_not_install_what_another_login_may_write(
    conn: Connection, connect: Callable[..., Connection], cluster: Cluster, dsn: str, way: str
) -> None:
    conn.execute(f"CREATE ROLE eve LOGIN; CREATE ROLE helper LOGIN; {PREPARE}".encode())
    try:
        conn.execute(WRITERS[way].encode())
        with pytest.raises(PermissionDenied, match="eve may write code into schema messages") as refused:
            migrate(conn)
        psql = [cluster.binaries.folder / "psql", "-qf", ROOT / "sql" / "install.sql", dsn]
        done = subprocess.run(psql, check=False, capture_output=True, text=True)
        assert "which would run as the superuser postgres" in done.stderr
        fix = refused.value.fix or ""
        assert fix.startswith("Install as eve: PGUSER=eve") or "GRANT messages_owner TO that login" in fix
        if "may" in way:
            conn.execute("GRANT messages_owner TO helper")
            assert migrate(connect(user="helper")) == []
    finally:
        conn.execute("DROP SCHEMA messages CASCADE; DROP OWNED BY eve CASCADE; DROP ROLE eve, helper")
        conn.execute("DROP ROLE IF EXISTS team")


@pytest.mark.parametrize("trap", TRAPS)
def test_nothing_that_the_owner_wrote_runs_as_a_superuser(conn: Connection, eve: Connection, trap: str) -> None:
    eve.execute(TRAPS[trap].encode())
    for call in (migrate, install, migrations.uninstall):
        with suppress(PermissionDenied, ForeignSchema):
            call(conn)
        assert not is_superuser(conn)


def test_the_login_that_may_write_installs_and_without_it_a_superuser_does(conn: Connection, eve: Connection) -> None:
    assert migrate(eve) == []
    conn.execute("REVOKE messages_owner FROM eve")
    assert migrate(conn) == []


def test_a_role_that_makes_roles_does_not_install_what_one_without_that_right_may_write(
    conn: Connection, connect: Callable[..., Connection], eve: Connection
) -> None:
    conn.execute("CREATE ROLE maker LOGIN CREATEROLE IN ROLE messages_owner")
    try:
        with pytest.raises(PermissionDenied, match=r"eve may write .* as the role with CREATEROLE maker"):
            migrate(connect(user="maker"))
        assert migrate(eve) == []
    finally:
        conn.execute("DROP ROLE maker")


def test_nobody_sees_a_first_installation_before_all_is_called(conn: Connection, eve: Connection) -> None:
    conn.execute("DROP SCHEMA messages CASCADE")
    with conn.transaction():
        install(conn, ["orders"])
        assert eve.execute("SELECT to_regnamespace('messages')").fetchone() == (None,)


def test_replaced_functions_are_not_run_by_the_superuser_who_uninstalls(conn: Connection, eve: Connection) -> None:
    for function, value in {"uninstall_cron": 0, "latest_migration": 1, "schema_version": 1}.items():
        eve.execute(
            f"CREATE OR REPLACE FUNCTION messages.{function}() RETURNS integer LANGUAGE plpgsql"
            f" AS $f$ BEGIN PERFORM lair.deed(); RETURN {value}; END $f$".encode()
        )
    eve.close()
    migrations.uninstall(conn)
    assert not is_superuser(conn)
    assert conn.execute("SELECT to_regnamespace('messages')").fetchone() == (None,)
