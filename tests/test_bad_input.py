"""Whatever anybody gives to an entry point: a result or an error of ours, within seconds, and nobody else is touched.

One table of hostile values, crossed with the SQL functions, the verbs, the commands and the classes of Airflow.
EXAMPLES=n tries n calls of each entry point instead of a few.
"""

from __future__ import annotations

import asyncio
import inspect
import io
import os
import random
import re
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import aclosing, contextmanager, suppress
from dataclasses import fields
from datetime import UTC, date, datetime, timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Unpack, get_args, get_origin, get_type_hints
from uuid import UUID, uuid4

import click
import psycopg
import pytest
from airflow.sdk import task
from airflow.sdk.bases.operator import ExecutorSafeguard
from jinja2 import TemplateError
from psycopg import sql

from airflow_provider_pgqueue.cli.options import ago, duration
from airflow_provider_pgqueue.cli.program import COMMANDS, program
from airflow_provider_pgqueue.cli.settings import Settings
from airflow_provider_pgqueue.core import (
    Failed,
    InvalidArgument,
    Message,
    PgQueueError,
    QueueNotFound,
    QueuePaused,
    Retry,
    Success,
    run,
    verbs,
)
from airflow_provider_pgqueue.core.errors import translate
from airflow_provider_pgqueue.core.message import PLURALS, BatchOptions, Options
from airflow_provider_pgqueue.decorators.pgqueue import PgQueueDecoratedOperator
from airflow_provider_pgqueue.hooks.pgqueue import PgQueueHook
from airflow_provider_pgqueue.notifications.pgqueue import PgQueueNotifier
from airflow_provider_pgqueue.operators.consume import PgQueueConsumeOperator
from airflow_provider_pgqueue.operators.dispatch import PgQueueDispatchOperator, PgQueueReconcileOperator
from airflow_provider_pgqueue.operators.maintenance import PgQueueMaintenanceOperator
from airflow_provider_pgqueue.operators.publish import (
    PgQueuePublishOperator,
    PgQueuePublishQueryOperator,
)
from airflow_provider_pgqueue.operators.requeue import PgQueueRequeueOperator
from airflow_provider_pgqueue.operators.setup import PgQueueSetupOperator
from airflow_provider_pgqueue.operators.spark import PgQueueSparkOperator
from airflow_provider_pgqueue.sensors.dead_message import PgQueueDeadMessageSensor
from airflow_provider_pgqueue.sensors.message import PgQueueMessageSensor
from airflow_provider_pgqueue.sensors.outcome import PgQueueOutcomeSensor
from airflow_provider_pgqueue.task import QueueTask
from airflow_provider_pgqueue.triggers.dead_message import PgQueueDeadMessageTrigger
from airflow_provider_pgqueue.triggers.message import PgQueueMessageTrigger
from airflow_provider_pgqueue.triggers.outcome import PgQueueOutcomeTrigger
from tests.airflow_layer.airflow_versions import AirflowException, TaskDeferred
from tests.airflow_layer.conftest import as_json
from tools.chapters import chapters, functions
from tools.site.verbs import names as verb_names

Connection = psycopg.Connection[Any]
Queue = Callable[..., str]

CALLS = int(os.environ.get("EXAMPLES", "4"))
LONGEST = 60  # seconds, on a machine with a lot to do: a call that takes longer hangs


def handle(message: Message) -> None:
    """Succeed."""


def broken(message: Message | list[Message]) -> None:
    """Fail, as a handler with a bug does."""
    raise KeyError("no such key")


def later(message: Message) -> Retry:
    return Retry(timedelta(0))


def unusable(message: Any) -> Any:
    return {"neither": "an outcome"}


NOISE = "".join(random.Random(1).choices("abcdefghijklmnopqrstuvwxyz0123456789", k=100_000))  # which nothing compresses
TEXTS = [
    *("orders", "orders", "orders", "narrow", "nobody", "nightly", "job", "drained", ""),
    *(
        " ",
        "1",
        "\n\t",
        "\x01\x7f",
        "\u2028",
        "%s %(x)s {0}",
        "{{ 7 * 7 }}",
        "a'b\"c;--",
        "ünï ☃",
        "Orders",
        "../../etc",
    ),
    *(
        "a.b.c",
        "a..b",
        "*.b.#",
        "#.#.#",
        ".".join("#" * 128),
        "success",
        "failed",
        "skip",
        "replace",
        "publish",
        "month",
    ),
    *("* * * * *", "0 0 31 2 *", "*/0 * * * *", "@daily", "UTC", "Mars/Olympus", "infinity", "NaN", "postgres"),
    *("messages_admin", "message_archive_default", "'; DROP TABLE messages.message; --", "[(", "stream/1/2"),
    *("x" * 255, "ü" * 255, "x" * 256, NOISE[:2600], NOISE[:2601], NOISE, "Z" * 1_000_000),
]
NUMBERS = [0, 1, -1, 2, 7, 9, 10, 100, 1000, 10_000, 10_001, 32_767, 32_768, -32_769, 2**31 - 1, -(2**31)]
# By 30-day months each of these is 0, an hour, a second or less.
ODD = [
    "-80000 months 2400000 days",
    "80000 months -2400000 days 1 hour",
    "-80000 months 2400000 days 1 hour",
    "1 mon -31 days",
]
INTERVALS = [
    *(*ODD, "178000000 years", "-178000000 years", "1 mon -30 days", "2 mons -60 days 1 second", "1 day -24 hours"),
    *("2147483647 days", "-2147483648 days", "2562047787 hours", "-2562047787 hours", "1 us", "-1 us", "0", "1 hour"),
    *("366 days", "1000 years", "-2147483647 months 2147483647 days 2562047787 hours"),
]
TIMES = [
    *("infinity", "-infinity", "4713-01-01 BC", "294276-12-31 23:59:59", "epoch", "1969-12-31 00:00+00", "now"),
    *("tomorrow", "2050-01-01 00:00+00"),
]
# As PostgreSQL reads them. ID and TOKEN stand for those of a leased message, DEAD and DEAD_TOKEN of a leased dead one.
BY_TYPE: dict[str, list[Any]] = {
    "text": TEXTS,
    "smallint": [0, 9, -1, 10, 32_767, -32_768],
    "integer": NUMBERS,
    "bigint": [*NUMBERS, 2**63 - 1, -(2**63), 2**62, 10**15],
    "boolean": [True, False],
    "uuid": ["TOKEN", "DEAD_TOKEN", str(UUID(int=0)), str(uuid4())],
    "interval": INTERVALS,
    "timestamp with time zone": TIMES,
    "timestamp without time zone": TIMES,
    "jsonb": [
        *("null", "1", "1e400", "-1e300", '"x"', "[]", "{}", "[1, 2]", "[null]", "[[[]]]", '{"1": 1}'),
        *('{"ID": null}', '{"ID": 5}', '{"ID": {"result": 1}}', '{"ID": {"output": null}}', '{"DEAD": null}'),
        *('{"ID": {"result": "failed", "failure": [1]}}', '{"ID": {"result": "failed", "details": {"a": 1}}}'),
        *('{"1": {"result": "nonsense"}}', '{"1": {"result": "success", "output": [1]}}', '[{"id": 1, "message": 1}]'),
        *('[{"id": "x"}]', '[{"id": 1e30}]', '[{"id": 1, "message": {}, "headers": 7, "topic": "*"}]'),
        *('[{"partition": 0, "attempt": 1, "rows": -9223372036854775808}]', '[{"attempt": "x"}]', '[{"rows": 1e30}]'),
        *('[{"partition": null, "attempt": -1, "rows": 1.5}]', '{"partition": "x", "files": [{"chunk": "x"}]}'),
        *("[" * 300 + "]" * 300, f'{{"error": "{"x" * 70_000}"}}', f'["{NOISE[:3000]}"]', f'{{"k": "{NOISE}"}}'),
    ],
    "text[]": [
        *("{}", "{orders}", "{NULL}", "{orders,NULL}", "{{failed},{rejected}}", "[5:6]={failed,failed}", "{failed}"),
        *('{"",a}', "{a..b}", "{a,a}", "{" + NOISE[:3000] + "}", "{" + "x," * 20_000 + "x}"),
    ],
    "bigint[]": [
        *("{}", "{ID}", "{DEAD}", "{NULL}", "{ID,ID,NULL}", "{{ID},{1}}", "[-3:-3]={ID}", "{9223372036854775807}"),
        "{" + ",".join(map(str, range(5000))) + "}",
    ],
}  # fmt: skip
# Enough of each to reach what lies behind the first check.
USUAL: dict[str, list[Any]] = {
    "queue_name": ["orders", "narrow"],
    "topic": ["shop.order"],
    "message": ["1"],
    "messages": ["[1]", "[1, 2]"],
    "stage_id": ["job"],
    "dedup_keys": ["{a}", "{a,b}"],
    "pattern": ["shop.*"],
    "time_zone": ["UTC"],
    "run_id": ["drained", "run"],
    "winners": ["[]"],
    "winner": ['{"partition": 0, "attempt": 1, "rows": 0}'],
    "partitions": ["{}"],
    "rows": ['[{"id": 1, "message": 1}]'],
    "lock_token": ["TOKEN", "DEAD_TOKEN"],
    "ids": ["{ID}", "{DEAD}"],
    "outcomes": ["{}"],
    "dag_id": ["pack"],
    "queue_names": ["{orders}"],
}
# For Python: by what the annotation of a parameter has in it, the first that fits.
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
    "str": [*TEXTS, "a\0b", "\ud800"],
    "Any": [None, 1, [], {}, "\0", "\ud800", float("nan"), 1e308, 10**400, [[[]]], {"k": "x" * 100_000}],
}
ANYTHING: list[Any] = [
    None, True, False, 0, 1, -1, 2, 10_000, 2**31, 2**63, 10**400, 0.5, -0.0, 1e308, float("nan"), float("inf"),
    "", "5", "1 hour", "orders", "orders", "nobody", "Orders", "x" * 100_000, "a\0b", "\ud800", "%s", "failed",
    "{{ 7 * 7 }}", "{% raw", "{{ no.such }}", "pgqueue_default", "no_connection", b"orders", "#.*", "a..b",
    [], ["orders"], [1], [None], ["a\0"], ["\ud800"], (1, 2), {}, {"queue_name": "orders"}, {"k": "\0"}, {1: 2},
    {"a": object()}, {"publisher": ["nobody"]}, {"orders": {"publish": "nobody"}}, timedelta(0), timedelta(-1),
    timedelta(days=1), timedelta(microseconds=1), timedelta.max, timedelta.min, datetime.max, datetime.min,
    datetime.max.replace(tzinfo=UTC), datetime.min.replace(tzinfo=UTC), datetime(2020, 1, 1, tzinfo=UTC),
    date(2026, 1, 1), "infinity", UUID(int=0), object(), print, broken, later, unusable, len,
    lambda: iter([1, "\0", 2]), "json:dumps",
    "no.such:thing", "SELECT 1", "SELECT 'x'::integer", "SELECT %s", "no.sql", "DROP SCHEMA messages CASCADE",
    "* * * * *", "@daily", "UTC", "replace",
]  # fmt: skip


def shown(given: dict[str, Any]) -> str:
    return ascii({name: ascii(value)[:40] for name, value in given.items()})


OTHER = "SELECT array_agg(m ORDER BY id) FROM messages.message m WHERE queue_name = 'other'"
STRAY = """
SELECT id, queue_name, priority, visible_at, due_at, expires_at FROM messages.message
 WHERE priority NOT BETWEEN 0 AND 9 OR created_at > clock_timestamp()
    OR coalesce(due_at, visible_at) < clock_timestamp() - interval '1 hour'
    OR coalesce(due_at, visible_at) > clock_timestamp() + interval '3661 days'
    OR expires_at > clock_timestamp() + interval '3661 days' OR expires_at < created_at
    OR pg_column_size(headers #> '{}') > 66000 OR visible_at = 'infinity' AND due_at IS NULL
    OR lock_expires_at > clock_timestamp() + interval '12 hours 1 minute'
"""


@pytest.fixture
def market(conn: Connection, queue: Queue) -> Connection:
    """A database in which there is one of everything, and a queue that no call may touch."""
    queue("other")
    queue("orders", max_attempts=1000, max_body_bytes=50_000)
    queue("narrow", max_leased=5, max_body_bytes=50_000)
    run(conn, verbs.publish_batch("other", [1, 2, 3], priority=3))
    run(conn, verbs.lease("other", max_messages=1))
    run(conn, verbs.bind_topic("orders", "shop.*"))
    run(conn, verbs.stage_publish("job"))
    run(conn, verbs.begin_run("drained", "drain"))
    run(conn, verbs.begin_run("run", "publish"))
    run(conn, verbs.publish_batch("orders", [{"n": n} for n in range(5)], group_keys=["g", "g", None, None, None]))
    messages = run(conn, verbs.lease("orders", max_messages=2))
    run(conn, verbs.archive(messages[0].lock_token, [message.id for message in messages], result="failed"))
    conn.execute("SET client_min_messages = 'error'")
    return conn


def assert_unharmed(conn: Connection, other: Any, given: str) -> None:
    """Check that the other queue is as it was, that no message has a time of another age, and that consumers go on."""
    assert conn.execute(OTHER.encode()).fetchall() == other, given
    assert conn.execute(STRAY).fetchall() == [], given
    for name in ("orders", "narrow"):
        with suppress(QueueNotFound, QueuePaused), conn.transaction():
            run(conn, verbs.lease(name, max_messages=10_000))
            run(conn, verbs.consume(name, max_messages=10_000))
    assert "freed" in run(conn, verbs.maintain())


def functions_of(chapter: str) -> list[str]:
    """Return the names of the functions of a chapter."""
    return [name for name, one in functions().items() if one.chapter == chapter]


def public(conn: Connection, names: list[str]) -> list[tuple[str, dict[str, tuple[str, bool]]]]:
    """Return what an admin may call of these: the type of each argument, and whether it may be left out."""
    rows = conn.execute(
        "SELECT p.proname, coalesce(p.proargnames[:p.pronargs], '{}'), p.pronargdefaults, ARRAY("
        "  SELECT format_type(t, NULL) FROM unnest(p.proargtypes) WITH ORDINALITY AS a (t, n) ORDER BY n)"
        " FROM pg_proc p WHERE p.pronamespace = 'messages'::regnamespace AND p.proname = ANY (%s)"
        " AND has_function_privilege('messages_admin', p.oid, 'EXECUTE') ORDER BY 1",
        [names],
    ).fetchall()
    return [
        (
            name,
            {
                argument: (kind, place >= len(kinds) - optional)
                for place, (argument, kind) in enumerate(zip(names, kinds, strict=True))
            },
        )
        for name, names, optional, kinds in rows
    ]


def lease_both(conn: Connection) -> dict[str, str]:
    """Lease a new message and a dead one, and return what stands for their ids and tokens."""
    run(conn, verbs.publish_batch("orders", [1, 2], group_keys=["a", None], priority=9))
    dead, message = run(conn, verbs.lease("orders", max_messages=2))
    run(conn, verbs.archive(dead.lock_token, [dead.id], result="failed"))
    (leased,) = run(conn, verbs.lease_dead(verbs.DeadFilter("orders", ids=[dead.id])))
    return {
        "DEAD_TOKEN": str(leased.lock_token),
        "TOKEN": str(message.lock_token),
        "DEAD": str(dead.id),
        "ID": str(message.id),
    }


def state_of(conn: Connection, function: str, given: dict[str, tuple[str, Any]]) -> str | None:
    """Call a function as an admin and return the SQLSTATE of its error, None if it succeeded."""
    arguments = [
        sql.SQL("{} => {}::" + kind).format(sql.Identifier(name), sql.Literal(None if value is None else str(value)))
        for name, (kind, value) in given.items()
    ]
    call = sql.SQL("SELECT * FROM messages.{}({})").format(sql.Identifier(function), sql.SQL(", ").join(arguments))
    try:
        with conn.transaction():
            conn.execute("SET LOCAL SESSION AUTHORIZATION hostile_admin")
            conn.execute(call)
            conn.execute("SET LOCAL SESSION AUTHORIZATION DEFAULT")
    except psycopg.Error as error:
        return error.sqlstate or str(error)
    return None


@pytest.mark.parametrize("chapter", [chapter.name for chapter in chapters()])
def test_any_arguments_of_a_function_give_success_or_an_error_of_ours(market: Connection, chapter: str) -> None:
    market.execute("SET statement_timeout = '5s'")
    other = market.execute(OTHER.encode()).fetchall()
    told: dict[str, str] = {}
    seen: set[str | None] = set()
    tried = [(name, known) for name, known in public(market, functions_of(chapter)) if known]
    for function, known in tried:
        with market.transaction(force_rollback=True):
            market.execute("CREATE ROLE hostile_admin LOGIN IN ROLE messages_admin")
            stand_ins = lease_both(market)
            for given in some_calls(function, known):
                arguments = {name: (known[name][0], stood_in(value, stand_ins)) for name, value in given.items()}
                seen.add(state := state_of(market, function, arguments))
                # A function is not found without an argument that it needs.
                if state and not state.startswith("PQ") and state not in ("42501", "42883"):
                    told[f"{function}: {state}"] = shown(given)
            assert_unharmed(market, other, function)
    assert told == {}
    assert None in seen or not tried


def some_calls(function: str, known: dict[str, tuple[str, bool]]) -> Iterator[dict[str, Any]]:
    """Return arguments for the calls of a function: usual ones, and in most of them a few of the table."""
    chance = random.Random(function)
    usual = {name: USUAL.get(name) for name, (_, optional) in known.items() if not optional}
    for _ in range(CALLS * min(6, 2 * len(known))):
        given: dict[str, Any] = {}
        for name, (kind, optional) in known.items():
            if optional and chance.random() < 0.6:
                continue
            strange = chance.random() < 1.5 / len(known)
            given[name] = chance.choice(BY_TYPE[kind] if strange or name not in USUAL else USUAL[name])
            if chance.random() < 0.05:
                given[name] = None
        yield given
    yield {name: values[0] if values else BY_TYPE[known[name][0]][0] for name, values in usual.items()}


def stood_in(value: Any, stand_ins: dict[str, str]) -> Any:
    for word, stand_in in stand_ins.items():
        if isinstance(value, str) and len(value) < 1000 and word in value:
            value = re.sub(rf"\b{word}\b", stand_in, value)
    return value


def test_every_function_checks_an_interval_by_the_time_it_leads_to(market: Connection) -> None:
    other, tried = market.execute(OTHER.encode()).fetchall(), 0
    every = [function for chapter in chapters() for function in public(market, functions_of(chapter.name))]
    with market.transaction(force_rollback=True):
        market.execute("CREATE ROLE hostile_admin LOGIN IN ROLE messages_admin")
        stand_ins = lease_both(market)
        for function, known in every:
            needed = [name for name, (_, optional) in known.items() if not optional or name.startswith("dedup_key")]
            usual = {name: (known[name][0], stood_in(USUAL.get(name, ["key"])[0], stand_ins)) for name in needed}
            if function == "create_queue":
                usual["queue_name"] = ("text", "new")  # of one that exists nothing is checked
            for name in (name for name, (kind, _) in known.items() if kind == "interval"):
                for value in [*ODD, "1 day -24 hours", "-1 us", "178000000 years", "2147483647 days"]:
                    with market.transaction(force_rollback=True):
                        state = state_of(market, function, usual | {name: ("interval", value)})
                        assert state is None or state.startswith("PQ"), (function, name, value, state)
                        assert state == "PQ004" or value not in ODD, (function, name, value, state)
                        assert market.execute(STRAY).fetchall() == [], (function, name, value)
                    tried += 1
        assert_unharmed(market, other, "intervals")
    assert tried > 150


def fitting(annotation: str, chance: random.Random) -> Any:
    """Return a value of the kind that an annotation names, as bad as it may be."""
    if "None" in annotation and chance.random() < 0.3:
        return None
    return chance.choice(next(values for part, values in BY_ANNOTATION.items() if part in annotation))


def named_together(verb: Callable[..., Any]) -> dict[str, Any]:
    """Return the annotations of the parameters that a TypedDict names."""
    dicts = [get_args(hint)[0] for hint in get_type_hints(verb).values() if get_origin(hint) is Unpack]
    return {name: kind for one in dicts for name, kind in one.__annotations__.items()}


def test_no_verb_fails_by_accident_or_hangs(market: Connection) -> None:
    chance, told, calls = random.Random(2), Counter[str](), 0
    market.execute("SET statement_timeout = '5s'")
    for name in verb_names():
        verb = getattr(verbs, name)
        if inspect.isclass(verb):
            continue
        parameters = [one for one in inspect.signature(verb).parameters.values() if one.kind is not one.VAR_KEYWORD]
        together = named_together(verb)
        for _ in range(CALLS if parameters else 1):
            given = {
                one.name: fitting(str(one.annotation), chance)
                for one in parameters
                if one.default is one.empty or chance.random() < 0.5
            }
            if "which" in given:
                kinds = {one.name: str(one.type) for one in fields(verbs.DeadFilter) if chance.random() < 0.3}
                given["which"] = verbs.DeadFilter(**{key: fitting(kind, chance) for key, kind in kinds.items()})
            given |= {key: fitting(str(kind), chance) for key, kind in together.items() if chance.random() < 0.2}
            calls += 1
            try:
                with market.transaction(force_rollback=True):
                    run(market, verb(**given))
            except (PgQueueError, TypeError, ValueError):
                pass
            except Exception as error:
                told[f"{name} {shown(given)}: {type(error).__name__} {str(error)[:120]}"] += 1
    assert not told, "\n".join(told)
    assert calls >= 62.5 * CALLS


def test_any_object_is_published_or_gets_an_error_of_ours(market: Connection) -> None:
    def attempts(value: Any) -> Iterator[Callable[[], Any]]:
        yield partial(verbs.publish, value, 1)
        yield partial(verbs.publish_batch, value, [1])
        yield partial(verbs.publish_batch, "orders", value)
        for name in verbs.Options.__annotations__:
            yield partial(verbs.publish, "orders", 1, **{name: value})
            yield partial(verbs.publish_batch, "orders", [1], **{PLURALS.get(name, name): value})
            yield partial(verbs.publish_batch, "orders", [1], **{PLURALS.get(name, name): [value]})

    other = market.execute(OTHER.encode()).fetchall()
    for value in ANYTHING:
        for attempt in attempts(value):
            with suppress(PgQueueError):
                run(market, attempt())
    assert_unharmed(market, other, "objects")


def test_an_unknown_queue_is_an_error_in_every_verb(market: Connection) -> None:
    for verb in (
        *(verbs.publish("nope", 1), verbs.publish_batch("nope", [1]), verbs.lease("nope"), verbs.consume("nope")),
        *(verbs.lease_dead("nope"), verbs.dead_causes("nope"), verbs.dead_trend("nope")),
        *(verbs.status("nope"), verbs.alter_queue("nope", paused=True), verbs.pause_queue("nope")),
        *(verbs.requeue_dead("nope"), verbs.purge_queue("nope"), verbs.drop_queue("nope"), verbs.lease_policy("nope")),
    ):
        with pytest.raises(QueueNotFound, match=r"queue 'nope' does not exist.*messages\.create_queue"):
            run(market, verb)
    with pytest.raises(psycopg.Error, match="queue 'nope' does not exist"):
        market.execute("INSERT INTO messages.message (queue_name, message) VALUES ('nope', '1')")


DURATIONS = ["0", "0s", "1s", "-1s", "90", "1d", "366d", "100000d", "99999999999999d", "1x", "", "1h30m", "1e3s", "∞"]
WORDS = [
    *(*(text for text in TEXTS if len(text) < 300), "x" * 100_000, "-", "--", "-1", "\x1b[31m", "\udcff", "/", "null"),
    *("{}", "[1]", '{"k": "\\u0000"}', "1e400", "[" * 2000, "builtins:print", "os:abort_", "no.such:thing", ":"),
    *(f"{__name__}:handle", f"{__name__}:broken", *DURATIONS, "2147483648", "9223372036854775808", "1" * 400),
]
# What would run forever, for long or next to this process is bounded; nothing here removes the schema.
BOUNDED: dict[str, list[str]] = {
    "tail": ["--no-follow"],
    "worker": ["--until-empty", "--processes", "1"],
}
NEVER = {
    "uninstall": {"yes"},
    "tail": {"follow"},
    "stats": {"watch"},
    "metrics": {"listen"},
    "worker": {"until_empty", "processes"},
}


def leaves(name: str) -> list[tuple[list[str], click.Command]]:
    """Return the words and the command, or those of the commands below it."""
    command = program.get_command(click.Context(program), name)
    below = [([name, each], one) for each, one in command.commands.items()] if isinstance(command, click.Group) else []
    return [([name], command), *below]


def word(parameter: click.Parameter, chance: random.Random, folder: Path) -> str:
    kind = parameter.type
    if isinstance(kind, click.Choice) and chance.random() < 0.9:
        return str(chance.choice(list(kind.choices)))
    if isinstance(kind, click.types.IntParamType | click.types.FloatParamType):
        return chance.choice([*map(str, NUMBERS), "9223372036854775808", "1" * 400, "x"])
    if getattr(kind, "func", None) in {duration, ago}:
        return chance.choice(DURATIONS)
    if isinstance(kind, click.File | click.Path):
        return chance.choice([str(folder / "lines"), str(folder), str(folder / "none"), "-", ""])
    return chance.choice(WORDS)


def words(path: list[str], command: click.Command, chance: random.Random, folder: Path) -> list[str]:
    """Return arguments as somebody may give them: each argument, and a few of the options."""
    given = [*path, *(BOUNDED.get(path[0], []) if not isinstance(command, click.Group) else [])]
    last: list[str] = []
    for parameter in command.params:
        if parameter.name in {"dsn", "debug", "help"} | NEVER.get(path[0], set()):
            continue
        if isinstance(parameter, click.Argument):
            if chance.random() < 0.9:
                last.append(word(parameter, chance, folder))
        elif parameter.required or chance.random() < 0.3:
            assert isinstance(parameter, click.Option)
            option = chance.choice(parameter.opts)
            given += [option] if parameter.is_flag else [option, word(parameter, chance, folder)]
    return given + (["--", *last] if chance.random() < 0.5 else last)


@contextmanager
def alarm() -> Iterator[None]:
    """Raise what nobody takes for an error of a command when the time is over."""

    def on_alarm(*_: object) -> None:
        raise BaseException(f"still busy after {LONGEST} s")

    before = signal.signal(signal.SIGALRM, on_alarm)
    signal.alarm(LONGEST)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def bug(arguments: list[str]) -> str | None:
    """Run a command as the program does, and return what it would report as a bug or show as the driver wrote it."""
    try:
        with alarm():
            program.main(arguments, prog_name="pgqueue", obj=Settings(), standalone_mode=False)
    except (click.ClickException, click.Abort, click.exceptions.Exit, PgQueueError, OSError, UnicodeEncodeError):
        return None
    except psycopg.Error as error:
        known = isinstance(translate(error), PgQueueError)
        return None if known else f"{error.sqlstate} {str(error).splitlines()[0][:120]}"
    except BaseException as error:
        return f"{type(error).__name__} {str(error)[:120]}"
    return None


# `web` serves until it is stopped, and takes a number and a flag: tests/web/test_standalone.py.
@pytest.mark.parametrize("name", [name for name in COMMANDS if name != "web"])
def test_no_command_fails_by_accident_hangs_or_touches_another_queue(
    market: Connection, dsn: str, queue: Queue, tmp_path: Path, name: str,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setenv("PGQUEUE_DSN", dsn)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lines").write_text('{"n": 1}\n[2]\n')
    other = market.execute(OTHER.encode()).fetchall()
    chance, told = random.Random(name), Counter[str]()
    for path, command in leaves(name):
        for _ in range(CALLS):
            if not market.execute("SELECT FROM messages.queue WHERE queue_name = 'orders'").rowcount:
                run(market, verbs.publish_batch(queue("orders"), [{"n": n} for n in range(3)]))
            arguments = words(path, command, chance, tmp_path)
            if found := bug(arguments):
                told[f"{ascii(arguments)[:300]}: {found}"] += 1
            capsys.readouterr()
            assert market.execute(OTHER.encode()).fetchall() == other, arguments
    assert not told, "\n".join(told)


TASKS: dict[type[QueueTask], dict[str, Any]] = {
    PgQueueMessageSensor: {"queue_name": "orders"},
    PgQueueDeadMessageSensor: {"queue_name": "orders"},
    PgQueueOutcomeSensor: {"ids": 7},
    PgQueueConsumeOperator: {"queue_name": "orders", "apply_function": print},
    PgQueueDispatchOperator: {"queue_name": "orders", "trigger_dag_id": "pack"},
    PgQueueReconcileOperator: {},
    PgQueuePublishOperator: {"queue_name": "orders", "message": 1},
    PgQueuePublishQueryOperator: {"queue_name": "orders", "sql": "SELECT 1"},
    PgQueueRequeueOperator: {"queue_name": "orders"},
    PgQueueSparkOperator: {"pipeline": "drain", "arguments": {"queue": "{{ params.queue }}"}},
    PgQueueSetupOperator: {},
    PgQueueMaintenanceOperator: {},
}
"""Each task with the least that it needs."""
OTHERS: dict[type[Any], dict[str, Any]] = {
    PgQueueMessageTrigger: {"queue_name": "orders"},
    PgQueueDeadMessageTrigger: {"queue_name": "orders"},
    PgQueueOutcomeTrigger: {"ids": [1]},
    PgQueueNotifier: {"queue_name": "alarms"},
}
UNSTORABLE = [{"a": "x\0y"}, {"a\0": 1}, {"a": [{"b": ("\0",)}]}, {"a": "\\\0"}, {"a": "\ud800"}, {"a": float("nan")}]
NO_FUNCTION = [5, "no_such_module:handle", "json:no_such"]
NO_MODEL = [5, "no_such.json", "json:no_such", Path("schema.json")]
NO_BOOLEAN = ["yes", 1, None]
NO_WHOLE = ["5", 1.5, True, -1, 2**63]
NO_NAMES = [5, "failed", [1], [None]]
NO_RESULTS = [["no"], ["success"], [], "failed"]
NO_SECONDS = ["10", None, -1, float("nan"), float("inf"), True]
NO_TIME = [5, "yesterday", "2026-01-01T00:00:00", datetime(2026, 1, 1)]
# What no class takes for an argument of this name; one whose default is None takes None.
REFUSED: dict[str, list[Any]] = {
    "queue_name": [123, None, "a\x00b", "\ud800", "", "Orders", "a b", ["orders"], b"orders", {"a": 1}],
    "pgqueue_conn_id": [None, 5, "", "postgresql://user:SECRET@db/shop"],
    "sql_conn_id": [1, "postgresql://user:SECRET@db/shop"],
    "poll_interval": [*NO_SECONDS, 0],
    "timeout": [-1, "60", float("nan"), float("inf"), timedelta(days=-1)],
    "wait_timeout": ["60", timedelta(-1)],
    "notify_every": [*NO_SECONDS],
    "notify_after": [*NO_SECONDS],
    "max_wait": ["10", -1, float("nan")],
    "min_messages": [*NO_WHOLE, 0],
    "max_messages": [*NO_WHOLE, 0],
    "batch_size": [*NO_WHOLE, 0],
    "max_open": [*NO_WHOLE, 0, 10_001],
    "max_requeues": ["5", -1, True],
    "canary": [-1, "1"],
    "priority": [10, -1, "1", True],
    "message_id": [0, -1, "x", None, 2**63, True, 1.5, {}, "²"],
    "ids": [[0], [True], "[1.5]", "{}"],
    "expected": ["five", -1, 1.5, True, 10**7],
    "topic": [5, "{{ x }}\0"],
    "results": NO_RESULTS,
    "apply_function": NO_FUNCTION,
    "apply_function_batch": NO_FUNCTION,
    "function": [*NO_FUNCTION, None],
    "op_args": [0.5, print, "text", None],
    "op_kwargs": [[1], {1: 2}, print],
    "model": [*NO_MODEL, dict],
    "validator": NO_MODEL,
    "lease_for": ["300", 43_201, timedelta(hours=13), timedelta(-1)],
    "delay": [-5, "1 hour"],
    "older_than": ["1 day", None, timedelta(0), 3599],
    "dedup_window": [timedelta(0), "60"],
    "visible_at": ["now", datetime(2026, 1, 1)],
    "since": NO_TIME,
    "until": NO_TIME,
    "trigger_dag_id": [5],
    "conf": [[1], {"pgqueue": 1}, *UNSTORABLE],
    "group_by": ["colour"],
    "on_failure": ["weep"],
    "on_conflict": ["weep"],
    "message": [*([one] for one in UNSTORABLE), object()],
    "headers": [[1], "x", *UNSTORABLE],
    "reference": ["", 5],
    "group_key": ["", 5, "{{ key }}\0"],
    "dedup_key": ["", 5],
    "cause": [5],
    "fingerprints": NO_NAMES,
    "fail_on": ["raised", "stopped"],
    "give_up_after": NO_WHOLE,
    "stop_when_failing": ["5", -1, True],
    "max_per_second": ["5", 0, -1, float("nan"), True],
    "canary_wait": ["60", timedelta(-1)],
    "handler_timeout": ["60", timedelta(0)],
    "expires_in": ["60", "1 hour"],
    "cron": [5],
    "cron_role": [5, ""],
    "time_zone": [5, ""],
    "origin": [1],
    "sql": [None, 1, ""],
    "parameters": [["a\0"], "text"],
    "pipeline": [None],
    "arguments": [[1], {"run_id": "x"}, {"run-id": "x"}, {"dsn": "x"}],
    "run_id": [""],
    "queues": [5, None, "Orders", [5], b"orders", [None], {"queue_name": "orders"}, [{"queue_nam": "x"}], [{}],
               [{"queue_name": 5}], [{"queue_name": "a", "max": 1}],
               [{"queue_name": "a", "max_leased": "x"}]],
    "grants": [[1], {"boss": "shop"}, {"publisher": 5}, {"publisher": [5]}, "publisher"],
    "queue_grants": [[1], {"orders": "shop"}, {"orders": {"own": "shop"}}, {1: {}}, {"orders": {"publish": None}}],
    "on_error": [5, {5: Retry}, {KeyError: 5}],
    "fail_on_failed": [0, -1, 0.0, 1.5, True, "1"],
}  # fmt: skip
EVERY = {**TASKS, **OTHERS}
# Instead of five seconds for each message that nobody handles.
BRIEFLY: dict[type[Any], dict[str, Any]] = {
    PgQueueOutcomeSensor: {"timeout": 0.05},
}
# What only some classes refuse, and what contradicts itself.
REFUSED_BY: dict[type[Any], list[dict[str, Any]]] = {
    PgQueueConsumeOperator: [*({"batch_size": 10_001}, {"apply_function": None}, {"apply_function_batch": print})],
    PgQueueOutcomeTrigger: [{"ids": 5}, {"ids": ["1"]}],
    PgQueueRequeueOperator: [{"ids": 5}, {"ids": ["1"]}, {"ids": "1, 2"}, {"fail_on": ["requeued"]}, {"topic": "a..b"}],
    PgQueueSetupOperator: [{"cron": "yes"}],
    PgQueuePublishOperator: [
        *(
            {"message": None},
            {"messages": [1]},
            {"message": None, "messages": "text"},
            {"headers": {"a\0": "{{ key }}"}},
        ),
        {"message": None, "messages": task(lambda: [1])},
    ],
}


@pytest.fixture
def conn_id(dsn: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The id of an Airflow connection to the test's database."""
    monkeypatch.setenv("AIRFLOW_CONN_PGQUEUE_DEFAULT", as_json(dsn))
    return "pgqueue_default"


def own_arguments(kind: type[Any]) -> dict[str, inspect.Parameter]:
    """Return what our classes add to those of Airflow, but for what any BaseOperator takes."""
    found: dict[str, inspect.Parameter] = {}
    for one in kind.__mro__:
        if one.__module__.startswith("airflow_provider_pgqueue") and one is not QueueTask and "__init__" in vars(one):
            found |= inspect.signature(one.__init__).parameters
    return {
        name: each
        for name, each in found.items()
        if each.kind is each.KEYWORD_ONLY and name not in {"retries", "poke_interval"}
    }


def make(kind: type[Any], given: dict[str, Any]) -> Any:
    return kind(**EVERY[kind] | ({"task_id": "task"} if kind in TASKS else {}) | given)


@pytest.mark.parametrize("kind", EVERY, ids=lambda kind: kind.__name__)
def test_each_bad_argument_is_named_where_it_is_written(kind: type[Any]) -> None:
    make(kind, {})
    wrong = []
    # Airflow catches no other error of a trigger's __init__.
    error: Any = (InvalidArgument, TypeError) if "Trigger" in kind.__name__ else (InvalidArgument,)
    for given in [*refused(own_arguments(kind)), *REFUSED_BY.get(kind, [])]:
        try:
            make(kind, given)
            wrong.append(f"{given} was taken")
        except Exception as raised:
            said = str(raised)
            named = any(name.split("_")[0] in said for name in given)
            if not (
                all(isinstance(raised, one) for one in error) and named and said.endswith(".") and "SECRET" not in said
            ):
                wrong.append(f"{given}: {type(raised).__name__} {said}")
    assert not wrong, "\n".join(wrong)


def test_a_text_is_no_boolean_of_the_decorator() -> None:
    with pytest.raises(InvalidArgument, match=r"^batches is 'no'\. Give True or False"):
        PgQueueDecoratedOperator(queue_name="orders", task_id="task", python_callable=handle, batches="no")


def is_boolean(parameter: inspect.Parameter) -> bool:
    return str(parameter.annotation).startswith("bool")


def refused(parameters: dict[str, inspect.Parameter]) -> Iterator[dict[str, Any]]:
    for name, parameter in parameters.items():
        for value in NO_BOOLEAN if is_boolean(parameter) else REFUSED.get(name, []):
            if value is not None or parameter.default is not None:
                yield {name: value}


def test_every_argument_of_every_class_has_values_that_it_refuses() -> None:
    def leaves(kind: type[QueueTask]) -> list[type[QueueTask]]:
        # What the decorator makes is a consume operator with other names for its arguments.
        subclasses = [one for one in kind.__subclasses__() if ".decorators." not in one.__module__]
        return [leaf for one in subclasses for leaf in (leaves(one) or [one])]

    assert {kind for kind in leaves(QueueTask) if kind.__module__.startswith("airflow_provider_pgqueue")} == set(TASKS)
    for kind in EVERY:
        booleans = {name for name, parameter in own_arguments(kind).items() if is_boolean(parameter)}
        assert kind.rules.keys() - booleans - REFUSED.keys() == set()


def some(parameters: dict[str, Any], chance: random.Random, *, often: float = 0.25) -> dict[str, Any]:
    return {name: chance.choice(ANYTHING) for name in parameters if chance.random() < often}


@pytest.mark.parametrize("kind", TASKS, ids=lambda kind: kind.__name__)
def test_no_task_fails_by_accident_hangs_or_touches_another_queue(
    market: Connection, conn_id: str, kind: type[QueueTask], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ExecutorSafeguard, "test_mode", True)
    ti = SimpleNamespace(dag_id="orders", run_id="manual__1", task_id="task", map_index=-1, try_number=1, max_tries=1)
    context: Any = {"ti": ti, "task_instance": ti, "params": {"queue": "orders"}}
    other = market.execute(OTHER.encode()).fetchall()
    chance, told, executed = random.Random(kind.__name__), Counter[str](), 0
    # Each call of that one installs everything.
    for number in range(CALLS if kind is PgQueueSetupOperator else CALLS * 3):
        given = some(own_arguments(kind), chance, often=chance.choice([0.05, 0.1, 0.3]))
        ti.try_number = number % 2 + 1
        try:
            made = make(kind, BRIEFLY.get(kind, {}) | given)
            made.render_template_fields(context)
            if kind is PgQueueSparkOperator:
                continue  # it would start a Spark; what is wrong with its arguments was said by now
            executed += 1
            made.pre_execute(context)
            made.execute(context)
        except (PgQueueError, AirflowException, TaskDeferred, TemplateError):
            pass
        except Exception as error:
            told[f"{shown(given)}: {type(error).__name__} {str(error)[:200]}"] += 1
        assert market.execute(OTHER.encode()).fetchall() == other, shown(given)
    assert not told, "\n".join(told)
    assert executed or kind is PgQueueSparkOperator


METHODS = ("publish", "publish_batch", "lease", "archive", "connection_arguments", "conninfo", "connect")


@pytest.mark.parametrize("name", METHODS)
def test_no_method_of_the_hook_fails_by_accident_or_touches_another_queue(
    market: Connection, conn_id: str, name: str
) -> None:
    other = market.execute(OTHER.encode()).fetchall()
    chance, told = random.Random(name), Counter[str]()
    hook = PgQueueHook(conn_id)
    parameters = dict(inspect.signature(getattr(hook, name)).parameters)
    options = {"publish": Options, "publish_batch": BatchOptions}.get(name)
    for _ in range(CALLS * 3):
        given = {
            each.name: chance.choice(ANYTHING)
            for each in parameters.values()
            if each.name != "conn" and each.kind is not each.VAR_KEYWORD
            and (each.default is each.empty or chance.random() < 0.3)
        }  # fmt: skip
        given |= some(options.__annotations__, chance, often=0.1) if options else {}
        if "queue_name" in given and chance.random() < 0.7:
            given["queue_name"] = "orders"
        try:
            found = getattr(hook, name)(**given)
            if name == "lease":
                with found:
                    pass
            elif name == "connect":
                found.close()
        except (PgQueueError, TypeError, ValueError):
            pass
        except Exception as error:
            told[f"{shown(given)}: {type(error).__name__} {str(error)[:200]}"] += 1
        assert market.execute(OTHER.encode()).fetchall() == other, shown(given)
    assert not told, "\n".join(told)


@pytest.mark.parametrize("kind", [PgQueueMessageTrigger, PgQueueDeadMessageTrigger], ids=lambda kind: kind.__name__)
def test_no_trigger_fails_by_accident_or_hangs_while_others_wait(
    market: Connection, conn_id: str, kind: type[Any]
) -> None:
    chance, told = random.Random(kind.__name__), Counter[str]()

    async def first(trigger: Any) -> Any:
        async with aclosing(trigger.run()) as events:
            return await anext(events)

    async def all_at_once() -> None:
        waiting = {}
        for _ in range(CALLS * 10):
            given = {"for_task": True} | some(own_arguments(kind), chance, often=0.15)
            try:
                waiting[asyncio.create_task(first(make(kind, given)))] = given
            except PgQueueError:
                continue
            except Exception as error:
                told[f"{shown(given)}: {type(error).__name__} {str(error)[:200]}"] += 1
        good = asyncio.create_task(first(make(kind, {"for_task": True})))
        assert (await asyncio.wait_for(good, LONGEST)).payload["queue_name"] == "orders"
        for wait in waiting:
            wait.cancel()
        for wait, found in zip(waiting, await asyncio.gather(*waiting, return_exceptions=True), strict=True):
            if isinstance(found, Exception) and not isinstance(found, PgQueueError | AirflowException):
                told[f"{shown(waiting[wait])}: {type(found).__name__} {str(found)[:200]}"] += 1
        assert len(waiting) > CALLS

    asyncio.run(all_at_once())
    assert not told, "\n".join(told)
