"""The schema: the same from psql and from Python, whole, private, and gone without a trace."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import psycopg
import pytest

from airflow_provider_pgqueue.core import check_version, migrations, run, verbs
from airflow_provider_pgqueue.core.errors import ForeignSchema, SchemaMissing, SchemaTooNew, SchemaTooOld
from tools import ROOT
from tools.chapters import chapters, functions
from tools.postgres import Cluster

Connection = psycopg.Connection[Any]


def psql(cluster: Cluster, dsn: str, file: str) -> None:
    program = cluster.binaries.folder / "psql"
    subprocess.run([program, "-q", "-v", "ON_ERROR_STOP=1", "-f", ROOT / "sql" / file, dsn], check=True)


def dump(cluster: Cluster, dsn: str) -> str:
    program = cluster.binaries.folder / "pg_dump"
    text = subprocess.run([program, "-s", dsn], check=True, capture_output=True, text=True).stdout
    return re.sub(r"^\\(un)?restrict .*$", "", text, flags=re.MULTILINE)


def test_psql_installs_the_same_schema_as_the_setup_dag(cluster: Cluster, dsn: str, empty_dsn: str) -> None:
    psql(cluster, empty_dsn, "install.sql")
    assert dump(cluster, empty_dsn) == dump(cluster, dsn)
    with psycopg.connect(empty_dsn, autocommit=True) as conn:
        check_version(conn)
        assert migrations.migrate(conn) == []
        psql(cluster, empty_dsn, "install.sql")
    assert dump(cluster, empty_dsn) == dump(cluster, dsn)


def test_install_sql_includes_every_file(dsn: str) -> None:
    folder = ROOT / "sql"
    files = {str(path.relative_to(folder)) for path in folder.rglob("*.sql")} - {
        "install.sql",
        "pgmq.sql",
        "uninstall.sql",
        "may_uninstall.sql",
        "drop_marks.sql",
    }
    # Queries run where the schema need not be.
    installed = {path for path in files if not path.startswith("queries/")}
    assert {script.path for script in migrations.scripts()} == installed


def test_each_function_stands_in_one_chapter_and_its_comment_says_who_may_call_it() -> None:
    created = [
        (name, script.path)
        for script in migrations.scripts()
        for name in re.findall(r"^CREATE (?:OR REPLACE )?FUNCTION messages\.(\w+)\(", script.text, re.M)
    ]
    assert created == [(one.name, f"chapters/{one.chapter}.sql") for one in functions().values()]
    uncommented = [
        name
        for name, _ in created
        if not re.search(rf"^COMMENT ON FUNCTION messages\.{name}\b", functions()[name].text, re.M)
    ]
    assert uncommented == []


def test_a_second_function_of_a_name_fails_the_installation(conn: Connection) -> None:
    """A changed signature makes one: `CREATE OR REPLACE` keeps the function with the old arguments."""
    conn.execute("CREATE FUNCTION messages.check_topic(topic text, longest integer) RETURNS void LANGUAGE sql AS ''")
    with pytest.raises(psycopg.errors.AmbiguousFunction, match=r"messages\.check_topic"):
        migrations.migrate(conn)


def test_each_table_belongs_to_one_chapter(conn: Connection) -> None:
    owned = sorted(table for chapter in chapters() for table in chapter.tables)
    rows = conn.execute(
        """
        SELECT c.relname FROM pg_class c LEFT JOIN pg_inherits i ON i.inhrelid = c.oid
         WHERE c.relnamespace = 'messages'::regnamespace AND c.relkind IN ('r', 'p')
           AND coalesce(i.inhparent <> 'messages.archive_rows'::regclass, true) AND c.relname <> 'schema_migration'
        """
    ).fetchall()
    assert owned == sorted(name for (name,) in rows)


@pytest.mark.long
@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("oldest := clock_timestamp()", "oldest = = clock_timestamp()"),
        ("SELECT now()", "SELECT no_such_column"),
        ("FUNCTION messages.added_too", "FUNCTON messages.added_too"),
    ],
)
def test_an_error_in_a_function_names_its_file_and_line(
    cluster: Cluster, empty_dsn: str, tmp_path: Path, right: str, wrong: str
) -> None:
    (tmp_path / "airflow_provider_pgqueue").symlink_to(ROOT / "airflow_provider_pgqueue")
    shutil.copytree(ROOT / "sql", tmp_path / "sql")
    chapter = tmp_path / "sql" / "chapters" / "lanes.sql"
    broken = chapter.read_text() + ADDED.replace(right, wrong)
    chapter.write_text(broken)
    line = broken[: broken.rindex(wrong)].count("\n") + 1

    migrate = "import psycopg, sys; from airflow_provider_pgqueue.core.migrations import migrate; "
    migrate += "migrate(psycopg.connect(sys.argv[1], autocommit=True))"
    by_python = subprocess.run(
        [sys.executable, "-c", migrate, empty_dsn], cwd=tmp_path, check=False, capture_output=True, text=True
    )
    assert by_python.stderr.endswith(f"\nsql/chapters/lanes.sql:{line}\n")

    program = [cluster.binaries.folder / "psql", "-q", "-v", "ON_ERROR_STOP=1", "-f", "sql/install.sql", empty_dsn]
    by_psql = subprocess.run(program, cwd=tmp_path, check=False, capture_output=True, text=True)
    assert re.search(r"psql:sql/chapters/lanes\.sql:\d+: ERROR: ", by_psql.stderr)


ADDED = """
CREATE OR REPLACE FUNCTION messages.added() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    oldest timestamptz;
BEGIN
    oldest := clock_timestamp();
END $$;

CREATE OR REPLACE FUNCTION messages.added_too() RETURNS timestamptz
LANGUAGE sql SET search_path = pg_catalog, pg_temp
AS $$
    SELECT now()
$$;
"""


def test_a_migration_that_fails_leaves_nothing(empty_dsn: str) -> None:
    with psycopg.connect(empty_dsn, autocommit=True) as conn:
        conn.execute(
            """
            CREATE FUNCTION refuse() RETURNS event_trigger LANGUAGE plpgsql AS
                $$ BEGIN RAISE 'no types' USING ERRCODE = 'P0002'; END $$;
            CREATE EVENT TRIGGER refuse ON ddl_command_start WHEN tag IN ('CREATE TYPE') EXECUTE FUNCTION refuse()
            """
        )
        with pytest.raises(psycopg.errors.NoDataFound):
            migrations.migrate(conn)
        assert conn.execute("SELECT to_regclass('messages.queue')").fetchone() == (None,)


@pytest.mark.parametrize(
    "found",
    [
        "CREATE SCHEMA messages; CREATE TABLE messages.inbox (sender text)",
        "CREATE SCHEMA messages; CREATE TABLE messages.maintenance_run (only_row boolean)",
        "CREATE SCHEMA messages; CREATE FUNCTION messages.chat() RETURNS integer LANGUAGE sql AS 'SELECT 1'",
        "CREATE SCHEMA messages; CREATE DOMAIN messages.chat AS text",
        'CREATE SCHEMA messages; CREATE COLLATION messages.chat FROM "C"',
    ],
    ids=["of somebody else", "older than the first release", "a function", "a type", "a collation"],
)
def test_a_schema_that_is_not_of_a_release_is_refused_and_untouched(
    cluster: Cluster, empty_dsn: str, found: str
) -> None:
    with psycopg.connect(empty_dsn, autocommit=True) as conn:
        conn.execute(found.encode())
        before = dump(cluster, empty_dsn)
        with pytest.raises(ForeignSchema, match=r"schema messages of database \w+ is not ours, or older than"):
            migrations.migrate(conn)
        with pytest.raises(ForeignSchema, match=r"schema messages of database \w+ is not ours, or older than"):
            migrations.uninstall(conn)
        assert dump(cluster, empty_dsn) == before


OTHERS = {
    "table messages.t": "CREATE TABLE messages.t (id integer)",
    "sequence messages.s": "CREATE SEQUENCE messages.s",
    "function messages.f()": "CREATE FUNCTION messages.f() RETURNS integer LANGUAGE sql AS 'SELECT 1'",
    "type messages.e": "CREATE TYPE messages.e AS ENUM ('a')",
    "type messages.d": "CREATE DOMAIN messages.d AS text",
    "collation messages.c": 'CREATE COLLATION messages.c FROM "C"',
    "rule _RETURN on view public.v": "CREATE VIEW v AS SELECT id FROM messages.message",
    "function public.g(messages.queue)": "CREATE FUNCTION g(messages.queue) RETURNS integer LANGUAGE sql AS 'SELECT 1'",
    "constraint r_q_fkey on table public.r": "CREATE TABLE r (q text REFERENCES messages.queue)",
    "column id of table public.n": "CREATE TABLE n (id bigint DEFAULT nextval('messages.message_id_seq'))",
}


def test_uninstall_drops_nothing_that_the_installation_did_not_make(
    cluster: Cluster, dsn: str, conn: Connection
) -> None:
    run(conn, verbs.create_queue("taken"))
    run(conn, verbs.publish("taken", 1))
    for made in OTHERS.values():
        conn.execute(made.encode())
    before = dump(cluster, dsn)
    with pytest.raises(ForeignSchema, match="the installation did not make: ") as refused:
        migrations.uninstall(conn)
    assert [name for name in OTHERS if name not in str(refused.value)] == []
    with pytest.raises(subprocess.CalledProcessError):
        psql(cluster, dsn, "uninstall.sql")
    assert dump(cluster, dsn) == before


def test_uninstall_tells_a_table_that_is_named_like_a_stage_from_a_stage(conn: Connection) -> None:
    conn.execute("CREATE TABLE messages.publish_stage_7 (id integer)")
    with pytest.raises(ForeignSchema, match=r"table messages\.publish_stage_7"):
        migrations.uninstall(conn)


def test_uninstall_removes_all_that_was_made_since(conn: Connection) -> None:
    run(conn, verbs.create_queue("stages"))
    run(conn, verbs.publish("stages", 1, priority=9))
    conn.execute("SELECT messages.stage_publish('a', 'stages')")
    conn.execute("ALTER DEFAULT PRIVILEGES IN SCHEMA messages GRANT SELECT ON TABLES TO PUBLIC")
    migrations.uninstall(conn)
    assert conn.execute("SELECT to_regnamespace('messages')").fetchone() == (None,)


def test_a_schema_that_does_not_fit_is_refused_with_the_fix(empty_dsn: str, conn: Connection) -> None:
    with psycopg.connect(empty_dsn, autocommit=True) as empty, pytest.raises(SchemaMissing, match="pgqueue install"):
        check_version(empty)
    newest = migrations.code_version()
    conn.execute("DELETE FROM messages.schema_migration WHERE version = %s", [newest])
    with pytest.raises(SchemaTooOld, match=rf"version \d+, this package needs {newest}\. Run pgqueue install"):
        check_version(conn)
    conn.execute("INSERT INTO messages.schema_migration (version, name) VALUES (99, 'of a later package')")
    check_version(conn)
    with pytest.raises(SchemaTooNew):
        migrations.migrate(conn)
    conn.execute("CREATE OR REPLACE FUNCTION messages.schema_version() RETURNS integer LANGUAGE sql AS 'SELECT 98'")
    with pytest.raises(SchemaTooNew, match=rf"that know version 98, this one knows {newest}\. Upgrade"):
        check_version(conn)


def test_every_function_pins_its_search_path(conn: Connection) -> None:
    rows = conn.execute(
        """
        SELECT p.proname, coalesce(array_to_string(p.proconfig, ' '), '')
          FROM pg_proc p WHERE p.pronamespace = 'messages'::regnamespace
        """
    ).fetchall()
    assert len(rows) > 30
    assert [name for name, config in rows if "search_path=pg_catalog, pg_temp" not in config] == []


def test_functions_rule_out_plans_by_one_of_two_lists(conn: Connection) -> None:
    rows = conn.execute(
        """
        SELECT DISTINCT array(SELECT one FROM unnest(p.proconfig) AS one WHERE one ~ '^(enable_|jit|plan_)' ORDER BY 1)
          FROM pg_proc p WHERE p.pronamespace = 'messages'::regnamespace
         ORDER BY 1
        """
    ).fetchall()
    off = [f"enable_{how}=off" for how in ("bitmapscan", "hashjoin", "mergejoin", "seqscan", "sort")]
    assert [found for (found,) in rows] == [
        [],
        [*off, "jit=off", "plan_cache_mode=force_generic_plan"],
        ["enable_seqscan=off", "jit=off", "plan_cache_mode=force_custom_plan"],
    ]


def test_everything_has_a_comment(conn: Connection) -> None:
    rows = conn.execute(
        """
        SELECT proname FROM pg_proc
         WHERE pronamespace = 'messages'::regnamespace AND obj_description(oid, 'pg_proc') IS NULL
        UNION ALL
        SELECT c.relname FROM pg_class c
         WHERE c.relnamespace = 'messages'::regnamespace AND c.relkind IN ('r', 'p', 'v') AND NOT c.relispartition
           AND obj_description(c.oid, 'pg_class') IS NULL
        UNION ALL
        SELECT c.relname || '.' || a.attname FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
         WHERE c.relnamespace = 'messages'::regnamespace AND c.relkind IN ('r', 'p') AND NOT c.relispartition
           AND a.attnum > 0 AND NOT a.attisdropped AND col_description(c.oid, a.attnum) IS NULL
        """
    ).fetchall()
    assert rows == []


def test_uninstall_leaves_nothing(cluster: Cluster, empty_dsn: str) -> None:
    before = dump(cluster, empty_dsn)
    psql(cluster, empty_dsn, "install.sql")
    psql(cluster, empty_dsn, "uninstall.sql")
    assert dump(cluster, empty_dsn) == before


def test_no_sequence_ends_that_anybody_can_make_run(conn: Connection) -> None:
    run(conn, verbs.create_queue("orders"))
    run(conn, verbs.publish("orders", 1, priority=7))
    small = """
        SELECT s.seqrelid::regclass FROM pg_sequence s JOIN pg_class c ON c.oid = s.seqrelid
         WHERE c.relnamespace = 'messages'::regnamespace AND (s.seqtypid <> 'bigint'::regtype OR s.seqmax < 10 ^ 17)
    """
    assert conn.execute(small.encode()).fetchall() == []
