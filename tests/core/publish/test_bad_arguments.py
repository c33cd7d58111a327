"""Arguments from the edges of their types: each call publishes or gets an error of ours, and hurts nobody else."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from functools import partial
from typing import Any

import psycopg
import pytest
from psycopg import sql

from airflow_provider_pgqueue.core import PgQueueError, run, verbs
from airflow_provider_pgqueue.core.verbs.publish import Options
from tests.waiting import until

Connection = psycopg.Connection[Any]
Queue = Callable[..., str]

INTERVALS = [
    "-80000 months 2400000 days",
    "80000 months -2400000 days 1 hour",
    "-80000 months 2400000 days 1 hour",
    "178000000 years",
    "-178000000 years",
    "1 mon -30 days",
    "1 mon -31 days",
    "2 mons -60 days 1 second",
    "1 day -24 hours",
    "2147483647 days",
    "-2147483648 days",
    "2562047787 hours",
    "-2562047787 hours",
    "1 us",
    "-1 us",
    "0",
    "1 hour",
    "366 days",
    "1000 years",
    "-2147483647 months 2147483647 days 2562047787 hours",
    None,
]
# By 30-day months each of these is 0, an hour, a second or less.
ODD = [*INTERVALS[:3], "1 mon -31 days"]
MOMENTS = [
    "infinity",
    "-infinity",
    "4714-11-24 00:00:00+00 BC",
    "294276-12-31 23:59:59+00",
    "epoch",
    "1969-12-31 00:00+00",
    "now",
    "tomorrow",
    "2050-01-01 00:00+00",
    None,
]
INTEGERS = [0, 1, -1, 5, 9, 10, 100, 32767, 32768, -32769, 2**31 - 1, -(2**31), None]
BIGINTS = [*INTEGERS, 2**63 - 1, -(2**63), 2**62, 10**15]
NOISE = "".join(random.Random(1).choices("abcdefghijklmnopqrstuvwxyz0123456789", k=100_000))
TEXTS = [
    "",
    " ",
    "orders",
    "nowhere",
    "shop.order",
    "a..b",
    "#",
    "*.#",
    ".".join("#" * 128),
    ".".join("*" * 128),
    "x" * 255,
    "ü" * 255,
    "x" * 256,
    NOISE[:2600],
    NOISE[:2601],
    NOISE[:3000],
    NOISE,
    "skip",
    "replace",
    "\u2028\n\t",
    "'; DROP TABLE messages.message; --",
    "%s",
    "* * * * *",
    "@daily",
    "UTC",
    "Europe/Berlin",
    "always",
    None,
]
ARRAYS = [
    "{}",
    "{a}",
    "{a,b}",
    "{NULL}",
    "{NULL,NULL}",
    "{{a},{b}}",
    "[5:5]={a}",
    "[0:1]={a,b}",
    '{""}',
    "{" + NOISE[:3000] + "}",
    "{" + "x" * 256 + "}",
    "{a..b}",
    "{a,a}",
    None,
]
BODIES = [
    "null",
    "1",
    "{}",
    "[]",
    "[1]",
    "[1, 2]",
    "[null]",
    "[[[]]]",
    "-1e400",
    "[1e400, 2]",
    '{"a": {"b": []}}',
    json.dumps(NOISE[:3000]),
    json.dumps([NOISE[:3000]]),
    json.dumps({"k": NOISE}),
    json.dumps({"k": "x" * 100_000}),
    '[{"partition": 0, "attempt": 1, "rows": 1}]',
    '[{"partition": 0, "attempt": 1, "rows": -9223372036854775808}]',
    '[{"attempt": "x"}]',
    '[{"rows": 1e30}]',
    '[{"rows": 1.5, "attempt": null}]',
    '[{"id": 1, "message": 1}]',
    '[{"id": 1e30}]',
    None,
]
POOLS = {
    "interval": INTERVALS,
    "timestamp with time zone": MOMENTS,
    "integer": INTEGERS,
    "bigint": BIGINTS,
    "text": TEXTS,
    "text[]": ARRAYS,
    "jsonb": BODIES,
    "boolean": [True, False, None],
}
# Enough of each to reach what lies behind the first check.
USUAL: dict[str, list[Any]] = {
    "queue_name": ["orders", "narrow"],
    "topic": ["shop.order"],
    "message": ["1"],
    "messages": ["[1]", "[1, 2]"],
    "stage_id": ["job"],
    "dedup_keys": ["{a}", "{a,b}"],
    "pattern": ["shop.*"],
    "schedule_name": ["nightly"],
    "cron": ["* * * * *"],
    "time_zone": ["UTC"],
    "run_id": ["run", "replayed"],
    "winners": ["[]"],
    "winner": ['{"partition": 0, "attempt": 1, "rows": 0}'],
    "partitions": ["{}"],
    "rows": ['[{"id": 1, "message": 1}]'],
}
PUBLISHING = [
    "publish",
    "publish_batch",
    "publish_deduplicated",
    "publish_topic",
    "route_topic",
    "bind_topic",
    "unbind_topic",
    "stage_publish",
    "publish_staged",
    "begin_partitions",
    "publish_partition",
    "finish_partitions",
    "drop_stage",
    "schedule",
    "replay",
]
DURABLE = "SELECT queue_name, max_attempts, max_body_bytes, max_depth, paused FROM messages.queue ORDER BY 1"
STRAY = """
SELECT id, queue_name, priority, visible_at, due_at, expires_at FROM messages.message
 WHERE priority NOT BETWEEN 0 AND 9 OR created_at > clock_timestamp()
    OR coalesce(due_at, visible_at) < clock_timestamp() - interval '1 hour'
    OR coalesce(due_at, visible_at) > clock_timestamp() + interval '3661 days'
    OR expires_at > clock_timestamp() + interval '3661 days' OR expires_at < created_at
    OR pg_column_size(headers #> '{}') > 66000 OR (visible_at = 'infinity') <> (due_at IS NOT NULL)
"""


def arguments_of(conn: Connection, function: str) -> dict[str, tuple[str, bool]]:
    """The arguments of a function of the schema: the type of each, and whether it may be left out."""
    rows = conn.execute(
        "SELECT a.name, format_type(a.type, NULL), a.place > p.pronargs - p.pronargdefaults FROM pg_proc p"
        " CROSS JOIN unnest(p.proargnames[:p.pronargs], p.proargtypes::oid[]) WITH ORDINALITY AS a (name, type, place)"
        " WHERE p.oid = to_regproc('messages.' || %s) ORDER BY a.place",
        [function],
    ).fetchall()
    assert rows
    return {name: (type_, optional) for name, type_, optional in rows}


def call(conn: Connection, function: str, arguments: dict[str, tuple[str, Any]]) -> str | None:
    """Call a function and return the SQLSTATE of its error, None if it succeeded."""
    given = ", ".join(f'"{name}" => %s::{type_}' for name, (type_, _) in arguments.items())
    try:
        with conn.transaction():
            conn.execute(f"SELECT messages.{function}({given})".encode(), [value for _, value in arguments.values()])
    except psycopg.Error as error:
        return str(error.sqlstate)
    return None


def leases_from_every_priority(conn: Connection) -> bool:
    """Whether consumers can go on: a lease and the upkeep reach all priorities of all queues."""
    for name in ("orders", "narrow"):
        run(conn, verbs.lease(name, max_messages=10_000))
        run(conn, verbs.consume(name, max_messages=10_000))
    return "freed" in run(conn, verbs.upkeep())


@pytest.fixture
def market(conn: Connection, queue: Queue) -> Connection:
    """A session to a database with two queues, a binding, a stage and a run."""
    conn.execute("SET statement_timeout = '10s'")
    queue("orders", max_body_bytes=50_000)
    queue("narrow", max_depth=1_000, max_body_bytes=50_000)
    run(conn, verbs.bind_topic("orders", "shop.*"))
    run(conn, verbs.stage_publish("job"))
    run(conn, verbs.begin_run("replayed", "replay"))
    run(conn, verbs.begin_partitions("run"))
    return conn


@pytest.mark.parametrize("function", PUBLISHING)
def test_any_arguments_publish_or_get_an_error_of_ours(market: Connection, function: str) -> None:
    dice = random.Random(function)
    known = arguments_of(market, function)
    policies = market.execute(DURABLE).fetchall()
    internal, seen = [], set()
    for _ in range(150):
        arguments = {}
        for name, (type_, optional) in known.items():
            if optional and dice.random() < 0.6:
                continue
            strange = dice.random() < 1.5 / len(known)
            arguments[name] = (type_, dice.choice(POOLS[type_] if strange or name not in USUAL else USUAL[name]))
        state = call(market, function, arguments)
        seen.add(state)
        if state and not state.startswith("PQ"):
            internal.append((state, {name: str(value)[:60] for name, (_, value) in arguments.items()}))
    assert internal == []
    assert None in seen
    assert market.execute(STRAY).fetchall() == []
    assert market.execute(DURABLE).fetchall() == policies
    assert leases_from_every_priority(market)


def functions_with_intervals(conn: Connection) -> dict[str, list[str]]:
    """Each function that takes an interval from its callers, with the names of those arguments."""
    rows = conn.execute(
        "SELECT p.proname, array_agg(a.name) FROM pg_proc p"
        " CROSS JOIN unnest(p.proargnames[:p.pronargs], p.proargtypes::oid[]) AS a (name, type)"
        " WHERE p.pronamespace = 'messages'::regnamespace AND a.type = 'interval'::regtype"
        " AND has_function_privilege('messages_admin', p.oid, 'EXECUTE') GROUP BY 1"
    ).fetchall()
    return dict(rows)


USUAL_CALLS: dict[str, dict[str, Any]] = {
    "extend": {"lock_token": None, "ids": "{1}"},
    "extend_dead": {"lock_token": None, "ids": "{1}"},
    "release": {"lock_token": None, "ids": "{1}"},
    "requeue": {"lock_token": None, "ids": "{1}"},
    "lease_named": {"lease_name": "a", "queue_name": "orders"},
    "lease": {"queue_name": "orders"},
    "dispatch_messages": {"queue_name": "orders", "dag_id": "pack"},
    "dispatch_dead": {"queue_name": "orders", "dag_id": "mend"},
    "create_queue": {"queue_name": "new"},
    "alter_queue": {"queue_name": "orders"},
    "queue_history": {"queue_name": "orders"},
    "lease_dead": {"queue_name": "orders"},
    "requeue_dead": {"queue_name": "orders"},
    "queue_sparklines": {"queue_names": "{orders}"},
}


def test_every_function_judges_an_interval_by_the_moment_it_leads_to(market: Connection) -> None:
    tried = 0
    for function, names in functions_with_intervals(market).items():
        known = arguments_of(market, function)
        needed = USUAL_CALLS.get(function) or {
            name: USUAL[name][0] for name, (_, optional) in known.items() if not optional
        }
        usual = {name: (known[name][0], value) for name, value in needed.items()}
        for key, value in (("dedup_key", "key"), ("dedup_keys", "{key}")):
            usual |= {key: (known[key][0], value)} if key in known else {}
        for name in names:
            for value in INTERVALS:
                state = call(market, function, usual | {name: ("interval", value)})
                assert state is None or state.startswith("PQ"), (function, name, value, state)
                assert state == "PQ004" or value not in ODD, (function, name, value)
                market.execute(
                    "SELECT messages.drop_queue('new', force => true)"
                    if function == "create_queue" and not state
                    else "SELECT"
                )
                tried += 1
        assert market.execute(STRAY).fetchall() == []
        assert leases_from_every_priority(market)
    assert tried > 300


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT messages.extend(lock_token, ARRAY[id], {}) FROM messages.message",
        "SELECT messages.release(lock_token, ARRAY[id], {}) FROM messages.message",
        "SELECT messages.extend_dead(lock_token, ARRAY[id], {}) FROM messages.dead_message",
        "SELECT messages.requeue(lock_token, ARRAY[id], delay => {}) FROM messages.dead_message",
        "SELECT messages.lease_dead('orders', lease_for => {})",
        "SELECT messages.requeue_dead('orders', delay => {})",
        "SELECT messages.lease_named('a', 'orders', lease_for => {})",
        "SELECT messages.lease_named('held', 'orders', lease_for => {})",
        "SELECT messages.lease('orders', lease_for => {})",
    ],
)
def test_a_lease_ends_within_half_a_day_whatever_it_is_given(conn: Connection, queue: Queue, statement: str) -> None:
    queue("orders")
    run(conn, verbs.publish_batch("orders", range(6)))
    leased = run(conn, verbs.lease("orders", max_messages=2))
    assert leased[0].lock_token
    run(conn, verbs.archive(leased[0].lock_token, [message.id for message in leased], result="failed"))
    conn.execute(
        "SELECT messages.lease('orders'), messages.lease_dead('orders', max_messages => 1),"
        " messages.lease_named('held', 'orders')"
    )
    for value in INTERVALS:
        state = state_of(conn, statement.format("%s::interval"), value)
        assert state is None or state.startswith("PQ"), (value, state)
        assert (
            conn.execute(
                "SELECT id, lock_expires_at FROM (SELECT id, lock_token, lock_expires_at FROM messages.message"
                " UNION ALL SELECT id, lock_token, lock_expires_at FROM messages.dead_message) leases"
                " WHERE (lock_token IS NULL) <> (lock_expires_at IS NULL)"
                " OR lock_expires_at > clock_timestamp() + interval '12 hours 1 minute'"
            ).fetchall()
            == conn.execute(STRAY).fetchall()
            == []
        )


def test_a_month_counts_as_long_as_it_can_be(conn: Connection) -> None:
    def judge(value: str, at_least: str = "0", at_most: str = "31 days") -> str | None:
        given = {"name": "delay", "value": value, "at_least": at_least, "at_most": at_most}
        return call(
            conn, "check_duration", {name: (("text", "interval")[name != "name"], v) for name, v in given.items()}
        )

    assert judge("1 month") is judge("31 days") is judge("1 month -28 days") is judge("1 day -24 hours") is None
    assert judge("1 month -29 days") == judge("1 month 1 second") == judge("-1 us") == "PQ004"
    assert judge("100 years", at_most="100 years") is None


@pytest.mark.parametrize("column", ["lease_for", "backoff_first", "backoff_max", "dedup_window", "retention"])
def test_no_policy_in_the_table_leads_into_the_past(conn: Connection, queue: Queue, column: str) -> None:
    queue("orders")
    with pytest.raises(psycopg.errors.CheckViolation):
        conn.execute(
            sql.SQL("UPDATE messages.queue SET {} = '-80000 months 2400000 days 1 hour'").format(sql.Identifier(column))
        )


@pytest.mark.parametrize("moment", ["-infinity", "4714-11-24 00:00:00+00 BC"])
def test_no_row_says_a_moment_that_nobody_can_reckon_with(conn: Connection, queue: Queue, moment: str) -> None:
    """Such a row stopped the upkeep and the status of all queues."""
    queue("orders")
    run(conn, verbs.publish("orders", 1))
    with pytest.raises(psycopg.errors.CheckViolation, match="one of these times is out of range"):
        conn.execute(
            "INSERT INTO messages.message (queue_name, message, visible_at) VALUES ('orders', '1', %s)", [moment]
        )
    for column in ("visible_at", "created_at"):
        with pytest.raises(psycopg.errors.CheckViolation, match="one of these times is out of range"):
            conn.execute(sql.SQL("UPDATE messages.message SET {} = %s").format(sql.Identifier(column)), [moment])
    insert = """INSERT INTO messages.message_archive (queue_name, result, message, created_at, leased_at)
                VALUES ('orders', 'success', '1', %s, %s)"""
    for created_at, leased_at in ((moment, None), ("now", moment), ("infinity", "now"), ("now", "infinity")):
        with pytest.raises(psycopg.errors.CheckViolation, match="one of these times is out of range"):
            conn.execute(insert, [created_at, leased_at])


@pytest.mark.parametrize("take", ["lease", "consume", "upkeep"])
def test_a_row_with_as_many_attempts_as_there_can_be_stops_nothing(conn: Connection, queue: Queue, take: str) -> None:
    queue("orders", max_attempts=1000)
    run(conn, verbs.publish_batch("orders", [1, 2]))
    conn.execute("UPDATE messages.message SET attempts = 32767 WHERE message = '1'")
    if take == "upkeep":
        conn.execute("UPDATE messages.message SET lock_expires_at = now() - interval '1 s' WHERE message = '1'")
        assert run(conn, verbs.upkeep())["archived"] == 1
    else:
        taken = sql.SQL("SELECT count(*) FROM messages.{}('orders', 10)").format(sql.Identifier(take))
        assert conn.execute(taken).fetchone() == (2,)


def test_a_row_that_is_ready_since_1970_is_leased_and_an_older_one_is_refused(conn: Connection, queue: Queue) -> None:
    queue("orders")
    insert = "INSERT INTO messages.message (queue_name, message, visible_at) VALUES ('orders', '1', %s)"
    for moment in ("0001-01-01 00:00+00", "1969-12-31 00:00+00"):
        with pytest.raises(psycopg.errors.CheckViolation, match="those that are to come since 1970"):
            conn.execute(insert, [moment])
    conn.execute(insert, ["epoch"])
    run(conn, verbs.publish("orders", 2))
    conn.execute(insert, ["epoch"])
    bodies: list[Any] = []

    def all_leased() -> bool:
        bodies.extend(message.body for message in run(conn, verbs.lease("orders")))
        return len(bodies) == 3

    until(all_leased)
    assert sorted(bodies) == [1, 1, 2]


@pytest.mark.parametrize("first", ["24 hours", "1 day"])
def test_the_longest_back_off_overflows_nothing(conn: Connection, queue: Queue, first: str) -> None:
    queue("orders", max_attempts=1000, backoff_first=first, backoff_max="30 days")
    run(conn, verbs.publish("orders", 1))
    (message,) = run(conn, verbs.lease("orders"))
    assert message.lock_token
    conn.execute("UPDATE messages.message SET attempts = 900")
    assert run(conn, verbs.release(message.lock_token, [message.id], back_off=True)) == [message.id]
    assert conn.execute(
        "SELECT visible_at - clock_timestamp() BETWEEN '14 days' AND '30 days' FROM messages.message"
    ).fetchone() == (True,)


# Limits ---------------------------------------------------------------------------------------------------------------


def state_of(conn: Connection, statement: str, *values: Any) -> str | None:
    try:
        conn.execute(statement.encode(), values)
    except psycopg.Error as error:
        return error.sqlstate
    return None


@pytest.mark.parametrize(
    "again", ["publish(%s, %s, dedup_key => 'k'", "publish_deduplicated(%s, jsonb_build_array(%s::jsonb), '{k}'"]
)
def test_a_body_that_replaces_another_is_no_larger_than_the_queue_allows(
    conn: Connection, queue: Queue, again: str
) -> None:
    queue("orders", max_body_bytes=100)
    run(conn, verbs.publish("orders", 1, dedup_key="k"))
    call = f"SELECT messages.{again}, on_conflict => 'replace')"
    assert state_of(conn, call, "orders", json.dumps("x" * 200)) == "PQ005"
    assert state_of(conn, call, "orders", json.dumps("x" * 20)) is None
    assert [message.body for message in run(conn, verbs.lease("orders"))] == ["x" * 20]


def test_a_body_out_of_a_table_counts_as_large_as_it_is(conn: Connection, queue: Queue) -> None:
    queue("orders", max_body_bytes=1_000)
    conn.execute("CREATE TABLE public.source (body jsonb)")
    conn.execute("INSERT INTO public.source VALUES (to_jsonb(repeat('x', 5000)))")
    assert conn.execute("SELECT pg_column_size(body) < 1000 FROM public.source").fetchone() == (True,)
    for number in range(10):  # the generic plan, in which the value is not a constant
        run(conn, verbs.publish("orders", number))
    # A trigger publishes the value as its table holds it.
    conn.execute(
        "CREATE FUNCTION public.pass_on() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN PERFORM messages.publish('orders', NEW.body); RETURN NULL; END $$;"
        " CREATE TRIGGER pass_on AFTER UPDATE ON public.source FOR EACH ROW EXECUTE FUNCTION public.pass_on()"
    )
    for statement in (
        "UPDATE public.source SET body = body",
        "SELECT messages.publish('orders', body) FROM public.source",
        "SELECT messages.publish_batch('orders', jsonb_build_array(body)) FROM public.source",
        "INSERT INTO messages.message (queue_name, message) SELECT 'orders', body FROM public.source",
    ):
        assert state_of(conn, statement) == "PQ005", statement


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT messages.publish('orders', %s)",
        "SELECT messages.publish('orders', %s, dedup_key => 'other')",
        "SELECT messages.publish('orders', %s, dedup_key => 'k', on_conflict => 'replace')",
        "SELECT messages.publish('orders', %s, group_key => 'a')",
        "SELECT messages.publish_batch('orders', jsonb_build_array(1, %s::jsonb))",
        "SELECT messages.publish_topic('shop.a', %s)",
        "INSERT INTO messages.message (queue_name, message) VALUES ('orders', '1'), ('orders', %s)",
        "SELECT messages.replay('run', 'orders', jsonb_build_array(jsonb_build_object('id', 1, 'message', %s::jsonb)))",
    ],
)
def test_a_body_whose_text_nobody_can_read_comes_in_by_no_way(conn: Connection, queue: Queue, statement: str) -> None:
    """A number of ten bytes may have 131,072 digits; 60 of them are 900 bytes as jsonb, and 8 MB as text."""
    queue("orders")
    run(conn, verbs.bind_topic("orders", "shop.*"))
    run(conn, verbs.begin_run("run", "replay"))
    run(conn, verbs.publish("orders", 1, dedup_key="k"))
    for digits in (60, 200):
        assert state_of(conn, statement, "[" + ", ".join(["1e131071"] * digits) + "]") == "PQ005"
    assert state_of(conn, statement, json.dumps(["x" * 2000])) is None


def test_a_body_whose_text_no_server_can_make_is_too_large(conn: Connection, queue: Queue) -> None:
    """Once is enough: to come to the end of its gigabyte takes the server seconds."""
    queue("orders")
    statement = "INSERT INTO messages.message (queue_name, message) VALUES ('orders', %s)"
    assert state_of(conn, statement, "[" + ", ".join(["1e131071"] * 9000) + "]") == "PQ005"


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT messages.publish('orders', '1', headers => %s)",
        "SELECT messages.publish_batch('orders', '[1]', headers => %s)",
        "SELECT messages.publish('orders', '1', dedup_key => 'k', on_conflict => 'replace', headers => %s)",
        "SELECT messages.publish_topic('shop.a', '1', headers => %s)",
        "INSERT INTO messages.message (queue_name, message, headers) VALUES ('orders', '1', %s)",
        "SELECT messages.schedule('nightly', '@daily', 'orders', '1', headers => %s)",
        "SELECT messages.replay('run', 'orders', jsonb_build_array(jsonb_build_object('id', 1, 'headers', %s::jsonb)))",
    ],
)
def test_headers_are_bounded_in_every_way_in(conn: Connection, queue: Queue, statement: str) -> None:
    queue("orders")
    run(conn, verbs.bind_topic("orders", "shop.*"))
    run(conn, verbs.begin_run("run", "replay"))
    run(conn, verbs.publish("orders", 1, dedup_key="k"))
    assert state_of(conn, statement, json.dumps({"k": "x" * 70_000})) == "PQ005"
    digits = "[" + ", ".join(["1e131071"] * 60) + "]"  # of 900 bytes as jsonb, of 8 MB as text
    assert state_of(conn, statement, f'{{"k": {digits}}}') == "PQ005"
    assert state_of(conn, statement, json.dumps({"k": "x" * 60_000})) is None


def test_a_queue_that_was_full_takes_messages_again_after_a_rollback(
    connect: Callable[..., Connection], queue: Queue
) -> None:
    queue("orders", max_depth=20_000)
    one, other = connect(autocommit=False), connect()
    many = "SELECT count(*) FROM messages.publish_batch('orders', (SELECT jsonb_agg(n) FROM generate_series(1, %s) n))"
    one.execute(many.encode(), [20_000])
    one.rollback()
    assert state_of(other, many, 20_000) is None
    until(lambda: state_of(other, many, 1) == "PQ007")  # the count may be a second old


def test_a_statement_that_is_too_large_does_not_fill_the_queue(conn: Connection, queue: Queue) -> None:
    queue("orders", max_depth=50_000)
    many = "SELECT count(*) FROM messages.publish_batch('orders', (SELECT jsonb_agg(n) FROM generate_series(1, %s) n))"
    assert state_of(conn, many, 50_001) == "PQ007"
    assert state_of(conn, many, 50_000) is None


# Stages ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ordinal", [2**63 - 1, -1, -(2**63), 10**13])
def test_a_staged_row_is_not_placed_in_another_age(conn: Connection, queue: Queue, ordinal: int) -> None:
    queue("orders")
    assert run(conn, verbs.stage_publish("job")) == "messages.publish_stage_1"
    insert = "INSERT INTO messages.publish_stage_1 (attempt, ordinal, message) VALUES (1, %s, '1')"
    assert state_of(conn, insert, ordinal) == "23514"


@pytest.mark.parametrize("key", [None, "k"])
def test_a_row_that_is_staged_while_its_attempt_is_published_reaches_no_queue(
    connect: Callable[..., Connection], queue: Queue, key: str | None
) -> None:
    queue("orders")
    queue("others")
    publisher, late, blocker = connect(), connect(), connect(autocommit=False)
    assert run(late, verbs.stage_publish("job")) == "messages.publish_stage_1"
    insert = (
        "INSERT INTO messages.publish_stage_1 (attempt, ordinal, message, queue_name, dedup_key)"
        " VALUES (1, %s, '1', %s, %s)"
    )
    late.execute(insert, [1, "orders", key])
    # What publishes is held up after the check, where it opens the table of the messages.
    blocker.execute("LOCK TABLE messages.message IN SHARE MODE")
    winners = '[{"partition": 0, "attempt": 1, "rows": 1}]'
    with ThreadPoolExecutor(1) as pool:
        published = pool.submit(state_of, publisher, "SELECT messages.publish_staged('job', 'run', %s)", winners)
        until(
            lambda: (
                late.execute(
                    "SELECT FROM pg_locks WHERE NOT granted AND relation = 'messages.message'::regclass"
                ).rowcount
            )
        )
        late.execute(insert, [2, "others", None])
        blocker.rollback()
        assert published.result() == "PQ012"
    assert late.execute("SELECT FROM messages.message").rowcount == 0


# From Python ----------------------------------------------------------------------------------------------------------

MANY = {"reference": "references", "topic": "topics", "group_key": "group_keys", "dedup_key": "dedup_keys"}
OBJECTS: list[Any] = [
    None, "", "5", "x", "1 hour", "\0", "a\ud800", 5, 10**20, -(10**20), 1.5, float("nan"), float("inf"), True, b"x",
    object(), [], ["a"], [1], ["\0"], ["\ud800"], [None], {}, {"a": object()}, {1: 2},
    timedelta.max, timedelta.min, timedelta(0),
    datetime.max, datetime.min, datetime.max.replace(tzinfo=UTC), datetime.min.replace(tzinfo=UTC), date(2026, 1, 1),
    max,
]  # fmt: skip


def test_any_object_from_python_publishes_or_gets_an_error_of_ours(market: Connection) -> None:
    def attempts(value: Any) -> Iterator[Callable[[], Any]]:
        yield partial(verbs.publish, value, 1)
        yield partial(verbs.publish_batch, value, [1])
        yield partial(verbs.publish_batch, "orders", value)
        for name in Options.__annotations__:
            yield partial(verbs.publish, "orders", 1, **{name: value})
            yield partial(verbs.publish_batch, "orders", [1], **{MANY.get(name, name): value})
            yield partial(verbs.publish_batch, "orders", [1], **{MANY.get(name, name): [value]})

    tried = 0
    for value in OBJECTS:
        for attempt in attempts(value):
            tried += 1
            with suppress(PgQueueError):
                run(market, attempt())
    assert tried > 1000
    assert market.execute(STRAY).fetchall() == []
    assert leases_from_every_priority(market)
