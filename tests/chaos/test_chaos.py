"""A short run of `make chaos`, and that its account notices what it is there for."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import psycopg
import pytest

from airflow_provider_pgqueue.core import run, verbs
from tools.chaos import leases, page
from tools.chaos.__main__ import chaos, until_empty, waiting
from tools.chaos.account import account

Connection = psycopg.Connection[Any]
SEED = 20261122


def test_a_short_run_loses_doubles_and_blocks_nothing(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    found = chaos(tmp_path, seconds=12, seed=SEED, kind=request.config.getoption("--pg"))
    assert found.is_clean, "\n".join(page.lines(found))
    assert found.figures["acknowledged"] > 100
    assert found.figures["faults"] >= 5
    assert "<img" in (tmp_path / "page.html").read_text()


@pytest.fixture
def stage(conn: Connection, queue: Callable[..., str]) -> Connection:
    """A database as a run leaves it, with one message in each of a few places."""
    for name in ("a_orders", "a_effects", "a_groups", "a_limited"):
        queue(name)
    conn.execute("CREATE TABLE public.effect (k text)")
    conn.execute(leases.LOG.encode())
    for key in ("1", "2"):
        run(conn, verbs.publish("a_orders", {"k": key}))
    messages = run(conn, verbs.lease("a_orders", max_messages=2))
    assert messages[0].lock_token
    run(conn, verbs.archive(messages[0].lock_token, [message.id for message in messages], handled_by="holder"))
    return conn


def told(kind: str, *keys: str, **more: Any) -> dict[str, Any]:
    return {"kind": kind, "at": 0.0, "q": "a_orders", "keys": list(keys), **more}


CLEAN = [
    told("invoke", "1", "2"),
    told("ok", "1", "2"),
    told("finish", "1", "2", holder="holder", result="success"),
]


def wrong(conn: Connection, *entries: dict[str, Any]) -> dict[str, list[str]]:
    return {kind: keys for kind, keys in account(conn, [*CLEAN, *entries]).wrong.items() if keys}


def test_what_is_as_it_was_told_is_clean(stage: Connection) -> None:
    assert wrong(stage) == {}


@pytest.mark.parametrize(
    ("entry", "found"),
    [
        (told("ok", "3"), {"lost": ["3"]}),
        (told("finish", "1", holder="holder", result="success"), {"finished twice": ["1"]}),
        (told("finish", "3", holder="holder", result="success"), {"stale": ["3"]}),
        ({"kind": "trespass", "at": 0.0, "what": "lease"}, {"of another team": ["lease"]}),
        (told("wrong body", "1"), {"wrong body": ["1"]}),
        (
            {"kind": "drained", "at": 0.0, "run": "slice-1", "archived": 3, "most": 2},
            {"more than a drain was to take": ["slice-1"]},
        ),
    ],
)
def test_an_entry_that_the_database_contradicts_is_found(
    stage: Connection, entry: dict[str, Any], found: dict[str, list[str]]
) -> None:
    assert wrong(stage, entry) == found


def test_a_kind_of_consumer_that_archived_nothing_is_found(stage: Connection) -> None:
    run(stage, verbs.publish("a_orders", {"k": "3"}))
    run(stage, verbs.consume("a_orders", handled_by="raw.1"))
    entries = [*CLEAN, told("ok", "3"), told("invoke", "3")]
    assert account(stage, entries, kinds={"raw SQL", "Spark drain"}).wrong["idle consumer"] == ["Spark drain"]
    later = account(stage, entries, kinds={"raw SQL"}, since=time.time() + 1.0)
    assert later.wrong["idle consumer"] == ["raw SQL"]


def test_what_waits_is_waited_for_while_some_of_it_is_archived(stage: Connection, dsn: str) -> None:
    run(stage, verbs.publish_batch("a_orders", [{"k": str(number)} for number in range(9)]))
    looks = count(1)

    def look() -> tuple[int, int]:
        if next(looks) % 5 == 0:
            run(stage, verbs.consume("a_orders"))
        return waiting(dsn)

    assert until_empty(look, standstill=3.0) > 3.0
    assert waiting(dsn)[0] == 0


def test_what_nobody_handles_is_not_waited_for(stage: Connection, dsn: str) -> None:
    run(stage, verbs.publish("a_orders", {"k": "stuck"}))
    assert until_empty(lambda: waiting(dsn), standstill=1.0) >= 1.0
    assert account(stage, CLEAN).wrong["blocked"] == ["a_orders: stuck"]


@pytest.mark.parametrize(
    ("damage", "found"),
    [
        ("DELETE FROM messages.message_archive WHERE message ->> 'k' = '1'", {"lost": ["1"], "stale": ["1"]}),
        ("UPDATE messages.message_archive SET handled_by = 'other' WHERE message ->> 'k' = '1'", {"stale": ["1"]}),
        ("UPDATE messages.message_archive SET result = 'lock_expired' WHERE message ->> 'k' = '1'",
         {"stale": ["1"], "dead of faults": ["1"]}),
        ("UPDATE messages.message_archive SET attempts = 1001 WHERE message ->> 'k' = '1'",
         {"too many attempts": ["1"]}),
        ("""SELECT messages.publish('a_orders', '{"k": "1"}')""", {"doubled": ["1"], "blocked": ["a_orders: 1"]}),
        ("""SELECT messages.publish('a_orders', '{"k": "3"}')""", {"unexpected": ["3"], "blocked": ["a_orders: 3"]}),
        ("INSERT INTO public.effect VALUES ('1')", {"effect not once": ["1"]}),
    ],
)  # fmt: skip
def test_damage_is_found(stage: Connection, damage: str, found: dict[str, list[str]]) -> None:
    stage.execute(damage.encode())
    assert wrong(stage) == found


def test_leases_beyond_the_limits_are_found_and_those_at_the_limits_are_not(stage: Connection) -> None:
    key = count(1)

    def lease(number: int, group_key: str | None) -> None:
        bodies = [{"k": f"of lease {next(key)}"} for _ in range(number)]
        run(stage, verbs.publish_batch("a_limited", bodies, group_keys=[group_key] * number))
        for message in (held := run(stage, verbs.lease("a_limited", max_messages=number))):
            entries.extend([told("invoke", message.body["k"]), told("ok", message.body["k"])])
        assert held[0].lock_token
        run(stage, verbs.archive(held[0].lock_token, [message.id for message in held]))

    entries: list[dict[str, Any]] = []
    run(stage, verbs.alter_queue("a_limited", max_leased_per_group=1000))
    for _ in range(3):
        lease(leases.PER_GROUP, "g")
    lease(leases.IN_ANY_SECOND - 3 * leases.PER_GROUP, None)
    assert wrong(stage, *entries) == {}
    lease(leases.PER_GROUP + 1, "h")
    too_many = leases.PER_GROUP + 1
    found = {
        "beyond max_leased_per_group": [f"{too_many}"],
        "beyond rate_limit": [f"{leases.IN_ANY_SECOND + too_many}"],
    }
    assert wrong(stage, *entries) == found


def test_a_group_that_is_out_of_order_is_found(stage: Connection) -> None:
    for number in (1, 2):
        run(stage, verbs.publish("a_groups", {"k": f"g{number}", "g": "group", "n": number}))
    entries = [told("invoke", "g1", "g2"), told("ok", "g1", "g2")]
    run(stage, verbs.consume("a_groups", max_messages=2))
    stage.execute(
        "UPDATE messages.message_archive SET archived_at = archived_at + interval '1 s' WHERE message ->> 'k' = 'g1'"
    )
    assert wrong(stage, *entries) == {"out of order": ["g2"]}
