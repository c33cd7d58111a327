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
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
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
from airflow_provider_pgqueue.spark.pipelines import chunk_files
from airflow_provider_pgqueue.spark.pipelines.export import ExportOptions, _Export, export, read_export
from airflow_provider_pgqueue.spark.pipelines.partition import closed_partitions
from airflow_provider_pgqueue.spark.pipelines.target import open_target, shown

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
        INSERT INTO messages.message_archive (created_at, archived_at, leased_at, priority, attempts, queue_name,
               result, handled_by, details, reference, topic, headers, output, failure, fingerprint, message)
        SELECT %(first)s - interval '1.5 hours', %(first)s + n * %(span)s / %(rows)s,
               CASE WHEN n %% 3 = 0 THEN %(first)s END, n %% 7, n %% 5,
               CASE n %% 2 WHEN 0 THEN 'orders' ELSE 'returns' END,
               CASE n %% 10 WHEN 1 THEN 'failed' WHEN 2 THEN 'rejected' ELSE 'success' END, 'packer',
               CASE n %% 4 WHEN 0 THEN '' WHEN 1 THEN 'é|:\n' || n WHEN 2 THEN repeat('ü', n) END, 'shop-' || n,
               CASE WHEN n %% 2 = 0 THEN 'shop.order' END, CASE WHEN n %% 3 = 1 THEN '{"kind": "slow"}'::jsonb END,
               CASE WHEN n %% 5 = 1 THEN 'null'::jsonb END,
               CASE WHEN n %% 10 = 1 THEN '{"error": "ShopError"}'::jsonb END,
               CASE WHEN n %% 10 IN (1, 2) THEN 'cause' END,
               jsonb_build_object('order', n, 'text', repeat('x€', n %% 400))
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


def change(conn: Connection, partition: str, statement: str, *parameters: Any) -> None:
    conn.execute(statement.replace("{}", f"messages.{partition}").encode(), parameters or None)


def rows_in_archive(conn: Connection, partition: str) -> list[tuple[Any, ...]]:
    columns = """
        id, created_at, archived_at, leased_at, requeued_from, priority, attempts, requeues, queue_name, result,
        handled_by, details, reference, remedy, remedied_at, remedied_by, requeued_as, dismissed_for,
        headers::text, message::text, topic, group_key, fingerprint, output::text, failure::text, xid,
        (archived_at AT TIME ZONE 'UTC')::date"""
    query = " ".join(["SELECT", columns, "FROM", f"messages.{partition}", "ORDER BY id"])
    return conn.execute(query.encode()).fetchall()


def rows_in_export(spark: SparkSession, target: Path) -> list[tuple[Any, ...]]:
    table = read_export(spark, str(target)).toArrow().sort_by("id")
    return [tuple(row.values()) for row in table.to_pylist()]


def ids_in_data(target: Path) -> list[int]:
    """Return the ids that a reader finds who looks into the folder and at no manifest."""
    return (
        sorted(pq.read_table(target / "data", columns=["id"])["id"].to_pylist()) if (target / "data").exists() else []
    )


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
        small: dict[str, Any] = {"target": str(target), "rows_per_file": 1000, "max_connections": 2}
        return export(session, ExportOptions(**small | options), Database(dsn))

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
    folders = r"queue_name=(orders|returns)/result=(success|failed|rejected)/date=\d{4}-\d\d-\d\d"
    pattern = rf"data/{folders}/{name}-\d{{5}}.parquet"
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
        change(conn, name, "UPDATE {} SET queue_name = %s WHERE queue_name <> 'returns'", queue_name)
        do()
        assert rows_in_export(session, target) == rows_in_archive(conn, name)
    assert {path.name for path in target.parent.iterdir()} == {"export"}


def test_a_partition_without_messages_is_exported_and_dropped(conn: Connection, target: Path, do: Export) -> None:
    name = make_partition(conn, 40)
    assert (do(drop=True)["dropped"], exists(conn, name), files(target)) == ([name], False, [f"_manifests/{name}.json"])


# Again ----------------------------------------------------------------------------------------------------------------


def test_a_second_export_writes_nothing(conn: Connection, target: Path, do: Export) -> None:
    name = make_partition(conn, 40, 1000)
    do()
    before = {path: (target / path).stat().st_mtime_ns for path in files(target)}
    done = do()
    assert (done["exported"], done["skipped"], done["rows"]) == ([], [name], 0)
    assert {path: (target / path).stat().st_mtime_ns for path in files(target)} == before


def test_a_run_that_finished_is_not_done_again(conn: Connection, do: Export) -> None:
    make_partition(conn, 40, 10)
    first = do(run_id="nightly")
    make_partition(conn, 41, 10)
    assert do(run_id="nightly") == first


def test_a_decision_after_the_export_is_exported_again(
    conn: Connection, session: SparkSession, target: Path, do: Export, queue: Callable[..., str]
) -> None:
    name = make_partition(conn, 40, 1000)
    queue("orders")
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


def test_a_row_that_changes_while_it_is_exported_is_read_again(
    conn: Connection, dsn: str, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = make_partition(conn, 40, 20)
    (partition,) = closed_partitions(conn, older_than=timedelta(0), names=[name])
    (chunk,) = partition.chunks(1000)
    compare, times = chunk_files.checksums_in_archive, [1, 0]

    def change_before_it_is_compared(*arguments: Any) -> Any:
        if times.pop(0):
            change(conn, name, "UPDATE {} SET priority = (priority + 1) % 50")
        return compare(*arguments)

    monkeypatch.setattr(chunk_files, "checksums_in_archive", change_before_it_is_compared)
    (target / "here").mkdir(parents=True)
    staged = chunk_files.export_chunk(Database(dsn), open_target(str(target)), partition, chunk, "here")
    assert files(target) == sorted(path for path, _ in staged)
    read = [row for path, _ in staged for row in pq.read_table(target / path).to_pylist()]
    query = "SELECT id, priority FROM {} WHERE ctid < '(END,0)' ORDER BY id"
    query = query.replace("{}", f"messages.{name}").replace("END", str(chunk.end_page))
    assert sorted((row["id"], row["priority"]) for row in read) == conn.execute(query.encode()).fetchall()
    times.extend([1, 1, 1])
    with pytest.raises(ExportDiffers, match=r"in the pages from 0 to before \d+, 3 times"):
        chunk_files.export_chunk(Database(dsn), open_target(str(target)), partition, chunk, "here")


def test_rows_that_go_to_another_range_during_the_export_are_in_it_once(
    conn: Connection, session: SparkSession, target: Path, do: Export, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = make_partition(conn, 40, 2000)
    on_executors, left = _Export._on_executors, ["UPDATE {} SET details = 'moved' WHERE id % 3 = 0"]

    def change_afterwards(*arguments: Any) -> Any:
        done = on_executors(*arguments)
        if left:
            change(conn, name, left.pop())
        return done

    monkeypatch.setattr(_Export, "_on_executors", change_afterwards)
    assert do()["exported"] == [name]
    assert rows_in_export(session, target) == rows_in_archive(conn, name)
    monkeypatch.undo()
    assert do()["skipped"] == [name]


def test_a_secret_in_the_uri_of_the_target_is_not_shown() -> None:
    assert shown("s3://key:secret@bucket/messages?region=x&secret=y") == "s3://bucket/messages"


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
    ids = pq.ParquetFile(file).metadata.row_group(0).column(0)
    content = bytearray(file.read_bytes())
    content[ids.data_page_offset + ids.total_compressed_size // 2] ^= 0xFF
    file.write_bytes(content)
    assert do()["skipped"] == [name]
    done = do(drop=True)
    assert (done["exported"], done["dropped"]) == ([name], [name])
    assert rows_in_export(session, target) == expected


def test_a_dead_message_that_waits_for_a_decision_keeps_the_partition(
    conn: Connection, target: Path, do: Export, queue: Callable[..., str]
) -> None:
    name = make_partition(conn, 40, 10)
    queue("orders")
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
    "statement",
    [
        "UPDATE {} SET details = 'other' WHERE id = (SELECT max(id) FROM {})",
        "UPDATE {} SET created_at = created_at + interval '1 microsecond'",
        "DELETE FROM {} WHERE id = (SELECT max(id) FROM {})",
        "INSERT INTO {} SELECT a.* FROM {} a, generate_series(1, 5) WHERE a.result = 'success'",
    ],
)
def test_a_partition_that_changed_after_the_export_is_not_dropped(
    conn: Connection, session: SparkSession, target: Path, do: Export, statement: str
) -> None:
    name = make_partition(conn, 40, 300)
    do()
    change(conn, name, statement)
    with pytest.raises(ExportDiffers, match="Export the partition again"):
        drop(conn, name, manifest_of(target, name))
    assert exists(conn, name)
    expected = sorted(rows_in_archive(conn, name), key=str)
    done = do(drop=True)
    assert (done["exported"], done["dropped"]) == ([name], [name])
    assert sorted(rows_in_export(session, target), key=str) == expected


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
    change(writer, name, "UPDATE {} SET details = 'late'")
    with pytest.raises(psycopg.errors.LockNotAvailable):
        drop(conn, name, manifest_of(target, name))
    writer.commit()
    with pytest.raises(ExportDiffers):
        drop(conn, name, manifest_of(target, name))


def test_a_change_while_the_partition_is_compared_is_noticed(connect: Connect, target: Path, do: Export) -> None:
    conn, writer, dropper = connect(), connect(autocommit=False), connect()
    name = make_partition(conn, 40, 100)
    do()
    change(writer, name, "UPDATE {} SET details = 'late'")
    waits = "SELECT FROM pg_locks WHERE pid = %s AND mode = 'ShareRowExclusiveLock' AND NOT granted"
    with ThreadPoolExecutor(1) as pool:
        dropped = pool.submit(drop, dropper, name, manifest_of(target, name))
        while not dropped.done() and conn.execute(waits, [dropper.info.backend_pid]).rowcount == 0:
            pass
        writer.commit()
    with pytest.raises(ExportDiffers, match="changed while it was compared"):
        dropped.result()


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
    [
        {"target": ""},
        {"older_than": timedelta(-1)},
        {"rows_per_file": 0},
        {"max_connections": 0},
        {"target": "gopher://x"},
    ],
)
def test_options_out_of_range_are_refused(do: Export, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match=next(iter(options))):
        do(**options)


# What a crash leaves --------------------------------------------------------------------------------------------------


DRIVER = """
import os, shutil, signal, sys
sys.path[:0] = {path!r}
from airflow_provider_pgqueue.spark.pipelines import export
from airflow_provider_pgqueue.spark.pipelines.manifest import Manifest

target, moved, publish, move = {target!r}, [], export._Export._publish, export.move

def before_the_move(*arguments):
    shutil.copytree(target, target + " staged")
    publish(*arguments)

def one_move(*arguments):
    moved.append(move(*arguments))
    if len(moved) == 2:
        shutil.copytree(target, target + " half moved")

export._Export._publish, export.move = before_the_move, one_move
Manifest.save = lambda *_: os.killpg(0, signal.SIGKILL)
export.command(["--target", target, "--rows-per-file", "500", "--max-connections", "2", "--drop"])
"""


def test_kill_9_at_any_moment_leaves_no_duplicate_and_the_next_run_completes_it(
    conn: Connection, session: SparkSession, dsn: str, target: Path, do: Export, fault: Callable[..., None]
) -> None:
    name = make_partition(conn, 40, 2000)
    expected = rows_in_archive(conn, name)
    died = subprocess.run(
        [sys.executable, "-c", DRIVER.format(path=sys.path, target=str(target))],
        env=os.environ
        | {"PGQUEUE_DSN": dsn, "PYSPARK_SUBMIT_ARGS": "--master local[2] --conf spark.ui.enabled=false pyspark-shell"},
        start_new_session=True,
        capture_output=True,
        timeout=240,
        check=False,
    )
    assert died.returncode == -signal.SIGKILL, died.stderr.decode()[-4000:]
    # What was on the disk at two moments before counts too: a kill then leaves just that.
    left = [Path(f"{target} staged"), Path(f"{target} half moved"), target]
    found = [ids_in_data(folder) for folder in left]
    assert (len(found[0]), 0 < len(found[1]) < 2000, len(found[2])) == (0, True, 2000)
    assert all(len(ids) == len(set(ids)) for ids in found)
    for folder in left:
        with pytest.raises(ExportError, match="has no export"):
            read_export(session, str(folder))
        assert do(target=str(folder))["exported"] == [name]
        assert rows_in_export(session, folder) == expected
        assert len(ids_in_data(folder)) == 2000
        assert not (folder / "_staging" / name).exists()
    assert do(drop=True)["dropped"] == [name]
    ids = [row[0] for row in expected]
    for folder, when in zip(left, ("before", "in the middle of", "after"), strict=True):
        what = f"kill -9 {when} the move of an export's files"
        fault(what, where="local[2]", times=1, published=ids, found=ids_in_data(folder), place="export")


@contextmanager
def little_room(folder: Path) -> Iterator[None]:
    """Let no more than a megabyte be written below the folder."""
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder], check=False).returncode == 0:
        try:
            yield
        finally:
            subprocess.run(["umount", folder], check=True)
    else:
        workers = [int(pid.name) for pid in Path("/proc").iterdir() if pid.name.isdigit() and _is_worker(pid)]
        before = {pid: resource.prlimit(pid, resource.RLIMIT_FSIZE, (10_000, -1)) for pid in workers}
        try:
            yield
        finally:
            for pid, limits in before.items():
                with suppress(ProcessLookupError):
                    resource.prlimit(pid, resource.RLIMIT_FSIZE, limits)


def _is_worker(process: Path) -> bool:
    try:
        return b"pyspark" in (process / "cmdline").read_bytes() and process.stat().st_uid == os.getuid()
    except OSError:
        return False


def test_a_full_disk_drops_nothing_and_the_next_run_completes_it(
    conn: Connection, session: SparkSession, target: Path, do: Export, fault: Callable[..., None]
) -> None:
    name = make_partition(conn, 40, 3000)
    change(
        conn,
        name,
        "UPDATE {} SET message = to_jsonb((SELECT string_agg(md5(random()::text), '')"
        " FROM generate_series(1, 30 + id % 2)))",
    )
    expected = rows_in_archive(conn, name)
    with little_room(target):
        with pytest.raises(ExportError, match=r"target .* cannot be used: .*(No space left|too large).*Make room"):
            do(drop=True)
        assert (exists(conn, name), ids_in_data(target)) == (True, [])
    assert do(drop=True)["dropped"] == [name]
    assert rows_in_export(session, target) == expected
    ids = [row[0] for row in expected]
    fault("a full disk", where="local[2]", times=1, published=ids, found=ids_in_data(target), place="export")


def test_a_target_that_cannot_be_written_drops_nothing(conn: Connection, tmp_path: Path, do: Export) -> None:
    name = make_partition(conn, 40, 10)
    (tmp_path / "file").touch()
    with pytest.raises(ExportError, match=r"cannot be used: .*Not a directory"):
        do(target=str(tmp_path / "file" / "export"), drop=True)
    assert exists(conn, name)


# Who and how many -----------------------------------------------------------------------------------------------------


@pytest.fixture
def role(conn: Connection, dsn: str) -> Iterator[Callable[..., Database]]:
    """Make a login that is a member of the groups, and return the database as it sees it."""

    def make(*groups: str) -> Database:
        conn.execute("CREATE ROLE exporter LOGIN")
        for group in groups:
            conn.execute(f"GRANT {group} TO exporter".encode())
        return Database(psycopg.conninfo.make_conninfo(dsn, user="exporter"))

    yield make
    conn.execute("DROP ROLE exporter")


def test_the_role_of_the_pipelines_may_export_and_drop(
    conn: Connection, session: SparkSession, target: Path, role: Callable[..., Database]
) -> None:
    name = make_partition(conn, 40, 100)
    expected = rows_in_archive(conn, name)
    done = export(session, ExportOptions(target=str(target), drop=True), role("messages_pipeline"))
    assert done["dropped"] == [name]
    assert rows_in_export(session, target) == expected


def test_a_role_without_the_right_exports_nothing(
    conn: Connection, session: SparkSession, target: Path, role: Callable[..., Database]
) -> None:
    make_partition(conn, 40, 100)
    database = role("messages_publisher")
    with pytest.raises(PermissionDenied):
        export(session, ExportOptions(target=str(target)), database)
    conn.execute("GRANT EXECUTE ON FUNCTION messages.begin_run, messages.finish_run TO exporter")
    with pytest.raises(PermissionDenied, match="message_archive"):
        export(session, ExportOptions(target=str(target)), database)
    conn.execute("DROP OWNED BY exporter")
    assert files(target) == []


def test_two_exports_at_once_export_once(conn: Connection, session: SparkSession, target: Path, do: Export) -> None:
    name = make_partition(conn, 40, 1000)
    with ThreadPoolExecutor(2) as pool:
        both = list(pool.map(lambda _: do(), range(2)))
    assert sorted([done["exported"], done["skipped"]] for done in both) == [[[], [name]], [[name], []]]
    assert len(ids_in_data(target)) == 1000


def test_an_export_of_another_partition_of_the_same_name_is_not_overwritten(
    conn: Connection, session: SparkSession, target: Path, do: Export
) -> None:
    name = make_partition(conn, 40, 100)
    expected = rows_in_archive(conn, name)
    do(drop=True)
    make_partition(conn, 40, 50)
    with pytest.raises(ExportDiffers, match="Give another target"):
        do()
    assert rows_in_export(session, target) == expected


def test_the_attempt_of_a_task_that_lost_leaves_nothing(
    conn: Connection, session: SparkSession, target: Path, do: Export
) -> None:
    name = make_partition(conn, 40, 1000)
    do()
    (target / "_manifests" / f"{name}.json").unlink()
    lost = target / "_staging" / name / "older"
    lost.mkdir(parents=True)
    shutil.copy(next((target / "data").rglob("*.parquet")), lost / "00000-other-0.parquet")
    assert len(ids_in_data(target)) == 1000
    do()
    assert rows_in_export(session, target) == rows_in_archive(conn, name)
    assert not (target / "_staging" / name).exists()
