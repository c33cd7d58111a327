"""Installing from the shell, and the script for who wants to read first."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import psycopg
import pytest

from airflow_provider_pgqueue.core.migrations import code_version, scripts
from tests.core.cli.conftest import Pgqueue

# All that a schema is made of, as the catalogue prints it.
CATALOGUE = """
SELECT 'function', p.oid::regprocedure::text, pg_get_functiondef(p.oid), obj_description(p.oid), p.proacl::text
  FROM pg_proc p WHERE p.pronamespace = 'messages'::regnamespace
UNION ALL
SELECT 'relation', c.oid::regclass::text, c.relkind::text || coalesce(c.reloptions::text, ''), obj_description(c.oid),
       c.relacl::text
  FROM pg_class c WHERE c.relnamespace = 'messages'::regnamespace
UNION ALL
SELECT 'column', a.attrelid::regclass || '.' || a.attname, format_type(a.atttypid, a.atttypmod) || a.attnotnull,
       col_description(a.attrelid, a.attnum), pg_get_expr(d.adbin, d.adrelid)
  FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid LEFT JOIN pg_attrdef d ON (d.adrelid, d.adnum) = (c.oid, a.attnum)
 WHERE c.relnamespace = 'messages'::regnamespace AND a.attnum > 0 AND NOT a.attisdropped
UNION ALL
SELECT 'constraint', conrelid::regclass || '.' || conname, pg_get_constraintdef(oid), NULL, NULL
  FROM pg_constraint WHERE connamespace = 'messages'::regnamespace AND conrelid <> 0
UNION ALL
SELECT 'index', indexrelid::regclass::text, pg_get_indexdef(indexrelid), NULL, NULL
  FROM pg_index JOIN pg_class c ON c.oid = indrelid WHERE c.relnamespace = 'messages'::regnamespace
UNION ALL
SELECT 'view', c.oid::regclass::text, pg_get_viewdef(c.oid), NULL, NULL
  FROM pg_class c WHERE c.relnamespace = 'messages'::regnamespace AND c.relkind = 'v'
UNION ALL
SELECT 'trigger', tgrelid::regclass || '.' || tgname, pg_get_triggerdef(oid), NULL, NULL
  FROM pg_trigger WHERE NOT tgisinternal
UNION ALL
SELECT 'queue', queue_name, max_attempts::text || lease_for || notify, NULL, NULL FROM messages.queue
UNION ALL
SELECT 'migration', version::text, name, NULL, NULL FROM messages.schema_migration
ORDER BY 1, 2, 3
"""


def catalogue(dsn: str) -> list[tuple[str, ...]]:
    with psycopg.connect(dsn) as conn:
        return conn.execute(CATALOGUE.encode()).fetchall()


def psql(script: Path, dsn: str) -> None:
    command = ["psql", "-X", "-q", "-v", "ON_ERROR_STOP=1", "-f", str(script), dsn]
    subprocess.run(command, check=True, capture_output=True, cwd=script.parent)


def test_install_makes_the_schema_and_twice_does_no_harm(run_pgqueue: Pgqueue, empty_dsn: str) -> None:
    first = run_pgqueue("install", "--json", "--no-cron", "--dsn", empty_dsn).json
    assert first["schema_version"] == code_version()
    assert first["migrations_applied"] == list(range(1, code_version() + 1))
    assert first["upkeep_mode"] == "airflow"
    again = run_pgqueue("install", "--no-cron", "--dsn", empty_dsn)
    assert again.status == 0
    assert again.out.startswith(f"schema messages has version {code_version()} in database ")


def test_install_says_why_there_is_no_pg_cron_and_fails_if_it_was_asked_for(
    run_pgqueue: Pgqueue, empty_dsn: str
) -> None:
    assert "pg_cron" in run_pgqueue("install", "--json", "--dsn", empty_dsn).json["no_cron_because"]
    ended = run_pgqueue("install", "--cron", "--dsn", empty_dsn)
    assert ended.status == 1
    assert ended.err.startswith("error: pg_cron ")


@pytest.mark.cron
def test_install_lets_pg_cron_do_the_upkeep_where_there_is_one(run_pgqueue: Pgqueue, cron_dsn: str) -> None:
    assert run_pgqueue("install", "--json", "--dsn", cron_dsn).json["upkeep_mode"] == "pg_cron"
    assert "pg_cron does the upkeep" in run_pgqueue("install", "--dsn", cron_dsn).out
    assert run_pgqueue("install", "--no-cron", "--json", "--dsn", cron_dsn).json["upkeep_mode"] == "airflow"


def test_the_printed_script_installs_with_psql_what_install_does(
    run_pgqueue: Pgqueue, empty_dsn: str, dsn: str, tmp_path: Path
) -> None:
    script = tmp_path / "pgqueue.sql"
    script.write_text(run_pgqueue("install", "--print-sql").out)
    psql(script, empty_dsn)
    installed = catalogue(empty_dsn)
    assert len(installed) > 100
    assert installed == catalogue(dsn)
    psql(script, empty_dsn)
    assert catalogue(empty_dsn) == installed


def test_the_printed_script_needs_no_other_file_and_no_database(run_pgqueue: Pgqueue) -> None:
    text = run_pgqueue("install", "--print-sql", "--dsn", "port=1").out
    assert re.findall(r"^\\i(?!f ).*", text, re.M) == []
    assert text.startswith("-- Installs or upgrades ")
    assert all(script.text.rstrip() in text for script in scripts())
    assert run_pgqueue("install", "--print-sql", "--json").json["sql"] == text
    assert run_pgqueue("install", "--print-sql", "--cron").out.endswith("SELECT messages.install_cron();\n")


def test_uninstall_asks_and_needs_yes_where_nobody_can_answer(run_pgqueue: Pgqueue, dsn: str) -> None:
    run_pgqueue("publish", "default", "--message", "1", "--dsn", dsn)
    refused = run_pgqueue("uninstall", "--dsn", dsn)
    assert refused.status == 2
    assert "with 1 messages and 0 archived ones? Nobody can answer here: repeat the command with --yes." in refused.err
    done = run_pgqueue("uninstall", "--yes", "--json", "--dsn", dsn).json
    assert (done["messages_deleted"], done["archived_deleted"]) == (1, 0)
    assert "is not installed" in run_pgqueue("uninstall", "--yes", "--dsn", dsn).err
