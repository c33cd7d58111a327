"""Remediation runs: one of a cause at a time, one for a message, and another when that failed or was lost."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from airflow_provider_pgqueue.core import InvalidArgument, run, verbs
from airflow_provider_pgqueue.core.errors import DispatchNotFound, QueueError
from airflow_provider_pgqueue.core.message import Dispatch

Connection = psycopg.Connection[Any]
Queue = Callable[..., str]
NOW = timedelta(0)


def die(conn: Connection, number: int, details: str, result: str = "failed") -> list[int]:
    """Publish messages, let them die of one cause, and return their ids."""
    ids = run(conn, verbs.publish_batch("orders", range(number)))
    taken = run(conn, verbs.lease("orders", max_messages=number))
    run(conn, verbs.archive(taken[0].lock_token, ids, result=result, details=details))
    return ids


def dispatch(conn: Connection, **options: Any) -> list[Dispatch]:
    return run(conn, verbs.dispatch_dead("orders", "mend", **{"retry_after": NOW} | options))


def end(conn: Connection, one: Dispatch, result: Any) -> int | None:
    return run(conn, verbs.end_dispatch(one.dag_id, one.run_id, result))


def test_each_cause_gets_one_run_and_what_dies_meanwhile_the_next(conn: Connection, queue: Queue) -> None:
    queue("orders")
    disk, address = die(conn, 3, "disk full"), die(conn, 2, "no address")
    first, second = dispatch(conn)
    assert (first.ids, second.ids) == (disk, address)
    assert first.run_id == f"pgqueue__orders__dead_{first.fingerprint}__{first.dispatch_id}"
    later = die(conn, 1, "disk full")
    assert dispatch(conn) == []
    for id_ in disk:
        run(conn, verbs.requeue_dead(verbs.DeadFilter("orders", ids=[id_])))
    assert end(conn, first, "success") == 3
    (third,) = dispatch(conn)
    assert (third.ids, third.fingerprint) == (later, first.fingerprint)
    assert third.run_id != first.run_id


@pytest.mark.parametrize("result", ["failed", "lost", "refused"])
def test_a_run_that_failed_or_was_lost_is_followed_by_one_with_what_is_left(
    conn: Connection, queue: Queue, result: str
) -> None:
    queue("orders")
    ids = die(conn, 3, "disk full")
    (first,) = dispatch(conn)
    run(conn, verbs.requeue_dead(verbs.DeadFilter("orders", ids=ids[:1])))
    assert end(conn, first, result) == 3
    assert end(conn, first, result) == 0, "only once"
    (second,) = dispatch(conn)
    assert second.ids == ids[1:]


def test_what_a_successful_run_left_dead_gets_no_other_run(conn: Connection, queue: Queue) -> None:
    queue("orders")
    ids = die(conn, 3, "disk full")
    (first,) = dispatch(conn)
    run(conn, verbs.requeue_dead(verbs.DeadFilter("orders", ids=ids[:1])))
    assert end(conn, first, "success") == 1
    assert dispatch(conn) == []
    assert run(conn, verbs.dead_ids("orders")) == ids[1:], "for a person"


def test_the_pause_after_a_failure_doubles(conn: Connection, queue: Queue) -> None:
    queue("orders")
    die(conn, 1, "disk full")
    hour = timedelta(hours=1)
    for hours in (1, 2, 4):
        (one,) = dispatch(conn)
        end(conn, one, "failed")
        assert dispatch(conn, retry_after=hour) == []
        age = "UPDATE messages.dispatch SET ended_at = clock_timestamp() - %s"
        conn.execute(age, [timedelta(hours=hours, minutes=-1)])
        assert dispatch(conn, retry_after=hour) == []
        conn.execute(age, [timedelta(hours=hours, minutes=1)])
        with conn.transaction(force_rollback=True):
            assert len(dispatch(conn, retry_after=hour)) == 1


def test_no_message_has_two_runs_however_many_dispatch(conn: Connection, queue: Queue, dsn: str) -> None:
    queue("orders")
    for place in range(8):
        die(conn, 4, f"cause {chr(97 + place)}")
    found: list[Dispatch] = []
    start = threading.Barrier(4)

    def work(dag_id: str) -> None:
        with psycopg.connect(dsn, autocommit=True) as own:
            start.wait()
            for _ in range(4):
                found.extend(run(own, verbs.dispatch_dead("orders", dag_id, batch_size=3)))

    threads = [threading.Thread(target=work, args=(dag_id,)) for dag_id in ("mend", "mend", "other", "other")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    given = [id_ for one in found for id_ in one.ids]
    assert len(given) == len(set(given))
    assert len(given) >= 24
    by_dag = [(one.dag_id, one.fingerprint) for one in found]
    assert len(by_dag) == len(set(by_dag)), "one run of a cause at a time"


def test_at_most_max_open_and_batch_size_and_only_what_was_chosen(conn: Connection, queue: Queue) -> None:
    queue("orders")
    die(conn, 3, "rejected one", "rejected")
    ids = die(conn, 3, "disk full")
    held = die(conn, 1, "held")
    run(conn, verbs.lease_dead(verbs.DeadFilter("orders", ids=held)))
    (one,) = dispatch(conn, max_open=1, results=["failed"], batch_size=2)
    assert one.ids == ids[:2]
    assert dispatch(conn, max_open=1) == []
    assert [found.fingerprint for found in dispatch(conn)] != [one.fingerprint]
    assert not set(held) & {id_ for found in run(conn, verbs.open_dispatches("orders")) for id_ in found.ids}


def test_what_dies_again_and_again_gets_no_run(conn: Connection, queue: Queue) -> None:
    queue("orders")
    die(conn, 1, "disk full")
    run(conn, verbs.requeue_dead("orders"))
    (taken,) = run(conn, verbs.lease("orders"))
    run(conn, verbs.archive(taken.lock_token, [taken.id], result="failed", details="disk full"))
    assert dispatch(conn, max_requeues=1) == []
    assert len(dispatch(conn, max_requeues=2)) == 1


def test_a_run_that_is_cleared_has_its_messages_again_unless_another_has_them(conn: Connection, queue: Queue) -> None:
    queue("orders")
    ids = die(conn, 2, "disk full")
    (first,) = dispatch(conn)
    end(conn, first, "failed")
    with conn.transaction(force_rollback=True):
        assert [one.id for one in run(conn, verbs.dispatched_messages("mend", first.run_id))] == ids
        others = run(conn, verbs.dispatch_dead("orders", "other"))
        assert (dispatch(conn), others) == ([], []), "they are in the hands of the cleared run"
        assert end(conn, first, "success") == 0
        assert run(conn, verbs.dead_ids("orders")) == ids, "a success dismisses nothing"
    (second,) = dispatch(conn)
    with pytest.raises(DispatchNotFound, match=f"run '{second.run_id}' has the messages"):
        run(conn, verbs.dispatched_messages("mend", first.run_id))


def test_bad_arguments_are_refused(shared: Connection) -> None:
    bad: list[dict[str, Any]] = [{"max_open": 0}, {"batch_size": 0}, {"results": ["success"]}, {"max_requeues": -1}]
    for one in [*bad, {"retry_after": timedelta(days=2)}, {"retry_after": timedelta(seconds=-1)}]:
        with pytest.raises(InvalidArgument):
            dispatch(shared, **one)
    with pytest.raises(QueueError):
        run(shared, verbs.dispatch_dead("nope", "mend"))
