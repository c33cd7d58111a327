"""Each public SQL function has a verb of its name, in a module of its chapter, with its arguments."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import fields
from datetime import UTC, date, datetime, timedelta
from types import NoneType, UnionType
from typing import Any, Literal, Union, Unpack, get_args, get_origin, get_type_hints
from uuid import UUID, uuid4

import psycopg
import pytest

from airflow_provider_pgqueue.core import InvalidArgument, Success, verbs
from airflow_provider_pgqueue.core.statement import DURATIONS, TYPES
from tools.chapters import functions
from tools.site.verbs import names as verb_names

Connection = psycopg.Connection[Any]
Verb = Callable[..., verbs.Statement[Any]]

# Public functions that are no verbs, and why.
WITHOUT_VERB = {
    "adopt_archive_default": "maintenance calls it",
    "archive_and_lease": "a query of the consumers calls it",
    "apply_retention": "maintenance calls it",
    "granted_queues": "the views call it",
    "latest_migration": "core.connection asks before it knows which functions there are",
    "schema_version": "core.connection asks before it knows which functions there are",
    "adopt_copy": "a step of a restore, in psql",
    "lock_export": "a query of the export calls it",
    "next_ids": "the command peek calls it",
    "session_is_limited": "the views call it",
    "expect_cron": "install_cron calls it, as the caller",
    "purge_cron_history": "the job of pg_cron calls it, as its login",
}
IN_SQL = {"publish_texts": "publish_batch"}
# With these the message goes through publish_deduplicated.
DEDUPLICATION = {"dedup_key", "dedup_keys", "dedup_window", "on_conflict"}
SAMPLES: dict[Any, Any] = {
    str: "[]",  # a text and a JSON text
    int: 1,
    bool: True,
    Any: 1,
    timedelta: timedelta(days=1),
    datetime: datetime(2026, 1, 1, tzinfo=UTC),
    UUID: uuid4(),
}
VERBS: dict[str, Verb] = {name: value for name in verb_names() if inspect.isfunction(value := getattr(verbs, name))}


def parameters(verb: Verb) -> dict[str, Any]:
    """Return the type of each parameter, also of those that a TypedDict or a choice of dead messages names."""
    hints = get_type_hints(verb)
    del hints["return"]
    found: dict[str, Any] = {}
    for name, kind in hints.items():
        together = next((one for one in get_args(kind) if get_origin(kind) is Unpack or one is verbs.DeadFilter), None)
        found |= {name: kind} if together is None else get_type_hints(together)
    found.pop("_", None)  # KW_ONLY
    return found


def sample(name: str, kind: Any) -> Any:
    if name == "dedup_window":
        return timedelta(days=1)
    if name == "outcomes":
        return {1: Success("fine")}
    if get_origin(kind) in (UnionType, Union):
        kind = next(one for one in get_args(kind) if one is not NoneType)
    if kind in SAMPLES:
        return SAMPLES[kind]
    if get_origin(kind) is Literal:
        return get_args(kind)[0]
    if issubclass(get_origin(kind), Mapping):
        return {sample("", get_args(kind)[0]): 1}
    assert issubclass(get_origin(kind), Collection) or name == "bodies", (name, kind)
    return [sample("", get_args(kind)[0])]


def spoken(verb: Verb, /, **given: Any) -> verbs.Statement[Any]:
    """Make the statement with these arguments, some of which may be those of a choice of dead messages."""
    if "which" in inspect.signature(verb).parameters:
        names = {field.name for field in fields(verbs.DeadFilter)}
        given["which"] = verbs.DeadFilter(**{name: given.pop(name) for name in names & given.keys()})
    return verb(**given)


def call(verb: Verb, *, deduplicated: bool) -> verbs.Statement[Any]:
    """Make the statement with a value for each parameter."""
    without = DEDUPLICATION if verb.__module__.endswith(".publish") and not deduplicated else set()
    return spoken(verb, **{name: sample(name, kind) for name, kind in parameters(verb).items() if name not in without})


def public_functions(conn: Connection) -> dict[str, set[str]]:
    """Return the arguments of each function that an admin of the queue may call."""
    query = """
        SELECT proname, ARRAY(
                   SELECT name FROM unnest(proargnames, coalesce(proargmodes, array_fill('i'::"char", ARRAY[pronargs])))
                                    AS argument (name, mode) WHERE mode IN ('i', 'b'))
          FROM pg_proc
         WHERE pronamespace = 'messages'::regnamespace AND has_function_privilege('messages_admin', oid, 'EXECUTE')
    """
    return {name: set(arguments) for name, arguments in conn.execute(query).fetchall()}


def test_each_public_function_has_a_verb_or_a_reason_to_have_none(conn: Connection) -> None:
    spoken = {call(verb, deduplicated=known).function for verb in VERBS.values() for known in (False, True)}
    public = set(public_functions(conn))
    assert public - spoken == set(WITHOUT_VERB)
    assert spoken - public == set()


@pytest.mark.parametrize("name", VERBS)
def test_a_verb_is_named_as_its_function_and_is_in_the_module_of_its_chapter(name: str) -> None:
    function = IN_SQL.get(name, name)
    assert call(VERBS[name], deduplicated=False).function == function
    assert VERBS[name].__module__.rpartition(".")[2] == functions()[function].chapter


def test_names_and_types_of_the_arguments_of_each_verb_are_those_of_its_function(conn: Connection) -> None:
    public = public_functions(conn)
    statements = [call(verb, deduplicated=known) for verb in VERBS.values() for known in (False, True)]
    wrong = {}
    for one in statements:
        elsewhere = DEDUPLICATION if one.function in ("publish", "publish_batch") else set()
        wrong[one.function] = (set(one.given) ^ public[one.function]) - elsewhere
    assert {function: names for function, names in wrong.items() if names} == {}
    for statement in statements:
        conn.execute(f"EXPLAIN {statement.text()}".encode(), statement.given)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: verbs.publish("orders", 1, prio=3), "publish has no argument 'prio'. It takes priority, delay, "),
        (lambda: verbs.publish("orders", 1, prio=None), "publish has no argument 'prio'"),
        (lambda: verbs.publish("orders", 1, dedup_key="k", prio=3), "publish has no argument 'prio'"),
        (lambda: verbs.publish_batch("orders", [1], reference="r"), "publish_batch has no argument 'reference'"),
        (lambda: verbs.publish_topic("shop.eu", 1, topic_="x"), "publish_topic has no argument 'topic_'"),
        (lambda: verbs.create_queue("orders", max_attempt=3), "create_queue has no argument 'max_attempt'"),
        (lambda: verbs.alter_queue("orders", lease=3), "alter_queue has no argument 'lease'"),
    ],
)
def test_an_argument_that_a_verb_does_not_have_is_named_with_those_that_it_has(
    call: Callable[[], object], said: str
) -> None:
    with pytest.raises(InvalidArgument, match=re.escape(said)):
        call()


MOMENTS = [
    (verb, name)
    for verb, called in VERBS.items()
    for name, kind in parameters(called).items()
    if datetime in (kind, *get_args(kind))
]


@pytest.mark.parametrize(("verb", "moment"), MOMENTS)
def test_a_moment_without_a_time_zone_is_refused_by_every_verb(verb: str, moment: str) -> None:
    called = VERBS[verb]
    needed = {
        name: sample(name, parameters(called)[name])
        for name, one in inspect.signature(called).parameters.items()
        if one.default is one.empty and one.kind is not one.VAR_KEYWORD and name != "which"
    }
    for naive in (datetime(2027, 1, 1), date(2027, 1, 1)):
        with pytest.raises(InvalidArgument, match=f"^{moment} is datetime.*Give a datetime with a time zone, such as"):
            _ = spoken(called, **needed, **{moment: naive}).given
    assert spoken(called, **needed, **{moment: datetime(2027, 1, 1, tzinfo=UTC)}).given


def test_each_array_and_json_of_a_verb_is_sent_with_its_type(conn: Connection) -> None:
    query = """
        SELECT DISTINCT argument.name, argument.type::regtype::text FROM pg_proc
         CROSS JOIN LATERAL unnest(proargnames, coalesce(proallargtypes, proargtypes::oid[]), proargmodes)
                            AS argument (name, type, mode)
         WHERE pronamespace = 'messages'::regnamespace AND proname = ANY (%s)
           AND argument.type IN ('jsonb'::regtype, 'text[]'::regtype, 'bigint[]'::regtype)
           AND coalesce(argument.mode, 'i') = 'i'
    """
    called = [call(verb, deduplicated=True) for verb in VERBS.values()]
    found = dict(conn.execute(query, [[one.function for one in called]]).fetchall())
    assert found.items() == TYPES.items()


def test_a_verb_takes_each_duration_as_a_timedelta_or_as_a_number_of_seconds(conn: Connection) -> None:
    query = """
        SELECT DISTINCT argument.name FROM pg_proc
         CROSS JOIN LATERAL unnest(proargnames, coalesce(proallargtypes, proargtypes::oid[]), proargmodes)
                            AS argument (name, type, mode)
         WHERE pronamespace = 'messages'::regnamespace AND proname = ANY (%s)
           AND argument.type = 'interval'::regtype AND coalesce(argument.mode, 'i') = 'i'
    """
    functions = sorted({call(verb, deduplicated=True).function for verb in VERBS.values()})
    assert {name for (name,) in conn.execute(query, [functions])} == DURATIONS
    assert verbs.lease("orders", lease_for=1.5).given["lease_for"] == timedelta(seconds=1.5)
    for bad in (True, float("nan"), float("inf"), 1e300, 10**400):
        with pytest.raises(InvalidArgument, match=r"^lease_for is .*\. Give a timedelta or a number of seconds\.$"):
            _ = verbs.lease("orders", lease_for=bad).given


def test_the_module_lists_its_verbs_and_the_types_of_their_arguments_and_nothing_that_it_imports() -> None:
    types = {name for name in dir(verbs) if inspect.isclass(getattr(verbs, name))}
    assert types == {"DeadFilter", "Policy"}
    returned = {name: get_type_hints(VERBS[name])["return"] for name in set(dir(verbs)) - types}
    assert {name for name, kind in returned.items() if get_origin(kind) is not verbs.Statement} == set()
