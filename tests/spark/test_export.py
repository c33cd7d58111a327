"""The export of the archive: what is in the files, what is dropped, and what a crash leaves."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from psycopg import sql
from pyspark.sql import SparkSession

from airflow_provider_pgqueue.core import ConnectionFailed, InvalidArgument, PermissionDenied, run, verbs
from airflow_provider_pgqueue.core.client import one
from airflow_provider_pgqueue.core.errors import (
    ExportDiffers,
    ExportError,
    ForeignPartition,
    UnremediedMessages,
)
from airflow_provider_pgqueue.core.verbs import Statement
from airflow_provider_pgqueue.export import export_archive, export_files, exported_queues, partition
from airflow_provider_pgqueue.export.chunk import checksum_of
from airflow_provider_pgqueue.export.database import Database
from airflow_provider_pgqueue.export.exporter import Exporter
from airflow_provider_pgqueue.export.manifest import Manifest
from airflow_provider_pgqueue.export.target import Target
from airflow_provider_pgqueue.spark import export, read_export
from tests.archive import change, die, exists, files, ids_in_data, make_partition, manifest_of, rows_in_archive
from tests.test_docs import of_page
from tests.waiting import until

Connection = psycopg.Connection[Any]
Connect = Callable[..., Connection]
Export = Callable[..., dict[str, Any]]


def rows_in_export(spark: SparkSession, target: Path) -> list[tuple[Any, ...]]:
    table = read_export(spark, str(target)).toArrow().sort_by("id")
    return [tuple(row.values()) for row in table.to_pylist()]


def read_back(target: Path, name: str) -> str:
    """Return the manifest with the md5 of what each file has now."""
    folder = Target.open(str(target))
    manifest = Manifest.from_json(manifest_of(target, name))
    return manifest.with_checksums([str(checksum_of(folder, file.path)) for file in manifest.files])


def drop(conn: Connection, name: str, manifest: str) -> int:
    arguments = {"partition": name, "manifest": manifest}
    return int(run(conn, Statement("drop_archive_partition", arguments, one, {"manifest": "jsonb"})))


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "export"


@pytest.fixture
def do(session: SparkSession, dsn: str, target: Path, monkeypatch: pytest.MonkeyPatch) -> Export:
    """Export to the target as the owner of the tests: `do(drop=True)`."""
    monkeypatch.setattr(partition, "_ROWS_IN_CHUNK", 1000)

    def call(**options: Any) -> dict[str, Any]:
        return export(session, dsn=dsn, **{"target": str(target), "parallelism": 2} | options)

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
    pattern = rf"data/{folders}/{name}-\d{{5}}-[0-9a-f]{{32}}.parquet"
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


def test_a_remedy_after_the_export_is_exported_again(
    conn: Connection, session: SparkSession, target: Path, do: Export, queue: Callable[..., str]
) -> None:
    name = make_partition(conn, 40, 1000)
    queue("orders")
    dead = die(conn, name)
    do()
    (leased,) = run(conn, verbs.lease_dead("orders"))
    run(conn, verbs.dismiss(leased.lock_token, [dead], "known"))
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
    assert len(ids_in_data(target)) == 100


def test_a_manifest_of_a_newer_version_is_neither_read_nor_replaced(
    conn: Connection, session: SparkSession, target: Path, do: Export
) -> None:
    name = make_partition(conn, 40, 10)
    do()
    newer = json.dumps(json.loads(manifest_of(target, name)) | {"format": 2, "checksum": "made in another way"})
    (target / "_manifests" / f"{name}.json").write_text(newer)
    for read in (lambda: do(drop=True), lambda: export_files(str(target)), lambda: read_export(session, str(target))):
        with pytest.raises(ExportError, match=rf"{name}.json has format 2; this version .* knows format 1\. Upgrade"):
            read()
    assert (manifest_of(target, name), len(ids_in_data(target)), exists(conn, name)) == (newer, 10, True)


def test_a_file_that_is_gone_is_named_as_an_error(
    conn: Connection, session: SparkSession, target: Path, do: Export
) -> None:
    make_partition(conn, 40, 10)
    do()
    next(target.rglob("*.parquet")).unlink()
    with pytest.raises(ExportError, match=r"is not there.*read again"):
        read_export(session, str(target))


def test_the_files_of_an_export_can_be_handed_to_another_program(
    conn: Connection, session: SparkSession, target: Path, do: Export
) -> None:
    names = [make_partition(conn, 40, 400, days=2), make_partition(conn, 30, 100)]
    do()
    file = next(target.rglob("*.parquet"))
    shutil.copy(file, file.with_name(f"{names[0]}-00099-{'0' * 32}.parquet"))
    paths = export_files(str(target))
    assert paths == export_files(f"file://{target}/")
    assert len(paths) == len(ds.dataset(target / "data").files) - 1
    (example,) = of_page("docs/how-to/export.md", "py", "export files")
    documented: dict[str, Any] = {}
    exec(example.replace("/data/messages", str(target)), documented)
    table = documented["messages"].to_table()
    columns = read_export(session, str(target)).columns
    found = [tuple(row.values()) for row in table.select(columns).sort_by("id").to_pylist()]
    assert found == rows_in_archive(conn, names[0]) + rows_in_archive(conn, names[1])


def test_what_has_no_export_is_no_empty_export(session: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for folder in (tmp_path, tmp_path / "none", tmp_path / "file"):
        for read in (lambda: export_files(str(folder)), lambda: read_export(session, str(folder))):  # noqa: B023
            with pytest.raises(ExportError, match="has no exported partition"):
                read()


def test_what_no_manifest_names_is_not_read_and_is_removed(
    conn: Connection, session: SparkSession, target: Path, do: Export
) -> None:
    name = make_partition(conn, 40, 100)
    do()
    file = next(target.rglob("*.parquet"))
    copy, foreign = (file.with_name(f"{name}-00099{end}.parquet") for end in (f"-{'0' * 32}", ""))
    shutil.copy(file, copy)
    foreign.touch()
    assert read_export(session, str(target)).count() == 100
    assert do()["skipped"] == [name]
    assert (copy.exists(), foreign.exists()) == (False, True)
    foreign.unlink()
    (target / "_manifests" / f"{name}.json").unlink()
    do()
    assert len(ids_in_data(target)) == 100


def test_what_a_killed_export_left_of_a_partition_that_is_gone_is_removed(
    conn: Connection, session: SparkSession, target: Path, do: Export
) -> None:
    names = [make_partition(conn, 40, 100), make_partition(conn, 30, 100)]
    do(drop=True)
    file = next(target.rglob(f"{names[0]}-*.parquet"))
    shutil.copy(file, file.with_name(f"{names[0]}-00000-{'0' * 32}.parquet"))
    only = next(target.rglob(f"{names[1]}-*.parquet"))
    shutil.copy(only, only.with_name(f"{names[1]}-00000-{'0' * 32}.parquet"))
    (target / "_manifests" / f"{names[1]}.json").write_text("{")
    assert do()["exported"] == []
    left = ids_in_data(target)
    assert len(left) > len(set(left)) == 200  # nobody knows which files of the second count
    assert [path.name for path in target.rglob(f"{names[0]}-*-{'0' * 32}.parquet")] == []


@contextmanager
def changing(
    conn: Connection, partition: str, monkeypatch: pytest.MonkeyPatch, statement: str, *, times: int
) -> Iterator[None]:
    """Change a partition right after its ranges were read, the first times."""
    stage_chunks, left = Exporter._stage_chunks, [statement] * times

    def change_afterwards(*arguments: Any) -> Any:
        done = stage_chunks(*arguments)
        if left:
            change(conn, partition, left.pop())
        return done

    with monkeypatch.context() as patch:
        patch.setattr(Exporter, "_stage_chunks", change_afterwards)
        yield


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE {} SET details = 'moved' WHERE id % 3 = 0",
        "UPDATE {} SET priority = priority WHERE id = (SELECT max(id) FROM {})",
        "DELETE FROM {} WHERE id = (SELECT min(id) FROM {})",
    ],
)
def test_what_changes_during_the_export_is_read_again(
    conn: Connection,
    session: SparkSession,
    target: Path,
    do: Export,
    monkeypatch: pytest.MonkeyPatch,
    statement: str,
) -> None:
    name = make_partition(conn, 40, 2000)
    with changing(conn, name, monkeypatch, statement, times=1):
        assert do()["exported"] == [name]
    assert rows_in_export(session, target) == rows_in_archive(conn, name)
    assert do()["skipped"] == [name]


def test_a_partition_that_changes_all_the_time_is_not_exported(
    conn: Connection, target: Path, do: Export, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = make_partition(conn, 40, 100)
    change_one = "UPDATE {} SET details = 'changed' WHERE id = (SELECT min(id) FROM {})"
    with changing(conn, name, monkeypatch, change_one, times=3), pytest.raises(ExportDiffers, match="during 3 exports"):
        do()
    assert files(target) == []
    assert do()["exported"] == [name]


def test_columns_without_a_value_are_in_the_files_and_in_the_checksum(
    conn: Connection, session: SparkSession, target: Path, do: Export
) -> None:
    name = make_partition(conn, 40, 20)
    change(conn, name, "UPDATE {} SET details = NULL, handled_by = NULL, leased_at = NULL, headers = NULL")
    expected = rows_in_archive(conn, name)
    assert do(drop=True)["dropped"] == [name]
    assert rows_in_export(session, target) == expected


# Dropping -------------------------------------------------------------------------------------------------------------


def test_a_compared_partition_is_dropped_and_the_archive_goes_on(
    conn: Connection, session: SparkSession, target: Path, do: Export, queue: Callable[..., str]
) -> None:
    old, young = make_partition(conn, 40, 1500), make_partition(conn, 30, 100)
    expected = rows_in_archive(conn, old)
    assert do(older_than=timedelta(days=35), drop=True)["dropped"] == [old]
    assert (exists(conn, old), exists(conn, young)) == (False, True)
    assert rows_in_export(session, target) == expected
    run(conn, verbs.publish(queue("orders"), 1))
    (message,) = run(conn, verbs.consume("orders"))
    assert [found["id"] for found in run(conn, verbs.search_messages("orders", message_id=message.id))] == [message.id]
    again = do(partitions=(old,), drop=True)
    assert (again["skipped"], again["dropped"]) == ([old], [])
    assert rows_in_export(session, target) == expected


def damage(file: Path) -> None:
    """Change a byte of the ids in a file."""
    ids = pq.ParquetFile(file).metadata.row_group(0).column(0)
    content = bytearray(file.read_bytes())
    content[ids.data_page_offset + ids.total_compressed_size // 2] ^= 0xFF
    file.write_bytes(content)


def test_a_partition_of_an_earlier_export_is_read_back_before_it_is_dropped(
    conn: Connection, session: SparkSession, target: Path, do: Export
) -> None:
    name = make_partition(conn, 40, 300)
    expected = rows_in_archive(conn, name)
    do()
    damage(next(target.rglob("*.parquet")))
    assert do()["skipped"] == [name]
    done = do(drop=True)
    assert (done["exported"], done["dropped"]) == ([name], [name])
    assert rows_in_export(session, target) == expected


def test_files_that_have_other_rows_than_the_partition_do_not_pass_for_its_export(
    conn: Connection, session: SparkSession, target: Path, do: Export
) -> None:
    name = make_partition(conn, 40, 300)
    expected = rows_in_archive(conn, name)
    do()
    manifest = Manifest.from_json(manifest_of(target, name))
    file = manifest.files[0]
    path = target / file.path
    table = pq.read_table(path)
    ids = pc.add(table["id"], pa.scalar(1, table["id"].type))
    pq.write_table(table.set_column(0, "id", ids), path)
    replaced = replace(file, bytes=path.stat().st_size)
    replace(manifest, files=(replaced, *manifest.files[1:])).save(Target.open(str(target)))
    with pytest.raises(ExportDiffers, match="differs from its manifest"):
        drop(conn, name, read_back(target, name))
    assert do()["skipped"] == [name]
    done = do(drop=True)
    assert (done["exported"], done["dropped"]) == ([name], [name])
    assert rows_in_export(session, target) == expected


def test_a_manifest_without_the_content_of_its_files_drops_nothing(conn: Connection, target: Path, do: Export) -> None:
    name = make_partition(conn, 40, 10)
    do()
    with pytest.raises(InvalidArgument, match=r"does not say what its files have. Nothing was dropped"):
        drop(conn, name, manifest_of(target, name))


def test_a_partition_whose_export_cannot_be_read_back_twice_is_kept(
    conn: Connection, target: Path, do: Export, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = make_partition(conn, 40, 300)
    after(monkeypatch, Exporter, "ensure", lambda: damage(next(target.rglob("*.parquet"))))
    kept = do(drop=True)["kept"][name]
    assert "cannot be read back" in kept
    monkeypatch.undo()
    assert do(drop=True)["dropped"] == [name]


def test_a_dead_message_without_a_remedy_keeps_the_partition(
    conn: Connection, target: Path, do: Export, queue: Callable[..., str]
) -> None:
    name = make_partition(conn, 40, 10)
    queue("orders")
    dead = die(conn, name)
    done = do(drop=True)
    assert (done["exported"], done["dropped"]) == ([name], [])
    assert "Requeue or dismiss them" in done["kept"][name]
    with pytest.raises(UnremediedMessages, match="dead messages without a remedy"):
        drop(conn, name, read_back(target, name))
    (leased,) = run(conn, verbs.lease_dead("orders"))
    run(conn, verbs.dismiss(leased.lock_token, [dead], "known"))
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
        drop(conn, name, read_back(target, name))
    assert exists(conn, name)
    expected = sorted(rows_in_archive(conn, name), key=str)
    done = do(drop=True)
    assert (done["exported"], done["dropped"]) == ([name], [name])
    assert sorted(rows_in_export(session, target), key=str) == expected


def test_a_manifest_that_leaves_pages_out_drops_nothing(conn: Connection, target: Path, do: Export) -> None:
    name = make_partition(conn, 40, 2000)
    do()
    whole = json.loads(read_back(target, name))
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
    with pytest.raises(ConnectionFailed, match="lock timeout"):
        drop(conn, name, read_back(target, name))
    writer.commit()
    with pytest.raises(ExportDiffers):
        drop(conn, name, read_back(target, name))


def test_a_change_while_the_partition_is_compared_is_noticed(connect: Connect, target: Path, do: Export) -> None:
    conn, writer, dropper = connect(), connect(autocommit=False), connect()
    name = make_partition(conn, 40, 100)
    do()
    change(writer, name, "UPDATE {} SET details = 'late'")
    waits = "SELECT FROM pg_locks WHERE pid = %s AND mode = 'ShareRowExclusiveLock' AND NOT granted"
    with ThreadPoolExecutor(1) as pool:
        dropped = pool.submit(drop, dropper, name, read_back(target, name))
        while not dropped.done() and conn.execute(waits, [dropper.info.backend_pid]).rowcount == 0:
            pass
        writer.commit()
    with pytest.raises(ExportDiffers, match="changed while it was compared"):
        dropped.result()


@pytest.fixture(params=["repeatable read", "serializable"])
def blinding_default(request: pytest.FixtureRequest, conn: Connection) -> None:
    """Let the transactions of new sessions see nothing that is committed after their first statement."""
    name = sql.Identifier(conn.info.dbname)
    conn.execute(sql.SQL("ALTER DATABASE {} SET default_transaction_isolation = {}").format(name, request.param))


@pytest.mark.usefixtures("blinding_default")
def test_a_default_isolation_does_not_hide_a_change_while_the_partition_is_compared(
    connect: Connect, dsn: str, target: Path, do: Export
) -> None:
    conn, writer = connect(), connect(autocommit=False)
    name = make_partition(conn, 40, 100)
    do()
    with pytest.raises(InvalidArgument, match=r"isolation level .* is (repeatable|serializable).*READ COMMITTED"):
        drop(conn, name, read_back(target, name))
    change(writer, name, "INSERT INTO {} SELECT * FROM {} WHERE result = 'success' LIMIT 1")
    waits = "SELECT FROM pg_locks WHERE pid = %s AND mode = 'ShareRowExclusiveLock' AND NOT granted"
    with Database(dsn).connect() as dropper, ThreadPoolExecutor(1) as pool:
        dropped = pool.submit(drop, dropper, name, read_back(target, name))
        while not dropped.done() and conn.execute(waits, [dropper.info.backend_pid]).rowcount == 0:
            pass
        writer.commit()
        with pytest.raises(ExportDiffers, match="changed while it was compared"):
            dropped.result()
    assert exists(conn, name)
    assert do(drop=True)["dropped"] == [name]


def test_a_partition_of_another_owner_is_kept_and_the_others_are_dropped(
    conn: Connection, target: Path, do: Export
) -> None:
    foreign, own = make_partition(conn, 41, 10), make_partition(conn, 40, 10)
    change(conn, foreign, "ALTER TABLE {} OWNER TO postgres")
    done = do(drop=True)
    assert (done["exported"], done["dropped"], list(done["kept"])) == ([foreign, own], [own], [foreign])
    assert "belongs to role postgres. Nothing was dropped. Its owner can drop it" in done["kept"][foreign]
    assert exists(conn, foreign)
    with pytest.raises(ForeignPartition, match=f"ALTER TABLE messages.{foreign} OWNER TO messages_owner"):
        drop(conn, foreign, read_back(target, foreign))


def after(monkeypatch: pytest.MonkeyPatch, doer: type, step: str, act: Callable[[], None]) -> None:
    """Act after each time that an export has done a step."""
    method = getattr(doer, step)

    def step_and_act(*arguments: Any, **named: Any) -> Any:
        done = method(*arguments, **named)
        act()
        return done

    monkeypatch.setattr(doer, step, step_and_act)


def test_a_partition_that_retention_drops_before_its_export_is_left_out_unless_it_was_asked_for(
    conn: Connection, do: Export, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone, own = make_partition(conn, 41, 10), make_partition(conn, 40, 10)
    after(monkeypatch, Exporter, "_names", lambda: change(conn, gone, "DROP TABLE IF EXISTS {}"))
    assert do()["exported"] == [own]
    make_partition(conn, 41, 10)
    with pytest.raises(InvalidArgument, match=f"archive partition '{gone}' was dropped by somebody else"):
        do(partitions=(gone,))


def test_a_partition_that_retention_drops_amid_its_export_is_left_out(
    conn: Connection, target: Path, do: Export, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone, own = make_partition(conn, 41, 10), make_partition(conn, 40, 10)
    with changing(conn, gone, monkeypatch, "DROP TABLE {}", times=1):
        assert do()["exported"] == [own]
    assert [path for path in files(target) if gone in path] == []


def test_a_partition_that_retention_drops_after_its_export_is_no_error(
    conn: Connection, session: SparkSession, target: Path, do: Export, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = make_partition(conn, 40, 10)
    expected = rows_in_archive(conn, name)
    after(monkeypatch, Exporter, "ensure", lambda: change(conn, name, "DROP TABLE {}"))
    assert do(drop=True)["kept"] == {name: "somebody else dropped it meanwhile"}
    assert rows_in_export(session, target) == expected


def test_a_reader_of_the_partition_keeps_it_for_this_time(connect: Connect, do: Export) -> None:
    conn, reader = connect(), connect(autocommit=False)
    name = make_partition(conn, 40, 10)
    reader.execute("SELECT count(*) FROM messages.message_archive")
    assert do(drop=True)["kept"] == {name: "it is in use"}
    reader.rollback()
    assert do(drop=True)["dropped"] == [name]


def test_a_partition_may_be_asked_for_by_its_name_alone(conn: Connection, do: Export) -> None:
    name, _ = make_partition(conn, 40, 10), make_partition(conn, 41, 10)
    assert do(partitions=name)["exported"] == [name]


def test_unknown_default_and_open_partitions_are_refused(conn: Connection, do: Export) -> None:
    for name in ("message_archive_1999", "message_archive_default"):
        with pytest.raises(InvalidArgument, match=f"archive partition '{name}' does not exist. Give one of"):
            do(partitions=(name,))
        with pytest.raises(InvalidArgument, match="does not exist"):
            drop(conn, name, "{}")
    (current,) = conn.execute(
        "SELECT c.relname FROM messages.archive_partitions() p JOIN pg_class c ON c.oid = p.partition::regclass"
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
        {"parallelism": 0},
        {"target": "gopher://x"},
    ],
)
def test_options_out_of_range_are_refused(do: Export, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match=next(iter(options))):
        do(**options)


# What a crash leaves --------------------------------------------------------------------------------------------------


def test_an_export_whose_session_broke_makes_nothing_valid(
    conn: Connection, session: SparkSession, target: Path, do: Export, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = make_partition(conn, 40, 100)
    older = rows_in_archive(conn, name)
    do()
    change(conn, name, "UPDATE {} SET details = 'changed'")
    move = Target.move

    def end_the_session_before(*arguments: Any) -> None:
        conn.execute(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity"
            " WHERE datname = current_database() AND application_name = 'pgqueue export'"
        )
        move(*arguments)

    monkeypatch.setattr(Target, "move", end_the_session_before)
    with pytest.raises(ConnectionFailed, match="Run the export again"):
        do(drop=True)
    assert rows_in_export(session, target) == older
    monkeypatch.undo()
    assert do()["exported"] == [name]
    assert rows_in_export(session, target) == rows_in_archive(conn, name)
    assert len(ids_in_data(target)) == 100


@pytest.mark.parametrize(
    ("meanwhile", "why"),
    [("another manifest", "somebody else changed its export meanwhile"), ("a file less", "cannot be read back")],
)
def test_a_partition_is_kept_if_its_export_was_changed_before_the_drop(
    conn: Connection, target: Path, do: Export, monkeypatch: pytest.MonkeyPatch, meanwhile: str, why: str
) -> None:
    name = make_partition(conn, 40, 100)
    do()
    manifest = target / "_manifests" / f"{name}.json"
    other = manifest.read_text()
    change(conn, name, "UPDATE {} SET details = 'changed'")
    ensure = Exporter.ensure

    def change_afterwards(*arguments: Any, **named: Any) -> Any:
        done = ensure(*arguments, **named)
        if meanwhile == "a file less":
            next(target.rglob("*.parquet")).unlink()
        else:
            manifest.write_text(other)
        return done

    monkeypatch.setattr(Exporter, "ensure", change_afterwards)
    assert why in do(drop=True)["kept"][name]
    monkeypatch.undo()
    done = do(drop=True)
    assert (done["exported"], done["dropped"]) == ([name], [name])


@contextmanager
def little_room(folder: Path) -> Iterator[None]:
    """Let no more than a megabyte be written below the folder."""
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder], check=False).returncode == 0:
        try:
            yield
        finally:
            # Spark ends a job at its first error, while other tasks of it may still have a file open.
            umount = ["umount", "-q", folder]
            until(lambda: subprocess.run(umount, check=False).returncode == 0, what="the last task to close its file")
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
    for target in (tmp_path / "file", tmp_path / "file" / "export", Path("/proc/export")):
        with pytest.raises(ExportError, match=r"cannot be used: .*(Not a directory|No such file).*give a folder"):
            do(target=str(target), drop=True)
    assert exists(conn, name)


# Who and how many -----------------------------------------------------------------------------------------------------


@pytest.fixture
def role(conn: Connection, dsn: str) -> Iterator[Callable[..., str]]:
    """Make a login that is a member of the groups, and return how it connects."""

    def make(*groups: str) -> str:
        conn.execute("CREATE ROLE exporter LOGIN")
        for group in groups:
            conn.execute(f"GRANT {group} TO exporter".encode())
        return psycopg.conninfo.make_conninfo(dsn, user="exporter")

    yield make
    conn.execute("DROP ROLE exporter")


def test_the_role_of_the_pipelines_may_export_and_drop(
    conn: Connection, session: SparkSession, target: Path, role: Callable[..., str]
) -> None:
    name = make_partition(conn, 40, 100)
    expected = rows_in_archive(conn, name)
    done = export(session, target=str(target), drop=True, dsn=role("messages_pipeline"))
    assert done["dropped"] == [name]
    assert rows_in_export(session, target) == expected


def test_a_role_without_the_right_exports_nothing(
    conn: Connection, session: SparkSession, target: Path, role: Callable[..., str]
) -> None:
    make_partition(conn, 40, 100)
    as_exporter = role("messages_publisher")
    with pytest.raises(PermissionDenied):
        export(session, target=str(target), dsn=as_exporter)
    conn.execute("GRANT EXECUTE ON FUNCTION messages.begin_run, messages.finish_run TO exporter")
    with pytest.raises(PermissionDenied, match="messages_pipeline"):
        export(session, target=str(target), dsn=as_exporter)
    conn.execute("DROP OWNED BY exporter")
    assert files(target) == []


def test_two_exports_at_once_export_once(conn: Connection, session: SparkSession, target: Path, do: Export) -> None:
    name = make_partition(conn, 40, 1000)
    with ThreadPoolExecutor(2) as pool:
        both = list(pool.map(lambda _: do(), range(2)))
    assert sorted([done["exported"], done["skipped"]] for done in both) == [[[], [name]], [[name], []]]
    assert len(ids_in_data(target)) == 1000
    change(conn, name, "UPDATE {} SET details = 'changed' WHERE id % 2 = 0")
    with ThreadPoolExecutor(2) as pool:
        both = list(pool.map(lambda _: do(), range(2)))
    assert sorted([done["exported"], done["skipped"]] for done in both) == [[[], [name]], [[name], []]]
    assert len(ids_in_data(target)) == 1000
    assert rows_in_export(session, target) == rows_in_archive(conn, name)


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


# With and without Spark -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", ["with Spark", "without Spark"])
def test_an_export_with_spark_and_one_without_are_the_same_and_continue_each_other(
    conn: Connection, session: SparkSession, dsn: str, target: Path, do: Export, first: str
) -> None:
    ways: list[Export] = [do, lambda **options: export_archive(dsn, target=str(target), parallelism=2, **options)]
    one, other = ways if first == "with Spark" else reversed(ways)
    names = [make_partition(conn, 41, 3000), make_partition(conn, 40, 100)]
    conn.execute("ANALYZE messages.message_archive")
    expected = rows_in_archive(conn, names[0]) + rows_in_archive(conn, names[1])
    began, continued = one(partitions=names[:1]), other()
    assert set(began) == set(continued)
    assert (began["exported"], continued["skipped"], continued["exported"]) == (names[:1], names[:1], names[1:])
    assert rows_in_export(session, target) == expected
    assert exported_queues(str(target)) == {"orders", "returns"}

    def content() -> dict[str, pa.Table]:
        paths = (target / "data").rglob("*.parquet")
        return {str(path.relative_to(target)).rpartition("-")[0]: pq.read_table(path) for path in paths}

    by_both = content()
    assert len(by_both) > 10
    shutil.rmtree(target)
    assert other()["exported"] == names
    assert content() == by_both
    change(conn, names[0], "UPDATE {} SET details = 'changed' WHERE id % 2 = 0")
    expected = rows_in_archive(conn, names[0]) + rows_in_archive(conn, names[1])
    done = one(drop=True)
    assert (done["exported"], done["skipped"], done["dropped"]) == (names[:1], names[1:], names)
    assert rows_in_export(session, target) == expected
    again = other(partitions=names, drop=True)
    assert (again["skipped"], again["dropped"], ids_in_data(target)) == (names, [], [row[0] for row in expected])
