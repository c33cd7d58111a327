"""The statements inside of functions: each column, table and function in them exists, which no installation checks."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from tools import plpgsql_check
from tools.chapters import functions
from tools.postgres import Cluster

Connection = psycopg.Connection[Any]

# A trigger is checked with a table on which it fires, and with the names that it has for the rows of its statement.
# Errors of class 42 are misspelled names. The others are what plpgsql_check cannot know, such as the row of a dynamic
# statement.
CHECK = """
    SELECT p.proname, c.lineno, c.message
      FROM pg_proc p JOIN pg_language l ON l.oid = p.prolang AND l.lanname = 'plpgsql'
      LEFT JOIN pg_trigger t ON t.tgfoid = p.oid AND t.tgparentid = 0
     CROSS JOIN plpgsql_check.plpgsql_check_function_tb(
        p.oid,
        coalesce(t.tgrelid, CASE p.prorettype WHEN 'trigger'::regtype THEN 'messages.message'::regclass ELSE 0 END),
        oldtable => t.tgoldtable, newtable => t.tgnewtable) c
     WHERE p.pronamespace = 'messages'::regnamespace AND c.level = 'error' AND c.sqlstate ~ '^42'
"""


@pytest.fixture
def checked(cron_conn: Connection, cluster: Cluster) -> Connection:
    """With pg_cron, because functions name its tables."""
    library = plpgsql_check.find(cluster.binaries)
    assert library is not None
    plpgsql_check.load(cron_conn, library, cluster.directory)
    return cron_conn


def errors(conn: Connection) -> list[str]:
    """Return what plpgsql_check finds, with the line in the chapter."""
    return [f"{place(name, line)}: {text}" for name, line, text in conn.execute(CHECK.encode())]


def place(name: str, line: int) -> str:
    """Return the file and the line for a line of a body, whose first is the rest of the line of AS $$."""
    one = functions()[name]
    head = one.text.partition("AS $$")[0].count("\n")
    return f"sql/chapters/{one.chapter}.sql:{one.line + head + line - 1}"


@pytest.mark.cron
@pytest.mark.plpgsql_check
def test_each_name_in_a_function_exists(checked: Connection) -> None:
    assert errors(checked) == []


MISSPELLED = [
    ("extend", "lock_expires_at > moment", "lock_expires_on > moment", "column m.lock_expires_on does not exist"),
    (
        "scan_queue",
        "messages.fill_groups(",
        "messages.fill_group(",
        "function messages.fill_group(text, integer) does not",
    ),
    ("message_changed", "FROM after a JOIN", "FROM afterwards a JOIN", 'relation "afterwards" does not exist'),
    ("uninstall_cron", "jobname", "job_name", 'column "job_name" does not exist'),
]


@pytest.mark.cron
@pytest.mark.plpgsql_check
def test_each_misspelled_name_is_found_with_its_file_and_line(checked: Connection) -> None:
    for function, right, wrong, _ in MISSPELLED:
        checked.execute(functions()[function].text.replace(right, wrong).encode())
    found = errors(checked)
    for function, right, _, problem in MISSPELLED:
        one = functions()[function]
        line = one.line + one.text.partition(right)[0].count("\n")
        places = [error.partition(": ")[0] for error in found if problem in error]
        # The line is that of the statement, which begins at most some lines above.
        near = {f"sql/chapters/{one.chapter}.sql:{place}" for place in range(line - 8, line + 1)}
        assert near & set(places), (function, found)
