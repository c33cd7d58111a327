"""Describes the schema as text, so that a review sees what a change does to it: `make golden` writes it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import psycopg

from airflow_provider_pgqueue.core import migrate
from tools import ROOT, STATE
from tools.postgres import Cluster

GOLDEN: Final[Path] = ROOT / "tests" / "core" / "schema.golden.txt"
# From the catalogue and not by pg_dump, whose output is another one in each version of PostgreSQL.
_DESCRIPTION: Final = """
WITH own AS (
    SELECT c.oid, c.relname, c.relkind, c.relacl, c.reloptions, c.relowner,
           c.relkind IN ('r', 'p', 'v', 'S', 'c') AS shown
      FROM pg_class c
     WHERE c.relnamespace = 'messages'::regnamespace AND c.relname !~ '[0-9]{6}' AND c.relname !~ '_[0-9]+$'),
lines (thing, place, line) AS (
    SELECT o.relname, 0, format('%s %s%s',
                            CASE o.relkind WHEN 'v' THEN 'view' WHEN 'S' THEN 'sequence' WHEN 'c' THEN 'type'
                                       WHEN 'p' THEN 'partitioned table' ELSE 'table' END, o.relname,
                            ' with (' || array_to_string(o.reloptions, ', ') || ')') FROM own o WHERE o.shown
    UNION ALL
    SELECT o.relname, 1000 + a.attnum, format('    %s %s%s%s', a.attname, format_type(a.atttypid, a.atttypmod),
           CASE WHEN a.attnotnull THEN ' not null' END,
           CASE WHEN a.attidentity <> '' THEN ' identity' ELSE ' default ' || pg_get_expr(d.adbin, d.adrelid) END)
      FROM own o JOIN pg_attribute a ON a.attrelid = o.oid AND a.attnum > 0 AND NOT a.attisdropped
      LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
     WHERE o.relkind IN ('r', 'p', 'v', 'c')
    UNION ALL
    SELECT o.relname, 3000, '    ' || k.conname || ': ' || pg_get_constraintdef(k.oid)
      FROM own o JOIN pg_constraint k ON k.conrelid = o.oid
     WHERE k.contype <> 'n' AND k.conname <> 'archived_before_the_archive_begins'
    UNION ALL
    SELECT o.relname, 4000, '    ' || pg_get_indexdef(i.indexrelid)
      FROM own o JOIN pg_index i ON i.indrelid = o.oid
     WHERE NOT EXISTS (SELECT FROM pg_constraint k WHERE k.conindid = i.indexrelid AND k.contype IN ('p', 'u'))
    UNION ALL
    SELECT o.relname, 5000, '    ' || pg_get_triggerdef(t.oid)
      FROM own o JOIN pg_trigger t ON t.tgrelid = o.oid AND NOT t.tgisinternal AND t.tgparentid = 0
    UNION ALL
    SELECT o.relname, 6000, format('    %s: %s', coalesce(nullif(a.grantee, 0)::regrole::text, 'PUBLIC'),
                                   string_agg(lower(a.privilege_type), ', ' ORDER BY a.privilege_type))
      FROM own o CROSS JOIN aclexplode(o.relacl) a
     WHERE o.shown AND a.grantee <> o.relowner GROUP BY o.relname, a.grantee
    UNION ALL
    SELECT p.proname || '()', 0, format('function %s(%s) returns %s', p.proname,
           replace(pg_get_function_arguments(p.oid), ', ', E',\\n        '), pg_get_function_result(p.oid))
      FROM pg_proc p WHERE p.pronamespace = 'messages'::regnamespace
    UNION ALL
    SELECT p.proname || '()', 1, format('    %s%s%s',
           CASE p.provolatile WHEN 'i' THEN 'immutable' WHEN 's' THEN 'stable' ELSE 'volatile' END,
           CASE WHEN p.prosecdef THEN ', security definer' END, ', ' || array_to_string(p.proconfig, ', '))
      FROM pg_proc p WHERE p.pronamespace = 'messages'::regnamespace
    UNION ALL
    SELECT p.proname || '()', 2, '    ' || coalesce(nullif(a.grantee, 0)::regrole::text, 'PUBLIC') || ': execute'
      FROM pg_proc p CROSS JOIN aclexplode(p.proacl) a
     WHERE p.pronamespace = 'messages'::regnamespace AND a.grantee <> p.proowner)
SELECT line FROM lines ORDER BY thing COLLATE "C", place, line COLLATE "C"
"""


def describe(conn: psycopg.Connection[Any]) -> str:
    """Return tables, types, functions and grants of the schema, without what depends on the date."""
    lines = [str(row[0]) for row in conn.execute(_DESCRIPTION.encode())]
    return "".join(line + "\n" if line.startswith(" ") else f"\n{line}\n" for line in lines).lstrip("\n")


@contextmanager
def new_installation(name: str) -> Iterator[psycopg.Connection[Any]]:
    """Yield a session in a database where the schema was just installed, on a server of its own."""
    cluster = Cluster(STATE / name, durable=False)
    try:
        cluster.start()
        with psycopg.connect(cluster.create_database(name), autocommit=True) as conn:
            migrate(conn)
            yield conn
    finally:
        cluster.destroy()


def main() -> None:
    with new_installation("golden") as conn:
        GOLDEN.write_text(describe(conn))
    print(f"{GOLDEN.relative_to(ROOT)} written: look at the difference before you commit it")


if __name__ == "__main__":
    main()
