"""Queues where keys take turns: what each key gets, whoever publishes, however, and whatever else waits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg import sql
from psycopg.types.json import Jsonb

from airflow_provider_pgqueue.core import run, verbs
from tests.waiting import until, until_past

pytestmark = pytest.mark.rolled_back

Connection = psycopg.Connection[Any]
Connect = Callable[..., Connection]
Queue = Callable[..., str]

HOUR = timedelta(hours=1)
ROWS = sql.SQL("unnest(%s::text[], %s::text[]) WITH ORDINALITY AS i (b, t, n)")


def fill(conn: Connection, key: str, number: int, **options: Any) -> None:
    """Publish that many messages of a key, in batches."""
    for begin in range(0, number, 5000):
        bodies = [key] * min(5000, number - begin)
        run(conn, verbs.publish_batch("orders", bodies, headers={"fair_key": key}, **options))


def settle(conn: Connection) -> None:
    """Wait until the last place has come: those of one batch lie 32 microseconds apart, maybe ahead of the clock."""
    ((last,),) = conn.execute("SELECT max(coalesce(due_at, visible_at)) FROM messages.message").fetchall()
    until_past(conn, last)


def order(conn: Connection, number: int, at_once: int = 1) -> list[str]:
    """Lease that many messages, and return their bodies, which are their keys."""
    settle(conn)
    leased: list[str] = []
    while len(leased) < number:
        messages = run(conn, verbs.lease("orders", max_messages=min(at_once, number - len(leased)), lease_for=HOUR))
        assert messages, f"{len(leased)} of {number} were leased"
        leased += [message.body for message in messages]
    return leased


def turns(leased: Sequence[str], by: str) -> list[Counter[str]]:
    """Return what each key got between one message of `by` and the next."""
    found: list[Counter[str]] = []
    for key in leased:
        if key == by:
            found.append(Counter())
        elif found:
            found[-1][key] += 1
    return found


@pytest.mark.long
def test_each_of_99_keys_has_its_turn_next_to_one_with_20000_messages(conn: Connection, queue: Queue) -> None:
    queue("orders", fair_by="group", notify="off")
    fill(conn, "big", 20_000)
    small = [f"key {number}" for number in range(99)]
    for key in small:
        fill(conn, key, 10)
    leased = order(conn, 1100)
    begun = turns(leased, "big")
    # The first turn may have begun before the others came.
    assert set(begun[0].values()) <= {1}
    assert all(turn == dict.fromkeys(small, 1) for turn in begun[1:10])
    assert sum(begun[:11], Counter()) == dict.fromkeys(small, 10)
    # And then the big one has everything.
    assert set(leased[-50:]) == {"big"}


def test_a_key_that_comes_late_is_served_at_once_and_gets_no_more_than_its_share(
    conn: Connection, queue: Queue
) -> None:
    queue("orders", fair_by="group")
    fill(conn, "early", 500)
    assert order(conn, 100) == ["early"] * 100
    fill(conn, "late", 100)
    leased = order(conn, 200)
    assert "late" in leased[:2]
    assert all(turn == {"late": 1} for turn in turns(leased, "early")[1:-1])
    # Whoever publishes only when the last message is finished has one of each turn, too.
    fill(conn, "one by one", 1)
    found = []
    for _ in range(60):
        (key,) = order(conn, 1)
        found.append(key)
        if key == "one by one":
            run(conn, verbs.publish("orders", key, headers={"fair_key": key}))
    assert all(turn == {"one by one": 1} for turn in turns(found, "early")[1:-1])


def test_keys_take_turns_under_a_held_snapshot(connect: Connect, queue: Queue) -> None:
    conn, holder = connect(), connect()
    queue("orders", fair_by="group")
    fill(conn, "a", 300)
    holder.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1 FROM messages.message LIMIT 1")
    settle(conn)
    for _ in range(200):
        assert [message.body for message in run(conn, verbs.consume("orders"))] == ["a"]
    fill(conn, "b", 50)
    fill(conn, "c", 50)
    assert all(turn == {"b": 1, "c": 1} for turn in turns(order(conn, 120), "a")[1:-1])


@pytest.mark.long
def test_publishers_at_once_give_no_key_more_than_a_turn_for_each_of_them(connect: Connect, queue: Queue) -> None:
    queue("orders", fair_by="group")
    conn = connect()
    fill(conn, "big", 1000)

    def publish(session: Connection) -> None:
        for _ in range(50):
            run(session, verbs.publish("orders", "busy", headers={"fair_key": "busy"}))
            run(session, verbs.publish("orders", "other", headers={"fair_key": "other"}))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(publish, [connect() for _ in range(4)]))
    leased = order(conn, 600, at_once=7)
    assert Counter(leased)["busy"] == Counter(leased)["other"] == 200
    assert max(max(turn.values(), default=0) for turn in turns(leased, "big")) <= 4


def test_a_publish_that_is_rolled_back_takes_no_turn(connect: Connect, queue: Queue) -> None:
    conn, other = connect(), connect(autocommit=False)
    queue("orders", fair_by="group")
    fill(conn, "a", 20)
    fill(other, "b", 10)
    other.rollback()
    fill(conn, "b", 10)
    assert all(turn == {"b": 1} for turn in turns(order(conn, 20), "a")[1:-1])


def test_what_waits_when_it_is_turned_on_or_off_is_served_and_newcomers_do_not_wait_for_it(
    conn: Connection, queue: Queue
) -> None:
    queue("orders")
    fill(conn, "old", 300)
    run(conn, verbs.alter_queue("orders", fair_by="group"))
    fill(conn, "a", 20)
    fill(conn, "b", 20)
    leased = order(conn, 150)
    assert "a" in leased[:40]
    assert all(turn == {"b": 1} for turn in turns([key for key in leased if key != "old"], "a")[1:-1])
    fill(conn, "c", 5)
    run(conn, verbs.alter_queue("orders", fair_by=""))
    fill(conn, "new", 5)
    leased = order(conn, 200, at_once=50)
    assert leased[-5:] == ["new"] * 5
    assert Counter(leased)["c"] == 5
    assert conn.execute("SELECT count(*) FROM messages.message WHERE lock_expires_at IS NULL").fetchone() == (0,)


@pytest.mark.parametrize("way", ["insert", "batch", "deduplicated", "topic", "staged", "requeued"])
def test_however_messages_are_published_their_keys_take_turns(conn: Connection, queue: Queue, way: str) -> None:
    queue("orders", fair_by="topic")
    topics = ["a.1"] * 40 + ["b.1"] * 5 + ["c.1"] * 5
    bodies = [topic[0] for topic in topics]
    if way == "insert":
        insert = "INSERT INTO messages.message (queue_name, message, topic) SELECT 'orders', to_jsonb(b), t FROM {}"
        conn.execute(sql.SQL(insert).format(ROWS), [bodies, topics])
    elif way == "batch":
        run(conn, verbs.publish_batch("orders", bodies, topics=topics))
    elif way == "deduplicated":
        run(conn, verbs.publish_batch("orders", bodies, topics=topics, dedup_keys=[str(n) for n in range(50)]))
    elif way == "topic":
        run(conn, verbs.bind_topic("orders", "#"))
        for topic in topics:
            run(conn, verbs.publish_topic(topic, topic[0]))
    elif way == "staged":
        stage(conn, bodies, topics)
    else:
        run(conn, verbs.publish_batch("orders", bodies, topics=topics))
        settle(conn)
        held = run(conn, verbs.lease("orders", max_messages=50))
        run(conn, verbs.archive(held[0].lock_token, [one.id for one in held], result="failed"))
        run(conn, verbs.requeue_dead("orders", max_messages=100))
    assert all(turn == {"b": 1, "c": 1} for turn in turns(order(conn, 15), "a")[1:4])


def stage(conn: Connection, bodies: list[str], topics: list[str]) -> None:
    """Publish as a job on Spark does."""
    ((table,),) = conn.execute("SELECT messages.stage_publish('s', 'orders', 'r')").fetchall()
    insert = "INSERT INTO {} (attempt, message, ordinal, topic) SELECT 1, to_jsonb(b), n, t FROM {}"
    conn.execute(sql.SQL(insert).format(sql.Identifier(*table.split(".")), ROWS), [bodies, topics])
    winners = Jsonb([{"partition": 0, "attempt": 1, "rows": len(bodies)}])
    conn.execute("SELECT messages.publish_staged('s', 'r', %s, 'orders')", [winners])


def test_a_header_says_the_key_and_messages_without_one_are_one_key(conn: Connection, queue: Queue) -> None:
    queue("orders", fair_by="group")
    run(conn, verbs.publish_batch("orders", ["none"] * 30))
    run(conn, verbs.publish_batch("orders", ["none"] * 30, headers={"fair_key": None}, topics=["t"] * 30))
    run(
        conn,
        verbs.publish_batch("orders", ["a"] * 9, headers={"fair_key": "a"}, group_keys=[f"g{n}" for n in range(9)]),
    )
    run(conn, verbs.publish_batch("orders", ["b"] * 9, group_keys=["b"] * 9))
    leased = order(conn, 20, at_once=1)
    keys = conn.execute(
        "SELECT message #>> '{}', fair_key, count(*) FROM messages.message GROUP BY 1, 2 ORDER BY 1"
    ).fetchall()
    assert keys == [("a", "a", 9), ("b", "b", 9), ("none", "", 60)]
    assert all(turn["a"] == 1 for turn in turns(leased, "none")[1:8])


def test_keys_take_turns_within_a_priority(conn: Connection, queue: Queue) -> None:
    queue("orders", fair_by="group")
    fill(conn, "a", 10)
    fill(conn, "b", 10)
    fill(conn, "a", 5, priority=7)
    fill(conn, "urgent", 5, priority=7)
    leased = order(conn, 30)
    assert Counter(leased[:10]) == {"a": 5, "urgent": 5}
    assert all(turn == {"urgent": 1} for turn in turns(leased[:10], "a")[1:-1])
    assert all(turn == {"b": 1} for turn in turns(leased[10:], "a")[1:-1])


def test_groups_take_turns_and_stay_in_order(conn: Connection, queue: Queue) -> None:
    queue("orders", fair_by="group")
    for group, number in (("a", 50), ("b", 10), ("c", 10)):
        run(conn, verbs.publish_batch("orders", [[group, n] for n in range(number)], group_keys=[group] * number))
    settle(conn)
    handled = []
    for _ in range(40):
        (message,) = run(conn, verbs.lease("orders"))
        handled.append(message.body)
        run(conn, verbs.archive(message.lock_token, [message.id]))
    assert all(turn == {"b": 1, "c": 1} for turn in turns([group for group, _ in handled], "a")[3:9])
    for group in "abc":
        own = [number for one, number in handled if one == group]
        assert own == list(range(len(own)))


@pytest.mark.parametrize("groups", ["ab", "abcdefgh"])
def test_a_key_that_comes_late_waits_for_no_backlog_behind_others_of_its_groups(
    conn: Connection, queue: Queue, groups: str
) -> None:
    """What waits in the groups is older than the newcomer. Two consumers take one message of a group at a time."""
    queue("orders", fair_by="group")
    for group in groups:
        run(conn, verbs.publish_batch("orders", [group] * 50, group_keys=[group] * 50))
    settle(conn)
    held = run(conn, verbs.lease("orders", max_messages=10, lease_for=HOUR))
    assert run(conn, verbs.lease("orders")) == [], "all others wait behind these"
    run(conn, verbs.release(held[0].lock_token, [message.id for message in held[2:]]))
    del held[2:]
    run(conn, verbs.publish_batch("orders", ["late"] * 50, group_keys=["late"] * 50))
    settle(conn)
    handled: list[str] = []
    for _ in range(100):
        message = held.pop(0)
        handled.append(message.body)
        run(conn, verbs.archive(message.lock_token, [message.id]))
        held += run(conn, verbs.lease("orders", lease_for=HOUR))
    for turn in turns(handled, "a")[2:-1]:
        assert turn == dict.fromkeys([*groups[1:], "late"], 1)


def test_a_delayed_message_keeps_its_time_and_waits_behind_no_backlog(conn: Connection, queue: Queue) -> None:
    queue("orders", fair_by="group")
    fill(conn, "big", 2000)
    one = {"headers": {"fair_key": "late"}, "delay": timedelta(milliseconds=300)}
    run(conn, verbs.publish("orders", "late", **one))
    run(conn, verbs.publish_batch("orders", ["late"] * 2, **one))
    conn.execute(
        "INSERT INTO messages.message (queue_name, message, headers, visible_at)"
        " VALUES ('orders', '\"late\"', '{\"fair_key\": \"late\"}', clock_timestamp() + interval '300 ms')"
    )
    ((due,),) = conn.execute("SELECT max(visible_at) FROM messages.message").fetchall()
    assert [message.body for message in run(conn, verbs.lease("orders", max_messages=100))] == ["big"] * 100
    until_past(conn, due)
    found: list[str] = []

    def all_came() -> bool:
        found.extend(message.body for message in run(conn, verbs.lease("orders", max_messages=5)))
        return found.count("late") == 4

    until(all_came, what="the delayed messages")
    assert len(found) < 1000


def test_a_message_that_comes_back_keeps_its_turn(conn: Connection, queue: Queue) -> None:
    queue("orders", fair_by="group")
    fill(conn, "a", 10)
    fill(conn, "b", 10)
    settle(conn)
    (first,) = run(conn, verbs.lease("orders"))
    assert len(run(conn, verbs.lease("orders", max_messages=9))) == 9
    run(conn, verbs.release(first.lock_token, [first.id]))
    (again,) = run(conn, verbs.lease("orders"))
    assert again.id == first.id


@pytest.mark.parametrize("how", ["release", "delay", "expired"])
def test_a_message_that_comes_back_gives_newcomers_no_turns_that_have_passed(
    conn: Connection, queue: Queue, how: str
) -> None:
    queue("orders", fair_by="group")
    if how == "delay":
        run(conn, verbs.publish("orders", "old", delay=timedelta(milliseconds=300)))
    fill(conn, "old", 3000)
    settle(conn)
    lease_for = timedelta(milliseconds=300) if how == "expired" else HOUR
    (first,) = run(conn, verbs.lease("orders", lease_for=lease_for))
    # The mark stays at the first of these, 2,000 turns before the next.
    assert len(run(conn, verbs.lease("orders", max_messages=2000, lease_for=HOUR))) == 2000
    if how == "release":
        run(conn, verbs.release(first.lock_token, [first.id]))

    def it_came() -> bool:
        return run(conn, verbs.scan(["orders"], count_up_to=2000))[0].ready == 1000

    until(it_came, what="the message")
    fill(conn, "new", 500)
    found = Counter(order(conn, 200, at_once=200))
    assert found["new"] <= 101
    assert found["old"] >= 99


def test_a_body_that_replaces_another_takes_its_turn(conn: Connection, queue: Queue) -> None:
    queue("orders", fair_by="group")
    key = {"headers": {"fair_key": "b"}, "dedup_key": "k"}
    run(conn, verbs.publish("orders", "old", **key))
    fill(conn, "a", 100)
    run(conn, verbs.publish("orders", "new", on_conflict="replace", **key))
    assert "new" in order(conn, 2)
    delay = timedelta(milliseconds=200)
    run(conn, verbs.publish("orders", "b", **key | {"dedup_key": "l"}))
    run(conn, verbs.publish("orders", "c", on_conflict="replace", delay=delay, **key | {"dedup_key": "l"}))
    ((due,),) = conn.execute("SELECT max(visible_at) FROM messages.message").fetchall()
    assert order(conn, 2) == ["a", "a"]
    until_past(conn, due)
    until(lambda: "c" in order(conn, 1), what="the message that was delayed")


def test_a_long_key_is_no_error(conn: Connection, queue: Queue) -> None:
    queue("orders", fair_by="group")
    run(conn, verbs.publish("orders", 1, headers={"fair_key": "\N{SNOWMAN}" * 10_000}))
    assert conn.execute("SELECT length(fair_key) FROM messages.message").fetchone() == (255,)


def test_the_age_of_a_message_is_no_older_than_the_message(conn: Connection, queue: Queue) -> None:
    queue("orders", fair_by="group")
    fill(conn, "a", 10)
    conn.execute("UPDATE messages.message SET visible_at = visible_at - interval '1 day'")
    fill(conn, "b", 1)
    conn.execute("DELETE FROM messages.message WHERE fair_key = 'a'")
    assert conn.execute("SELECT visible_at < created_at - interval '1 hour' FROM messages.message").fetchall() == [
        (True,)
    ]
    settle(conn)
    for ask in (
        "SELECT oldest_age FROM messages.status('orders')",
        "SELECT oldest_age FROM messages.ready_queues()",
        "SELECT oldest_age FROM messages.status('orders', exact => true)",
    ):
        assert conn.execute(ask.encode()).fetchone()[0] < timedelta(hours=1), ask  # type: ignore[index]


def test_a_publish_needs_no_lane_that_somebody_deleted(conn: Connection, queue: Queue) -> None:
    queue("orders", fair_by="topic")
    conn.execute("DELETE FROM messages.lane WHERE queue_name = 'orders'")
    run(conn, verbs.publish("orders", "a", topic="a"))
    conn.execute("SELECT messages.maintain()")
    assert order(conn, 1) == ["a"]
