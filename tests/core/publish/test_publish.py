"""Publishing: times, dedup keys, topics, references."""

from __future__ import annotations

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from airflow_provider_pgqueue.core import Duplicate, InvalidArgument, QueueNotFound, run, verbs
from airflow_provider_pgqueue.core.errors import InUse, Unroutable
from tests.waiting import heard, until_a_message_expires, until_waiting

pytestmark = pytest.mark.rolled_back

Connection = psycopg.Connection[Any]
Connect = Callable[..., Connection]
Queue = Callable[..., str]
HOUR = timedelta(hours=1)


def lease(conn: Connection, **arguments: Any) -> list[Any]:
    return [message.body for message in run(conn, verbs.lease("orders", max_messages=100, **arguments))]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"delay": HOUR, "visible_at": datetime.now(UTC)}, "both delay and visible_at"),
        ({"visible_at": datetime.now(UTC) + timedelta(days=5000)}, "within the next ten years"),
        ({"topic": "a..b"}, "topic 'a..b' is not valid"),
        ({"topic": "a.*"}, r"topic 'a\.\*' is not valid"),
        ({"topic": ""}, "topic '' is not valid"),
        ({"group_key": ""}, "group_key has 0 characters"),
        ({"group_key": "x" * 256}, "group_key has 256 characters"),
        ({"dedup_key": "x" * 256}, "dedup_key has 256 characters"),
        ({"dedup_key": "x", "dedup_window": timedelta(0)}, "dedup_window is 00:00:00"),
        ({"dedup_key": "x", "on_conflict": "merge"}, "on_conflict is 'merge'. Give skip or replace"),
        ({"headers": ["a list"]}, "headers are of type array"),
        ({"dedup_window": HOUR}, "dedup_window is given, and dedup_key is NULL. .* give both, or neither"),
        ({"on_conflict": "replace"}, "on_conflict is given, and dedup_key is NULL"),
    ],
)
def test_an_option_that_cannot_be_is_refused_and_nothing_is_published(
    shared: Connection, options: dict[str, Any], says: str
) -> None:
    with pytest.raises(InvalidArgument, match=says):
        run(shared, verbs.publish("orders", 1, **options))
    assert lease(shared) == []


@pytest.mark.usefixtures("dsn")
@pytest.mark.parametrize("options", [{"dedup_window": HOUR}, {"on_conflict": "replace"}])
def test_a_batch_without_keys_takes_nothing_about_them(conn: Connection, queue: Queue, options: dict[str, Any]) -> None:
    queue("orders")
    with pytest.raises(InvalidArgument, match=f"{next(iter(options))} is given, and dedup_keys are NULL"):
        run(conn, verbs.publish_batch("orders", [1, 2], **options))
    run(conn, verbs.publish_batch("orders", [1, 2], dedup_keys=["a", None], **options))
    run(conn, verbs.publish("orders", 3, on_conflict="skip"))
    assert len(lease(conn)) == 3


def test_a_moment_makes_a_message_wait_and_one_in_the_past_does_not(conn: Connection, queue: Queue) -> None:
    queue("orders")
    run(conn, verbs.publish("orders", "later", visible_at=datetime.now(UTC) + HOUR))
    run(conn, verbs.publish("orders", "now", visible_at=datetime.now(UTC) - HOUR))
    assert lease(conn) == ["now"]


@pytest.mark.usefixtures("dsn")
def test_one_after_the_other_takes_numbers_without_a_gap(conn: Connection, queue: Queue) -> None:
    queue("orders")
    ids = conn.execute("SELECT messages.publish('orders', '1') FROM generate_series(1, 1000)").fetchall()
    assert [id_ for (id_,) in ids] == list(range(1, 1001))


def test_a_batch_keeps_its_order_under_one_moment(conn: Connection, queue: Queue) -> None:
    moment = datetime.now(UTC) + HOUR
    run(conn, verbs.publish_batch(queue("orders"), range(100), visible_at=moment))
    rows = conn.execute("SELECT message FROM messages.message ORDER BY visible_at").fetchall()
    assert [row[0] for row in rows] == list(range(100))


def test_a_key_that_is_remembered_publishes_nothing_and_says_which_message_it_duplicates(
    conn: Connection, queue: Queue
) -> None:
    first = run(conn, verbs.publish(queue("orders"), 1, dedup_key="order 7"))
    again = run(conn, verbs.publish("orders", 2, dedup_key="order 7"))
    assert not isinstance(first, Duplicate)
    assert isinstance(again, Duplicate)
    assert again == first
    assert lease(conn) == [1]
    assert conn.execute("SELECT messages.publish('orders', '3', dedup_key => 'order 7')").fetchone() == (first,)


def test_a_key_is_of_its_queue_and_outlives_the_message_until_its_window_ends(conn: Connection, queue: Queue) -> None:
    run(conn, verbs.publish(queue("orders"), 1, dedup_key="k"))
    assert not isinstance(run(conn, verbs.publish(queue("returns"), 1, dedup_key="k")), Duplicate)
    run(conn, verbs.consume("orders"))
    assert isinstance(run(conn, verbs.publish("orders", 2, dedup_key="k")), Duplicate)
    conn.execute("UPDATE messages.dedup SET expires_at = clock_timestamp()")
    assert not isinstance(run(conn, verbs.publish("orders", 3, dedup_key="k")), Duplicate)
    assert lease(conn) == [3]


def test_a_rolled_back_publish_leaves_its_key_free(connect: Connect, queue: Queue) -> None:
    conn, other = connect(), connect(autocommit=False)
    run(other, verbs.publish(queue("orders"), 1, dedup_key="k"))
    other.rollback()
    assert not isinstance(run(conn, verbs.publish("orders", 2, dedup_key="k")), Duplicate)


def test_twenty_sessions_that_publish_one_key_publish_one_message(connect: Connect, queue: Queue) -> None:
    queue("orders")
    sessions = [connect() for _ in range(20)]
    with ThreadPoolExecutor(20) as pool:
        ids = list(pool.map(lambda conn: run(conn, verbs.publish("orders", 1, dedup_key="k")), sessions))
    assert len(set(ids)) == 1
    assert sum(isinstance(id_, Duplicate) for id_ in ids) == 19
    assert lease(connect()) == [1]


def test_a_body_that_replaces_one_behind_others_of_its_group_does_not_overtake_them(
    conn: Connection, queue: Queue
) -> None:
    queue("orders")
    ids = run(conn, verbs.publish_batch("orders", [1, 2, 3], group_keys=["g"] * 3, dedup_keys=["a", "b", "c"]))
    replace = {"dedup_key": "c", "on_conflict": "replace"}
    handled = []
    for body in ("c", "d", "e"):
        (held,) = run(conn, verbs.lease("orders", max_messages=3))
        if body != "e":
            assert run(conn, verbs.publish("orders", body, **replace)) == ids[2]
            behind = conn.execute("SELECT max(id) FROM messages.message WHERE visible_at = 'infinity'").fetchone()
            assert behind == (ids[2],)
        handled.append(held.body)
        run(conn, verbs.archive(held.lock_token, [held.id]))
    assert handled == [1, 2, "d"]


def test_batches_with_the_same_keys_in_another_order_do_not_deadlock(connect: Connect, queue: Queue) -> None:
    queue("orders")
    keys = [f"k{number}" for number in range(200)]

    def publish(number: int) -> int:
        mine = keys if number % 2 else keys[::-1]
        ids = run(connect(), verbs.publish_batch("orders", mine, dedup_keys=mine))
        return sum(not isinstance(id_, Duplicate) for id_ in ids)

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(publish, range(4))) == 200


def test_of_two_transactions_that_wait_for_each_other_one_is_told_to_repeat_and_the_other_goes_on(
    conn: Connection, connect: Connect, queue: Queue
) -> None:
    queue("orders")
    one, two = (connect(autocommit=False, options="-c deadlock_timeout=50ms") for _ in range(2))
    run(one, verbs.publish("orders", "one", dedup_key="a"))
    run(two, verbs.publish("orders", "two", dedup_key="b"))

    def publish(session: Connection, key: str) -> str:
        try:
            run(session, verbs.publish("orders", 3, dedup_key=key))
        except InUse as error:
            session.rollback()
            return str(error)
        session.commit()
        return "published"

    with ThreadPoolExecutor(2) as pool:
        waiting = pool.submit(publish, one, "b")
        until_waiting(conn)
        said = [publish(two, "a"), waiting.result()]
    refused, done = sorted(said, key="published".__eq__)
    assert done == "published"
    assert re.fullmatch(r"dedup_key '[ab]' is held by a transaction that waits for this one. Repeat the .*", refused)
    assert len(lease(conn)) == 2


def test_a_batch_publishes_what_is_new_in_its_order(conn: Connection, queue: Queue) -> None:
    run(conn, verbs.publish(queue("orders"), "b", dedup_key="b"))
    ids = run(conn, verbs.publish_batch("orders", list("abcca"), dedup_keys=["a", "b", "c", "c", None]))
    assert [isinstance(id_, Duplicate) for id_ in ids] == [False, True, False, True, False]
    assert ids[2] == ids[3]
    assert lease(conn) == ["b", "a", "c", "a"]


def test_replace_puts_the_new_body_in_the_place_of_one_that_waits(conn: Connection, queue: Queue) -> None:
    first = run(conn, verbs.publish(queue("orders"), "old", dedup_key="k", delay=HOUR))
    assert run(conn, verbs.publish("orders", "new", dedup_key="k", on_conflict="replace")) == first
    assert lease(conn) == ["new"]


def test_replace_gives_the_new_body_its_own_time_to_expire(conn: Connection, queue: Queue) -> None:
    old = run(conn, verbs.publish(queue("orders"), "old", dedup_key="k", delay=HOUR))
    run(
        conn, verbs.publish("orders", "new", dedup_key="k", on_conflict="replace", expires_in=timedelta(milliseconds=1))
    )
    until_a_message_expires(conn)
    run(conn, verbs.maintain())
    archived = conn.execute("SELECT id, message, result FROM messages.message_archive").fetchall()
    assert archived == [(old, "new", "expired")]


def test_replace_publishes_anew_when_the_first_was_leased_already(conn: Connection, queue: Queue) -> None:
    first = run(conn, verbs.publish(queue("orders"), "old", dedup_key="k"))
    assert lease(conn) == ["old"]
    second = run(conn, verbs.publish("orders", "new", dedup_key="k", on_conflict="replace"))
    assert second != first
    assert not isinstance(second, Duplicate)
    assert lease(conn) == ["new"]


@pytest.mark.parametrize("before", ["new", "waits", "is leased"])
def test_a_batch_that_has_a_key_twice_replaces_as_calls_one_after_the_other_do(
    conn: Connection, queue: Queue, before: str
) -> None:
    given: dict[str, list[Any]] = {"dedup_key": ["k", "b", "k", None, "k"], "reference": list("vwxyz")}
    given |= {"topic": ["v", "w", "x", None, None], "group_key": ["g", "g", "h", None, "h"]}
    found = []
    for name in ("calls", "batch"):
        queue(name)
        if before != "new":
            run(conn, verbs.publish(name, "before", dedup_key="k"))
        if before == "is leased":
            run(conn, verbs.lease(name))
        if name == "calls":
            singles: list[Any] = [{argument: values[n] for argument, values in given.items()} for n in range(5)]
            policies = ["replace" if single["dedup_key"] else "skip" for single in singles]
            ids = [run(conn, verbs.publish(name, n, on_conflict=policies[n], **singles[n])) for n in range(5)]
        else:
            plural: Any = {f"{argument}s": values for argument, values in given.items()}
            ids = run(conn, verbs.publish_batch(name, range(5), on_conflict="replace", **plural))
        rows = conn.execute(
            "SELECT id, message, reference, topic, group_key, visible_at = 'infinity' FROM messages.message"
            " WHERE queue_name = %s ORDER BY id",
            [name],
        ).fetchall()
        places = {row[0]: place for place, row in enumerate(rows)}
        found.append(([row[1:] for row in rows], [(places[id_], isinstance(id_, Duplicate)) for id_ in ids]))
    assert found[0] == found[1]
    assert 4 in [row[0] for row in found[1][0]]
    assert not {0, 2} & {row[0] for row in found[1][0]}


def test_a_replace_notifies_for_a_message_that_it_makes_ready_sooner_and_for_no_other(
    conn: Connection, connect: Connect, queue: Queue
) -> None:
    queue("orders")
    queue("silent", notify="off")

    def replace(name: str, key: str, delay: timedelta = timedelta(0), **options: Any) -> int:
        return run(conn, verbs.publish(name, key, dedup_key=key, delay=delay, **options))

    for name, key in (("orders", "sooner"), ("orders", "later"), ("silent", "silent")):
        replace(name, key, HOUR)
    listening = connect()
    listening.execute("LISTEN new_message")
    notified = [replace("orders", "sooner", HOUR / 2, on_conflict="replace")]
    notified += [replace("orders", "sooner", on_conflict="replace")]
    replace("orders", "sooner", on_conflict="replace")
    replace("orders", "later", 2 * HOUR, on_conflict="replace")
    replace("silent", "silent", on_conflict="replace")
    assert heard(listening) == [str(id_) for id_ in notified]


def test_maintenance_forgets_keys_whose_window_ended(conn: Connection, queue: Queue) -> None:
    run(conn, verbs.publish(queue("orders"), 1, dedup_key="old"))
    conn.execute("UPDATE messages.dedup SET expires_at = clock_timestamp()")
    run(conn, verbs.publish("orders", 1, dedup_key="young"))
    run(conn, verbs.maintain())
    assert conn.execute("SELECT dedup_key FROM messages.dedup").fetchall() == [("young",)]


@pytest.mark.parametrize(
    ("pattern", "topic", "matches"),
    [
        ("logs", "logs", True),
        ("logs", "logs.eu", False),
        ("logs.*", "logs.eu", True),
        ("logs.*", "logs", False),
        ("logs.*", "logs.eu.web", False),
        ("logs.#", "logs", True),
        ("logs.#", "logs.eu.web", True),
        ("#", "anything.at.all", True),
        ("#.web", "web", True),
        ("#.web", "logs.eu.web", True),
        ("*.eu.#.web", "logs.eu.web", True),
        ("*.eu.#.web", "logs.eu.a.b.web", True),
        ("*.eu.#.web", "eu.web", False),
        ("logs", "xlogs", False),
        ("lo-gs_1", "lo-gs_1", True),
    ],
)
def test_a_pattern_routes_the_topics_that_it_matches(
    shared: Connection, pattern: str, topic: str, matches: bool
) -> None:
    with shared.transaction(force_rollback=True):
        run(shared, verbs.bind_topic("orders", pattern))
        assert run(shared, verbs.route_topic(topic)) == (["orders"] if matches else [])


def test_a_pattern_that_cannot_be_is_refused(shared: Connection) -> None:
    for pattern in ("a.**", "a.", "(a|b)", "a b", "", "a.#x"):
        with pytest.raises(InvalidArgument, match="topic pattern"):
            run(shared, verbs.bind_topic("orders", pattern))


def test_a_topic_reaches_the_queues_that_are_bound_to_it(conn: Connection, queue: Queue) -> None:
    for name, pattern in (("orders", "shop.#"), ("audit", "#"), ("audit", "shop.*"), ("returns", "shop.returns")):
        queue(name)
        assert run(conn, verbs.bind_topic(name, pattern))
        assert not run(conn, verbs.bind_topic(name, pattern))
    assert run(conn, verbs.route_topic("shop.order")) == ["audit", "orders"]
    assert lease(conn) == []  # a dry run
    ids = run(conn, verbs.publish_topic("shop.order", {"n": 7}, dedup_key="7"))
    assert set(ids) == {"audit", "orders"}
    assert run(conn, verbs.publish_topic("shop.order", {"n": 7}, dedup_key="7")) == ids
    assert lease(conn) == [{"n": 7}]
    assert run(conn, verbs.unbind_topic("audit", "#"))
    assert not run(conn, verbs.unbind_topic("audit", "#"))
    assert run(conn, verbs.route_topic("else")) == []


@pytest.mark.usefixtures("dsn")
def test_a_topic_that_reaches_no_queue_is_an_error(conn: Connection) -> None:
    with pytest.raises(Unroutable, match=r"topic 'shop\.order' reaches no queue.*bind_topic"):
        run(conn, verbs.publish_topic("shop.order", 1))
    with pytest.raises(QueueNotFound):
        run(conn, verbs.bind_topic("nowhere", "#"))
    with pytest.raises(QueueNotFound):
        run(conn, verbs.publish("nowhere", 1, dedup_key="k"))


@pytest.mark.parametrize(("notify", "notified"), [("always", ["first", "second"]), ("gated", ["first"])])
def test_a_gated_queue_may_miss_a_notification_and_one_that_always_notifies_does_not(
    connect: Connect, queue: Queue, notify: str, notified: list[str]
) -> None:
    listener, first, second = connect(), connect(autocommit=False), connect(autocommit=False)
    queue("orders", notify=notify)
    listener.execute("LISTEN new_message")
    ids = {"first": run(first, verbs.publish("orders", 1)), "second": run(second, verbs.publish("orders", 2))}
    first.commit()
    assert lease(listener) == [1]  # what it was notified of, and nothing else is there yet
    second.commit()
    assert heard(listener) == [str(ids[name]) for name in notified]


@pytest.mark.parametrize("bodies", [[1], [1, None, "three"]])
def test_a_batch_returns_its_ids_in_order_and_notifies_once(connect: Connect, queue: Queue, bodies: list[Any]) -> None:
    conn, listener = connect(), connect()
    queue("orders")
    listener.execute("LISTEN new_message")
    ids = run(conn, verbs.publish_batch("orders", bodies))
    assert conn.execute("SELECT array_agg(id ORDER BY visible_at) FROM messages.message").fetchone() == (ids,)
    assert heard(listener) == [str(ids[0])]
