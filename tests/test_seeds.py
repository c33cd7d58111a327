"""The five documents that the project was created from, one section each: what they describe works here."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from airflow_provider_pgqueue.core import Consumer, LeaseLost, Retry, run, verbs
from airflow_provider_pgqueue.core.errors import CronUnavailable
from airflow_provider_pgqueue.core.installation import CRON_ROLE
from airflow_provider_pgqueue.core.pgmq import install_names
from tests.waiting import until, until_a_message_expires, until_leases_expire
from tools.postgres import Cluster

Connection = psycopg.Connection[Any]
Connect = Callable[..., Connection]
Queue = Callable[..., str]

# S0, "a set of conventions to use a couple of tables and LISTEN/NOTIFY" ----------------------------------------------
# The statements of a worker in any language, word for word as the conventions have them.

LOCK = """
UPDATE messages.message SET lock_expires_at = CURRENT_TIMESTAMP + %s::interval
 WHERE id = %s AND (lock_expires_at IS NULL OR lock_expires_at < CURRENT_TIMESTAMP) RETURNING *
"""
FINISH = """
INSERT INTO messages.message_archive (created_at, message, result, handled_by, details) VALUES (%s, %s, %s, %s, %s)
"""


def raw_publish(conn: Connection, body: Any) -> int:
    row = conn.execute("INSERT INTO messages.message (message) VALUES (%s) RETURNING id", [json.dumps(body)]).fetchone()
    return int(row[0])


def raw_lock(conn: Connection, id_: int, lock_for: str = "1 minute") -> bool:
    with conn.transaction():
        try:
            conn.execute("SELECT 1 FROM messages.message WHERE id = %s FOR UPDATE NOWAIT", [id_])
        except psycopg.errors.LockNotAvailable:
            raise psycopg.Rollback from None
        return conn.execute(LOCK, [lock_for, id_]).fetchone() is not None
    return False


def raw_finish(conn: Connection, id_: int, result: str = "success", details: str | None = None) -> None:
    with conn.transaction():
        row = conn.execute("DELETE FROM messages.message WHERE id = %s RETURNING created_at, message", [id_]).fetchone()
        conn.execute(FINISH, [row[0], json.dumps(row[1]), result, "raw worker", details])


def heard(conn: Connection, timeout: float = 5.0) -> list[tuple[str, str]]:
    notifies = conn.notifies(timeout=timeout, stop_after=1)
    return [(notify.channel, notify.payload) for notify in notifies]


def results(conn: Connection) -> list[str]:
    return [row[0] for row in conn.execute("SELECT result FROM messages.message_archive ORDER BY archived_at, id")]


def depth(conn: Connection) -> int:
    row = conn.execute("SELECT count(*) FROM messages.message").fetchone()
    return int(row[0])


def test_s0_an_insert_notifies_with_the_id_and_a_worker_locks_works_deletes_and_archives(connect: Connect) -> None:
    publisher, worker = connect(), connect()
    worker.execute("LISTEN new_message")
    id_ = raw_publish(publisher, ["test"])
    assert heard(worker) == [("new_message", str(id_))]
    assert raw_lock(worker, id_)
    assert not raw_lock(connect(), id_), "another worker is processing the message"
    raw_finish(worker, id_)
    assert (depth(worker), results(worker)) == (0, ["success"])


@pytest.mark.parametrize("result", ["rejected", "failed", "lock_expired"])
def test_s0_a_dead_message_notifies_and_warns_without_its_body(connect: Connect, result: str) -> None:
    worker, other, warnings = connect(), connect(), []
    other.execute("LISTEN dead_message")
    worker.add_notice_handler(lambda notice: warnings.append((notice.severity, notice.message_primary)))
    id_ = raw_publish(worker, ["SECRET"])
    assert raw_lock(worker, id_)
    raw_finish(worker, id_, result, "why")
    row = worker.execute("SELECT id FROM messages.message_archive").fetchone()
    assert heard(other) == [("dead_message", str(row[0]))]
    assert warnings == [("WARNING", f"dead message: archive id {row[0]}, queue default, result {result}")]


def test_s0_the_warning_is_in_the_server_log(cluster: Cluster, conn: Connection) -> None:
    conn.execute("SELECT messages.create_queue('s0_log')")
    run(conn, verbs.publish("s0_log", "SECRET-BODY-OF-S0"))
    (message,) = run(conn, verbs.lease("s0_log"))
    run(conn, verbs.archive(message.lock_token, [message.id], result="failed"))
    log = (cluster.directory / "server.log").read_text()
    assert f"WARNING:  dead message: archive id {message.id}, queue s0_log, result failed" in log
    assert "SECRET-BODY-OF-S0" not in log


def test_s0_without_workers_messages_wait_and_maintenance_notifies_again(connect: Connect) -> None:
    conn, worker = connect(), connect()
    ids = [raw_publish(conn, n) for n in range(3)]
    worker.execute("LISTEN new_message")
    assert run(conn, verbs.maintain())["notified"] == 3
    again = [notify.payload for notify in worker.notifies(timeout=5, stop_after=3)]
    assert again == [str(id_) for id_ in ids]
    assert depth(conn) == 3


def test_s0_a_worker_that_dies_leaves_a_lock_that_maintenance_archives_as_lock_expired(connect: Connect) -> None:
    conn = connect()
    conn.execute("SELECT messages.alter_queue('default', max_attempts => 1)")
    id_ = raw_publish(conn, 1)
    assert raw_lock(connect(), id_, "1 millisecond")
    until_leases_expire(conn)
    assert run(conn, verbs.maintain())["archived"] == 1
    assert (depth(conn), results(conn)) == (0, ["lock_expired"])


@pytest.mark.long
def test_s0_raw_workers_beside_our_consumers_deliver_each_message_once(dsn: str, connect: Connect) -> None:
    conn, seen, lock = connect(), list[int](), threading.Lock()
    ids = [raw_publish(conn, n) for n in range(400)]

    def raw_worker(number: int) -> None:
        mine = connect()
        for id_ in ids[number::2] + ids[1 - number :: 2]:
            if raw_lock(mine, id_):
                with lock:
                    seen.append(id_)
                raw_finish(mine, id_)

    def our_worker(number: int) -> None:
        def handle(message: Any) -> None:
            with lock:
                seen.append(message.id)

        Consumer(queue_name="default", handle=handle, batch_size=3).drain(connect())

    with ThreadPoolExecutor(4) as pool:
        list(
            pool.map(
                lambda work: work[0](work[1]), [(raw_worker, 0), (our_worker, 0), (raw_worker, 1), (our_worker, 1)]
            )
        )
    assert sorted(seen) == ids
    assert (depth(conn), results(conn)) == (0, ["success"] * 400)


def test_s0_a_raw_worker_that_takes_over_an_expired_lease_ends_the_old_token(connect: Connect) -> None:
    ours, raw = connect(), connect()
    id_ = raw_publish(ours, 1)
    (message,) = run(ours, verbs.lease("default", lease_for=timedelta(milliseconds=1)))
    until_leases_expire(ours)
    assert raw_lock(raw, id_)
    with pytest.raises(LeaseLost):
        run(ours, verbs.archive(message.lock_token, [id_]))
    raw_finish(raw, id_)
    assert results(ours) == ["success"]


def test_s0_a_worker_archives_a_message_that_took_too_long_as_lock_expired(connect: Connect) -> None:
    conn, worker = connect(), connect()
    conn.execute("LISTEN dead_message")
    id_ = raw_publish(conn, 1)
    assert raw_lock(worker, id_)
    raw_finish(worker, id_, "lock_expired", "took more than 10 s")
    assert [channel for channel, _ in heard(conn)] == ["dead_message"]
    assert (depth(conn), results(conn)) == (0, ["lock_expired"])


def test_s0_a_consumer_ends_what_exceeds_its_handler_timeout_as_lock_expired(conn: Connection, queue: Queue) -> None:
    run(conn, verbs.publish(queue("slow", max_attempts=1, handler_timeout=timedelta(minutes=5)), 1))
    (message,) = run(conn, verbs.lease("slow"))
    run(conn, verbs.archive(message.lock_token, [message.id], result="lock_expired", details="too slow"))
    assert results(conn) == ["lock_expired"]
    (dead,) = run(conn, verbs.lease_dead("slow"))
    assert dead.id == message.id


@pytest.mark.long
@pytest.mark.cron
def test_s0_pg_cron_archives_notifies_and_publishes_scheduled_messages(cron_dsn: str) -> None:
    with psycopg.connect(cron_dsn, autocommit=True) as conn:
        conn.execute("SELECT messages.alter_queue('default', max_attempts => 1)")
        assert run(conn, verbs.install_cron(CRON_ROLE)) == "messages:maintenance"
        assert run(conn, verbs.install_cron(CRON_ROLE)) == "messages:maintenance"
        assert conn.execute("SELECT count(*) FROM cron.job").fetchone() == (1,)
        assert run(conn, verbs.maintenance_mode()) == "pg_cron"
        conn.execute(
            "SELECT cron.schedule('every minute', '* * * * *',"
            " $$ INSERT INTO messages.message (message) VALUES ('\"scheduled\"') $$)"
        )
        id_ = raw_publish(conn, "abandoned")
        assert raw_lock(conn, id_, "1 millisecond")
        done = (
            "SELECT FROM messages.message WHERE message = '\"scheduled\"'"
            " AND EXISTS (SELECT FROM messages.message_archive WHERE result = 'lock_expired')"
            # It looks at the queues first, in transactions of its own.
            " AND EXISTS (SELECT FROM messages.maintenance_run WHERE finished_at IS NOT NULL)"
        )
        until(lambda: conn.execute(done).rowcount, timeout=120, what="a minute of pg_cron")
        assert conn.execute("SELECT done_by FROM messages.maintenance_run").fetchone() == ("pg_cron",)
        assert run(conn, verbs.uninstall_cron()) == 1
        assert run(conn, verbs.maintenance_mode()) == "airflow"


def test_s0_where_there_is_no_pg_cron_in_the_database_the_error_says_what_to_do(conn: Connection) -> None:
    with pytest.raises(CronUnavailable, match=r"pg_cron (lives in database|is not loaded).*(Run there|Set shared)"):
        run(conn, verbs.install_cron())


# S1, "Self-regulating queues": FOR UPDATE, SKIP LOCKED and a visibility timeout --------------------------------------


def test_s1_a_consumer_sets_the_timeout_anew_and_comes_back_later(connect: Connect, queue: Queue) -> None:
    """The EC2 example: start the server, look again in a while, archive when it is there."""
    conn, servers, calls = connect(), set[int](), []
    run(conn, verbs.publish(queue("task_queue", max_attempts=1), {"create": 7}))

    def handle(message: Any) -> Retry | None:
        calls.append(message.id)
        if message.body["create"] in servers:
            return None
        servers.add(message.body["create"])
        return Retry(timedelta(seconds=1), count_attempt=False)

    consumer = Consumer(queue_name="task_queue", handle=handle)
    assert consumer.drain(conn) == {"retried": 1}
    assert consumer.drain(conn) == {}
    assert until(lambda: consumer.drain(conn)) == {"success": 1}
    assert results(conn) == ["success"]


def test_s1_its_statements_run_as_they_are_written(conn: Connection, queue: Queue) -> None:
    """With the optional names of PGMQ: sql/pgmq.sql. Only its quotes are typographic, and the id a placeholder."""
    install_names(conn)
    run(conn, verbs.publish(queue("task_queue"), {"create": 7}))
    run(conn, verbs.publish(queue("test_queue"), {"create": 8}))
    (record,) = conn.execute("select pgmq.read('task_queue', 30, 1)").fetchone()
    msg_id = record.strip("(").split(",")[0]
    assert conn.execute("select pgmq.read('task_queue', 30, 1)").fetchall() == []
    assert conn.execute(f"select pgmq.set_vt('task_queue', {msg_id}, 60)".encode()).rowcount == 1
    (last,) = conn.execute("select msg_id from pgmq.read('test_queue', 30, 1)").fetchone()
    assert conn.execute(f"select pgmq.archive('test_queue', {last})".encode()).fetchone() == (True,)
    assert results(conn) == ["success"]


def test_s1_a_delete_removes_a_message_without_a_trace(connect: Connect, queue: Queue) -> None:
    conn, listening = connect(), connect()
    listening.execute("LISTEN dead_message")
    run(conn, verbs.publish(queue("task_queue"), 1, expires_in=timedelta(hours=1)))
    (message,) = run(conn, verbs.lease("task_queue", lease_for=timedelta(milliseconds=1)))
    assert conn.execute("DELETE FROM messages.message WHERE id = %s", [message.id]).rowcount == 1
    with pytest.raises(LeaseLost):
        run(conn, verbs.archive(message.lock_token, [message.id]))
    assert run(conn, verbs.maintain())["archived"] == 0
    assert (depth(conn), results(conn), heard(listening, 0.2)) == (0, [], [])


def test_s1_a_delete_lets_the_next_of_its_group_go_first(conn: Connection, queue: Queue) -> None:
    head, behind = run(conn, verbs.publish_batch(queue("task_queue"), [1, 2], group_keys=["a", "a"]))
    conn.execute("DELETE FROM messages.message WHERE id = %s", [head])
    (found,) = until(lambda: run(conn, verbs.lease("task_queue")))
    assert found.id == behind


# S2, PostQueue: reference, attempts, delay, expiry, ack, nack, working -----------------------------------------------


def test_s2_a_job_has_a_reference_a_later_visibility_and_an_expiry(connect: Connect, queue: Queue) -> None:
    conn = connect()
    run(conn, verbs.publish(queue("jobs"), 1, reference="invoice-7", delay=timedelta(seconds=1)))
    run(conn, verbs.publish("jobs", 2, expires_in=timedelta(milliseconds=1)))
    until_a_message_expires(conn)
    assert run(conn, verbs.lease("jobs", max_messages=10)) == []
    (message,) = until(lambda: run(conn, verbs.lease("jobs", max_messages=10)))
    assert (message.body, message.reference) == (1, "invoice-7")
    run(conn, verbs.maintain())
    assert results(conn) == ["expired"]


def test_s2_ack_archives_and_nack_gives_back_at_most_three_times(connect: Connect, queue: Queue) -> None:
    conn = connect()
    run(conn, verbs.publish_batch(queue("jobs", max_attempts=3), ["good", "bad"]))
    for _ in range(3):
        for message in run(conn, verbs.lease("jobs", max_messages=2)):
            ack = verbs.archive(message.lock_token, [message.id])
            run(conn, ack if message.body == "good" else verbs.release(message.lock_token, [message.id]))
    assert run(conn, verbs.lease("jobs")) == []
    rows = conn.execute("SELECT message, result, attempts FROM messages.message_archive ORDER BY id").fetchall()
    assert rows == [("good", "success", 1), ("bad", "failed", 3)]


def test_s2_queues_are_apart(connect: Connect, queue: Queue) -> None:
    conn = connect()
    run(conn, verbs.publish(queue("jobs"), 1))
    run(conn, verbs.publish(queue("mails"), 2))
    assert [message.body for message in run(conn, verbs.lease("mails", max_messages=10))] == [2]


# S3, SGQueue: NOTIFY is a signal, polling the fallback ---------------------------------------------------------------


def test_s3_a_body_larger_than_a_notification_is_signalled_by_its_id(connect: Connect, queue: Queue) -> None:
    conn, listener = connect(), connect()
    listener.execute("LISTEN new_message")
    id_ = run(conn, verbs.publish(queue("orders"), "x" * 100_000))
    assert heard(listener) == [("new_message", str(id_))]


# S4, Devious SQL: batches, DELETE … USING (SELECT … FOR UPDATE SKIP LOCKED), one transaction -------------------------


def test_s4_two_backends_get_different_batches_and_a_rollback_gives_one_back(connect: Connect, queue: Queue) -> None:
    conn, first, second = connect(), connect(autocommit=False), connect(autocommit=False)
    run(conn, verbs.publish_batch(queue("queue_table"), [f"data-{n}" for n in range(1, 31)]))
    one = run(first, verbs.consume("queue_table", max_messages=10))
    two = run(second, verbs.consume("queue_table", max_messages=10))
    assert [message.body for message in one] == [f"data-{n}" for n in range(1, 11)]
    assert [message.body for message in two] == [f"data-{n}" for n in range(11, 21)]
    second.commit()
    first.rollback()
    again = list[int]()

    def take_again() -> bool:
        again.extend(message.id for message in run(conn, verbs.consume("queue_table", max_messages=30)))
        return len(again) >= 20

    # What a rollback gives back lies below the mark; the next look finds it.
    until(take_again)
    assert sorted(again) == sorted([message.id for message in one] + [two[-1].id + n for n in range(1, 11)])
    assert (depth(conn), len(results(conn))) == (0, 30)


def test_s4_the_statement_of_the_article_works_on_our_table(connect: Connect, queue: Queue) -> None:
    conn = connect()
    run(conn, verbs.publish_batch(queue("queue_table"), list(range(20))))
    rows = conn.execute(
        """
        DELETE FROM messages.message USING (
            SELECT * FROM messages.message ORDER BY id LIMIT 10 FOR UPDATE SKIP LOCKED) q
         WHERE q.id = message.id RETURNING message.*
        """
    ).fetchall()
    assert len(rows) == depth(conn) == 10


def test_s4_autovacuum_is_tuned_for_the_queue_table(conn: Connection) -> None:
    row = conn.execute("SELECT reloptions FROM pg_class WHERE oid = 'messages.message_rows'::regclass").fetchone()
    assert {"fillfactor=50", "vacuum_truncate=off", "autovacuum_vacuum_scale_factor=0.1"} <= set(row[0])


def test_s4_the_queue_table_is_rotated(connect: Connect, queue: Queue) -> None:
    conn, size = connect(), "SELECT pg_total_relation_size('messages.message_rows')"
    ids = run(conn, verbs.publish_batch(queue("queue_table"), list(range(5000))))
    conn.execute("DELETE FROM messages.message WHERE id < %s", [ids[-10]])
    ((large,),) = conn.execute(size).fetchall()
    conn.execute("VACUUM (FULL, ANALYZE) messages.message_rows")
    ((small,),) = conn.execute(size).fetchall()
    assert small < large / 4
    run(conn, verbs.publish("queue_table", "new"))
    left = until(lambda: run(conn, verbs.lease("queue_table", max_messages=100)))
    assert [message.id for message in left][:10] == list(ids[-10:])


# The mistakes of S0 do not come along --------------------------------------------------------------------------------


def test_a_session_in_another_time_zone_does_not_steal_a_live_lease(connect: Connect) -> None:
    conn, tokyo = connect(), connect()
    tokyo.execute("SET timezone = 'Asia/Tokyo'")
    id_ = raw_publish(conn, 1)
    assert raw_lock(conn, id_)
    assert not raw_lock(tokyo, id_)


def test_ids_are_bigint_and_the_archive_keeps_them(connect: Connect, queue: Queue) -> None:
    conn = connect()
    conn.execute("SELECT setval('messages.message_id_seq', 3000000000)")
    id_ = run(conn, verbs.publish(queue("orders"), 1))
    assert id_ == 3000000001
    run(conn, verbs.consume("orders"))
    assert conn.execute("SELECT id FROM messages.message_archive").fetchone() == (id_,)


def test_a_backlog_is_notified_a_bounded_number_of_times(connect: Connect, queue: Queue) -> None:
    conn = connect()
    run(conn, verbs.publish_batch(queue("orders"), list(range(500))))
    assert run(conn, verbs.maintain())["notified"] == 100


def test_nothing_of_ours_is_in_public(conn: Connection) -> None:
    row = conn.execute(
        "SELECT (SELECT count(*) FROM pg_proc WHERE pronamespace = 'public'::regnamespace),"
        " (SELECT count(*) FROM pg_class WHERE relnamespace = 'public'::regnamespace)"
    ).fetchone()
    assert row == (0, 0)
