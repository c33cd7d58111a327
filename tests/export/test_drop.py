"""Dropping what was exported: never without a comparison, whoever changes the partition or its export meanwhile."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from psycopg import sql

from airflow_provider_pgqueue.core import ConnectionFailed, InvalidArgument, run, verbs
from airflow_provider_pgqueue.core.errors import ExportDiffers, ForeignPartition, OpenDeadMessages
from airflow_provider_pgqueue.core.statement import one
from airflow_provider_pgqueue.core.verbs import Statement
from airflow_provider_pgqueue.export.chunk import checksum_of
from airflow_provider_pgqueue.export.connection import Database
from airflow_provider_pgqueue.export.manifest import Manifest
from airflow_provider_pgqueue.export.target import Target
from tests.archive import change, cut, damage, die, exists, files, make_partition, manifest_of, rows_in_archive
from tests.export.conftest import Export, changing, rows_in_export

Connection = psycopg.Connection[Any]
Connect = Callable[..., Connection]


def read_back(target: Path, name: str) -> str:
    """Return the manifest with the md5 of what each file has now."""
    folder = Target.open(str(target))
    manifest = Manifest.from_json(manifest_of(target, name))
    return manifest.with_checksums([str(checksum_of(folder, file.path)) for file in manifest.files])


def drop(conn: Connection, name: str, manifest: str) -> int:
    arguments = {"partition": name, "manifest": manifest}
    return int(run(conn, Statement("drop_archive_partition", arguments, one, {"manifest": "jsonb"})))


def test_a_partition_of_an_earlier_export_is_read_back_before_it_is_dropped(
    conn: Connection, target: Path, do: Export
) -> None:
    name = make_partition(conn, 40, 300)
    expected = rows_in_archive(conn, name)
    do()
    damage(next(target.rglob("*.parquet")))
    assert do()["skipped"] == [name]
    done = do(drop=True)
    assert (done["exported"], done["dropped"]) == ([name], [name])
    assert rows_in_export(target) == expected


def test_files_that_have_other_rows_than_the_partition_do_not_pass_for_its_export(
    conn: Connection, target: Path, do: Export
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
    assert rows_in_export(target) == expected


def test_a_manifest_without_the_content_of_its_files_drops_nothing(conn: Connection, target: Path, do: Export) -> None:
    name = make_partition(conn, 40, 10)
    do()
    with pytest.raises(InvalidArgument, match=r"does not say what its files have. Nothing was dropped"):
        drop(conn, name, manifest_of(target, name))


def test_an_open_dead_message_keeps_the_partition(
    conn: Connection, target: Path, do: Export, queue: Callable[..., str]
) -> None:
    name = make_partition(conn, 40, 10)
    queue("orders")
    dead = die(conn, name)
    done = do(drop=True)
    assert (done["exported"], done["dropped"]) == ([name], [])
    assert "Requeue or dismiss them" in done["kept"][name]
    with pytest.raises(OpenDeadMessages, match="open dead messages"):
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
    conn: Connection, target: Path, do: Export, statement: str
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
    assert sorted(rows_in_export(target), key=str) == expected


def test_a_manifest_that_leaves_pages_out_drops_nothing(conn: Connection, target: Path, do: Export) -> None:
    name = make_partition(conn, 40, 200)
    cut(conn, name, 4)
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
    assert drop(conn, name, json.dumps(whole)) == 200


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


def test_a_partition_that_retention_drops_before_its_export_is_left_out_unless_it_was_asked_for(
    conn: Connection, amid: Export
) -> None:
    gone, own = make_partition(conn, 41, 10), make_partition(conn, 40, 10)

    def retain() -> None:
        change(conn, gone, "DROP TABLE IF EXISTS {}")

    assert amid(before=retain)["exported"] == [own]
    make_partition(conn, 41, 10)
    with pytest.raises(InvalidArgument, match=f"archive partition '{gone}' was dropped by somebody else"):
        amid(partitions=(gone,), before=retain)


def test_a_partition_that_retention_drops_amid_its_export_is_left_out(
    conn: Connection, target: Path, amid: Export
) -> None:
    gone, own = make_partition(conn, 41, 10), make_partition(conn, 40, 10)
    assert amid(for_each=changing(conn, gone, "DROP TABLE {}", times=1))["exported"] == [own]
    assert [path for path in files(target) if gone in path] == []


def test_a_partition_that_retention_drops_after_its_export_is_no_error(
    conn: Connection, target: Path, amid: Export
) -> None:
    name = make_partition(conn, 40, 10)
    expected = rows_in_archive(conn, name)
    done = amid(drop=True, after=lambda: change(conn, name, "DROP TABLE {}"))
    assert done["kept"] == {name: "somebody else dropped it meanwhile"}
    assert rows_in_export(target) == expected


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
        "SELECT c.relname FROM messages.archive_partitions() p JOIN pg_class c ON c.oid = p.partition::regclass"
        " WHERE p.first_at <= now() AND p.end_at > now()"
    ).fetchone() or ("",)
    with pytest.raises(InvalidArgument, match="takes messages until"):
        do(partitions=(current,))
    with pytest.raises(InvalidArgument, match="takes messages until"):
        drop(conn, current, "{}")


@pytest.mark.parametrize(
    ("meanwhile", "why"),
    [("another manifest", "somebody else changed its export meanwhile"), ("a file less", "cannot be read back")],
)
def test_a_partition_is_kept_if_its_export_was_changed_before_the_drop(
    conn: Connection, target: Path, do: Export, amid: Export, meanwhile: str, why: str
) -> None:
    name = make_partition(conn, 40, 100)
    do()
    manifest = target / "_manifests" / f"{name}.json"
    other = manifest.read_text()
    change(conn, name, "UPDATE {} SET details = 'changed'")

    def change_it() -> None:
        if meanwhile == "a file less":
            next(target.rglob("*.parquet")).unlink()
        else:
            manifest.write_text(other)

    assert why in amid(drop=True, after=change_it)["kept"][name]
    done = do(drop=True)
    assert (done["exported"], done["dropped"]) == ([name], [name])
