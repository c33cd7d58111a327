"""When a watch notifies: the rule alone, with a clock that the test turns."""

from __future__ import annotations

from collections import deque
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from airflow_provider_pgqueue.core.message import DeadQueue, ReadyQueue
from airflow_provider_pgqueue.triggers.watch import ConsumerWatch, DeadMessageWatch, MessageWatch, NotifiedTimes


def ready(count: int, age: float, since: float | None = None) -> list[ReadyQueue]:
    return [
        ReadyQueue(
            queue_name="orders",
            ready=count,
            oldest_age=timedelta(seconds=age),
            next_in=None,
            topics=["a.b"],
            oldest_at=None if since is None else datetime.fromtimestamp(since, UTC),
        )
    ]


def dead(newest_id: int, result: str = "failed", waiting: int = 1, age: float = 0.1) -> DeadQueue:
    return DeadQueue(
        queue_name="orders",
        result=result,
        waiting=waiting,
        newest_id=newest_id,
        oldest_age=timedelta(seconds=5),
        newest_age=timedelta(seconds=age),
        causes=[cause(result, waiting)],
    )


def cause(result: str = "failed", waiting: int = 1) -> dict[str, Any]:
    return {"result": result, "fingerprint": "0123456789ab", "waiting": waiting, "newest_id": 7}


def test_nothing_ready_notifies_nobody_and_waits_for_the_poll() -> None:
    watch = MessageWatch(queue_name="orders", poll_interval=30)
    assert watch.receive([], 100.0) is None
    assert watch.poll_in == 30


def test_work_that_is_there_at_the_first_look_notifies() -> None:
    watch = MessageWatch(queue_name="orders")
    notification = {"queue_name": "orders", "ready": 3, "oldest_age": 60.0, "topics": ["a.b"]}
    assert watch.receive(ready(3, 60.0), 100.0) == notification


def test_the_same_work_notifies_again_after_ten_seconds_then_ever_more_rarely() -> None:
    watch = MessageWatch(queue_name="orders", notify_every=10)
    notified = [second for second in range(1000) if watch.receive(ready(1, 1.0 + second), float(second))]
    assert notified == [0, 10, 30, 70, 150, 310, 610, 910]


def test_a_watch_whose_work_gets_done_notifies_as_often_as_at_the_beginning() -> None:
    watch, left = MessageWatch(queue_name="orders", notify_every=10), 1000
    notified = []
    for second in range(200):
        if left and watch.receive(ready(left, 1.0 + second), float(second)):
            notified.append(second)
            left -= 100
    assert notified == list(range(0, 100, 10))


def test_a_backlog_longer_than_can_be_counted_shows_by_its_oldest_message_that_it_is_worked_on() -> None:
    watch = MessageWatch(queue_name="orders", notify_every=10)
    notified = [
        second for second in range(100) if watch.receive(ready(1000, 1000.0, since=second // 10 * 0.001), float(second))
    ]
    assert notified == list(range(0, 100, 10))


def test_a_change_ends_the_long_pauses_of_a_watch() -> None:
    watch = MessageWatch(queue_name="orders", notify_every=10)
    assert [second for second in range(200) if watch.receive(ready(1, 1.0 + second), float(second))][-1] == 150
    assert watch.receive(ready(2, 201.0), 200.0), "another one came"
    notified = [second for second in range(201, 300) if watch.receive(ready(2, 1.0 + second), float(second))]
    assert notified == [210, 230, 270]


def empty_at(outage: int, per_run: int, *, stuck: bool, steady: bool = False) -> float:
    """Return when the last message is taken: 300 in 200 seconds, runs that take some a second after they are notified.

    During the outage nobody watches, and then a new watch begins. With `stuck` one message is never taken. With
    `steady` it notifies every ten seconds, or after two where the queue was empty, whatever it sees.
    """
    watch = MessageWatch(queue_name="orders")
    waiting, runs = deque[float](), deque[float]()
    came, notified_at = 0, -100.0
    for step in range(100_000):
        now = step / 5
        while came <= min(now, 200) * 1.5:
            waiting.append(now)
            came += 1
        if runs and runs[0] <= now:
            runs.popleft()
            kept = waiting.popleft() if stuck else None
            for _ in range(min(per_run, len(waiting))):
                waiting.popleft()
            if kept is not None:
                waiting.appendleft(kept)
        if now > 200 and len(waiting) == stuck:
            return now
        if 50 <= now < 50 + outage:
            watch, notified_at = MessageWatch(queue_name="orders"), -100.0
            continue
        rows = ready(len(waiting), now - waiting[0], since=waiting[0]) if waiting else []
        if steady:
            notifications = bool(waiting) and now - notified_at >= (2 if waiting[0] > notified_at else 10)
        else:
            notifications = watch.receive(rows, now) is not None
        if notifications:
            notified_at = now
            runs.append(now + 1)
    raise AssertionError("never empty")


@pytest.mark.parametrize("stuck", [False, True])
@pytest.mark.parametrize("per_run", [1, 5, 14, 16, 20, 50, 1000])
@pytest.mark.parametrize("outage", [0, 12, 13, 24, 60, 120])
def test_after_an_outage_a_queue_is_empty_as_soon_as_if_the_watch_made_no_longer_pauses(
    outage: int, per_run: int, stuck: bool
) -> None:
    steady = empty_at(outage, per_run, stuck=stuck, steady=True)
    assert empty_at(outage, per_run, stuck=stuck) <= 1.2 * steady


def test_work_that_came_after_the_last_notification_notifies_at_once() -> None:
    watch = MessageWatch(queue_name="orders", notify_every=10)
    assert watch.receive(ready(1, 1.0), 0.0)
    assert watch.receive(ready(1, 0.1), 5.0)
    assert watch.receive(ready(1, 3.1), 8.0) is None


def test_a_burst_notifies_once_in_two_seconds() -> None:
    watch = MessageWatch(queue_name="orders", notify_every=10)
    assert watch.receive(ready(1, 0.0), 0.0)
    assert watch.receive(ready(1, 0.01), 0.5) is None
    assert watch.poll_in == 1.5
    assert watch.receive(ready(1, 0.01), 2.0)


def test_a_queue_that_was_seen_empty_notifies_anew() -> None:
    watch = MessageWatch(queue_name="orders", notify_every=10)
    assert watch.receive(ready(1, 60.0), 0.0)
    assert watch.receive([], 3.0) is None
    assert watch.receive(ready(1, 60.0), 4.0), "its lease expired: it is as old as before"


def test_after_a_notification_the_next_look_is_in_time_to_notify_again() -> None:
    watch = MessageWatch(queue_name="orders", poll_interval=30, notify_every=10)
    watch.receive(ready(1, 0.0), 0.0)
    assert watch.poll_in == 10


def test_fewer_messages_than_asked_for_notify_when_the_oldest_waited_long_enough() -> None:
    watch = MessageWatch(queue_name="orders", min_messages=10, max_wait=60.0)
    assert watch.receive(ready(9, 50.0), 0.0) is None
    assert watch.poll_in == 10.0
    assert watch.receive(ready(9, 60.0), 10.0)
    assert MessageWatch(queue_name="orders", min_messages=10).receive(ready(9, 1e6), 0.0) is None


def test_only_messages_that_come_later_are_no_reason_to_notify() -> None:
    watch = MessageWatch(queue_name="orders")
    later = ReadyQueue(queue_name="orders", ready=0, oldest_age=None, next_in=timedelta(seconds=5), topics=[])
    assert watch.receive([later], 0.0) is None


def test_one_question_counts_far_enough_for_all_who_ask() -> None:
    watches = [
        MessageWatch(queue_name="b", min_messages=5000),
        MessageWatch(queue_name="a"),
        MessageWatch(queue_name="b"),
    ]
    assert MessageWatch.ask(watches).given == {"queue_names": ["a", "b"], "count_up_to": 5000}


def consumers(number: int) -> list[ConsumerWatch]:
    watches = [ConsumerWatch(queue_name="orders", poll_interval=30) for _ in range(number)]
    woken: dict[str, NotifiedTimes] = {}
    for watch in watches:
        watch.share(woken)
    return watches


def test_as_many_consumers_are_woken_as_there_are_messages() -> None:
    watches = consumers(20)
    woken = [watch.receive(ready(3, 1.0, since=99), 100.0) is not None for watch in watches]
    assert woken == [True] * 3 + [False] * 17
    assert not any(watch.receive(ready(3, 2.0, since=99), 101.0) for watch in watches[3:]), "those who were woken begin"
    woken = [watch.receive(ready(5, 3.0, since=99), 102.0) is not None for watch in watches[3:]]
    assert woken == [True] * 2 + [False] * 15


def test_a_message_that_came_after_those_of_the_woken_consumers_wakes_another() -> None:
    watches = consumers(3)
    assert watches[0].receive(ready(1, 1.0, since=99), 100.0)
    assert watches[1].receive(ready(1, 0.1, since=102.9), 103.0), "the one before is taken"
    assert watches[2].receive(ready(1, 1.1, since=102.9), 104.0) is None


def test_another_consumer_is_woken_where_those_who_were_woken_do_not_come() -> None:
    watches = consumers(2)
    assert watches[0].receive(ready(1, 1.0, since=99), 100.0)
    assert watches[1].receive(ready(1, 11.0, since=99), 110.0) is None
    assert watches[1].poll_in == 20.0
    assert watches[1].receive(ready(1, 31.0, since=99), 130.0)


def test_a_newer_dead_message_notifies_at_once_and_the_same_ones_again_later() -> None:
    watch = DeadMessageWatch(queue_name="orders", notify_every=10)
    assert watch.receive([dead(7)], 0.0) == {
        "queue_name": "orders",
        "waiting": 1,
        "newest_id": 7,
        "oldest_age": 5.0,
        "causes": [cause()],
    }
    assert watch.receive([dead(7, age=5.1)], 5.0) is None
    assert watch.receive([dead(7, age=5.1), dead(3, "rejected")], 6.0), "an older message that died now"
    assert watch.receive([dead(7, age=15.1)], 16.0)


def test_dead_messages_that_are_repaired_some_at_a_time_notify_as_often_as_at_the_beginning() -> None:
    watch, left, notified = DeadMessageWatch(queue_name="orders", notify_every=10), 10, []
    for second in range(200):
        if left and watch.receive([dead(7, waiting=left, age=1.0 + second)], float(second)):
            notified.append(second)
            left -= 1
    assert notified == list(range(0, 100, 10))


def test_dead_messages_that_a_repair_gives_back_notify_ever_more_rarely() -> None:
    watch = DeadMessageWatch(queue_name="orders", notify_every=10)
    notified = []
    for second in range(1000):
        if watch.receive([dead(7, age=1.0 + second)], float(second)):
            notified.append(second)
            assert watch.receive([], second + 0.5) is None, "the repair that was notified has leased it"
    assert notified == [0, 10, 30, 70, 150, 310, 610, 910]


def test_a_dead_message_that_came_within_two_seconds_of_a_notification_notifies_after_them() -> None:
    watch = DeadMessageWatch(queue_name="orders")
    assert watch.receive([dead(7)], 0.0)
    assert watch.receive([dead(8)], 1.0) is None
    assert watch.receive([dead(8, age=1.1)], 2.0)


def test_dead_messages_with_other_results_do_not_count() -> None:
    watch = DeadMessageWatch(queue_name="orders", results=["rejected", "expired"])
    assert watch.receive([dead(9, "failed")], 0.0) is None
    notification = watch.receive([dead(9, "failed"), dead(7, "rejected", 2), dead(8, "expired")], 1.0)
    assert notification is not None
    assert (notification["waiting"], notification["newest_id"]) == (3, 8)
    assert notification["causes"] == [cause("rejected", 2), cause("expired")], "the most frequent first"
