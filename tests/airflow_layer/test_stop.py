"""A consumer that is told to stop inside a long call, that runs out of time, or that is tried again."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from airflow_provider_pgqueue.core import Consumer, InvalidArgument, Lease, LeaseLost, Rejected, verbs
from airflow_provider_pgqueue.core.consumer.loop import Loop
from airflow_provider_pgqueue.core.tuning import TUNING
from airflow_provider_pgqueue.hooks.pgqueue import PgQueueHook
from airflow_provider_pgqueue.operators.consume import PgQueueConsumeOperator
from airflow_provider_pgqueue.telemetry.telemetry import task_of
from tests.airflow_layer.airflow_versions import AirflowException, AirflowFailException
from tests.waiting import PATIENCE, until

Connection = psycopg.Connection[Any]
Queue = Callable[..., str]
Run = Callable[..., Any]


def task(**arguments: Any) -> PgQueueConsumeOperator:
    return PgQueueConsumeOperator(**({"task_id": "consume", "queue_name": "orders"} | arguments))


def leased(conn: Connection) -> list[Any]:
    return [
        body
        for (body,) in conn.execute("SELECT message FROM messages.message WHERE lock_expires_at IS NOT NULL ORDER BY 1")
    ]


def attempts(conn: Connection) -> dict[Any, int]:
    return dict(conn.execute("SELECT message, attempts FROM messages.message ORDER BY id").fetchall())


def results(conn: Connection) -> dict[Any, str]:
    return dict(conn.execute("SELECT message, result FROM messages.message_archive").fetchall())


@pytest.fixture
def on_term() -> Iterator[Callable[[PgQueueConsumeOperator], None]]:
    """Let SIGTERM do what Airflow's task runner does."""
    before = signal.getsignal(signal.SIGTERM)
    yield lambda operator: signal.signal(signal.SIGTERM, lambda *_: operator.on_kill())
    signal.signal(signal.SIGTERM, before)


def test_a_task_told_to_stop_inside_a_long_call_gives_the_others_back_at_once(
    conn_id: str,
    queue: Queue,
    run: Run,
    conn: Connection,
    on_term: Callable[[Any], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(TUNING, "last_moment", 2 * PATIENCE)
    PgQueueHook(conn_id).publish_batch(queue("orders"), list(range(6)))

    def handle(message: Any) -> None:
        if message.body == 2:
            os.kill(os.getpid(), signal.SIGTERM)
            until(lambda: leased(conn) == [2], what="the others to be free")

    operator = task(apply_function=handle)
    on_term(operator)
    with pytest.raises(AirflowException, match="stopped while consuming"):
        run(operator)
    assert results(conn) == {0: "success", 1: "success", 2: "success"}
    assert attempts(conn) == {3: 0, 4: 0, 5: 0}


@pytest.mark.parametrize(
    ("function", "lost", "counted"),
    [("apply_function", 1, {0: 1, 1: 0, 2: 0}), ("apply_function_batch", 3, {0: 1, 1: 1, 2: 1})],
)
def test_what_is_in_hand_is_released_before_airflow_kills_the_task(
    conn_id: str,
    queue: Queue,
    run: Run,
    conn: Connection,
    on_term: Callable[[Any], None],
    monkeypatch: pytest.MonkeyPatch,
    function: str,
    lost: int,
    counted: dict[int, int],
) -> None:
    assert TUNING.last_moment < 5, "Airflow kills after five seconds"
    monkeypatch.setattr(TUNING, "last_moment", 0.2)
    PgQueueHook(conn_id).publish_batch(queue("orders"), list(range(3)))

    def hang(work: Any) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        until(lambda: leased(conn) == [], what="all to be free")

    operator = task(**{function: hang})
    on_term(operator)
    with pytest.raises(AirflowException, match=rf"'lost': {lost}\b"):
        run(operator)
    assert results(conn) == {}
    assert attempts(conn) == counted


def test_a_retry_takes_over_what_its_own_earlier_try_holds_and_nothing_else(
    conn_id: str, queue: Queue, run: Run, conn: Connection, context: Any
) -> None:
    hook = PgQueueHook(conn_id)
    hook.publish_batch(queue("orders"), list(range(6)))
    first = "orders/manual__1/consume/-1/1@123@gone"
    for holder in (first, "orders/manual__1/consume/-1x/1@1@b", "orders/manual__1/consume/7/1@123@b"):
        hook.run(verbs.lease("orders", max_messages=2, lease_for=timedelta(hours=1), locked_by=holder))
    assert run(task(apply_function=print)) == {}, "a first try has nothing to take over"
    context["ti"].try_number = 2
    seen: list[Any] = []
    assert run(task(apply_function=lambda message: seen.append((message.body, message.attempts)))) == {"success": 2}
    assert seen == [(0, 2), (1, 2)]  # one of them may have killed it
    assert leased(conn) == [2, 3, 4, 5]


def test_a_retry_of_a_task_with_the_longest_names_takes_over_too(
    conn_id: str, queue: Queue, run: Run, context: Any
) -> None:
    context["ti"].dag_id = context["ti"].run_id = "d" * 250
    hook = PgQueueHook(conn_id)
    hook.publish(queue("orders"), 1)
    context["ti"].task_id = "consume"
    hook.run(verbs.lease("orders", locked_by=f"{task_of(context)}/1@123@gone"))
    context["ti"].try_number = 2
    assert run(task(apply_function=print)) == {"success": 1}


def test_everybody_is_no_holder(conn_id: str, queue: Queue) -> None:
    queue("orders")
    with pytest.raises(InvalidArgument, match="holder is ''"):
        PgQueueHook(conn_id).run(verbs.release_messages("orders", holder=""))


def test_an_earlier_try_that_still_works_has_lost_its_messages(conn_id: str, queue: Queue, context: Any) -> None:
    hook = PgQueueHook(conn_id)
    hook.publish(queue("orders"), 1)
    (message,) = hook.run(verbs.lease("orders", locked_by="me/1"))
    assert hook.run(verbs.release_messages("orders", holder="me")) == [message.id]
    assert hook.run(verbs.release_messages("orders", holder="me")) == []
    assert message.lock_token is not None
    with pytest.raises(LeaseLost):
        hook.run(verbs.archive(message.lock_token, [message.id]))


@pytest.mark.parametrize(
    ("limit", "bad", "fails"),
    [("default", 1, True), (1.0, 3, False), (0.5, 2, True), (2, 2, True), (2, 1, False), (None, 4, False)],
)
def test_a_task_fails_when_as_many_messages_died_as_its_limit_says(
    conn_id: str, queue: Queue, run: Run, conn: Connection, limit: Any, bad: int, fails: bool
) -> None:
    PgQueueHook(conn_id).publish_batch(queue("orders", max_attempts=1), list(range(4)))

    def handle(message: Any) -> None:
        if message.body < bad:
            raise KeyError("no")

    operator = task(apply_function=handle, **({} if limit == "default" else {"fail_on_failed": limit}))
    if fails:
        with pytest.raises(AirflowFailException, match=rf"{bad} messages? died \({bad} failed\) of 4 messages"):
            run(operator)
    else:
        assert run(operator)["failed"] == bad
    # Each is settled all the same.
    assert leased(conn) == []


def test_a_task_of_which_all_messages_failed_fails_also_if_they_are_delivered_again(
    conn_id: str, queue: Queue, run: Run
) -> None:
    PgQueueHook(conn_id).publish_batch(queue("orders"), [0, 1])

    def handle(message: Any) -> None:
        raise KeyError("no")

    with pytest.raises(AirflowException, match="all of 2 messages of queue orders failed"):
        run(task(apply_function=handle))


def test_a_task_with_nothing_to_do_and_one_that_rejects_do_not_fail(conn_id: str, queue: Queue, run: Run) -> None:
    queue("orders")
    assert run(task(apply_function=print)) == {}
    PgQueueHook(conn_id).publish("orders", 1)

    def handle(message: Any) -> None:
        raise KeyError("no")

    assert run(task(apply_function=handle, on_error={KeyError: Rejected})) == {"rejected": 1}


class Beaten:
    """A lock that somebody else gets first: at the n-th time, an act comes before whoever asks for it."""

    def __init__(self, lock: Any, place: int, act: Callable[[], None]) -> None:
        self._lock, self._left, self._act = lock, place, act

    def __enter__(self) -> None:
        self._left -= 1
        if self._left == 0:
            self._act()
        self._lock.__enter__()

    def __exit__(self, *args: Any) -> None:
        self._lock.__exit__(*args)


@pytest.mark.parametrize("place", [1, 2])  # before what was handled is settled, before the others are given back
def test_what_two_threads_give_back_at_once_is_lost_to_neither(
    conn_id: str, queue: Queue, conn: Connection, place: int
) -> None:
    PgQueueHook(conn_id).publish_batch(queue("orders"), list(range(5)))
    handled: list[int] = []
    with PgQueueHook(conn_id).connect() as own:

        def hold(lease: Lease) -> None:
            lease._calling = Beaten(lease._calling, place, lambda: lease.give_back(conn))  # type: ignore[assignment]

        consumer = Consumer(queue_name="orders", handle=lambda message: handled.append(message.body), batch_size=5)
        with Loop(consumer, own, on_lease=hold) as loop:
            counts = loop.drain(stop=lambda: bool(handled))
    assert counts == {"success": 1}, (
        "what the other thread settled is not lost, and what it released is not counted twice"
    )
    assert results(conn) == {0: "success"}
    assert attempts(conn) == {1: 0, 2: 0, 3: 0, 4: 0}
    assert leased(conn) == []
