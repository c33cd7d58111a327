"""The way of one message through publish and consume stays short enough to read."""

from __future__ import annotations

from tools.message_walk import walk


def test_one_message_enters_few_files_and_moves_seldom_between_them(conn_id: str) -> None:
    found = walk()
    assert len(set(found.places)) <= 13, sorted(set(found.places))
    assert found.moves.total() <= 65, found.moves
