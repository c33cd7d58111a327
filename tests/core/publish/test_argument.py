"""The rules for arguments, and that they are those of the database."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from airflow_provider_pgqueue.core import InvalidArgument, argument

NAMES = ["orders", "o", "o" * 48, "o" * 49, "", "Orders", "9", "a-b", "a\n", "a b", "ä", "a_9", "_a", "orders\n"]
PATTERNS = ["a", "*.b", "#", "a..b", "", ".a", "a.", "a b", "A-9_.#", "a" * 255, "a" * 256, "a\n"]


def is_good(conn: psycopg.Connection[Any], check: str, value: str) -> bool:
    try:
        conn.execute(f"SELECT messages.{check}(%s)".encode(), [value])
    except psycopg.Error as error:
        if error.sqlstate not in ("PQ003", "PQ004"):
            raise
        return False
    return True


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_a_name_that_is_taken_here_is_taken_by_the_database(conn: psycopg.Connection[Any], name: str) -> None:
    assert (argument.queue_name(name) is None) == is_good(conn, "check_queue_name", name)


@pytest.mark.parametrize("pattern", PATTERNS, ids=lambda value: ascii(value)[:30])
def test_a_pattern_that_is_taken_here_is_taken_by_the_database(conn: psycopg.Connection[Any], pattern: str) -> None:
    assert (argument.topic_pattern(pattern) is None) == is_good(conn, "topic_regex", pattern)


@pytest.mark.parametrize(
    ("rule", "good", "bad"),
    [
        (argument.text, ["a", "é🐘"], ["", None, 1, b"a", "a\0b", "\ud800"]),
        (argument.texts, [[], ["a"], ("a",)], ["a", [1], None, {"a"}]),
        (argument.results, [["failed"], ["rejected", "expired"]], [[], ["success"], "failed", [[]], None]),
        (argument.json_object, [{}, {"a": [1]}], [[], "a", {"a": float("nan")}, {"a": object()}, None]),
        (argument.truth, [True, False], [0, 1, "false", None]),
        (argument.whole(1, 9), [1, 9], [0, 10, "5", 5.0, True, None, 3 * 10**9, float("nan")]),
        (argument.number(0, 9), [0, 9, 0.5], [-1, 9.1, "5", True, None, float("nan"), float("inf"), 10**400]),
        (
            argument.duration(timedelta(0), timedelta(9)),
            [timedelta(0), timedelta(9), 5, 0.5],
            [timedelta(-1), -1, "5", None],
        ),
        (argument.optional(argument.text), [None, "a"], ["", 1]),
    ],
)
def test_a_rule_takes_what_is_good_and_tells_the_fix_of_everything_else(
    rule: Callable[[Any], str | None], good: list[Any], bad: list[Any]
) -> None:
    assert [rule(value) for value in good] == [None] * len(good)
    assert [value for value in bad if not (rule(value) or "").endswith(".")] == []


@pytest.mark.parametrize("value", [print, "json:dumps", "json.decoder:JSONDecoder.decode", "tests.waiting:until"])
def test_a_function_or_its_name_is_found(value: Any) -> None:
    assert argument.function(value) is None


@pytest.mark.parametrize(
    ("value", "fix"),
    [
        ("no_colon", "module:function"),
        (":f", "module:function"),
        (5, "module:function"),
        ("no_such_module:f", "no module 'no_such_module'"),
        ("no_such.module:f", "cannot be found"),
        ("json:no_such", "has no 'no_such'"),
        ("this:no_such", "has no 'no_such'"),
        ("badly_written:f", "Line 1 of module 'badly_written' is not valid Python"),
        ("raises_package.inner:f", "cannot be found (RuntimeError)"),
        ("ends_package.inner:f", "cannot be found (SystemExit)"),
    ],
)
def test_a_function_that_cannot_be_found_is_said_before_it_is_called(
    value: Any, fix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "badly_written.py").write_text("def f(:\n")
    for name, act in (("raises", "raise RuntimeError"), ("ends", "raise SystemExit(3)")):
        (tmp_path / f"{name}_package").mkdir()
        (tmp_path / f"{name}_package" / "__init__.py").write_text(f"{act}\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert fix in (argument.function(value) or "")


def test_a_module_is_not_imported_only_to_be_checked(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "expensive.py").write_text("raise SystemExit\ndef pack(): pass\nfor each in (): other = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert argument.function("expensive:pack") is None
    assert argument.function("expensive:other") is None
    assert argument.function("expensive:pac") is not None


def test_the_error_has_the_name_the_value_and_the_fix() -> None:
    with pytest.raises(InvalidArgument, match=r"^queue_name is 'a\\x00b'\. Give a lower-case letter"):
        argument.check({"queue_name": "a\0b"}, {"queue_name": argument.queue_name})
    with pytest.raises(InvalidArgument, match=r"^queue_name is '\\ud800'\."):
        argument.check({"queue_name": "\ud800"}, {"queue_name": argument.queue_name})
