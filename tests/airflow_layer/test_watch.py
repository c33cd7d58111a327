"""When a doorbell rings: the rule alone, with a clock that the test turns."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow_provider_pgqueue.core.message import DeadQueue, ReadyQueue
from airflow_provider_pgqueue.triggers.watch import DeadMessageWatch, MessageWatch


def ready(count: int, age: float) -> list[ReadyQueue]:
    return [
        ReadyQueue(queue_name="orders", ready=count, oldest_age=timedelta(seconds=age), next_in=None, topics=["a.b"])
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


def test_nothing_ready_rings_nobody_and_waits_for_the_poll() -> None:
    watch = MessageWatch(queue_name="orders", poll_interval=30)
    assert watch.hear([], 100.0) is None
    assert watch.look_in == 30


def test_work_that_is_there_at_the_first_look_rings() -> None:
    watch = MessageWatch(queue_name="orders")
    doorbell = {"queue_name": "orders", "ready": 3, "oldest_age": 60.0, "topics": ["a.b"]}
    assert watch.hear(ready(3, 60.0), 100.0) == doorbell


def test_the_same_work_rings_again_after_ten_seconds_then_ever_more_rarely() -> None:
    watch = MessageWatch(queue_name="orders", ring_every=10)
    rung = [second for second in range(1000) if watch.hear(ready(1, 1.0 + second), float(second))]
    assert rung == [0, 10, 30, 70, 150, 310, 610, 910]


def test_work_that_came_after_the_last_ring_rings_at_once() -> None:
    watch = MessageWatch(queue_name="orders", ring_every=10)
    assert watch.hear(ready(1, 1.0), 0.0)
    assert watch.hear(ready(1, 0.1), 5.0)
    assert watch.hear(ready(1, 3.1), 8.0) is None


def test_a_burst_rings_once_in_two_seconds() -> None:
    watch = MessageWatch(queue_name="orders", ring_every=10)
    assert watch.hear(ready(1, 0.0), 0.0)
    assert watch.hear(ready(1, 0.01), 0.5) is None
    assert watch.look_in == 1.5
    assert watch.hear(ready(1, 0.01), 2.0)


def test_a_queue_that_was_seen_empty_rings_anew() -> None:
    watch = MessageWatch(queue_name="orders", ring_every=10)
    assert watch.hear(ready(1, 60.0), 0.0)
    assert watch.hear([], 3.0) is None
    assert watch.hear(ready(1, 60.0), 4.0), "its lease expired: it is as old as before"


def test_after_a_ring_the_next_look_is_in_time_to_ring_again() -> None:
    watch = MessageWatch(queue_name="orders", poll_interval=30, ring_every=10)
    watch.hear(ready(1, 0.0), 0.0)
    assert watch.look_in == 10


def test_fewer_messages_than_asked_for_ring_when_the_oldest_waited_long_enough() -> None:
    watch = MessageWatch(queue_name="orders", min_messages=10, max_wait=60.0)
    assert watch.hear(ready(9, 50.0), 0.0) is None
    assert watch.look_in == 10.0
    assert watch.hear(ready(9, 60.0), 10.0)
    assert MessageWatch(queue_name="orders", min_messages=10).hear(ready(9, 1e6), 0.0) is None


def test_only_messages_that_come_later_are_no_reason_to_ring() -> None:
    watch = MessageWatch(queue_name="orders")
    later = ReadyQueue(queue_name="orders", ready=0, oldest_age=None, next_in=timedelta(seconds=5), topics=[])
    assert watch.hear([later], 0.0) is None


def test_one_question_counts_far_enough_for_all_who_ask() -> None:
    watches = [
        MessageWatch(queue_name="b", min_messages=5000),
        MessageWatch(queue_name="a"),
        MessageWatch(queue_name="b"),
    ]
    assert MessageWatch.ask(watches).given == {"queue_names": ["a", "b"], "count_up_to": 5000}


def test_a_newer_dead_message_rings_at_once_and_the_same_ones_again_later() -> None:
    watch = DeadMessageWatch(queue_name="orders", ring_every=10)
    assert watch.hear([dead(7)], 0.0) == {
        "queue_name": "orders",
        "waiting": 1,
        "newest_id": 7,
        "oldest_age": 5.0,
        "causes": [cause()],
    }
    assert watch.hear([dead(7, age=5.1)], 5.0) is None
    assert watch.hear([dead(7, age=5.1), dead(3, "rejected")], 6.0), "an older message that died now"
    assert watch.hear([dead(7, age=15.1)], 16.0)


def test_dead_messages_that_a_repair_gives_back_ring_ever_more_rarely() -> None:
    watch = DeadMessageWatch(queue_name="orders", ring_every=10)
    rung = []
    for second in range(1000):
        if watch.hear([dead(7, age=1.0 + second)], float(second)):
            rung.append(second)
            assert watch.hear([], second + 0.5) is None, "the repair that was rung for has leased it"
    assert rung == [0, 10, 30, 70, 150, 310, 610, 910]


def test_a_dead_message_that_came_within_two_seconds_of_a_ring_rings_after_them() -> None:
    watch = DeadMessageWatch(queue_name="orders")
    assert watch.hear([dead(7)], 0.0)
    assert watch.hear([dead(8)], 1.0) is None
    assert watch.hear([dead(8, age=1.1)], 2.0)


def test_dead_messages_with_other_results_do_not_count() -> None:
    watch = DeadMessageWatch(queue_name="orders", results=["rejected", "expired"])
    assert watch.hear([dead(9, "failed")], 0.0) is None
    doorbell = watch.hear([dead(9, "failed"), dead(7, "rejected", 2), dead(8, "expired")], 1.0)
    assert doorbell is not None
    assert (doorbell["waiting"], doorbell["newest_id"]) == (3, 8)
    assert doorbell["causes"] == [cause("rejected", 2), cause("expired")], "the most frequent first"
