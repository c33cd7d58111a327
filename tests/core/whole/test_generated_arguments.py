"""Hostile values for every function and every verb: an error of ours or a result, never an internal error, nor a hang.

EXAMPLES=n tries n calls of each instead of a few.
"""

from __future__ import annotations

import inspect
import os
import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from typing import Any, Unpack, get_args, get_origin, get_type_hints
from uuid import UUID, uuid4

import psycopg
import pytest

from airflow_provider_pgqueue.core import Failed, PgQueueError, Success, run, verbs
from tools.site.verbs import names as verb_names

Connection = psycopg.Connection[Any]

CALLS = int(os.environ.get("EXAMPLES", "8"))
LONGEST = "5s"  # a call that takes longer hangs
WORDS = [
    "orders", "orders", "orders", "nobody", "", " ", "x" * 300, "x" * 100_000, "a'b\"c;--", "ünï ☃", "\x01\x7f",
    "Orders", "%s %(x)s {0}", "../../etc", "a.b.c", "*.b.#", "#.#.#", "* * * * *", "0 0 31 2 *", "*/0 * * * *", "UTC",
    "Mars/Olympus", "Z" * 1_000_000, "success", "failed", "skip", "replace", "month", "publish", "job", "infinity",
    "NaN", "postgres", "messages_admin", "1", "stream/1/2",
]  # fmt: skip
NUMBERS = [0, 1, -1, 2, 7, 9, 10, 100, 1000, 10_000, 10_001, 32_767, 2**31 - 1, -(2**31)]
VALUES: dict[str, list[Any]] = {
    "text": WORDS,
    "integer": NUMBERS,
    "smallint": [0, 9, -1, 10, 32_767, -32_768],
    "bigint": [*NUMBERS, 2**63 - 1, -(2**63), 10**12],
    "boolean": [True, False],
    "uuid": [str(UUID(int=0)), str(uuid4())],
    "interval": [
        "0", "1 second", "-1 second", "1 microsecond", "1 day", "366 days", "1000 years", "178000000 years",
        "-178000000 years", "-80000 months 2400000 days", "80000 months -2400000 days 1 hour", "2147483647 days",
    ],
    "timestamp with time zone": ["infinity", "-infinity", "4713-01-01 BC", "294276-12-31", "2020-01-01", "2031-02-03"],
    "timestamp without time zone": ["infinity", "-infinity", "4713-01-01 BC", "294276-12-31", "2020-01-01"],
    "jsonb": [
        "null", "1", "[]", "{}", '"x"', "[1, 2]", '{"k": 1}', "[null]", '[{"id": 1}]', '[{"id": "x"}]', "[[[]]]",
        '{"1": {"result": "nonsense"}}', '{"1": {"result": "success", "output": [1]}}', '{"1": 1}', "1e300",
        '[{"partition": 0, "attempt": 1, "rows": 1}]', "[" * 300 + "]" * 300, '{"k": "' + "x" * 100_000 + '"}',
        '[{"partition": null, "attempt": -1, "rows": -5}]', '[{"id": 1, "message": {}, "headers": 7, "topic": "*"}]',
    ],
    "bigint[]": ["{}", "{1}", "{NULL}", "{1,1}", "{{1,2},{3,4}}", "{9223372036854775807}", [*range(5000)]],
    "text[]": ["{}", "{orders}", "{NULL}", '{"",a}', "{{a,b},{c,d}}", "{success,failed}", ["k"] * 5000, ["x" * 10_000]],
}  # fmt: skip


@pytest.fixture
def other(conn: Connection, queue: Callable[..., str]) -> Connection:
    """A database with a queue that the calls name, and one that no call may touch."""
    for name in ("orders", "other"):
        queue(name)
    run(conn, verbs.publish_batch("orders", [{"n": n} for n in range(5)], group_keys=["g", "g", None, None, None]))
    run(conn, verbs.publish_batch("other", [1, 2, 3], priority=3))
    run(conn, verbs.lease("other"))
    run(conn, verbs.archive(run(conn, verbs.lease("orders"))[0].lock_token or uuid4(), [1], result="failed"))
    return conn


def functions(conn: Connection) -> list[tuple[str, list[str], list[str], int]]:
    """Return name, names and types of the arguments, and the number of defaults, of what some group may call."""
    return conn.execute(
        "SELECT p.proname, coalesce(p.proargnames[1:p.pronargs], '{}'), ARRAY("
        "  SELECT format_type(t, NULL) FROM unnest(p.proargtypes) WITH ORDINALITY AS a (t, n) ORDER BY n),"
        "  p.pronargdefaults"
        " FROM pg_proc p CROSS JOIN aclexplode(p.proacl) a WHERE p.pronamespace = 'messages'::regnamespace"
        " AND a.grantee = 'messages_admin'::regrole AND a.privilege_type = 'EXECUTE' ORDER BY 1"
    ).fetchall()


STATE = "SELECT array_agg(m ORDER BY id) FROM messages.message m WHERE queue_name = 'other'"


def test_no_function_fails_by_accident_hangs_or_touches_another_queue(
    other: Connection, connect: Callable[..., Connection]
) -> None:
    other.execute("CREATE ROLE hostile_admin LOGIN IN ROLE messages_admin")
    try:
        with connect(user="hostile_admin") as admin:
            admin.execute(f"SET statement_timeout = '{LONGEST}'".encode())
            admin.execute("SET client_min_messages = 'error'")
            told, calls = _call_all(admin, other)
    finally:
        other.execute("DROP ROLE hostile_admin")
    print(f"{calls} calls")
    assert not told, "\n".join(told)
    assert calls >= 500


def _call_all(admin: Connection, other: Connection) -> tuple[Mapping[str, int], int]:
    chance, told, calls = random.Random(1), Counter[str](), 0
    for name, names, kinds, defaults in functions(admin):
        for _ in range(CALLS if names else 1):
            given = {
                argument: None if chance.random() < 0.1 else chance.choice(VALUES[kind])
                for place, (argument, kind) in enumerate(zip(names, kinds, strict=True))
                if place < len(names) - defaults or chance.random() < 0.5
            }
            types_ = dict(zip(names, kinds, strict=True))
            arguments = ", ".join(f'"{key}" => %s::{types_[key]}' for key in given)
            calls += 1
            before = other.execute(STATE.encode()).fetchall()
            try:
                with admin.transaction(force_rollback=True):
                    call = f"SELECT * FROM messages.{name}({arguments})"  # noqa: S608
                    admin.execute(call.encode(), list(given.values()))
                    # Only this transaction sees what it changed; the view has no bodies.
                    changed = admin.execute(
                        "SELECT count(*) FROM messages.message_overview WHERE queue_name = 'other' AND priority = 3"
                    ).fetchone()
                    if changed != (3,):
                        told[f"{name} touched another queue"] += 1
            except psycopg.Error as error:
                state = error.sqlstate or ""
                if not state.startswith("PQ") and state != "42501":
                    shown = {key: str(value)[:40] for key, value in given.items()}
                    told[f"{name} {shown}: {state} {str(error).splitlines()[0][:120]}"] += 1
            assert other.execute(STATE.encode()).fetchall() == before
    return told, calls


# By what the annotation of a parameter has in it, the first that fits.
BY_ANNOTATION: dict[str, list[Any]] = {
    "DeadFilter": [verbs.DeadFilter()],
    "Literal": ["success", "failed", "retry", "fail", "topic", "", "\0", "\ud800", "x" * 10_000],
    "Mapping[int": [{}, {1: Success()}, {1: Failed("x\0")}, {-1: Success(output={"k": "\ud800"})}],
    "Mapping": [{}, {"k": 1}, {"k": "\0"}, {"k\ud800": [1]}, {"k": float("nan")}, {"k": "x" * 100_000}],
    "UUID": [UUID(int=0), uuid4()],
    "Duration": [
        0,
        -1,
        1.5,
        True,
        float("nan"),
        float("inf"),
        1e300,
        10**400,
        timedelta.max,
        timedelta(0),
        timedelta(1),
    ],
    "timedelta": [timedelta(0), timedelta(-1), timedelta(microseconds=1), timedelta.max, timedelta.min, timedelta(1)],
    "datetime": [datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC), datetime(2020, 1, 1, tzinfo=UTC)],
    "bool": [True, False],
    "Collection[int]": [[], [1], [1, 1], [-1], [2**63 - 1], [2**63], [2**100], list(range(5000))],
    "Sequence[int]": [[], [1], [2**63]],
    "[str": [[], ["orders"], ["\0"], ["\ud800"], ["", "x" * 10_000], ["failed"]],
    "int": [*NUMBERS, 2**63 - 1, 2**63, 2**100],
    "str": [*WORDS, "a\0b", "\ud800"],
    "Any": [None, 1, [], {}, "\0", "\ud800", float("nan"), 1e308, 10**400, [[[]]], {"k": "x" * 100_000}],
}


def generated(annotation: str, chance: random.Random) -> Any:
    """Return a value of the kind that an annotation names, as bad as it may be."""
    if "None" in annotation and chance.random() < 0.3:
        return None
    return chance.choice(next(values for part, values in BY_ANNOTATION.items() if part in annotation))


def named_together(verb: Callable[..., Any]) -> dict[str, Any]:
    """Return the annotations of the parameters that a TypedDict names."""
    dicts = [get_args(hint)[0] for hint in get_type_hints(verb).values() if get_origin(hint) is Unpack]
    return {name: kind for one in dicts for name, kind in one.__annotations__.items()}


def test_no_verb_fails_by_accident_or_hangs(other: Connection) -> None:
    chance, told, calls = random.Random(2), Counter[str](), 0
    other.execute(f"SET statement_timeout = '{LONGEST}'".encode())
    other.execute("SET client_min_messages = 'error'")
    options = verbs.Options.__annotations__ | verbs.BatchOptions.__annotations__
    for name in verb_names():
        verb = getattr(verbs, name)
        if inspect.isclass(verb):
            continue
        parameters = inspect.signature(verb).parameters.values()
        for _ in range(CALLS if parameters else 1):
            given = {
                each.name: generated(str(each.annotation), chance)
                for each in parameters
                if each.kind is not each.VAR_KEYWORD and (each.default is each.empty or chance.random() < 0.5)
            }
            if "which" in given:
                kinds = {each.name: str(each.type) for each in fields(verbs.DeadFilter) if chance.random() < 0.3}
                given["which"] = verbs.DeadFilter(**{key: generated(kind, chance) for key, kind in kinds.items()})
            if not name.startswith("publish"):
                together = named_together(verb).items()
                given |= {key: generated(str(kind), chance) for key, kind in together if chance.random() < 0.2}
            elif chance.random() < 0.8:
                known = chance.choice(sorted(options))
                given[known] = generated(str(options[known]), chance)
            calls += 1
            try:
                with other.transaction(force_rollback=True):
                    run(other, verb(**given))
            except (PgQueueError, TypeError, ValueError):
                pass
            except Exception as error:
                shown = {key: ascii(value)[:40] for key, value in given.items()}
                told[f"{name} {shown}: {type(error).__name__} {str(error)[:120]}"] += 1
    print(f"{calls} calls")
    assert not told, "\n".join(told)
    assert calls >= 500
