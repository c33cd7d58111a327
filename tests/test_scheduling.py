"""The tests that begin first are named by files."""

from __future__ import annotations

from tests.scheduling import ORDER
from tools import ROOT


def test_what_begins_first_is_there() -> None:
    assert [start for start in ORDER if not (ROOT / start).exists()] == []
