"""Publishing finished messages again: each once, in order, at a pace, from the archive or from an export."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark.sql import SparkSession

from airflow_provider_pgqueue.core import InvalidArgument, QueueNotFound
from airflow_provider_pgqueue.spark import export, replay

Connection = psycopg.Connection[Any]
Replay = Callable[..., dict[str, Any]]
Archive = Callable[..., list[int]]

HOSTILE = '{"big": 123456789012345678901234567890.5, "text": "quote \\" newline \\n bell \\u0007 π", "deep": [[[{}]]]}'


@pytest.fixture
def again(spark: SparkSession, dsn: str) -> Replay:
    """Run a replay: `again("run", to_queue="again", …)`."""
    return lambda run_id, **options: replay(spark, run_id=run_id, dsn=dsn, **options)


@pytest.fixture
def archived(conn: Connection) -> Archive:
    """Archive messages of the queue orders, an hour ago: `archived(3, result="failed")`; their ids."""
    for name in ("orders", "again"):
        conn.execute("SELECT messages.create_queue(%s)", [name])

    def archive(number: int, message: str = "1", **columns: Any) -> list[int]:
        given = {"queue_name": "orders", "result": "success", "message": message} | columns
        names = ", ".join(given)
        rows = conn.execute(
            f"INSERT INTO messages.message_archive (created_at, archived_at, {names})"  # noqa: S608
            " SELECT now() - interval '2 hours', now() - interval '1 hour',"
            f" {', '.join(f'%({name})s' for name in given)}"
            f" FROM generate_series(1, {number}) RETURNING id".encode(),
            given,
        ).fetchall()
        return [id_ for (id_,) in rows]

    return archive


def copies(conn: Connection, queue_name: str = "again") -> list[int]:
    rows = conn.execute(
        "SELECT (headers ->> 'replay_of')::bigint FROM messages.message WHERE queue_name = %s ORDER BY id", [queue_name]
    ).fetchall()
    return [id_ for (id_,) in rows]


def test_a_copy_has_everything_of_the_old_message_and_says_what_it_repeats(
    conn: Connection, archived: Archive, again: Replay
) -> None:
    columns = {"reference": "shop-7'\"", "topic": "shop.order", "group_key": "seven", "priority": 7}
    (id_,) = archived(1, HOSTILE, headers='{"trace": 1e400, "replay_of": 3}', **columns)
    done = again("one")
    assert (done["chosen"], done["published"], done["known"]) == (1, 1, 0)
    row = conn.execute(
        "SELECT queue_name, reference, topic, group_key, priority, message = %s::jsonb,"
        " headers = jsonb_build_object('trace', 1e400, 'replay_of', %s::bigint, 'replay_run', 'one')"
        " FROM messages.message",
        [HOSTILE, id_],
    ).fetchall()
    assert row == [("orders", *columns.values(), True, True)]


def test_each_message_is_published_once_under_one_name_and_again_under_another(
    conn: Connection, archived: Archive, again: Replay
) -> None:
    ids = archived(60)
    assert again("first", to_queue="again")["published"] == 60
    assert again("first", to_queue="again")["published"] == 60
    with pytest.raises(InvalidArgument, match="run 'first' was about to=again, not all"):
        again("first")
    conn.execute("UPDATE messages.pipeline_run SET finished_at = NULL, summary = NULL")
    repeated = again("first", to_queue="again")
    assert (repeated["published"], repeated["known"]) == (0, 60)
    assert sorted(copies(conn)) == ids
    assert again("second", to_queue="again", until=datetime.fromisoformat("2030-01-01T00:00Z"))["published"] == 60


def test_a_run_does_not_repeat_what_it_has_published_itself(conn: Connection, archived: Archive, again: Replay) -> None:
    archived(20)
    again("loop")
    conn.execute("UPDATE messages.pipeline_run SET finished_at = NULL, summary = NULL")
    conn.execute("SELECT messages.consume('orders', 10)")
    repeated = again("loop")
    assert (repeated["published"], repeated["known"]) == (0, 20)


@pytest.mark.parametrize("rate", [0, 100_000], ids=["at once", "at a pace"])
def test_groups_keep_their_order(conn: Connection, archived: Archive, again: Replay, rate: float) -> None:
    for number in range(40):
        for group in ("a", "b", "c"):
            # Those of one priority are published together.
            archived(1, group_key=group, priority=number // 7 % 2)
    again("groups", rate=rate)
    rows = conn.execute(
        "SELECT group_key, array_agg((headers ->> 'replay_of')::bigint ORDER BY id) FROM messages.message GROUP BY 1"
    ).fetchall()
    assert len(rows) == 3
    assert [len(ids) for _, ids in rows] == [40] * 3
    assert all(ids == sorted(ids) for _, ids in rows)


def test_time_reference_result_and_a_filter_choose(conn: Connection, archived: Archive, again: Replay) -> None:
    archived(3, '{"total": 7}')
    archived(1, result="failed")
    dead = archived(2, '{"total": 7}', result="failed", reference="dead")
    named = archived(1, reference="named")
    old = archived(1, reference="old")
    conn.execute(
        "UPDATE messages.message_archive SET archived_at = archived_at - interval '30 minutes' WHERE reference = 'old'"
    )
    (moment,) = conn.execute("SELECT now() - interval '80 minutes'").fetchone() or ()
    chosen = {
        "result and filter": {"results": ("failed",), "where": "get_json_object(message, '$.total') > 5"},
        "reference": {"references": ("named", "nobody")},
        "before": {"until": moment},
        "together": {"since": moment, "results": ("success",), "where": "reference is not null"},
        "queue": {"queues": ("again",)},
    }
    for run_id, options in chosen.items():
        again(run_id, to_queue="again", **options)
    rows = conn.execute(
        "SELECT headers ->> 'replay_run', array_agg((headers ->> 'replay_of')::bigint ORDER BY id)"
        " FROM messages.message GROUP BY 1"
    ).fetchall()
    assert {run_id: sorted(ids) for run_id, ids in rows} == {
        "result and filter": dead, "reference": named, "before": old, "together": named
    }  # fmt: skip


BEGINS = """
    CREATE FUNCTION public.archive_more() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
    BEGIN
        INSERT INTO messages.message_archive (created_at, archived_at, queue_name, result, message)
        SELECT clock_timestamp(), clock_timestamp(), 'orders', 'success', '1' FROM generate_series(1, 3);
        RETURN NULL;
    END $$;
    CREATE TRIGGER archive_more AFTER INSERT ON messages.pipeline_run EXECUTE FUNCTION public.archive_more()
"""
"""Three more messages are finished as soon as a run has begun."""


def test_what_is_finished_after_a_replay_began_is_neither_counted_nor_published(
    conn: Connection, archived: Archive, again: Replay
) -> None:
    counted = archived(2)
    conn.execute(BEGINS)
    done = again("late", to_queue="again")
    assert conn.execute("SELECT count(*) FROM messages.message_archive").fetchone() == (5,)
    assert (done["chosen"], done["published"], sorted(copies(conn))) == (2, 2, counted)


def test_a_dry_run_counts_and_publishes_nothing(conn: Connection, archived: Archive, again: Replay) -> None:
    archived(3)
    archived(2, result="failed")
    done = again("dry", dry_run=True, to_queue="again")
    assert done == {
        "chosen": 5,
        "from": [
            {"queue": "orders", "result": "failed", "messages": 2},
            {"queue": "orders", "result": "success", "messages": 3},
        ],
        "to": ["again"],
        "dry_run": True,
    }
    assert copies(conn) == []
    assert conn.execute("SELECT FROM messages.pipeline_run").rowcount == 0
    assert again("dry", to_queue="again")["published"] == 5


def test_the_pace_is_kept(conn: Connection, archived: Archive, again: Replay) -> None:
    archived(80)
    again("pace", to_queue="again", rate=40)
    (seconds,) = (
        conn.execute("SELECT extract(epoch FROM max(created_at) - min(created_at)) FROM messages.message").fetchone()
        or ()
    )
    assert seconds > 0.95 * (80 - 40) / 40


def test_an_unknown_queue_is_an_error_before_anything_is_published(
    conn: Connection, archived: Archive, again: Replay
) -> None:
    archived(2)
    archived(2, queue_name="zz_gone")
    for run_id, options in {"to": {"to_queue": "nowhere"}, "from": {}, "dry": {"dry_run": True}}.items():
        with pytest.raises(QueueNotFound, match="nowhere" if run_id == "to" else "zz_gone"):
            again(run_id, **options)
    assert conn.execute("SELECT FROM messages.message").rowcount == 0


@pytest.mark.parametrize("where", ["no_such_column = 1", "id >", "id + 1", "1 = 1; DROP TABLE x"])
def test_a_filter_that_is_none_is_a_clear_error(archived: Archive, again: Replay, where: str) -> None:
    with pytest.raises(InvalidArgument, match=r"is not one.*Give a Spark SQL condition on id, queue_name"):
        again("bad", where=where)


def test_a_filter_that_fails_for_a_row_is_named_and_the_row_is_not(
    conn: Connection, archived: Archive, again: Replay
) -> None:
    where = "cast(get_json_object(message, '$.shop') AS int) > 1"
    archived(1, '{"shop": "CONFIDENTIAL"}', reference="CONFIDENTIAL")
    with pytest.raises(
        InvalidArgument, match=r"the filter .* fails for a row: CAST_\w+\. Give one .*try_cast"
    ) as error:
        again("bad", where=where)
    assert "CONFIDENTIAL" not in "".join(traceback.format_exception(error.value))
    assert conn.execute("SELECT FROM messages.message").rowcount == 0


def test_numbers_that_are_none_are_refused(session: SparkSession) -> None:
    for options in ({"rate": -1}, {"rate": float("nan")}, {"parallelism": 0}):
        with pytest.raises(InvalidArgument, match=r"Give (a number|a whole number)"):
            replay(session, **options)  # type: ignore[arg-type]


def test_an_empty_archive_is_replayed_in_no_time(archived: Archive, again: Replay) -> None:
    assert again("empty") == {
        "chosen": 0,
        "from": [],
        "to": [],
        "dry_run": False,
        "published": 0,
        "known": 0,
    }


def test_no_body_is_in_the_error_of_a_task(conn: Connection, archived: Archive, again: Replay) -> None:
    archived(1, '"canary"')
    conn.execute("SELECT messages.alter_queue('again', max_body_bytes => 1)")
    with pytest.raises(Exception, match="too large") as caught:
        again("large", to_queue="again")
    assert "canary" not in str(caught.value)


def test_an_export_is_replayed_after_its_partition_was_dropped(
    conn: Connection, archived: Archive, again: Replay, spark: SparkSession, dsn: str, tmp_path: Path
) -> None:
    conn.execute("ALTER TABLE messages.message_archive_default DROP CONSTRAINT archived_before_the_archive_begins")
    conn.execute(
        "CREATE TABLE messages.message_archive_20200101 PARTITION OF messages.archive_rows"
        " FOR VALUES FROM ('2020-01-01Z') TO ('2020-01-02Z')"
    )
    conn.execute("ALTER TABLE messages.message_archive_20200101 OWNER TO messages_owner")
    ids = archived(3, HOSTILE, headers='{"trace": 1}', reference="old")
    archived(2, reference="young")
    conn.execute("UPDATE messages.message_archive SET archived_at = '2020-01-01 12:00Z' WHERE reference = 'old'")
    export(spark, target=str(tmp_path), dsn=dsn, drop=True)
    assert again("archive", to_queue="again")["chosen"] == 2
    conn.execute("DELETE FROM messages.message")
    conn.execute("SELECT messages.drop_queue('orders')")
    chosen = {"to_queue": "again", "export": str(tmp_path)}
    with pytest.raises(QueueNotFound, match="'ordres'"):
        again("misspelt", queues=("orders", "ordres"), **chosen)
    done = again("export", queues="orders", where="get_json_object(message, '$.deep') IS NOT NULL", **chosen)
    assert done["from"] == [{"queue": "orders", "result": "success", "messages": 3}]
    assert sorted(copies(conn)) == ids
    equal = conn.execute("SELECT bool_and(message = %s::jsonb AND headers ? 'trace') FROM messages.message", [HOSTILE])
    assert equal.fetchone() == (True,)
