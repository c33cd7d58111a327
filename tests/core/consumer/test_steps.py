"""Long work that resumes: a step that was done is kept, and no later attempt does it again."""

from __future__ import annotations

import asyncio
import gc
import pickle
import subprocess
import sys
import weakref
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from threading import Event
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from airflow_provider_pgqueue.core import (
    Consumer,
    InvalidArgument,
    InvalidMessage,
    Lease,
    LeaseLost,
    Message,
    RejectMessage,
    Retry,
    run,
    verbs,
)
from airflow_provider_pgqueue.core.function import awaited
from airflow_provider_pgqueue.core.model import each_with_model
from tests.waiting import until, until_leases_expire

Connection = psycopg.Connection[Any]
Connect = Callable[..., Connection]
Queue = Callable[..., str]
MINUTE = timedelta(minutes=1)

# Does the first of two steps, and hangs in the second.
WORKER = """
import sys, time
import psycopg
from airflow_provider_pgqueue.core import Consumer, connect
conn = connect(sys.argv[1])
def note(name):
    with psycopg.connect(sys.argv[1], autocommit=True) as own:
        own.execute("INSERT INTO effect VALUES (%s)", [name])
    return {"done": name}
def handle(message):
    message.step("charge", lambda: note("charge"))
    message.step("ship", lambda: [print("in the second step", flush=True), time.sleep(60)])
Consumer(queue_name="orders", handle=handle, lease_for=1.0).drain(conn)
"""


def drain(conn: Connection, handle: Callable[[Message], Any], **options: Any) -> dict[str, int]:
    """Handle what is ready, and nothing that comes back meanwhile."""
    ((ready,),) = conn.execute("SELECT ready FROM messages.status('orders')").fetchall()
    return dict(Consumer(queue_name="orders", handle=handle, **options).drain(conn, max_messages=ready or 1))


def kept(conn: Connection) -> Any:
    """Return the names and results that the only message has kept."""
    rows = conn.execute(
        "SELECT s ->> 'name', s -> 'result' FROM messages.message m, jsonb_array_elements(m.steps) s"
    ).fetchall()
    return dict(rows)


@pytest.fixture
def one(conn: Connection, queue: Queue) -> int:
    queue("orders", max_attempts=3, backoff_first="1 millisecond", backoff_max="1 millisecond")
    return run(conn, verbs.publish("orders", {"order_id": 7}))


def again(conn: Connection) -> None:
    """Let the message come back now."""
    until(lambda: [queue for queue in run(conn, verbs.ready_queues(["orders"])) if queue.ready])


def test_a_step_that_was_done_before_a_worker_was_killed_is_not_done_again(
    conn: Connection, dsn: str, one: int
) -> None:
    conn.execute("CREATE TABLE effect (name text)")
    with subprocess.Popen([sys.executable, "-c", WORKER, dsn], stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdout.readline() == "in the second step\n"
        worker.kill()
    until_leases_expire(conn)
    found: list[Any] = []

    def note(name: str) -> dict[str, str]:
        conn.execute("INSERT INTO effect VALUES (%s)", [name])
        return {"done": name}

    def handle(message: Message) -> None:
        found.extend(message.step(name, lambda name=name: note(name)) for name in ("charge", "ship"))  # type: ignore[misc]

    assert drain(conn, handle) == {"success": 1}
    assert found == [{"done": "charge"}, {"done": "ship"}]
    assert conn.execute("SELECT name FROM effect ORDER BY name").fetchall() == [("charge",), ("ship",)]


def test_each_attempt_continues_after_the_steps_that_were_kept(conn: Connection, one: int) -> None:
    done: list[str] = []

    def handle(message: Message) -> None:
        for name in ("a", "b", "c"):
            message.step(name, lambda name=name: done.append(name))  # type: ignore[misc]
            if len(done) == message.attempts:
                raise OSError("the next one is for the next attempt")

    for attempt in (1, 2):
        assert drain(conn, handle) == {"retried": 1}
        assert list(kept(conn)) == ["a", "b"][:attempt]
        again(conn)
    assert drain(conn, handle) == {"failed": 1}
    assert done == ["a", "b", "c"]


def test_a_delivery_that_counted_as_no_attempt_is_continued_too(conn: Connection, one: int) -> None:
    calls: list[str] = []

    def handle(message: Message) -> Retry | None:
        message.step("a", lambda: calls.append("a"))
        return Retry(count_attempt=False) if len(calls) == 1 and calls.append("retried") is None else None  # type: ignore[func-returns-value]

    assert drain(conn, handle) == {"retried": 1}
    again(conn)
    assert drain(conn, handle) == {"success": 1}
    assert calls == ["a", "retried"]


def test_the_first_attempt_gets_what_the_next_would_get(conn: Connection, one: int) -> None:
    given = {"when": datetime(2027, 1, 1, tzinfo=UTC), "pair": (1, 2), "large": 1e22, 5: None}
    found: list[Any] = []

    def handle(message: Message) -> None:
        found.append([message.step("all", lambda: given), message.step("nothing", lambda: None)])
        if message.attempts == 1:
            raise OSError

    drain(conn, handle)
    again(conn)
    drain(conn, handle)
    expected = {"when": "2027-01-01T00:00:00+00:00", "pair": [1, 2], "large": 10**22, "5": None}
    assert found == [[expected, None]] * 2
    assert [type(value["large"]) for value, _ in found] == [int, int]


def test_a_step_that_raises_keeps_nothing_and_may_be_done_again(conn: Connection, one: int) -> None:
    tries: list[int] = []

    def fails() -> None:
        tries.append(len(tries))
        if len(tries) == 1:
            raise OSError

    def handle(message: Message) -> None:
        with pytest.raises(OSError):  # noqa: PT011
            message.step("a", fails)
        assert kept(conn) == {}
        message.step("a", fails)
        assert kept(conn) == {"a": None}

    assert drain(conn, handle) == {"success": 1}


def test_a_step_and_its_effect_are_one_where_they_are_one_transaction(conn: Connection, one: int) -> None:
    conn.execute("CREATE TABLE effect (name text)")

    def handle(message: Message) -> None:
        with conn.transaction():
            message.step("a", lambda: conn.execute("INSERT INTO effect VALUES ('a')").rowcount)
            if message.attempts == 1:
                raise OSError

    assert drain(conn, handle) == {"retried": 1}
    assert kept(conn) == {}
    again(conn)
    assert drain(conn, handle) == {"success": 1}
    assert conn.execute("SELECT name FROM effect").fetchall() == [("a",)]


def test_steps_work_in_a_batch_with_a_model_and_in_a_thread(conn: Connection, queue: Queue) -> None:
    run(conn, verbs.publish_batch(queue("orders"), [1, 2]))
    one_each = each_with_model(lambda message: message.step("a", lambda: message.body) and None, lambda body: body + 10)
    assert drain(conn, one_each, handler_timeout=MINUTE) == {"success": 2}
    run(conn, verbs.publish_batch("orders", [1, 2]))

    def all_at_once(messages: list[Message]) -> None:
        assert [message.step("a", lambda message=message: message.body) for message in messages] == [1, 2]  # type: ignore[misc]

    assert Consumer(queue_name="orders", handle_batch=all_at_once).drain(conn) == {"success": 2}


def test_an_asynchronous_handler_awaits_its_steps(conn: Connection, one: int) -> None:
    calls: list[str] = []

    async def call(name: str) -> str:
        await asyncio.sleep(0)
        calls.append(name)
        return name

    async def handle(message: Message) -> None:
        found = await asyncio.gather(*(message.astep(name, lambda name=name: call(name)) for name in ("a", "b")))  # type: ignore[misc]
        assert found == ["a", "b"]
        assert await message.astep("c", lambda: 3) == 3
        with pytest.raises(InvalidArgument, match=r"step 'd' is asynchronous\. Write: await message\.astep"):
            message.step("d", lambda: call("d"))
        if message.attempts == 1:
            raise OSError

    assert drain(conn, awaited(handle)) == {"retried": 1}
    again(conn)
    assert drain(conn, awaited(handle)) == {"success": 1}
    assert sorted(calls) == ["a", "b"]


def test_a_message_that_repeats_a_dead_one_continues_after_its_steps_unless_it_has_another_body(
    conn: Connection, one: int
) -> None:
    calls: list[Any] = []

    def handle(message: Message) -> None:
        message.step("charge", lambda: calls.append(message.body))
        if len(calls) == 1 and message.requeues == 0:
            raise RejectMessage("no such address")

    drain(conn, handle)
    (repeated,) = run(conn, verbs.requeue_dead(verbs.DeadFilter("orders", results=["rejected"])))
    assert kept(conn) == {"charge": None}
    assert drain(conn, handle) == {"success": 1}
    assert len(calls) == 1
    assert conn.execute("SELECT id, steps IS NULL FROM messages.message_archive ORDER BY id").fetchall() == [
        (one, False),
        (repeated.new_id, True),
    ]

    other = run(conn, verbs.publish("orders", {"order_id": 8}))
    calls.clear()
    drain(conn, handle)
    (dead,) = run(conn, verbs.lease_dead("orders"))
    assert dead.id == other
    run(conn, verbs.requeue(dead.lock_token, [other], bodies={other: {"order_id": 9}}))
    assert kept(conn) == {}
    assert drain(conn, handle) == {"success": 1}
    assert calls == [{"order_id": 8}, {"order_id": 9}]


def test_a_lease_that_ends_for_the_last_time_keeps_the_steps(conn: Connection, queue: Queue) -> None:
    run(conn, verbs.publish(queue("orders", max_attempts=1), 1))
    (held,) = run(conn, verbs.lease("orders", lease_for=timedelta(milliseconds=100)))
    run(conn, verbs.record_step(held.lock_token, held.id, "a", 1, lease_for=timedelta(milliseconds=100)))
    until_leases_expire(conn)
    run(conn, verbs.upkeep())
    found = conn.execute("SELECT result, steps -> 0 ->> 'name' FROM messages.message_archive").fetchall()
    assert found == [("lock_expired", "a")]


def test_another_body_under_the_same_key_begins_anew(conn: Connection, queue: Queue) -> None:
    queue("orders", backoff_first="1 hour", backoff_max="1 hour")
    run(conn, verbs.publish("orders", 1, dedup_key="k"))

    def handle(message: Message) -> None:
        message.step("a", lambda: 1)
        raise OSError

    drain(conn, handle)
    assert kept(conn) == {"a": 1}
    run(conn, verbs.publish("orders", 2, dedup_key="k", on_conflict="replace"))
    assert kept(conn) == {}


def test_the_life_of_a_message_has_its_steps_and_their_results_for_who_may_read_bodies(
    conn: Connection, connect: Connect, one: int
) -> None:
    def handle(message: Message) -> None:
        message.step("charge", lambda: {"receipt": "canary"})
        raise RejectMessage("no such address")

    def steps(session: Connection, id_: int) -> list[tuple[str, int | None, str]]:
        life = run(session, verbs.message_life(id_))
        return [(row["entry"], row["attempt"], row["details"]) for row in life if row["entry"].startswith("step")]

    drain(conn, handle)
    shown = 'charge: {"receipt": "canary"}'
    assert steps(conn, one) == [("step done", 1, shown)]
    entries = [row["entry"] for row in run(conn, verbs.message_life(one))]
    assert entries == ["published", "leased", "step done", "archived"]
    (repeated,) = run(conn, verbs.requeue_dead(verbs.DeadFilter("orders", results=["rejected"])))
    assert steps(conn, repeated.new_id) == [("step done before", None, shown)]
    assert run(conn, verbs.message_life(repeated.new_id))[0]["entry"] == "published again"
    name = f"steps_{uuid4().hex[:8]}"
    conn.execute(f"CREATE ROLE {name} LOGIN IN ROLE messages_observer".encode())
    try:
        observer = connect(user=name)
        assert steps(observer, one) == [("step done", 1, "charge")]
        observer.close()
    finally:
        conn.execute(f"DROP ROLE {name}".encode())


def test_whoever_lost_the_lease_keeps_nothing(conn: Connection, connect: Connect, one: int) -> None:
    calls: list[str] = []
    (message,) = run(conn, verbs.lease("orders"))
    lease = Lease(conn, [message], lease_for=MINUTE)
    message.step("a", lambda: calls.append("a"))

    def takes_over() -> None:
        calls.append("b")
        run(connect(), verbs.release_messages("orders", [one]))

    with pytest.raises(LeaseLost, match="step 'b' of message 1 was done, but its result, a NoneType, is not kept: the"):
        message.step("b", takes_over)
    assert lease.lost == {one}
    with pytest.raises(LeaseLost) as lost:
        message.step("c", lambda: calls.append("c"))
    assert lost.value.ids == (one,)
    assert calls == ["a", "b"], "the third is not begun"
    assert kept(conn) == {"a": None}


def test_an_attempt_whose_lease_is_lost_learns_it_at_its_first_step(
    conn: Connection, connect: Connect, one: int
) -> None:
    def handle(message: Message) -> None:
        run(connect(), verbs.cancel("orders", [one]))
        message.step("a", pytest.fail)

    assert drain(conn, handle) == {"lost": 1}


def test_a_lease_that_ended_or_another_token_keeps_no_step(conn: Connection, connect: Connect, one: int) -> None:
    (held,) = run(conn, verbs.lease("orders", lease_for=timedelta(milliseconds=50)))
    for call in (verbs.record_step(uuid4(), one, "a", 1), verbs.recorded_steps(uuid4(), one)):
        with pytest.raises(LeaseLost):
            run(conn, call)
    until_leases_expire(conn)
    # Also in a transaction that began before the end.
    for call in (verbs.record_step(held.lock_token, one, "a", 1), verbs.recorded_steps(held.lock_token, one)):
        with pytest.raises(LeaseLost):
            run(conn, call)
    assert kept(conn) == {}


def test_a_transaction_that_began_before_the_end_of_a_lease_keeps_no_step(
    conn: Connection, connect: Connect, one: int
) -> None:
    other = connect(autocommit=False)
    other.execute("SELECT now()")
    (held,) = run(conn, verbs.lease("orders", lease_for=timedelta(milliseconds=50)))
    until_leases_expire(conn)
    with pytest.raises(LeaseLost):
        run(other, verbs.record_step(held.lock_token, one, "a", 1))


def test_a_call_that_waited_past_the_lease_keeps_no_step(conn: Connection, connect: Connect, one: int) -> None:
    blocker = connect(autocommit=False)
    (held,) = run(conn, verbs.lease("orders"))
    blocker.execute("SELECT FROM messages.message FOR UPDATE")
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(run, conn, verbs.record_step(held.lock_token, one, "a", 1))
        until(lambda: blocker.execute("SELECT FROM pg_locks WHERE NOT granted").rowcount)
        blocker.execute("UPDATE messages.message SET lock_expires_at = clock_timestamp()")
        blocker.commit()
        with pytest.raises(LeaseLost):
            call.result()
    assert kept(conn) == {}


def test_a_step_extends_the_lease_and_never_shortens_it(conn: Connection, one: int) -> None:
    (held,) = run(conn, verbs.lease("orders", lease_for=timedelta(seconds=5)))
    end = "SELECT lock_expires_at - clock_timestamp() FROM messages.message"
    for number, lease_for, least in ((1, timedelta(hours=1), 3500), (2, timedelta(seconds=1), 3500), (3, None, 3500)):
        run(conn, verbs.record_step(held.lock_token, one, str(number), 1, lease_for=lease_for))
        ((left,),) = conn.execute(end).fetchall()
        assert left.total_seconds() > least


def test_two_steps_of_one_name_are_refused(conn: Connection, one: int) -> None:
    (message,) = run(conn, verbs.lease("orders"))
    with Lease(conn, [message], lease_for=MINUTE):
        message.step("a", lambda: 1)
        with pytest.raises(
            InvalidArgument, match=r"step 'a' of message 1 is begun a second time in one attempt\. Give"
        ):
            message.step("a", pytest.fail)
        with pytest.raises(
            InvalidArgument, match=r"step 'a' of message 1 is kept already\. Give each step of a message"
        ):
            run(conn, verbs.record_step(message.lock_token, one, "a", 2))
        assert kept(conn) == {"a": 1}


@pytest.mark.parametrize(
    ("result", "kind", "said"),
    [
        (
            {1, 2},
            InvalidMessage,
            "step 'a' of message 1 was done, but its result, a set, is not kept: the value is not JSON",
        ),
        (float("nan"), InvalidMessage, "a float, is not kept: the value is not JSON"),
        ("a\0b", InvalidMessage, "a str, is not kept: the value has .u0000"),
        (
            "x" * 65535,
            InvalidArgument,
            "a str, is not kept: the result of step 'a' has 65537 bytes. Give at most 65536",
        ),
    ],
)
def test_a_result_that_cannot_be_kept_is_named_with_its_step_and_type(
    conn: Connection, one: int, result: Any, kind: type[Exception], said: str
) -> None:
    (message,) = run(conn, verbs.lease("orders"))
    with Lease(conn, [message], lease_for=MINUTE):
        with pytest.raises(kind, match=said):
            message.step("a", lambda: result)
        assert kept(conn) == {}


def test_a_message_keeps_at_most_1000_steps_and_a_megabyte(conn: Connection, one: int) -> None:
    (held,) = run(conn, verbs.lease("orders"))
    many = "UPDATE messages.message SET steps = (SELECT jsonb_agg(jsonb_build_object('name', n, 'result', {}))"
    for result, number in (("1", 1000), ("repeat('x', 65000)", 16)):
        conn.execute(f"{many.format(result)} FROM generate_series(1, {number}) n)".encode())
        with pytest.raises(
            InvalidArgument, match=rf"message 1 has {number + 1} steps of \d+ bytes\. Keep at most 1000"
        ):
            run(conn, verbs.record_step(held.lock_token, one, "a", "x" * 65000))


def test_a_name_that_cannot_be_kept_is_refused_before_the_step_is_done(conn: Connection, one: int) -> None:
    (message,) = run(conn, verbs.lease("orders"))
    name: Any
    with Lease(conn, [message], lease_for=MINUTE):
        for name in ("", "x" * 256, None, 5, "a\0", "a\udce9"):
            with pytest.raises(InvalidArgument, match="the name of a step is"):
                message.step(name, pytest.fail)


def test_a_message_that_no_lease_holds_has_no_steps(conn: Connection, one: int) -> None:
    (message,) = run(conn, verbs.lease("orders"))
    with pytest.raises(InvalidArgument, match=r"no lease of this process holds message 1\. Get it from a Consumer"):
        message.step("a", pytest.fail)


def test_a_step_of_a_message_whose_lease_is_gone_is_not_done(conn: Connection, one: int) -> None:
    (message,) = run(conn, verbs.lease("orders"))
    Lease(conn, [message], lease_for=MINUTE)
    with pytest.raises(LeaseLost, match="the lease of 1 message ended: 1"):
        message.step("a", pytest.fail)


def test_the_result_of_a_step_whose_lease_goes_meanwhile_is_not_kept(conn: Connection, one: int) -> None:
    (message,) = run(conn, verbs.lease("orders"))
    leases = [Lease(conn, [message], lease_for=MINUTE)]
    with pytest.raises(LeaseLost, match="step 'a' of message 1 was done, but its result, a NoneType, is not kept: the"):
        message.step("a", leases.clear)


def test_a_handler_that_hung_until_its_consumer_was_gone_has_lost_its_lease(conn: Connection, one: int) -> None:
    goes_on, raised = Event(), Future[Exception]()

    def handle(message: Message) -> None:
        goes_on.wait(60)
        try:
            message.step("a", pytest.fail)
        except Exception as error:
            raised.set_result(error)

    drain(conn, handle, handler_timeout=0.1, lease_for=0.3)
    goes_on.set()
    assert isinstance(raised.result(timeout=30), LeaseLost)


def test_a_message_goes_to_another_process_without_its_lease(conn: Connection, one: int) -> None:
    (message,) = run(conn, verbs.lease("orders"))
    with Lease(conn, [message], lease_for=MINUTE):
        sent = pickle.loads(pickle.dumps(message))
    assert (sent.id, sent.body) == (one, message.body)
    with pytest.raises(InvalidArgument, match="no lease of this process holds message 1"):
        sent.step("a", pytest.fail)


def test_the_bodies_of_a_batch_go_with_it_and_not_when_python_looks_for_cycles(conn: Connection, one: int) -> None:
    class Body(list[Any]):
        """Something that can be watched."""

    (message,) = run(conn, verbs.lease("orders"))
    message = replace(message, body=Body())
    gone = weakref.ref(message.body)
    gc.disable()
    try:
        lease = Lease(conn, [message], lease_for=MINUTE)
        lease[0].step("a", lambda: 1)
        del lease, message
        assert gone() is None
    finally:
        gc.enable()
