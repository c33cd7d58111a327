"""The export of the archive: what is in the files, what a further one does, and what a crash leaves.

It is here that of threads; tests/spark/test_export.py shows that tasks of Spark do the same.
"""

from __future__ import annotations

import json
import logging
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from psycopg.conninfo import make_conninfo

from airflow_provider_pgqueue.core import ConnectionFailed, InvalidArgument, PermissionDenied
from airflow_provider_pgqueue.core.errors import ExportDiffers, ExportError, SchemaMissing
from airflow_provider_pgqueue.core.tuning import TUNING
from airflow_provider_pgqueue.export import export_archive, export_files
from airflow_provider_pgqueue.export.connection import Database
from airflow_provider_pgqueue.export.export import Threads
from airflow_provider_pgqueue.export.target import Target
from tests.archive import change, cut, exists, files, ids_in_data, make_partition, manifest_of, rows_in_archive
from tests.core.roles.test_roles import logins
from tests.export.conftest import THREADS, Export, changing, rows_in_export
from tests.test_docs import of_page
from tests.waiting import until
from tools import ROOT

Connection = psycopg.Connection[Any]
Connect = Callable[..., Connection]


# What is done ---------------------------------------------------------------------------------------------------------


def test_the_archive_is_exported_dropped_and_the_next_export_skips_it(
    conn: Connection, target: Path, do: Export
) -> None:
    name, young = make_partition(conn, 60, 3000, days=2), make_partition(conn, 40, 10)
    expected = rows_in_archive(conn, name)
    done = do(older_than=timedelta(days=50), drop=True)
    assert done.pop("seconds") > 0
    assert done == {
        "exported": [name],
        "skipped": [],
        "dropped": [name],
        "kept": {},
        "waiting": {young: "it was completed less than 50d ago"},
        "rows": 3000,
        "bytes": sum(Path(path).stat().st_size for path in export_files(str(target))),
        "files": len(export_files(str(target))),
    }
    assert (exists(conn, name), exists(conn, young)) == (False, True)
    assert rows_in_export(target) == expected
    again = do(partitions=name, drop=True)
    assert (again["skipped"], again["exported"], again["rows"]) == ([name], [], 0)


@pytest.fixture
def this_month(conn: Connection) -> str:
    """The partition that takes messages now, with twenty in it."""
    conn.execute(
        "INSERT INTO messages.message_archive (queue_name, result, created_at, message)"
        " SELECT 'orders', 'success', now(), to_jsonb(n) FROM generate_series(1, 20) n"
    )
    ((name,),) = conn.execute("SELECT DISTINCT tableoid::regclass::text FROM messages.archive_rows").fetchall()
    return str(name).removeprefix("messages.")


def test_what_this_month_has_is_exported_if_asked_for_kept_and_exported_whole_later(
    conn: Connection, connect: Connect, target: Path, do: Export, this_month: str
) -> None:
    nothing = do()
    assert (nothing["exported"], list(nothing["waiting"])) == ([], [this_month])
    assert "it takes messages until " in nothing["waiting"][this_month]
    slow = connect(autocommit=False)
    slow.execute("INSERT INTO messages.message_archive (queue_name, result, created_at, message)"
                 " VALUES ('orders', 'success', now(), '0')")  # fmt: skip
    with pytest.raises(InvalidArgument, match="takes messages until"):
        do(partitions=this_month)
    done = do(until="now", drop=True)
    assert (done["exported"], done["rows"], done["dropped"], done["waiting"]) == ([this_month], 20, [], {})
    assert "it takes messages until " in done["kept"][this_month]
    assert rows_in_export(target) == rows_in_archive(conn, this_month)
    assert do(until="now")["skipped"] == [this_month]
    slow.commit()
    again = do(until="now")
    assert (again["exported"], again["rows"]) == ([this_month], 21)
    assert rows_in_export(target) == rows_in_archive(conn, this_month)


def test_what_is_archived_while_this_month_is_exported_is_left_to_the_next_export(
    conn: Connection, connect: Connect, target: Path, amid: Export, do: Export, this_month: str
) -> None:
    other = connect()
    more = "INSERT INTO messages.message_archive (result, created_at, message) VALUES ('success', now(), '0')"
    before = rows_in_archive(conn, this_month)

    def work(items: Any, work: Any, doing: str = "") -> list[Any]:
        other.execute(more.encode())
        return THREADS(items, work, doing)

    done = amid(until="now", for_each=work)
    assert (done["rows"], rows_in_export(target)) == (20, before)
    assert do(until="now")["rows"] == 21


def test_this_month_is_exported_while_messages_are_archived_all_the_time(
    connect: Connect, target: Path, do: Export, this_month: str
) -> None:
    other, stop, archived = connect(), threading.Event(), threading.Event()

    def archive() -> None:
        while not stop.is_set():
            other.execute(
                "INSERT INTO messages.message_archive (result, created_at, message) VALUES ('success', now(), '0')"
            )
            archived.set()

    with ThreadPoolExecutor(1) as pool:
        archiving = pool.submit(archive)
        assert archived.wait(60)
        try:
            done = do(until="now")
        finally:
            stop.set()
        archiving.result()
    assert done["exported"] == [this_month]
    assert len(rows_in_export(target)) == done["rows"] > 20


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


def test_a_partition_without_messages_is_exported_and_dropped(conn: Connection, target: Path, do: Export) -> None:
    name = make_partition(conn, 40)
    assert (do(drop=True)["dropped"], exists(conn, name), files(target)) == ([name], False, [f"_manifests/{name}.json"])


def test_columns_without_a_value_are_in_the_files_and_in_the_checksum(
    conn: Connection, target: Path, do: Export
) -> None:
    name = make_partition(conn, 40, 20)
    change(conn, name, "UPDATE {} SET details = NULL, handled_by = NULL, leased_at = NULL, headers = NULL")
    expected = rows_in_archive(conn, name)
    assert do(drop=True)["dropped"] == [name]
    assert rows_in_export(target) == expected


def test_an_export_that_finds_everything_done_writes_nothing(conn: Connection, target: Path, do: Export) -> None:
    name = make_partition(conn, 40, 1000)
    do()
    before = {path: (target / path).stat().st_mtime_ns for path in files(target)}
    assert do()["skipped"] == [name]
    assert {path: (target / path).stat().st_mtime_ns for path in files(target)} == before


@pytest.mark.parametrize("damage", ["cut", "changed", "a file is gone", "a file is cut"])
def test_a_damaged_export_is_noticed_and_done_again(conn: Connection, target: Path, do: Export, damage: str) -> None:
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
            export_files(str(target))
    assert do()["exported"] == [name]
    assert rows_in_export(target) == rows_in_archive(conn, name)
    assert len(ids_in_data(target)) == 100


def test_a_manifest_of_a_newer_version_is_neither_read_nor_replaced(conn: Connection, target: Path, do: Export) -> None:
    name = make_partition(conn, 40, 10)
    do()
    newer = json.dumps(json.loads(manifest_of(target, name)) | {"format": 2, "checksum": "made in another way"})
    (target / "_manifests" / f"{name}.json").write_text(newer)
    for read in (lambda: do(drop=True), lambda: export_files(str(target))):
        with pytest.raises(ExportError, match=rf"{name}.json has format 2; this version .* knows format 1\. Upgrade"):
            read()
    assert (manifest_of(target, name), len(ids_in_data(target)), exists(conn, name)) == (newer, 10, True)


def test_what_no_manifest_names_is_not_read_and_is_removed(conn: Connection, target: Path, do: Export) -> None:
    name = make_partition(conn, 40, 100)
    do()
    file = next(target.rglob("*.parquet"))
    copy, foreign = (file.with_name(f"{name}-00099{end}.parquet") for end in (f"-{'0' * 32}", ""))
    shutil.copy(file, copy)
    foreign.touch()
    paths = export_files(str(target))
    assert paths == export_files(f"file://{target}/")
    assert {Path(path).name for path in paths}.isdisjoint({copy.name, foreign.name})
    assert do()["skipped"] == [name]
    assert (copy.exists(), foreign.exists()) == (False, True)
    foreign.unlink()
    (target / "_manifests" / f"{name}.json").unlink()
    do()
    assert len(ids_in_data(target)) == 100


def test_what_a_killed_export_left_of_a_partition_that_is_gone_is_removed(
    conn: Connection, target: Path, do: Export
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


def test_an_export_of_another_partition_of_the_same_name_is_not_overwritten(
    conn: Connection, target: Path, do: Export
) -> None:
    name = make_partition(conn, 40, 100)
    expected = rows_in_archive(conn, name)
    do(drop=True)
    make_partition(conn, 40, 50)
    with pytest.raises(ExportDiffers, match="Give another target"):
        do()
    assert rows_in_export(target) == expected


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
    target: Path,
    do: Export,
    amid: Export,
    statement: str,
) -> None:
    name = make_partition(conn, 40, 2000)
    assert amid(for_each=changing(conn, name, statement, times=1))["exported"] == [name]
    assert rows_in_export(target) == rows_in_archive(conn, name)
    assert do()["skipped"] == [name]


def test_a_partition_that_changes_all_the_time_is_not_exported(
    conn: Connection, target: Path, do: Export, amid: Export
) -> None:
    name = make_partition(conn, 40, 100)
    change_one = "UPDATE {} SET details = 'changed' WHERE id = (SELECT min(id) FROM {})"
    with pytest.raises(ExportDiffers, match="during 3 exports"):
        amid(for_each=changing(conn, name, change_one, times=3))
    assert files(target) == []
    assert do()["exported"] == [name]


def test_two_at_once_export_each_partition_once(conn: Connection, target: Path, do: Export) -> None:
    names = [make_partition(conn, 41, 1000), make_partition(conn, 40, 1000)]
    with ThreadPoolExecutor(2) as pool:
        both = list(pool.map(lambda _: do(), range(2)))
    assert sorted(name for done in both for name in done["exported"]) == names
    assert sorted(name for done in both for name in done["skipped"]) == names
    assert len(ids_in_data(target)) == 2000
    assert [path for path in files(target) if path.startswith("_staging")] == []


def test_the_example_of_the_documentation_exports_and_reads(
    conn: Connection, dsn: str, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = make_partition(conn, 40, 100)
    expected = rows_in_archive(conn, name)
    monkeypatch.setenv("PGQUEUE_DSN", dsn)
    documented: dict[str, Any] = {}
    for mark in ("without Spark", "export files", "export in pandas"):
        (example,) = of_page("docs/how-to/export.md", "py", mark)
        exec(example.replace("/data/messages", str(target)), documented)
    assert documented["summary"]["dropped"] == [name]
    assert sorted(documented["messages"].to_table()["id"].to_pylist()) == [row[0] for row in expected]
    counted = documented["counted"]
    assert counted.sum() == len(expected)
    assert set(counted.index.get_level_values("queue_name")) == {"orders", "returns"}


def test_while_files_are_read_back_it_says_how_many_are_done(
    conn: Connection, do: Export, amid: Export, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    name = make_partition(conn, 40, 100)
    do()
    monkeypatch.setattr(TUNING, "log_every", 0.01)
    said = rf"reading back partition {name}: \d of \d files done"

    def read_when_said(items: Any, work: Any, doing: str = "") -> Any:
        def wait_and_work(item: Any) -> Any:
            until(lambda: any(re.fullmatch(said, line) for line in caplog.messages))
            return work(item)

        return THREADS(items, wait_and_work if doing else work, doing)

    with caplog.at_level(logging.INFO):
        assert amid(drop=True, for_each=read_when_said)["dropped"] == [name]


# What is refused ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [{"target": ""}, {"target": "gopher://x"}, {"older_than": timedelta(-1)}, {"parallelism": 0}, {"partitions": []}],
    ids=str,
)
def test_arguments_out_of_range_are_refused(do: Export, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match=next(iter(options))):
        do(**options)


def test_a_target_that_cannot_be_written_drops_nothing(conn: Connection, tmp_path: Path, do: Export) -> None:
    name = make_partition(conn, 40, 10)
    (tmp_path / "file").touch()
    for target in (tmp_path / "file", tmp_path / "file" / "export", Path("/proc/export")):
        with pytest.raises(ExportError, match=r"cannot be used: .*(Not a directory|No such file).*give a folder"):
            do(target=str(target), drop=True)
    assert exists(conn, name)


def test_a_target_without_an_export_is_no_empty_export(target: Path) -> None:
    with pytest.raises(ExportError, match="has no exported partition"):
        export_files(str(target))


def test_the_role_of_the_pipelines_may_export_and_a_publisher_may_not(
    conn: Connection, dsn: str, target: Path, do: Export
) -> None:
    name = make_partition(conn, 40, 100)
    with logins(dsn) as login:
        login("shop", "messages_publisher"), login("nightly", "messages_pipeline")
        with pytest.raises(PermissionDenied):
            export_archive(make_conninfo(dsn, user="shop"), target=str(target), drop=True)
        assert (exists(conn, name), files(target)) == (True, [])
        assert export_archive(make_conninfo(dsn, user="nightly"), target=str(target), drop=True)["dropped"] == [name]


def test_a_database_without_the_schema_is_named_as_such(empty_dsn: str, target: Path) -> None:
    with pytest.raises(SchemaMissing):
        export_archive(empty_dsn, target=str(target))


# What a crash leaves --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 1_000_000], ids=["of small rows", "of rows in several batches"])
def test_a_connection_that_breaks_amid_the_rows_makes_nothing_valid(
    conn: Connection, target: Path, do: Export, amid: Export, size: int
) -> None:
    name = make_partition(conn, 40, 40)
    change(conn, name, "UPDATE {} SET message = to_jsonb(repeat('x', %s))", size)

    class Broken(Database):
        """Its sessions are ended before each batch of rows is taken."""

        @contextmanager
        def arrow(self, application_name: str = "") -> Iterator[Any]:
            with super().arrow(application_name) as session:
                open_cursor = session.cursor
                session.cursor = lambda: breaking(open_cursor())
                yield session

    def breaking(cursor: Any) -> Any:
        fetch = cursor.fetch_record_batch
        cursor.fetch_record_batch = lambda: map(break_all, fetch())
        return cursor

    def break_all(batch: pa.RecordBatch) -> pa.RecordBatch:
        conn.execute(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity"
            " WHERE datname = current_database() AND application_name = 'pgqueue export' AND query LIKE 'COPY%'"
        )
        return batch

    with pytest.raises(ConnectionFailed, match=r"a range could not be read: (terminating|the connection broke)"):
        amid(drop=True, database=Broken)
    assert (exists(conn, name), files(target)) == (True, [])
    assert do(drop=True)["dropped"] == [name]


def test_after_an_error_no_chunk_is_begun() -> None:
    begun: list[int] = []

    def work(item: int) -> None:
        begun.append(item)
        raise OSError(item)

    with pytest.raises(OSError, match="0"):
        Threads(1)(range(100), work)
    assert len(begun) < 100


def test_of_two_attempts_at_each_chunk_one_is_exported_and_the_other_leaves_nothing(
    conn: Connection, target: Path, amid: Export
) -> None:
    name = make_partition(conn, 40, 200)
    cut(conn, name, 4)

    def twice(chunks: Any, work: Any) -> Any:
        def export_twice(chunk: Any) -> Any:
            lost, done = work(chunk), work(chunk)
            assert lost[0].keys().isdisjoint(done[0])
            return done

        return THREADS(chunks, export_twice)

    amid(for_each=twice)
    assert rows_in_export(target) == rows_in_archive(conn, name)
    assert ids_in_data(target) == [row[0] for row in rows_in_archive(conn, name)]
    assert not (target / "_staging" / name).exists()


def test_an_export_whose_session_broke_makes_nothing_valid(
    conn: Connection, target: Path, do: Export, amid: Export
) -> None:
    name = make_partition(conn, 40, 100)
    older = rows_in_archive(conn, name)
    do()
    change(conn, name, "UPDATE {} SET details = 'changed'")

    class Late(Target):
        """By the time that a file is moved into place, the sessions of the export have ended."""

        def move(self, source: str, path: str) -> None:
            conn.execute(
                "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity"
                " WHERE datname = current_database() AND application_name = 'pgqueue export'"
            )
            super().move(source, path)

    with pytest.raises(ConnectionFailed, match="Run the export again"):
        amid(drop=True, to=Late)
    assert rows_in_export(target) == older
    assert do()["exported"] == [name]
    assert rows_in_export(target) == rows_in_archive(conn, name)
    assert len(ids_in_data(target)) == 100


KILLED = """
import os, signal, sys
from airflow_provider_pgqueue.export import export_archive
from airflow_provider_pgqueue.export.target import Target

dsn, target, step, number = sys.argv[1:]
act, times = getattr(Target, step), []

def die_before(*arguments):
    times.append(arguments)
    if len(times) == int(number):
        os.kill(os.getpid(), signal.SIGKILL)
    return act(*arguments)

setattr(Target, step, die_before)
export_archive(dsn, target=target, parallelism=2)
"""


@pytest.mark.parametrize(
    ("is_first", "step", "number"),
    [(True, "move", 3), (False, "move", 5), (False, "remove_file", 2)],
    ids=["amid the files of a first export", "before the manifest is replaced", "amid the files of the older export"],
)
def test_kill_9_leaves_the_old_export_or_the_new_one_and_the_next_run_completes_it(
    conn: Connection, dsn: str, target: Path, do: Export, is_first: bool, step: str, number: int
) -> None:
    name = make_partition(conn, 40, 300)
    if not is_first:
        do()
    older = rows_in_archive(conn, name)
    change(conn, name, "UPDATE {} SET details = 'changed' WHERE id % 2 = 0")
    newer = rows_in_archive(conn, name)
    command = [sys.executable, "-c", KILLED, dsn, str(target), step, str(number)]
    killed = subprocess.run(command, cwd=ROOT, check=False, timeout=60)
    assert killed.returncode == -signal.SIGKILL
    if is_first:
        with pytest.raises(ExportError, match="no exported partition"):
            export_files(str(target))
    else:
        assert rows_in_export(target) == (older if step == "move" else newer)
    do()
    assert rows_in_export(target) == newer
    assert len(ids_in_data(target)) == 300
    assert [path for path in files(target) if path.startswith("_staging")] == []


def test_a_full_disk_drops_nothing_and_the_next_run_completes_it(
    conn: Connection, dsn: str, target: Path, do: Export
) -> None:
    name = make_partition(conn, 40, 3000)
    code = "import sys; from airflow_provider_pgqueue.export import *; export_archive(sys.argv[1], target=sys.argv[2])"
    # No file may grow beyond 4 kB, which is the same error as on a disk that is full.
    limited = ["sh", "-c", 'ulimit -f 8; exec "$0" "$@"', sys.executable, "-c", code, dsn, str(target)]
    full = subprocess.run(limited, cwd=ROOT, check=False, timeout=60, capture_output=True, text=True)
    assert re.search(r"ExportError: target .* cannot be used: .*too large.*Make room", full.stderr), full.stderr
    assert (exists(conn, name), files(target)) == (True, [])
    assert do(drop=True)["dropped"] == [name]
