"""Dead messages: leasing, requeueing and dismissing them gets past those that are left where they are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest

from airflow_provider_pgqueue.core import InvalidArgument, LeaseLost, Repair, run, verbs
from tools.chapters import functions

pytestmark = pytest.mark.rolled_back

Connection = psycopg.Connection[Any]
Queue = Callable[..., str]


def die(conn: Connection, number: int) -> list[int]:
    """Publish messages, let them fail, and return their ids."""
    run(conn, verbs.publish_batch("orders", range(number)))
    taken = run(conn, verbs.lease("orders", max_messages=number))
    return run(conn, verbs.archive(taken[0].lock_token, [message.id for message in taken], result="failed"))


def dead(conn: Connection) -> dict[int, UUID | None]:
    """Return the tokens of the dead messages that are still open."""
    return dict(conn.execute("SELECT id, lock_token FROM messages.dead_message").fetchall())


def die_again(conn: Connection) -> None:
    """Requeue all dead messages, and let them fail once more."""
    number = len(run(conn, verbs.requeue_dead("orders")))
    taken = run(conn, verbs.lease("orders", max_messages=number))
    run(conn, verbs.archive(taken[0].lock_token, [message.id for message in taken], result="failed"))


FENCED = {
    "requeue": lambda token, ids: verbs.requeue(token, ids),
    "dismiss": lambda token, ids: verbs.dismiss(token, ids, "why"),
    "release_dead": lambda token, ids: verbs.release_dead(token, ids),
    "extend_dead": lambda token, ids: verbs.extend_dead(token, ids, lease_for=timedelta(hours=1)),
}


@pytest.mark.parametrize("verb", FENCED)
def test_the_token_of_another_lease_changes_no_dead_message(conn: Connection, queue: Queue, verb: str) -> None:
    queue("orders")
    ids = die(conn, 2)
    mine, other = (run(conn, verbs.lease_dead("orders", max_messages=1))[0] for _ in ids)
    with pytest.raises(LeaseLost) as lost:
        run(conn, FENCED[verb](mine.lock_token, [mine.id, other.id]))
    assert lost.value.ids == (other.id,)
    assert dead(conn)[other.id] == other.lock_token


@pytest.mark.parametrize("verb", FENCED)
def test_a_lease_that_ended_changes_no_dead_message(conn: Connection, queue: Queue, verb: str) -> None:
    queue("orders")
    ids = die(conn, 1)
    (message,) = run(conn, verbs.lease_dead("orders"))
    conn.execute("UPDATE messages.dead_message SET lock_expires_at = clock_timestamp()")
    with pytest.raises(LeaseLost) as lost:
        run(conn, FENCED[verb](message.lock_token, ids))
    assert lost.value.ids == tuple(ids)
    assert [found.id for found in run(conn, verbs.lease_dead("orders"))] == ids


def test_requeue_gets_past_those_that_were_requeued_often_enough(conn: Connection, queue: Queue) -> None:
    queue("orders")
    die(conn, 3)
    die_again(conn)
    fresh = die(conn, 2)
    requeued = run(conn, verbs.requeue_dead(verbs.DeadFilter("orders", max_requeues=1), max_messages=2))
    assert sorted(one.id for one in requeued) == sorted(fresh)
    assert run(conn, verbs.requeue_dead(verbs.DeadFilter("orders", max_requeues=1), max_messages=2)) == []
    (left,) = run(conn, verbs.dead_queues(["orders"]))
    assert left.waiting == 3
    assert len(run(conn, verbs.requeue_dead(verbs.DeadFilter("orders", max_requeues=2)))) == 3


def test_a_lease_and_a_list_of_ids_get_past_them_too(conn: Connection, queue: Queue) -> None:
    queue("orders")
    die(conn, 3)
    die_again(conn)
    fresh = die(conn, 1)
    assert run(conn, verbs.dead_ids(verbs.DeadFilter("orders", max_requeues=1), max_messages=1)) == fresh
    leased = run(conn, verbs.lease_dead(verbs.DeadFilter("orders", max_requeues=1), max_messages=1))
    assert [message.id for message in leased] == fresh


def test_null_stands_for_the_default_of_a_lease_and_a_delay(conn: Connection, queue: Queue) -> None:
    queue("orders", lease_for="3 minutes")
    (dead,) = die(conn, 1)
    run(conn, verbs.publish("orders", 1))
    (message,) = run(conn, verbs.lease("orders"))
    conn.execute("SELECT messages.extend(%s, %s, NULL)", [message.lock_token, [message.id]])
    for statement in (
        "SELECT messages.lease_dead('orders', lease_for => NULL)",
        "SELECT messages.extend_dead(d.lock_token, ARRAY[d.id], NULL) FROM messages.dead_message d",
    ):
        conn.execute(statement.encode())
        (until,) = conn.execute("SELECT lock_expires_at - clock_timestamp() FROM messages.dead_message").fetchall()
        assert timedelta(minutes=4) < until[0] <= timedelta(minutes=5)
    (until,) = conn.execute("SELECT lock_expires_at - clock_timestamp() FROM messages.message").fetchall()
    assert timedelta(minutes=2) < until[0] <= timedelta(minutes=3)
    requeued = conn.execute(
        "SELECT r.id FROM messages.dead_message d"
        " CROSS JOIN messages.requeue(d.lock_token, ARRAY[d.id], delay => NULL) r"
    )
    assert requeued.fetchall() == [(dead,)]


@pytest.mark.usefixtures("dsn")
def test_a_name_that_is_too_long_for_the_index_is_refused_or_cut(conn: Connection, queue: Queue) -> None:
    queue("orders")
    die(conn, 2)
    name = "".join(chr(0x10000 + place % 5000) for place in range(3000))
    leased = run(conn, verbs.lease_dead("orders", locked_by=name))
    token, (first, second) = leased[0].lock_token, [message.id for message in leased]
    for statement in (
        verbs.requeue(token, [first], resolved_by=name),
        verbs.dismiss(token, [first], "not needed", resolved_by=name),
    ):
        with pytest.raises(InvalidArgument, match="resolved_by has 3000 characters"):
            run(conn, statement)
    run(conn, verbs.requeue(token, [first]))
    run(conn, verbs.dismiss(token, [second], "not needed"))
    resolutions = run(conn, verbs.resolutions([first, second]))
    assert {resolved_by for _, resolved_by in resolutions.values()} == {name[:600]}


def test_dead_messages_whose_partition_is_not_there_keep_nobody_from_a_turn(conn: Connection, queue: Queue) -> None:
    queue("orders")
    gone, left = die(conn, 2), die(conn, 1)
    # As if their partition were detached.
    conn.execute("DELETE FROM messages.message_archive WHERE id = ANY (%s)", [gone])
    leased = run(conn, verbs.lease_dead("orders", max_messages=1))
    assert [message.id for message in leased] == left
    assert run(conn, verbs.lease_dead("orders")) == []
    assert conn.execute("SELECT count(*) FROM messages.dead_message").fetchone() == (3,)


def test_a_filter_chooses_dead_messages_for_each_verb_alike(conn: Connection, queue: Queue) -> None:
    queue("orders")
    options = [
        {"reference": "a", "topic": "shop.north", "headers": {"tenant": 1, "k": 2}},
        {"reference": "b", "topic": "shop.south", "headers": {"tenant": 2}},
        {},
    ]
    ids = [run(conn, verbs.publish("orders", 1, **one)) for one in options]
    died = []
    for _ in ids:
        (one,) = run(conn, verbs.lease("orders"))
        run(conn, verbs.archive(one.lock_token, [one.id], result="rejected"))
        died += conn.execute("SELECT archived_at FROM messages.dead_message WHERE id = %s", [one.id]).fetchone() or ()
    causes = [one.fingerprint for one in run(conn, verbs.dead_causes("orders"))] + ["000000000000"]
    filters: list[tuple[dict[str, Any], list[int]]] = [
        ({"reference": "b"}, ids[1:2]),
        ({"topic": "shop.*"}, ids[:2]),
        ({"headers": {"tenant": 1}}, ids[:1]),
        ({"since": died[1]}, ids[1:]),
        ({"until": died[1]}, ids[:1]),
        ({"ids": ids[2:]}, ids[2:]),
        ({"topic": "#", "since": died[1], "until": died[2]}, ids[1:2]),
        ({"fingerprints": causes}, ids),
        ({"fingerprints": causes[:1], "until": died[1]}, ids[:1]),
        ({"fingerprints": ["000000000000"]}, []),
        ({"reference": "nobody"}, []),
    ]
    for chosen, expected in filters:
        which = verbs.DeadFilter("orders", **chosen)
        assert run(conn, verbs.dead_ids(which)) == expected, chosen
        with conn.transaction(force_rollback=True):
            assert [one.id for one in run(conn, verbs.lease_dead(which))] == expected, chosen
        with conn.transaction(force_rollback=True):
            requeued = run(conn, verbs.requeue_dead(replace(which, results=["rejected"])))
            assert [one.id for one in requeued] == expected, chosen
    # Of those that somebody names, also rejected ones; of any, only those that another try may fix.
    assert run(conn, verbs.requeue_dead(verbs.DeadFilter("orders", reference="a"))) == []
    assert [one.id for one in run(conn, verbs.requeue_dead(verbs.DeadFilter("orders", ids=ids[:1])))] == ids[:1]


@pytest.mark.parametrize("bad", [{"topic": "a..b"}, {"headers": [1]}, {"max_requeues": -1}, {"max_requeues": 40000}])
def test_a_filter_that_cannot_match_is_refused(shared: Connection, bad: dict[str, Any]) -> None:
    for verb in (verbs.dead_ids, verbs.lease_dead, verbs.requeue_dead):
        with pytest.raises(InvalidArgument, match=next(iter(bad))):
            run(shared, verb(verbs.DeadFilter("orders", **bad)))  # type: ignore[operator]


def test_dead_messages_are_counted_by_cause_with_the_newest_id_and_no_text(conn: Connection, queue: Queue) -> None:
    queue("orders")
    ids = run(conn, verbs.publish_batch("orders", range(30)))
    taken = run(conn, verbs.lease("orders", max_messages=30))
    for place, id_ in enumerate(ids[:24]):  # one each of 24 causes; letters, as a fingerprint leaves out numbers
        run(conn, verbs.archive(taken[0].lock_token, [id_], result="failed", details=f"secret {chr(97 + place)}"))
    run(conn, verbs.archive(taken[0].lock_token, ids[24:], result="failed", details="secret disk full"))
    (found,) = run(conn, verbs.dead_queues(["orders"]))
    assert (found.waiting, len(found.causes)) == (30, 25)
    first = found.causes[0]
    assert (first["waiting"], first["newest_id"], first["result"]) == (6, ids[-1], "failed")
    assert first["first_at"] <= first["last_at"]
    assert "secret" not in str(found.causes)
    run(conn, verbs.lease_dead(verbs.DeadFilter("orders", ids=ids[24:])))
    (found,) = run(conn, verbs.dead_queues(["orders"]))
    assert (found.waiting, found.causes[0]["waiting"]) == (24, 1), "what is leased is in hand"


@pytest.mark.usefixtures("dsn")
@pytest.mark.parametrize(
    "call", ["lease_dead()", "requeue_dead(NULL, results => '{failed}')", "dismiss_dead(NULL, 'old', topic => '#')"]
)
def test_a_queue_that_is_null_is_not_all_queues_where_something_changes(
    conn: Connection, queue: Queue, call: str
) -> None:
    queue("orders")
    ids = die(conn, 2)
    with pytest.raises(psycopg.Error, match="queue_name is NULL") as refused:
        conn.execute(f"SELECT * FROM messages.{call}".encode())  # noqa: S608 no text of others
    assert refused.value.sqlstate == "PQ004"
    assert refused.value.diag.message_hint == "Name a queue, or messages by ids, fingerprints or reference."
    assert dead(conn) == dict.fromkeys(ids)


def test_a_repair_without_a_queue_names_its_messages(conn: Connection, queue: Queue) -> None:
    queue("orders")
    with pytest.raises(InvalidArgument, match=r"queue_name is None\. Name a queue, or messages by ids, cause"):
        Repair(which=verbs.DeadFilter(results=["failed"], topic="#"))
    ids = die(conn, 2)
    assert Repair(which=verbs.DeadFilter(ids=ids[:1])).run(conn)["requeued"] == 1
    assert dead(conn) == {ids[1]: None}
    (cause,) = run(conn, verbs.dead_causes())
    which = verbs.DeadFilter(fingerprints=[cause.fingerprint])
    assert [one.id for one in run(conn, verbs.requeue_dead(which))] == ids[1:]


def test_what_is_leased_and_what_is_listed_is_chosen_by_one_text() -> None:
    # A function for both would cost an index: one that pins its search path is not inlined.
    chosen = set()
    for name in ("dead_ids", "lease_dead"):
        text = functions()[name].text.replace(f"{name}.", "")
        begin, end = text.index("WHERE (queue_name IS NULL"), text.index("a.headers @> headers)))")
        chosen.add(" ".join(text[begin:end].split()))
    assert len(chosen) == 1
