"""The figures of the page about capacity come out of `make sizing`."""

from __future__ import annotations

import re
from typing import Any

import psycopg

from tools import ROOT
from tools.sizing import BODY, measure, table

PAGE = ROOT / "docs" / "how-to" / "capacity.md"


def test_the_page_about_capacity_shows_what_make_sizing_prints(conn: psycopg.Connection[Any]) -> None:
    cost = measure(conn, 300)
    (shown,) = re.findall(r"^```sh\nmake sizing.*?^```text\n(.*?)^```$", PAGE.read_text(), re.M | re.S)
    first, *lines = shown.splitlines()
    assert first.startswith("20,000 messages of 197 bytes")
    assert [_shape(line) for line in lines] == [_shape(line) for line in table(cost)]
    # An archived message is its body and less than 250 bytes, and its WAL is a few times that.
    assert len(BODY["note"]) < cost.archived < 700
    assert cost.archived < cost.wal < 20 * cost.archived
    assert min(cost.publish, cost.consume) > 0


def test_a_larger_body_costs_as_much_more_disk_in_the_archive(conn: psycopg.Connection[Any], monkeypatch: Any) -> None:
    small = measure(conn, 300)
    monkeypatch.setitem(BODY, "note", "".join(f"{number:03}" for number in range(300)))
    large = measure(conn, 300)
    assert 500 < large.archived - small.archived < 1200


def _shape(line: str) -> str:
    return re.sub(r"[\d,.]+", "1", " ".join(line.split()))
