"""Hostile values for every entry point of the hook, operators, sensors and triggers: an error of ours, or a result.

EXAMPLES=n tries n calls of each instead of a few.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import random
from collections import Counter
from collections.abc import Callable
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest
from jinja2 import TemplateError

from airflow_provider_pgqueue.core import Message, PgQueueError, Retry, run, verbs
from airflow_provider_pgqueue.hooks.pgqueue import PgQueueHook
from airflow_provider_pgqueue.operators.setup import PgQueueSetupOperator
from airflow_provider_pgqueue.tasks import completion
from airflow_provider_pgqueue.tasks.task import QueueTask
from airflow_provider_pgqueue.triggers.dead_message import PgQueueDeadMessageTrigger
from airflow_provider_pgqueue.triggers.message import PgQueueMessageTrigger
from tests.airflow_layer.of_airflow import AirflowException, TaskDeferred
from tests.airflow_layer.test_arguments import GOOD

Connection = psycopg.Connection[Any]
Run = Callable[..., Any]
CALLS = int(os.environ.get("EXAMPLES", "8"))
LONGEST = 30.0  # seconds, on a machine with a lot to do


def broken(message: Message | list[Message]) -> None:
    """Fail, as a handler with a bug does."""
    raise KeyError("no such key")


def later(message: Message) -> Retry:
    return Retry(timedelta(0))


def unusable(message: Any) -> Any:
    return {"neither": "an outcome"}


ANYTHING: list[Any] = [
    None, True, False, 0, 1, -1, 2, 10_000, 2**31, 2**63, 10**400, 0.5, -0.0, 1e308, float("nan"), float("inf"),
    "", "orders", "orders", "nobody", "Orders", "x" * 100_000, "a\0b", "\ud800", "%s", "infinity", "failed",
    "{{ 7 * 7 }}", "{% raw", "{{ no.such }}", "pgqueue_default", "no_connection", b"orders", "#.*", "a..b",
    [], ["orders"], [None], ["a\0"], (1, 2), {}, {"queue_name": "orders"}, {"k": "\0"}, {1: 2},
    {"publisher": ["nobody"]}, {"orders": {"publish": "nobody"}}, timedelta(0), timedelta(-1), timedelta(days=1),
    timedelta(microseconds=1), timedelta.max, timedelta.min, datetime.max, datetime(2020, 1, 1, tzinfo=UTC),
    UUID(int=0), object(), print, broken, later, unusable, len, lambda: iter([1, "\0", 2]), "json:dumps",
    "no.such:thing", "SELECT 1", "SELECT 'x'::integer", "SELECT %s", "no.sql", "DROP SCHEMA messages CASCADE",
    "* * * * *", "@daily", "UTC", "replace",
]  # fmt: skip
OTHER = "SELECT array_agg(m ORDER BY id) FROM messages.message m WHERE queue_name = 'other'"


@pytest.fixture
def other(conn: Connection, queue: Callable[..., str], conn_id: str) -> Connection:
    """A database with messages in `orders`, some dead, and a queue that no call may touch."""
    run(conn, verbs.publish_batch(queue("other"), [1, 2, 3]))
    run(conn, verbs.lease("other"))
    publish(conn, queue("orders"))
    messages = run(conn, verbs.lease("orders", max_messages=2))
    assert messages[0].lock_token
    run(conn, verbs.archive(messages[0].lock_token, [message.id for message in messages], result="failed"))
    return conn


def publish(conn: Connection, queue_name: str) -> None:
    run(conn, verbs.publish_batch(queue_name, [{"n": n} for n in range(5)]))


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


def some(parameters: dict[str, Any], chance: random.Random, *, often: float = 0.25) -> dict[str, Any]:
    return {name: chance.choice(ANYTHING) for name in parameters if chance.random() < often}


def shown(given: dict[str, Any]) -> str:
    return ascii({name: ascii(value)[:40] for name, value in given.items()})


@pytest.mark.parametrize("kind", GOOD, ids=lambda kind: kind.__name__)
def test_no_task_fails_by_accident_hangs_or_touches_another_queue(
    other: Connection, run: Run, context: Any, kind: type[QueueTask], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(completion, "_HERE_FIRST", 0.05)  # instead of five seconds for each message that nobody handles
    before = other.execute(OTHER.encode()).fetchall()
    chance, told, executed = random.Random(kind.__name__), Counter[str](), 0
    context["params"] = {"queue": "orders"}
    # Each call installs everything.
    calls = CALLS if kind is PgQueueSetupOperator else CALLS * 3
    for number in range(calls):
        given = GOOD[kind] | some(own_arguments(kind), chance, often=chance.choice([0.05, 0.1, 0.3]))
        context["ti"].try_number = number % 2 + 1
        try:
            task = kind(task_id="task", **given)
            task.render_template_fields(context)
            if "Spark" in kind.__name__:
                continue  # it would start a Spark; what is wrong with its arguments was said by now
            executed += 1
            other.execute("SET statement_timeout = '10s'")
            run(task)
        except (PgQueueError, AirflowException, TaskDeferred, TemplateError):
            pass
        except Exception as error:
            told[f"{shown(given)}: {type(error).__name__} {str(error)[:200]}"] += 1
        assert other.execute(OTHER.encode()).fetchall() == before, shown(given)
    assert not told, "\n".join(told)
    assert executed or "Spark" in kind.__name__


METHODS = ("publish", "publish_batch", "lease", "archive", "connection_arguments", "conninfo", "connect")


@pytest.mark.parametrize("name", METHODS)
def test_no_method_of_the_hook_fails_by_accident_or_touches_another_queue(
    other: Connection, conn_id: str, name: str
) -> None:
    before = other.execute(OTHER.encode()).fetchall()
    chance, told = random.Random(name), Counter[str]()
    hook = PgQueueHook(conn_id)
    parameters = dict(inspect.signature(getattr(hook, name)).parameters)
    options = {"publish": verbs.Options, "publish_batch": verbs.BatchOptions}.get(name)
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
        assert other.execute(OTHER.encode()).fetchall() == before, shown(given)
    assert not told, "\n".join(told)


@pytest.mark.parametrize("kind", [PgQueueMessageTrigger, PgQueueDeadMessageTrigger], ids=lambda kind: kind.__name__)
def test_no_trigger_fails_by_accident_or_hangs_while_others_wait(other: Connection, kind: type[Any]) -> None:
    chance, told = random.Random(kind.__name__), Counter[str]()

    async def first(trigger: Any) -> Any:
        async with aclosing(trigger.run()) as events:
            return await anext(events)

    async def all_at_once() -> None:
        waiting = {}
        for _ in range(CALLS * 10):
            given = {"queue_name": "orders"} | some(own_arguments(kind), chance, often=0.15)
            try:
                waiting[asyncio.create_task(first(kind(**({"for_task": True} | given))))] = given
            except PgQueueError:
                continue
            except Exception as error:
                told[f"{shown(given)}: {type(error).__name__} {str(error)[:200]}"] += 1
        good = asyncio.create_task(first(kind(queue_name="orders", for_task=True)))
        assert (await asyncio.wait_for(good, LONGEST)).payload["queue_name"] == "orders"
        for task in waiting:
            task.cancel()
        for task, found in zip(waiting, await asyncio.gather(*waiting, return_exceptions=True), strict=True):
            if isinstance(found, Exception) and not isinstance(found, PgQueueError | AirflowException):
                told[f"{shown(waiting[task])}: {type(found).__name__} {str(found)[:200]}"] += 1
        assert len(waiting) > CALLS

    asyncio.run(all_at_once())
    assert not told, "\n".join(told)
