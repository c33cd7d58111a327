"""The table of faults counts what it has to, and its copy in the documentation speaks of the tests that are there."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.spark.fault_table import HEADER, Fault
from tools import ROOT


def counted(**given: Any) -> Fault:
    return Fault.counted("a fault", **({"where": "cluster", "times": 1, "published": [1, 2, 3]} | given))


@pytest.mark.parametrize(
    ("given", "harmless", "once", "lost", "twice", "repeated"),
    [
        ({"found": [3, 2, 1]}, True, 3, 0, 0, None),
        ({"found": [1, 2]}, False, 2, 1, 0, None),
        ({"found": [1, 2, 2, 3]}, False, 2, 0, 1, None),
        ({"found": [1, 2, 3, 4]}, False, 3, 0, 1, None),
        ({"found": [1, 2, 3], "effects": [1, 2, 2, 3], "allowed": 1}, True, 3, 0, 0, 1),
        ({"found": [1, 2, 3], "effects": [1, 2, 2, 3]}, False, 3, 0, 0, 1),
        ({"found": [1, 2, 3], "effects": [1, 3]}, False, 3, 1, 0, 0),
        ({"found": [1, 2, 3], "times": 0}, False, 3, 0, 0, None),
    ],
)
def test_a_fault_that_loses_or_doubles_or_never_was_is_not_harmless(
    given: dict[str, Any], harmless: bool, once: int, lost: int, twice: int, repeated: int | None
) -> None:
    fault = counted(**given)
    assert (fault.is_harmless, fault.once, fault.lost, fault.twice, fault.repeated) == (
        harmless, once, lost, twice, repeated,
    )  # fmt: skip


def test_the_table_in_the_documentation_is_of_tests_that_are_there() -> None:
    page = (ROOT / "tests" / "README.md").read_text()
    (table,) = re.findall(r"```text\n(fault  .*?)```", page, re.S)
    header, *rows = (re.split(r"  +", line.strip()) for line in table.splitlines())
    assert header == list(HEADER)
    patterns = [re.compile(pattern) for pattern in names()]
    assert [row[0] for row in rows if not any(pattern.fullmatch(row[0]) for pattern in patterns)] == []


def names() -> Iterator[str]:
    """Give a pattern for each text in the tests."""
    for file in Path(__file__).parent.glob("test_*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            match node:
                case ast.Constant(value=str() as text):
                    yield re.escape(text)
                case ast.JoinedStr(values=parts):
                    yield "".join(re.escape(str(p.value)) if isinstance(p, ast.Constant) else ".+" for p in parts)
