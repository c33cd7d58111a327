"""The export of the archive: what is in the files, what is dropped, and what a crash leaves."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from airflow_provider_pgqueue.core import statements
from airflow_provider_pgqueue.core.client import run
from airflow_provider_pgqueue.core.errors import (
    BeforeArchive,
    ExportDiffers,
    ExportError,
    InvalidArgument,
    PermissionDenied,
    UndecidedMessages,
)
from airflow_provider_pgqueue.core.statements import Statement
from airflow_provider_pgqueue.core.statements.statement import one
from airflow_provider_pgqueue.spark.database import Database
from airflow_provider_pgqueue.spark.pipelines.export import ExportOptions, export, read_export
from airflow_provider_pgqueue.spark.pipelines.manifest import read_manifest
from airflow_provider_pgqueue.spark.pipelines.target import open_target

Connection = psycopg.Connection[Any]
Connect = Callable[..., Connection]
Export = Callable[..., dict[str, Any]]


def make_partition(conn: Connection, days_ago: int, rows: int = 0, *, days: int = 1) -> str:
    """Make a closed partition with messages of two queues and all results; nobody has to decide about the dead."""
    first = (datetime.now(UTC) - timedelta(days=days_ago)).replace(hour=0, minute=0, second=0, microsecond=0)
    name = f"message_archive_{first:%Y%m%d}"
    conn.execute(
        "ALTER TABLE messages.message_archive_default DROP CONSTRAINT IF EXISTS archived_before_the_archive_begins"
    )
    conn.execute(
        f"CREATE TABLE messages.{name} PARTITION OF messages.message_archive"
        f" FOR VALUES FROM ('{first}') TO ('{first + timedelta(days=days)}')".encode()
    )
    conn.execute(f"ALTER TABLE messages.{name} OWNER TO messages_owner".encode())
    conn.execute("UPDATE messages.archive_policy SET begins_at = least(begins_at, %s)", [first])
    conn.execute(
        """
        INSERT INTO messages.message_archive (created_at, archived_at, leased_at, priority, attempts, queue_name, result,
               handled_by, details, reference, topic, group_key, headers, output, failure, fingerprint, message)
        SELECT %(first)s - interval '1.5 hours', %(first)s + n * %(span)s / %(rows)s, CASE WHEN n %% 3 = 0 THEN %(first)s END,
               n %% 7, n %% 5, CASE n %% 2 WHEN 0 THEN 'orders' ELSE 'returns' END,
               CASE n %% 10 WHEN 1 THEN 'failed' WHEN 2 THEN 'rejected' ELSE 'success' END,
               'packer', CASE n %% 4 WHEN 0 THEN '' WHEN 1 THEN 'é|:\n' || n WHEN 2 THEN repeat('ü', n) END, 'shop-' || n,
               CASE WHEN n %% 2 = 0 THEN 'shop.order' END, NULL, CASE WHEN n %% 3 = 1 THEN '{"kind": "slow"}'::jsonb END,
               CASE WHEN n %% 5 = 1 THEN 'null'::jsonb END, CASE WHEN n %% 10 = 1 THEN '{"error": "ShopError"}'::jsonb END,
               CASE WHEN n %% 10 IN (1, 2) THEN 'cause' END, jsonb_build_object('order', n, 'text', repeat('x€', n %% 400))
          FROM generate_series(0, %(rows)s - 1) n
        """,
        {"first": first, "rows": rows, "span": timedelta(days=days)},
    )
    conn.execute("DELETE FROM messages.dead_message")
    return name


def die(conn: Connection, partition: str) -> int:
    """Put a dead message in the partition about which nothing was decided; return its id."""
    (id_,) = conn.execute(
        "INSERT INTO messages.message_archive (created_at, archived_at, queue_name, result, message)"
        " SELECT p.first_at, p.first_at, 'orders', 'failed', '1' FROM messages.archive_partitions() p"
        " WHERE p.partition::text = 'messages.' || %s RETURNING id",
        [partition],
    ).fetchone() or (0,)
    return int(id_)


def rows_in_archive(conn: Connection, partition: str | None = None) -> list[tuple[Any, ...]]:
    table = f"messages.{partition or 'message_archive'}"
    return conn.execute(
        "SELECT id, created_at, archived_at, leased_at, requeued_from, priority, attempts, requeues, queue_name, result,"
        " handled_by, details, reference, remedy, remedied_at, remedied_by, requeued_as, dismissed_for, headers::text,"
        f" message::text, topic, group_key, fingerprint, output::text, failure::text, xid,"
        f" (archived_at AT TIME ZONE 'UTC')::date FROM {table} ORDER BY id".encode()
    ).fetchall()


def rows_in_export(spark: SparkSession, target: Path) -> list[tuple[Any, ...]]:
    table = read_export(spark, str(target)).toArrow().sort_by("id")
    return [tuple(row.values()) for row in table.to_pylist()]


def ids_in_data(target: Path) -> list[int]:
    """Return the ids that a reader finds who looks into the folder and at no manifest."""
    return sorted(pq.read_table(target / "data", columns=["id"])["id"].to_pylist()) if (target / "data").exists() else []


def files(target: Path) -> list[str]:
    return sorted(str(path.relative_to(target)) for path in target.rglob("*") if path.is_file())


def manifest_of(target: Path, name: str) -> str:
    return (target / "_manifests" / f"{name}.json").read_text()


def drop(conn: Connection, name: str, manifest: str) -> int:
    arguments = {"partition": name, "manifest": manifest}
    return int(run(conn, Statement("drop_archive_partition", arguments, one, {"manifest": "jsonb"})))


def exists(conn: Connection, name: str) -> bool:
    return conn.execute("SELECT to_regclass('messages.' || %s) IS NOT NULL", [name]).fetchone() == (True,)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "export"


@pytest.fixture
def do(session: SparkSession, dsn: str, target: Path) -> Export:
    """Export to the target as the owner of the tests: `do(drop=True)`."""

    def call(**options: Any) -> dict[str, Any]:
        return export(session, ExportOptions(**{"target": str(target), "rows_per_file": 500} | options), Database(dsn))

    return call


# What is in the files -------------------------------------------------------------------------------------------------


def test_the_files_have_every_column_of_every_message(
    conn: Connection, session: SparkSession, target: Path, do: Export
) -> None:
    name = make_partition(conn, 40, 3000, days=2)
    done = do()
    assert (done["exported"], done["skipped"], done["dropped"], done["kept"]) == ([name], [], [], {})
    assert (done["rows"], done["files"]) == (3000, len(files(target)) - 1)
    assert rows_in_export(session, target) == rows_in_archive(conn, name)
    assert len(set(ids_in_data(target))) == 3000


def test_the_files_lie_by_queue_result_and_day(conn: Connection, target: Path, do: Export) -> None:
    name = make_partition(conn, 40, 400, days=2)
    do()
    pattern = rf"data/queue_name=(orders|returns)/result=(success|failed|rejected)/date=\d{{4}}-\d\d-\d\d/{name}-\d{{5}}.parquet"
    *data, manifest = sorted(files(target), key=lambda path: path.startswith("_"))
    assert manifest == f"_manifests/{name}.json"
    assert [path for path in data if not re.fullmatch(pattern, path)] == []
    table = pq.read_table(target / "data")
    assert {str(day) for day in table["date"].to_pylist()} == {str(row[-1]) for row in rows_in_archive(conn, name)}


def test_names_that_are_no_names_of_files_stay_in_their_folder(
    conn: Connection, session: SparkSession, target: Path, do: Export
) -> None:
    name = make_partition(conn, 40, 2)
    for queue_name in ("../../up", "a=b/c", "%41 {x}*?", "naïve"):
        conn.execute(f"UPDATE messages.{name} SET queue_name = %s WHERE queue_name = 'orders'".encode(), [queue_name])
        do()
        assert rows_in_export(session, target) == rows_in_archive(conn, name)
        conn.execute(f"UPDATE messages.{name} SET queue_name = 'orders' WHERE result = 'success' AND id % 2 = 0".encode())
        conn.execute(f"UPDATE messages.{name} SET queue_name = 'orders' WHERE queue_name <> 'returns'".encode())
    assert {path.name for path in target.parent.iterdir()} == {"export"}


def test_a_partition_without_messages_is_exported_and_dropped(conn: Connection, target: Path, do: Export) -> None:
    name = make_partition(conn, 40)
    assert (do(drop=True)["dropped"], exists(conn, name), files(target)) == ([name], False, [f"_manifests/{name}.json"])


# Again ----------------------------------------------------------------------------------------------------------------


def test_a_second_export_writes_nothing(conn: Connection, target: Path, do: Export) -> None:
    name = make_partition(conn, 40, 1000)
    do()
    before = {path: (target / path).stat() for path in files(target)}
    done = do()
    assert (done["exported"], done["skipped"], done["rows"]) == ([], [name], 0)
    assert {path: (target / path).stat() for path in files(target)} == before


def test_a_run_that_finished_is_not_done_again(conn: Connection, do: Export) -> None:
    make_partition(conn, 40, 10)
    first = do(run_id="nightly")
    make_partition(conn, 41, 10)
    assert do(run_id="nightly") == first


def test_a_decision_after_the_export_is_exported_again(
    conn: Connection, session: SparkSession, target: Path, do: Export
) -> None:
    name = make_partition(conn, 40, 1000)
    dead = die(conn, name)
    do()
    (leased,) = run(conn, statements.lease_dead("orders"))
    run(conn, statements.dismiss(leased.lock_token, [dead], "known"))
    assert do()["exported"] == [name]
    assert rows_in_export(session, target) == rows_in_archive(conn, name)
    assert len(ids_in_data(target)) == 1001


@pytest.mark.parametrize("damage", ["cut", "changed", "a file is gone", "a file is cut"])
def test_a_damaged_export_is_noticed_and_done_again(
    conn: Connection, session: SparkSession, target: Path, do: Export, damage: str
) -> None:
    name = make_partition(conn, 40, 100)
    do()
    manifest = target / "_manifests" / f"{name}.json"
    file = next(target.rglob("*.parquet"))
    match damage:
        case "cut":
            manifest.write_text(manifest.read_text()[:-100])
        case "changed":
            manifest.write_text(manifest.read_text().replace('"rows": 100', '"rows": 101'))
        case "a file is gone":
            file.unlink()
        case "a file is cut":
            file.write_bytes(file.read_bytes()[:-1])
    if damage in ("cut", "changed"):
        with pytest.raises(ExportError, match=rf"manifest _manifests/{name}.json is damaged. Export"):
            read_export(session, str(target))
    assert do()["exported"] == [name]
    assert rows_in_export(session, target) == rows_in_archive(conn, name)


def test_what_no_manifest_names_is_not_read_and_is_removed(
    conn: Connection, session: SparkSession, target: Path, do: Export
) -> None:
    name = make_partition(conn, 40, 100)
    do()
    file = next(target.rglob("*.parquet"))
    shutil.copy(file, file.with_name(f"{name}-00099.parquet"))
    assert read_export(session, str(target)).count() == 100
    (target / "_manifests" / f"{name}.json").unlink()
    do()
    assert len(ids_in_data(target)) == 100


# Dropping -------------------------------------------------------------------------------------------------------------


def test_a_compared_partition_is_dropped_and_the_archive_goes_on(
    conn: Connection, session: SparkSession, target: Path, do: Export, queue: Callable[..., str]
) -> None:
    old, young = make_partition(conn, 40, 1500), make_partition(conn, 30, 100)
    expected = rows_in_archive(conn, old)
    assert do(older_than=timedelta(days=35), drop=True)["dropped"] == [old]
    assert (exists(conn, old), exists(conn, young)) == (False, True)
    assert rows_in_export(session, target) == expected
    with pytest.raises(BeforeArchive):
        run(conn, statements.search_archive(archived_from=datetime.now(UTC) - timedelta(days=39)))
    run(conn, statements.publish(queue("orders"), 1))
    (message,) = run(conn, statements.consume("orders"))
    assert [found.id for found in run(conn, statements.search_archive("orders", id=message.id))] == [message.id]
    again = do(partitions=(old,), drop=True)
    assert (again["skipped"], again["dropped"]) == ([old], [])
    assert rows_in_export(session, target) == expected


def test_a_partition_of_an_earlier_export_is_read_back_before_it_is_dropped(
    conn: Connection, session: SparkSession, target: Path, do: Export
) -> None:
    name = make_partition(conn, 40, 300)
    expected = rows_in_archive(conn, name)
    do()
    file = next(target.rglob("*.parquet"))
    content = bytearray(file.read_bytes())
    table = pq.ParquetFile(file).read()
    column = table.schema.get_field_index("attempts")
    flipped = table.set_column(column, "attempts", [[9] * table.num_rows])
    pq.write_table(flipped.cast(table.schema), file, compression="zstd")
    os.truncate(file, max(file.stat().st_size, len(content)))
    done = do(drop=True)
    assert (done["exported"], done["dropped"]) == ([name], [name])
    assert rows_in_export(session, target) == expected


def test_a_dead_message_that_waits_for_a_decision_keeps_the_partition(
    conn: Connection, target: Path, do: Export
) -> None:
    name = make_partition(conn, 40, 10)
    dead = die(conn, name)
    done = do(drop=True)
    assert (done["exported"], done["dropped"]) == ([name], [])
    assert "Requeue or dismiss them" in done["kept"][name]
    with pytest.raises(UndecidedMessages, match="about which nothing was decided"):
        drop(conn, name, manifest_of(target, name))
    (leased,) = run(conn, statements.lease_dead("orders"))
    run(conn, statements.dismiss(leased.lock_token, [dead], "known"))
    done = do(drop=True)
    assert (done["exported"], done["dropped"]) == ([name], [name])


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE messages.{} SET details = 'other' WHERE id = (SELECT max(id) FROM messages.{})",
        "UPDATE messages.{} SET remedied_at = remedied_at + interval '1 microsecond', output = '[1]'",
        "DELETE FROM messages.{} WHERE id = (SELECT max(id) FROM messages.{})",
        "INSERT INTO messages.{} SELECT * FROM messages.{} LIMIT 1",
        "INSERT INTO messages.{} SELECT a.* FROM messages.{} a, generate_series(1, 50)",
    ],
)
def test_a_partition_that_changed_after_the_export_is_not_dropped(
    conn: Connection, session: SparkSession, target: Path, do: Export, change: str
) -> None:
    name = make_partition(conn, 40, 300)
    do()
    conn.execute(change.replace("{}", name).encode())
    conn.execute("DELETE FROM messages.dead_message")
    with pytest.raises(ExportDiffers, match="Export the partition again"):
        drop(conn, name, manifest_of(target, name))
    assert exists(conn, name)
    expected = rows_in_archive(conn, name)
    done = do(drop=True)
    assert (done["exported"], done["dropped"]) == ([name], [name])
    assert rows_in_export(session, target) == expected


def test_a_manifest_that_leaves_pages_out_drops_nothing(conn: Connection, target: Path, do: Export) -> None:
    name = make_partition(conn, 40, 2000)
    do()
    whole = json.loads(manifest_of(target, name))
    assert len(whole["chunks"]) > 2
    for chunks in (whole["chunks"][1:], whole["chunks"][:-1], whole["chunks"][:1] + whole["chunks"][2:], []):
        with pytest.raises(ExportDiffers, match="does not cover page"):
            drop(conn, name, json.dumps(whole | {"chunks": chunks}))
    with pytest.raises(ExportDiffers, match="differs from its manifest"):
        drop(conn, name, json.dumps(whole | {"files": whole["files"][1:]}))
    with pytest.raises(InvalidArgument, match="this is not the manifest of archive partition"):
        drop(conn, name, json.dumps(whole | {"partition": "another"}))
    assert drop(conn, name, json.dumps(whole)) == 2000


def test_a_writer_is_waited_for_shortly_and_what_it_wrote_is_noticed(
    connect: Connect, target: Path, do: Export
) -> None:
    conn, writer = connect(), connect(autocommit=False)
    name = make_partition(conn, 40, 100)
    do()
    writer.execute(f"UPDATE messages.{name} SET details = 'late'".encode())
    with pytest.raises(psycopg.errors.LockNotAvailable):
        drop(conn, name, manifest_of(target, name))
    writer.commit()
    with pytest.raises(ExportDiffers):
        drop(conn, name, manifest_of(target, name))


def test_a_reader_of_the_partition_keeps_it_for_this_time(connect: Connect, do: Export) -> None:
    conn, reader = connect(), connect(autocommit=False)
    name = make_partition(conn, 40, 10)
    reader.execute("SELECT count(*) FROM messages.message_archive")
    assert do(drop=True)["kept"] == {name: "it is in use"}
    reader.rollback()
    assert do(drop=True)["dropped"] == [name]


def test_unknown_default_and_open_partitions_are_refused(conn: Connection, do: Export) -> None:
    for name in ("message_archive_1999", "message_archive_default"):
        with pytest.raises(InvalidArgument, match=f"archive partition '{name}' does not exist. Give one of"):
            do(partitions=(name,))
        with pytest.raises(InvalidArgument, match="does not exist"):
            drop(conn, name, "{}")
    (current,) = conn.execute(
        "SELECT c.relname FROM messages.archive_partitions() p JOIN pg_class c ON c.oid = p.partition"
        " WHERE p.first_at <= now() AND p.end_at > now()"
    ).fetchone() or ("",)
    with pytest.raises(InvalidArgument, match="takes messages until"):
        do(partitions=(current,))
    with pytest.raises(InvalidArgument, match="takes messages until"):
        drop(conn, current, "{}")


@pytest.mark.parametrize(
    "options",
    [{"target": ""}, {"older_than": timedelta(-1)}, {"rows_per_file": 0}, {"max_connections": 0}, {"target": "gopher://x"}],
)
def test_options_out_of_range_are_refused(do: Export, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match=next(iter(options))):
        do(**options)
