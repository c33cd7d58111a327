"""Installing from the shell, and the script for who wants to read first."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from airflow_provider_pgqueue.core.migrations import code_version, scripts
from tests.core.cli.conftest import Pgqueue
from tools.postgres import Cluster

ROWS = """
SELECT queue_name, max_attempts, lease_for, version, name
  FROM messages.queue, messages.schema_migration ORDER BY queue_name, version
"""


def contents(cluster: Cluster, dsn: str) -> tuple[str, list[tuple[object, ...]]]:
    """Return the schema as pg_dump writes it, and the rows of a fresh installation."""
    command = [cluster.binaries.folder / "pg_dump", "-s", dsn]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    with psycopg.connect(dsn) as conn:
        rows = conn.execute(ROWS.encode()).fetchall()
    return re.sub(r"^\\(un)?restrict .*$", "", text, flags=re.M), rows


def psql(cluster: Cluster, script: Path, dsn: str) -> None:
    command = [cluster.binaries.folder / "psql", "-X", "-q", "-v", "ON_ERROR_STOP=1", "-f", str(script), dsn]
    subprocess.run(command, check=True, capture_output=True, cwd=script.parent)


def test_install_makes_the_schema_and_twice_does_no_harm(run_pgqueue: Pgqueue, empty_dsn: str) -> None:
    database = conninfo_to_dict(empty_dsn)["dbname"]
    first = run_pgqueue("install", "--no-cron", "--dsn", empty_dsn).out
    assert first.startswith(f"installed schema messages, version {code_version()}, in database {database}. ")
    assert "It has the group roles messages_publisher, messages_consumer, " in first
    assert ": GRANT messages_publisher TO shop." in first
    again = run_pgqueue("install", "--no-cron", "--dsn", empty_dsn).out
    assert again.startswith(f"schema messages in database {database} is already up to date, version {code_version()}. ")
    assert ": GRANT messages_publisher TO shop." in again, "an upgrade may have created roles"


def test_install_tells_machines_what_it_applied(run_pgqueue: Pgqueue, empty_dsn: str) -> None:
    first = run_pgqueue("install", "--json", "--no-cron", "--dsn", empty_dsn).json
    assert first["schema_version"] == code_version()
    assert first["migrations_applied"] == [script.version for script in scripts() if script.version]
    assert first["maintenance_mode"] == "airflow"
    assert run_pgqueue("install", "--json", "--no-cron", "--dsn", empty_dsn).json["migrations_applied"] == []


def test_install_says_why_there_is_no_pg_cron_and_fails_if_it_was_asked_for(
    run_pgqueue: Pgqueue, empty_dsn: str
) -> None:
    assert "pg_cron" in run_pgqueue("install", "--json", "--dsn", empty_dsn).json["no_cron_because"]
    ended = run_pgqueue("install", "--cron", "--dsn", empty_dsn)
    assert ended.status == 1
    assert ended.err.startswith("error: pg_cron ")


def test_install_says_why_there_are_no_group_roles(run_pgqueue: Pgqueue, empty_dsn: str) -> None:
    assert run_pgqueue("install", "--json", "--no-cron", "--dsn", empty_dsn).json["no_roles_because"] is None
    assert run_pgqueue("uninstall", "--yes", "--dsn", empty_dsn).status == 0
    database = conninfo_to_dict(empty_dsn)["dbname"]
    with psycopg.connect(empty_dsn, autocommit=True) as conn:
        conn.execute("CREATE ROLE plain_shop LOGIN")
        conn.execute(f"GRANT ALL ON DATABASE {database} TO plain_shop".encode())
        try:
            installed = run_pgqueue("install", "--no-cron", "--dsn", make_conninfo(empty_dsn, user="plain_shop")).out
        finally:
            conn.execute("DROP OWNED BY plain_shop CASCADE")
            conn.execute("DROP ROLE plain_shop")
    assert "There are no group roles: role 'plain_shop' could not give schema messages to messages_owner." in installed
    assert "Install again after " in installed
    assert "Until then statements such as GRANT messages_publisher TO shop fail." in installed
    assert "GRANT EXECUTE ON FUNCTION messages.publish TO shop." in installed


@pytest.mark.cron
def test_install_lets_pg_cron_run_maintenance_where_there_is_one(run_pgqueue: Pgqueue, cron_dsn: str) -> None:
    assert run_pgqueue("install", "--json", "--dsn", cron_dsn).json["maintenance_mode"] == "pg_cron"
    assert "pg_cron runs maintenance" in run_pgqueue("install", "--dsn", cron_dsn).out
    assert run_pgqueue("install", "--no-cron", "--json", "--dsn", cron_dsn).json["maintenance_mode"] == "airflow"


def test_the_printed_script_installs_with_psql_what_install_does(
    run_pgqueue: Pgqueue, cluster: Cluster, empty_dsn: str, dsn: str, tmp_path: Path
) -> None:
    script = tmp_path / "pgqueue.sql"
    script.write_text(run_pgqueue("install", "--print-sql").out)
    psql(cluster, script, empty_dsn)
    assert contents(cluster, empty_dsn) == contents(cluster, dsn)
    psql(cluster, script, empty_dsn)
    assert contents(cluster, empty_dsn) == contents(cluster, dsn)


def test_the_printed_script_needs_no_other_file_and_no_database(run_pgqueue: Pgqueue) -> None:
    text = run_pgqueue("install", "--print-sql", "--dsn", "port=1").out
    assert re.findall(r"^\\i(?!f ).*", text, re.M) == []
    assert text.startswith("-- Installs or upgrades ")
    assert all(script.text.rstrip() in text for script in scripts())
    assert run_pgqueue("install", "--print-sql", "--json").json["sql"] == text
    assert "SELECT messages.install_cron(" in run_pgqueue("install", "--print-sql", "--cron").out


def test_uninstall_asks_and_needs_yes_where_nobody_can_answer(run_pgqueue: Pgqueue, dsn: str) -> None:
    run_pgqueue("publish", "default", "--message", "1", "--dsn", dsn)
    refused = run_pgqueue("uninstall", "--dsn", dsn)
    assert refused.status == 2
    assert "with 1 message and 0 archived messages? Standard input is not a terminal: repeat" in refused.err
    done = run_pgqueue("uninstall", "--yes", "--json", "--dsn", dsn).json
    assert (done["messages_deleted"], done["archived_deleted"]) == (1, 0)
    assert "is not installed" in run_pgqueue("uninstall", "--yes", "--dsn", dsn).err
