"""SQL stands in sql/; Python calls verbs, or sends the files of sql/queries."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tools import ROOT

PACKAGE = ROOT / "airflow_provider_pgqueue"
STATEMENT = re.compile(
    r"\s*(ALTER|ANALYZE|CALL|COPY|CREATE|DELETE|DO|DROP|EXPLAIN|GRANT|INSERT|LISTEN|LOCK|MERGE|NOTIFY|REFRESH|REINDEX"
    r"|REVOKE|SELECT|SET|SHOW|TABLE|TRUNCATE|UPDATE|VACUUM|VALUES|WITH)\s"
)
NAMES = "a name cannot be a parameter of such a statement, and there is nothing else in it"
SETTING = "one setting"
SHOWN = "a fix that is shown and not run"
ALLOWED = {
    ("core/statement.py", "SELECT "): "what calls the verbs",
    ("core/installation.py", "GRANT {} TO {}"): NAMES,
    ("core/installation.py", "SET LOCAL messages.roles = 'off'"): SETTING,
    ("core/listener.py", "LISTEN "): NAMES,
    ("export/connection.py", "SET TRANSACTION ISOLATION LEVEL "): SETTING,
    ("export/chunk.py", "SET LOCAL max_parallel_workers_per_gather = 0"): SETTING,
    ("export/chunk.py", "SET LOCAL synchronize_seqscans = off"): SETTING,
    ("export/partition.py", "SELECT {} {}"): "the names of a partition and of its columns",
    ("cli/doctor.py", "SHOW transaction_read_only"): SETTING,
    ("core/privilege.py", "GRANT messages_"): SHOWN,
}


def modules() -> list[Path]:
    return [path for path in sorted(PACKAGE.rglob("*.py")) if "spark" not in path.relative_to(PACKAGE).parts]


def statements(source: str) -> Iterator[str]:
    """Yield the texts in a module that begin as a statement, without the docstrings."""
    tree = ast.parse(source)
    docstrings = {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and node not in docstrings:
            text = node.value.decode(errors="replace") if isinstance(node.value, bytes) else node.value
            if isinstance(text, str) and STATEMENT.match(text):
                yield text


def test_no_statement_stands_in_python_but_for_those_with_a_reason() -> None:
    found = {(str(path.relative_to(PACKAGE)), text) for path in modules() for text in statements(path.read_text())}
    assert found == set(ALLOWED)


@pytest.mark.parametrize(
    "source", ['conn.execute("SELECT 1")', "x = b'''\n DELETE FROM t'''", 'f"UPDATE {t} SET a = 1"', '["WITH a AS ()"]']
)
def test_a_statement_is_found_however_it_is_written(source: str) -> None:
    assert list(statements(source))


@pytest.mark.parametrize("source", ['"""SELECT what you want."""', 'x = "Set the table"', 'x = "SELECTED"'])
def test_what_is_no_statement_is_not_found(source: str) -> None:
    assert not list(statements(source))


def test_each_query_is_sent_by_somebody() -> None:
    folder = ROOT / "sql" / "queries"
    queries = {str(path.relative_to(folder).with_suffix("")) for path in folder.rglob("*.sql")}
    named = {
        node.value
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    assert queries - named == set()
