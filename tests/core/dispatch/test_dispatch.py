"""Dispatches: messages that DAG runs finish. Each message is in one open dispatch, and is archived once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from airflow_provider_pgqueue.core import PgQueueError, run, verbs
from airflow_provider_pgqueue.core.errors import DispatchNotFound, InvalidArgument, QueueNotFound, QueuePaused
from airflow_provider_pgqueue.core.message import Dispatch
from tests.waiting import until_leases_expire

pytestmark = pytest.mark.rolled_back

Connection = psycopg.Connection[Any]
Queue = Callable[..., str]


def dispatch(conn: Connection, queue_name: str = "orders", **options: Any) -> list[Dispatch]:
    return run(conn, verbs.dispatch_messages(queue_name, "handle", **options))


def end(conn: Connection, one: Dispatch, result: Any) -> int | None:
    return run(conn, verbs.end_dispatch(one.dag_id, one.run_id, result))


def results(conn: Connection) -> dict[int, str]:
    return dict(conn.execute("SELECT id, result FROM messages.message_archive ORDER BY id").fetchall())


def make_ready(conn: Connection) -> None:
    conn.execute("UPDATE messages.message SET visible_at = clock_timestamp() WHERE lock_expires_at IS NULL")


def bodies(conn: Connection, one: Dispatch) -> list[Any]:
    return [message.body for message in run(conn, verbs.dispatched_messages(one.dag_id, one.run_id))]


def test_each_message_gets_a_run_of_its_own_up_to_max_open(conn: Connection, queue: Queue) -> None:
    ids = run(conn, verbs.publish_batch(queue("orders"), range(5)))
    opened = dispatch(conn, max_open=3)
    assert [one.run_id for one in opened] == [f"pgqueue__orders__{id_}__1" for id_ in ids[:3]]
    assert dispatch(conn, max_open=3) == []
    assert end(conn, opened[0], "success") == 1
    assert [one.ids for one in dispatch(conn, max_open=3)] == [[ids[3]]]
    assert results(conn) == {ids[0]: "success"}
    assert conn.execute("SELECT handled_by FROM messages.message_archive").fetchone() == (f"handle/{opened[0].run_id}",)


def test_a_batch_goes_to_one_run_and_ends_with_it(conn: Connection, queue: Queue) -> None:
    ids = run(conn, verbs.publish_batch(queue("orders"), range(5)))
    opened = dispatch(conn, batch_size=2)
    assert [one.ids for one in opened] == [ids[:2], ids[2:4], ids[4:]]
    assert bodies(conn, opened[1]) == [2, 3]
    assert end(conn, opened[1], "success") == 2


def test_runs_get_messages_of_one_topic_and_the_rest_keeps_its_attempts(conn: Connection, queue: Queue) -> None:
    queue("orders")
    for topic in ("a", "b", "a", "c"):
        run(conn, verbs.publish("orders", topic, topic=topic))
    opened = dispatch(conn, batch_size=10, group_by="topic", max_open=2)
    assert [bodies(conn, one) for one in opened] == [["a", "a"], ["b"]]
    (left,) = run(conn, verbs.lease("orders", max_messages=10))
    assert (left.body, left.attempts) == ("c", 1)


def test_a_failed_run_is_delivered_again_and_dies_after_the_last_attempt(conn: Connection, queue: Queue) -> None:
    (id_,) = run(conn, verbs.publish_batch(queue("orders", max_attempts=2), [7]))
    (first,) = dispatch(conn)
    assert end(conn, first, "failed") == 1
    assert dispatch(conn) == []  # it backs off
    make_ready(conn)
    (second,) = dispatch(conn)
    assert second.run_id == f"pgqueue__orders__{id_}__2"
    assert run(conn, verbs.end_dispatch("handle", second.run_id, "failed", details="task pack failed")) == 1
    assert results(conn) == {id_: "failed"}
    assert conn.execute("SELECT details FROM messages.message_archive").fetchone() == ("task pack failed",)


ERROR = {"error": "builtins.KeyError", "message": "'sku'", "traceback": "…", "log_url": "http://airflow/log"}


def dead(conn: Connection) -> list[tuple[Any, ...]]:
    return conn.execute("SELECT id, details, failure, handled_by FROM messages.message_archive ORDER BY id").fetchall()


@pytest.mark.parametrize("on_failure", ["retry", "fail"])
def test_what_dies_of_one_error_has_one_cause_whatever_its_text(
    conn: Connection, queue: Queue, on_failure: Any
) -> None:
    ids = run(conn, verbs.publish_batch(queue("orders", max_attempts=1), [1, 2]))
    for number, one in enumerate(dispatch(conn, on_failure=on_failure)):
        error = ERROR | {"message": f"nobody knows the sku {'abc'[number]}"}
        assert run(conn, verbs.record_task_failure("handle", one.run_id, "pack", error)) is True
        assert run(conn, verbs.end_dispatch("handle", one.run_id, "failed", failed_tasks=["pack", "send"])) == 1
    (cause,) = run(conn, verbs.dead_causes("orders"))
    assert (cause.waiting, cause.example) == (2, "builtins.KeyError")
    kept = {"cause": "DAG handle failed: pack, send", "message": "nobody knows the sku a"}
    assert dead(conn)[0] == (
        ids[0],
        "DAG handle failed: pack, send: builtins.KeyError: nobody knows the sku a",
        ERROR | kept,
        f"handle/pgqueue__orders__{ids[0]}__1",
    )


def test_another_error_another_task_and_no_error_are_causes_of_their_own(conn: Connection, queue: Queue) -> None:
    ids = run(conn, verbs.publish_batch(queue("orders", max_attempts=1), range(6)))
    causes = [("KeyError", "pack"), ("ValueError", "pack"), ("KeyError", "send"), (None, "pack"), (None, "send")]
    for one, (error, task) in zip(dispatch(conn), [*causes, causes[0]], strict=True):
        if error:
            run(conn, verbs.record_task_failure("handle", one.run_id, task, ERROR | {"error": error}))
        run(conn, verbs.end_dispatch("handle", one.run_id, "failed", failed_tasks=[task]))
    assert sorted(cause.waiting for cause in run(conn, verbs.dead_causes("orders"))) == [1, 1, 1, 1, 2]
    assert [row[0] for row in dead(conn)] == ids


def test_only_an_error_of_a_task_that_failed_is_the_reason(conn: Connection, queue: Queue) -> None:
    run(conn, verbs.publish(queue("orders", max_attempts=1), 7))
    (one,) = dispatch(conn)
    for task in ("cleared", "send", "pack"):  # the first succeeded when somebody cleared it
        run(conn, verbs.record_task_failure("handle", one.run_id, task, {"error": task}))
    run(conn, verbs.end_dispatch("handle", one.run_id, "failed", failed_tasks=["pack", "send"]))
    assert dead(conn)[0][1] == "DAG handle failed: pack, send: pack"
    assert conn.execute("SELECT failures FROM messages.dispatch").fetchone() == (None,)


def test_an_error_of_a_run_without_an_open_dispatch_is_not_recorded(conn: Connection, queue: Queue) -> None:
    run(conn, verbs.publish(queue("orders", max_attempts=1), 7))
    (one,) = dispatch(conn)
    end(conn, one, "failed")
    assert run(conn, verbs.record_task_failure("handle", one.run_id, "pack", ERROR)) is False
    assert run(conn, verbs.record_task_failure("handle", "manual", "pack", ERROR)) is False


def test_a_run_with_thousands_of_failed_tasks_keeps_the_errors_of_twenty(conn: Connection, queue: Queue) -> None:
    run(conn, verbs.publish(queue("orders", max_attempts=1), 7))
    (one,) = dispatch(conn)
    told = [run(conn, verbs.record_task_failure("handle", one.run_id, f"t{n}", ERROR)) for n in range(22)]
    assert told == [True] * 20 + [False] * 2


@pytest.mark.parametrize("result", ["failed", "lost", "lock_expired"])
def test_who_handled_a_dead_message_is_its_run_however_that_ended(conn: Connection, queue: Queue, result: Any) -> None:
    run(conn, verbs.publish(queue("orders", max_attempts=1), 7))
    (one,) = dispatch(
        conn, dispatched_by="a dispatcher", lease_for=timedelta(milliseconds=200 if "lock" in result else 9e6)
    )
    if result == "lock_expired":
        until_leases_expire(conn)
        run(conn, verbs.maintain())
    else:
        end(conn, one, result)
    assert [row[3] for row in dead(conn)] == [f"handle/{one.run_id}"]
    assert one.run_id not in dead(conn)[0][1]


def test_on_failure_fail_archives_at_once(conn: Connection, queue: Queue) -> None:
    (id_,) = run(conn, verbs.publish_batch(queue("orders"), [7]))
    (only,) = dispatch(conn, on_failure="fail")
    assert end(conn, only, "failed") == 1
    assert results(conn) == {id_: "failed"}


@pytest.mark.parametrize("result", ["success", "failed", "lost", "refused"])
def test_a_dispatch_ends_once(conn: Connection, queue: Queue, result: Any) -> None:
    run(conn, verbs.publish(queue("orders"), 7))
    (only,) = dispatch(conn)
    assert end(conn, only, result) == 1
    assert end(conn, only, result) == 0
    assert run(conn, verbs.open_dispatches("orders")) == []


def test_a_run_without_a_dispatch_ends_nothing(conn: Connection) -> None:
    assert run(conn, verbs.end_dispatch("handle", "manual__2026", "success")) is None
    with pytest.raises(DispatchNotFound, match="no messages were dispatched"):
        run(conn, verbs.dispatched_messages("handle", "manual__2026"))


def test_a_deleted_run_counts_an_attempt_and_a_refused_one_does_not(conn: Connection, queue: Queue) -> None:
    (id_,) = run(conn, verbs.publish_batch(queue("orders"), [7]))
    (refused,) = dispatch(conn)
    end(conn, refused, "refused")
    (again,) = dispatch(conn)
    assert again.run_id == refused.run_id == f"pgqueue__orders__{id_}__1"
    end(conn, again, "lost")
    (third,) = dispatch(conn)
    assert third.run_id == f"pgqueue__orders__{id_}__2"


def test_a_run_id_is_never_used_twice(conn: Connection, queue: Queue) -> None:
    (id_,) = run(conn, verbs.publish_batch(queue("orders"), [7]))
    (first,) = dispatch(conn)
    end(conn, first, "lost")
    conn.execute("UPDATE messages.message SET attempts = 0")  # as plain SQL may
    (second,) = dispatch(conn)
    assert second.run_id == f"pgqueue__orders__{id_}__1__1"


def test_a_run_id_is_free_where_another_queue_has_one_that_begins_alike(conn: Connection, queue: Queue) -> None:
    conn.execute("SELECT setval('messages.message_id_seq', 1, false)")
    run(conn, verbs.publish(queue("orders"), 1))
    run(conn, verbs.publish(queue("orders__1"), 2))
    (other,) = dispatch(conn, "orders__1")
    (first,) = dispatch(conn)
    end(conn, first, "lost")
    (second,) = dispatch(conn)
    assert {other.run_id, second.run_id} == {"pgqueue__orders__1__2__1", "pgqueue__orders__1__2"}


def test_a_run_id_is_free_after_both_runs_of_an_attempt_were_refused(
    connect: Callable[..., Connection], conn: Connection, queue: Queue
) -> None:
    run(conn, verbs.publish(queue("orders"), 1))
    repeats = connect(autocommit=False)
    (first,) = dispatch(conn)
    end(conn, first, "refused")
    end(repeats, first, "refused")  # holds the dispatch until its commit, so that its id is not free
    (second,) = dispatch(conn)
    repeats.commit()
    end(conn, second, "refused")
    (third,) = dispatch(conn)
    assert (second.run_id, third.run_id) == (f"{first.run_id}__1", first.run_id)


def test_a_lease_that_expired_goes_to_another_run_and_the_old_one_changes_nothing(
    conn: Connection, queue: Queue
) -> None:
    (id_,) = run(conn, verbs.publish_batch(queue("orders"), [7]))
    (old,) = dispatch(conn, lease_for=timedelta(milliseconds=1))
    until_leases_expire(conn)
    (new,) = dispatch(conn)
    assert new.run_id == f"pgqueue__orders__{id_}__2"
    assert run(conn, verbs.extend_dispatches([old.dispatch_id])) == []
    assert end(conn, old, "success") == 0
    assert results(conn) == {}
    assert end(conn, new, "success") == 1
    assert results(conn) == {id_: "success"}


def test_a_finished_run_that_is_cleared_works_with_the_archived_copy(conn: Connection, queue: Queue) -> None:
    (id_,) = run(conn, verbs.publish_batch(queue("orders"), [7]))
    (only,) = dispatch(conn)
    end(conn, only, "success")
    assert bodies(conn, only) == [7]
    for result in ("failed", "success"):
        assert end(conn, only, result) == 0
    assert results(conn) == {id_: "success"}


def test_a_failed_run_that_is_cleared_takes_back_what_waits(conn: Connection, queue: Queue) -> None:
    (id_,) = run(conn, verbs.publish_batch(queue("orders"), [7]))
    (only,) = dispatch(conn)
    end(conn, only, "failed")
    told = "SELECT run_state, result, details, ended_at IS NULL FROM messages.dispatch_overview"
    assert conn.execute(told).fetchone() == ("failed", "failed", "DAG handle failed", False)
    assert bodies(conn, only) == [7]
    make_ready(conn)
    assert dispatch(conn) == []  # the cleared run has it
    assert conn.execute(told).fetchone() == ("running", None, None, True)
    assert end(conn, only, "success") == 1
    assert results(conn) == {id_: "success"}


def test_a_cleared_run_takes_its_messages_beyond_max_leased_and_they_count(conn: Connection, queue: Queue) -> None:
    run(conn, verbs.publish(queue("orders", max_leased=1), "run"))
    (only,) = dispatch(conn)
    end(conn, only, "failed")
    run(conn, verbs.publish_batch("orders", ["other", "later"], priority=1))
    (other,) = run(conn, verbs.lease("orders"))
    assert bodies(conn, only) == ["run"]
    run(conn, verbs.archive(other.lock_token, [other.id]))
    assert run(conn, verbs.lease("orders")) == []
    assert end(conn, only, "success") == 1
    assert [message.body for message in run(conn, verbs.lease("orders"))] == ["later"]


@pytest.mark.parametrize("reads", [True, False], ids=["reads", "does not read"])
def test_a_failed_run_whose_message_died_dismisses_it_when_it_is_cleared_and_succeeds(
    conn: Connection, queue: Queue, reads: bool
) -> None:
    (id_,) = run(conn, verbs.publish_batch(queue("orders", max_attempts=1), [7]))
    (only,) = dispatch(conn)
    end(conn, only, "failed")
    if reads:
        assert bodies(conn, only) == [7]
    assert end(conn, only, "success") == 1
    assert run(conn, verbs.dead_ids("orders")) == []
    assert results(conn) == {id_: "failed"}
    resolution = conn.execute("SELECT resolution, dismissed_for FROM messages.message_archive").fetchone()
    assert resolution == ("dismissed", f"run {only.run_id} succeeded")


@pytest.mark.usefixtures("dsn")
def test_a_cleared_run_does_not_take_messages_from_the_run_of_the_next_attempt(conn: Connection, queue: Queue) -> None:
    run(conn, verbs.publish(queue("orders"), 7))
    (old,) = dispatch(conn)
    end(conn, old, "failed")
    make_ready(conn)
    (new,) = dispatch(conn)
    with pytest.raises(DispatchNotFound, match=new.run_id):
        bodies(conn, old)
    with pytest.raises(DispatchNotFound, match=new.run_id):
        end(conn, old, "success")
    assert end(conn, new, "success") == 1


def retried(conn: Connection, queue_name: str = "orders", **options: Any) -> tuple[Dispatch, Dispatch]:
    """Return the run that failed and the run of the next attempt."""
    (old,) = dispatch(conn, queue_name, **options)
    end(conn, old, "failed")
    make_ready(conn)
    return old, dispatch(conn, queue_name, **options)[0]


@pytest.mark.usefixtures("dsn")
def test_a_failed_run_that_is_cleared_after_another_finished_its_message_does_nothing(
    conn: Connection, queue: Queue
) -> None:
    (id_,) = run(conn, verbs.publish_batch(queue("orders"), [7]))
    old, new = retried(conn)
    end(conn, new, "success")
    with pytest.raises(DispatchNotFound, match=f"message {id_} was finished by 'handle/{new.run_id}'"):
        bodies(conn, old)
    assert bodies(conn, new) == [7]
    assert end(conn, old, "success") == 0


def test_a_failed_run_that_is_cleared_after_its_message_was_requeued_does_nothing(
    conn: Connection, queue: Queue
) -> None:
    run(conn, verbs.publish(queue("orders", max_attempts=1), 7))
    (old,) = dispatch(conn)
    end(conn, old, "failed")
    ((_, new_id),) = conn.execute("SELECT * FROM messages.requeue_dead('orders')").fetchall()
    with pytest.raises(DispatchNotFound, match=f"was requeued as message {new_id}"):
        bodies(conn, old)


def test_a_failed_run_that_is_cleared_gets_what_others_left_of_its_batch(conn: Connection, queue: Queue) -> None:
    run(conn, verbs.publish_batch(queue("orders"), [1, 2]))
    (old,) = dispatch(conn, batch_size=2)
    end(conn, old, "failed")
    make_ready(conn)
    (message,) = run(conn, verbs.lease("orders"))
    run(conn, verbs.archive(message.lock_token, [message.id]))
    assert bodies(conn, old) == [3 - message.body]
    assert end(conn, old, "success") == 1


@pytest.mark.usefixtures("dsn")
def test_a_run_whose_lease_expired_gets_nothing_that_another_has_or_finished(conn: Connection, queue: Queue) -> None:
    run(conn, verbs.publish(queue("orders"), 7))
    (old,) = dispatch(conn, lease_for=timedelta(milliseconds=1))
    until_leases_expire(conn)
    (message,) = run(conn, verbs.lease("orders", locked_by="a worker"))
    with pytest.raises(DispatchNotFound, match="is leased by 'a worker'"):
        bodies(conn, old)
    run(conn, verbs.archive(message.lock_token, [message.id], handled_by="a worker"))
    with pytest.raises(DispatchNotFound, match="was finished by 'a worker'"):
        bodies(conn, old)


def test_a_run_gets_no_message_that_was_cancelled(conn: Connection, queue: Queue) -> None:
    ids = run(conn, verbs.publish_batch(queue("orders"), [1, 2]))
    (one,) = dispatch(conn, batch_size=2)
    run(conn, verbs.cancel("orders", ids[:1]))
    assert bodies(conn, one) == [2]
    assert end(conn, one, "success") == 1
    assert results(conn) == {ids[0]: "cancelled", ids[1]: "success"}
    run(conn, verbs.publish("orders", 3))
    (other,) = dispatch(conn)
    run(conn, verbs.cancel("orders", other.ids))
    with pytest.raises(DispatchNotFound, match="was finished by"):
        bodies(conn, other)


def test_two_dispatchers_at_once_open_no_more_than_max_open_together(dsn: str, conn: Connection, queue: Queue) -> None:
    run(conn, verbs.publish_batch(queue("orders"), range(40)))
    opened: list[Dispatch] = []

    def work() -> None:
        with psycopg.connect(dsn, autocommit=True) as mine:
            for _ in range(10):
                opened.extend(dispatch(mine, max_open=7))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(opened) == 7
    assert len({id_ for one in opened for id_ in one.ids}) == 7


def test_only_one_open_dispatch_counts_and_each_dag_has_its_own_room(conn: Connection, queue: Queue) -> None:
    run(conn, verbs.publish_batch(queue("orders"), range(3)))
    dispatch(conn, max_open=1)
    assert len(run(conn, verbs.dispatch_messages("orders", "other", max_open=1))) == 1
    assert len(run(conn, verbs.open_dispatches("orders"))) == 2
    assert len(run(conn, verbs.open_dispatches(dag_id="other"))) == 1


def test_whether_a_run_started_is_recorded_once(conn: Connection, queue: Queue) -> None:
    run(conn, verbs.publish(queue("orders"), 7))
    (only,) = dispatch(conn)
    assert only.started_at is None
    assert run(conn, verbs.start_dispatch(only.dispatch_id)) is True
    assert run(conn, verbs.start_dispatch(only.dispatch_id)) is False
    assert run(conn, verbs.open_dispatches("orders"))[0].started_at is not None


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"max_open": 0}, InvalidArgument),
        ({"max_open": 10_001}, InvalidArgument),
        ({"batch_size": 0}, InvalidArgument),
        ({"group_by": "colour"}, InvalidArgument),
        ({"on_failure": "weep"}, InvalidArgument),
        ({"lease_for": timedelta(hours=13)}, InvalidArgument),
        ({"lease_for": timedelta(0)}, InvalidArgument),
        ({"queue_name": "nowhere"}, QueueNotFound),
    ],
)
def test_a_bad_argument_is_named(shared: Connection, options: dict[str, Any], error: type[PgQueueError]) -> None:
    with shared.transaction(force_rollback=True):
        run(shared, verbs.publish("orders", 7))
        with pytest.raises(error), shared.transaction():
            dispatch(shared, **options)
        assert len(dispatch(shared)) == 1


def test_a_paused_queue_dispatches_nothing(conn: Connection, queue: Queue) -> None:
    run(conn, verbs.publish(queue("orders"), 7))
    run(conn, verbs.pause_queue("orders"))
    with pytest.raises(QueuePaused):
        dispatch(conn)


def test_a_repeatable_read_transaction_cannot_count(dsn: str, conn: Connection, queue: Queue) -> None:
    queue("orders")
    with psycopg.connect(dsn) as mine:
        mine.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        with pytest.raises(InvalidArgument, match="isolation level"):
            dispatch(mine)


def test_ended_dispatches_are_kept_for_a_month(conn: Connection, queue: Queue) -> None:
    run(conn, verbs.publish_batch(queue("orders"), range(3)))
    old, new, _still_open = dispatch(conn)
    for one in (old, new):
        end(conn, one, "success")
    conn.execute(
        "UPDATE messages.dispatch SET ended_at = ended_at - interval '31 days' WHERE run_id = %s", [old.run_id]
    )
    run(conn, verbs.maintain())
    assert conn.execute("SELECT count(*) FROM messages.dispatch").fetchone() == (2,)
    assert bodies(conn, new) == [1]


def test_the_overview_says_which_runs_a_message_had(conn: Connection, queue: Queue) -> None:
    (id_,) = run(conn, verbs.publish_batch(queue("orders"), [7]))
    for result in ("lost", "success"):
        (only,) = dispatch(conn)
        end(conn, only, result)
    runs = conn.execute(
        "SELECT run_id, result FROM messages.dispatch_overview WHERE ids @> ARRAY[%s::bigint] ORDER BY dispatch_id",
        [id_],
    ).fetchall()
    assert runs == [(f"pgqueue__orders__{id_}__1", "lost"), (f"pgqueue__orders__{id_}__2", "success")]


def test_a_dropped_queue_takes_its_dispatches_along(conn: Connection, queue: Queue) -> None:
    run(conn, verbs.publish(queue("orders"), 7))
    (only,) = dispatch(conn)
    run(conn, verbs.drop_queue("orders", force=True))
    assert end(conn, only, "success") is None
