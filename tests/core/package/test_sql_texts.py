"""SQL stands in sql/; Python calls verbs, or sends the queries of sql/queries."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider_pgqueue.core.query import queries_of, query
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

SENDERS = {"query", "rows_of", "_inside", "_fetch", "_statement", "_move", "_batches", "selecting", "peeking"}


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


def sent(source: str) -> Iterator[str]:
    """Yield the names in calls of what sends a query; a choice between two has both."""
    for call in ast.walk(ast.parse(source)):
        if isinstance(call, ast.Call) and ast.unparse(call.func).rpartition(".")[2] in SENDERS:
            for given in call.args:
                choices = (given.body, given.orelse) if isinstance(given, ast.IfExp) else (given,)
                yield from (c.value for c in choices if isinstance(c, ast.Constant) and isinstance(c.value, str))


def test_each_query_is_sent_and_each_name_that_is_sent_is_a_query() -> None:
    files = [path.read_bytes() for path in (ROOT / "sql" / "queries").iterdir()]
    assert {name for path in PACKAGE.rglob("*.py") for name in sent(path.read_text())} == queries_of(files).keys()


def test_a_query_is_the_text_below_its_name() -> None:
    text = b"-- Who sends these.\n\n-- name: one\n-- Why.\nSELECT 1;\nSELECT 2\n\n-- name: two\nSELECT 3"
    assert queries_of([text, b"-- Empty.\n"]) == {"one": b"-- Why.\nSELECT 1;\nSELECT 2\n", "two": b"SELECT 3\n"}


def test_two_queries_of_one_name_and_a_name_without_a_query_are_errors_that_name_it() -> None:
    with pytest.raises(LookupError, match="two queries in sql/queries/ have the name 'one'"):
        queries_of([b"-- name: one\nSELECT 1\n", b"-- name: one\nSELECT 2\n"])
    with pytest.raises(LookupError, match="has a query 'nobody'"):
        query("nobody")
