"""Whatever a caller gives to a function of the schema, the call succeeds or raises an error of ours, within seconds."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from psycopg import sql

from airflow_provider_pgqueue.core import run, verbs
from tools import ROOT

Connection = psycopg.Connection[Any]
Queue = Callable[..., str]

SHELVES = ("lease", "dead", "queues", "schedules", "roles", "partitions", "archive", "upkeep", "history", "audit")
CALLS = 60
INTEGERS = ["0", "1", "-1", "2", "1000", "32767", "32768", "2147483647", "-2147483648"]
MOMENTS = ["now", "infinity", "-infinity", "4713-01-01 BC", "294276-12-31 23:59:59"]
# As PostgreSQL reads them. ID and TOKEN stand for those of a leased message, DEAD and DEAD_TOKEN of a leased dead one.
POOLS = {
    "text": [
        *("", " ", "orders", "limited", "nope", "nightly", "packer", "packer/0/0", "packer/99999999999999999999/0"),
        *("* * * * *", "UTC", "success", "failed", "consume", "day", "messages_limited", "message_archive_default"),
        *("a.b", "../x", "%s", "größe", "\n\t", "[(", "é" * 255, "x" * 1_000_000),
    ],
    "integer": INTEGERS,
    "bigint": [*INTEGERS, "9223372036854775807", "-9223372036854775808"],
    "boolean": ["true", "false"],
    "uuid": ["TOKEN", "DEAD_TOKEN", "00000000-0000-0000-0000-000000000000"],
    "interval": [
        *("0", "1 second", "-1 second", "1 microsecond", "178000000 years", "-178000000 years", "2147483647 days"),
        *("80000 months -2400000 days 1 hour", "-80000 months 2400000 days", "1 month -29 days", "2562047788:00:54"),
    ],
    "timestamp with time zone": MOMENTS,
    "timestamp without time zone": MOMENTS,
    "jsonb": [
        *("null", "1", "1e400", '"a"', "[]", "{}", "[1, null]", '{"a": {"b": []}}', '{"1": null, "2": "x"}'),
        *('{"ID": null}', '{"ID": 5}', '{"ID": {"result": 1}}', '{"ID": {"output": null}}', '{"DEAD": null}'),
        *('{"ID": {"result": "failed", "failure": [1]}}', '{"ID": {"result": "failed", "details": {"a": 1}}}'),
        *('{"partition": "x", "chunks": [5], "files": [{"chunk": "x"}]}', f'{{"error": "{"x" * 70_000}"}}'),
    ],
    "text[]": [
        *("{}", "{orders}", "{NULL}", "{orders,NULL}", "{{failed},{rejected}}", "[5:6]={failed,failed}", "{failed}"),
        "{" + "x," * 20_000 + "x}",
    ],
    "bigint[]": [
        *("{}", "{ID}", "{DEAD}", "{NULL}", "{ID,ID,NULL}", "{{ID},{1}}", "[-3:-3]={ID}", "{9223372036854775807}"),
    ],
}


def verbs_of(shelf: str) -> set[str]:
    return {path.stem for path in (ROOT / "sql" / "functions" / shelf).glob("*.sql")}


@pytest.mark.parametrize("shelf", SHELVES)
def test_any_arguments_give_success_or_an_error_of_ours(conn: Connection, queue: Queue, shelf: str) -> None:
    queue("orders", max_attempts=1000)
    queue("limited", max_leased=5, max_depth=100)
    run(conn, verbs.schedule("nightly", "0 3 * * *", "orders", 1))
    conn.execute("SET statement_timeout = '5s'")
    functions = conn.execute(
        "SELECT p.proname, p.proargnames[:p.pronargs], array_agg(format_type(a.type, NULL) ORDER BY a.place)"
        "  FROM pg_proc p CROSS JOIN LATERAL unnest(p.proargtypes) WITH ORDINALITY AS a (type, place)"
        " WHERE p.pronamespace = 'messages'::regnamespace AND p.proname = ANY (%s)"
        "   AND has_function_privilege('messages_admin', p.oid, 'EXECUTE') GROUP BY p.oid ORDER BY p.proname",
        [sorted(verbs_of(shelf))],
    ).fetchall()
    assert functions or shelf in ("upkeep",)
    raised = {}
    for name, arguments, types in functions:
        chance = random.Random(name)
        with conn.transaction(force_rollback=True):
            stand_ins = prepare(conn)
            for _ in range(CALLS):
                given = {
                    argument: None if chance.random() < 0.1 else (kind, chance.choice(POOLS[kind]))
                    for argument, kind in zip(arguments, types, strict=True)
                    if chance.random() < 0.8
                }
                if error := refused(conn, name, given, stand_ins):
                    raised[f"{name}: {error.splitlines()[0][:200]}"] = str(given)[:500]
    assert sorted(raised) == [], raised


def refused(
    conn: Connection, name: str, given: dict[str, tuple[str, str] | None], stand_ins: dict[str, str]
) -> str | None:
    """Return what a call raises that is not ours, and leave nothing behind."""
    with conn.transaction(force_rollback=True):
        call = []
        for argument, value in given.items():
            kind, said = value or ("unknown", None)
            for word, stand_in in stand_ins.items():
                if said and word in said:  # a million letters are searched quickly, and matched slowly
                    said = re.sub(rf"\b{word}\b", stand_in, said)
            call.append(sql.SQL("{} => {}::" + kind).format(sql.Identifier(argument), sql.Literal(said)))
        query = sql.SQL("SELECT * FROM messages.{}({})").format(sql.Identifier(name), sql.SQL(", ").join(call))
        try:
            conn.execute(query)
        except psycopg.Error as error:
            state = error.sqlstate or ""
            # A function that needs an argument is not found without it.
            return None if state.startswith("PQ") or state == "42883" else f"{state} {error}"
    return None


def prepare(conn: Connection) -> dict[str, str]:
    """Lease a message and a dead message."""
    run(conn, verbs.publish_batch("orders", [1, 2], group_keys=["a", None]))
    dead, message = run(conn, verbs.lease("orders", max_messages=2))
    run(conn, verbs.archive(dead.lock_token, [dead.id], result="failed"))
    (leased,) = run(conn, verbs.lease_dead("orders"))
    return {
        "TOKEN": str(message.lock_token),
        "ID": str(message.id),
        "DEAD_TOKEN": str(leased.lock_token),
        "DEAD": str(dead.id),
    }
