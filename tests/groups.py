"""Which tests stay together when several processes of pytest-xdist share the work, and in which order they begin."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import pytest

HERE = Path(__file__).parent
# The longest first, so that no process is alone with one at the end. What is not named comes after them.
ORDER = ("e2e", "standalone", "spark")


def group(items: list[pytest.Item]) -> None:
    """Mark each test with its group, and put the groups that take long first."""
    names = {item: group_of(item) for item in items}
    for item, name in names.items():
        item.add_marker(pytest.mark.xdist_group(name))
    items.sort(key=lambda item: _rank(names[item]))


def group_of(item: pytest.Item) -> str:
    """Return what a test shares with others of its group: the Airflow, the standalone cluster of Spark, or its file."""
    names: Collection[str] = getattr(item, "fixturenames", ())
    if "standalone" in names:
        return "standalone"
    path = item.path.relative_to(HERE)
    return "e2e" if path.parts[0] == "e2e" else path.with_suffix("").as_posix()


def _rank(name: str) -> int:
    first = name.partition("/")[0]
    return ORDER.index(first) if first in ORDER else len(ORDER)
