"""The export without Spark: what is in the files, what is dropped, and what a crash leaves.

What both ways have in common is tested in tests/spark/test_export.py.
"""

from __future__ import annotations

import logging
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from psycopg.conninfo import make_conninfo

from airflow_provider_pgqueue.core import ConnectionFailed, InvalidArgument, PermissionDenied, progress, run, verbs
from airflow_provider_pgqueue.core.errors import ExportError, SchemaMissing
from airflow_provider_pgqueue.export import chunk, export_archive, export_files, exported_queues
from airflow_provider_pgqueue.export.export import Threads
from tests.archive import change, die, exists, files, ids_in_data, make_partition, rows_in_archive
from tests.core.roles.test_roles import logins
from tests.export.conftest import Export
from tests.test_docs import of_page
from tests.waiting import until
from tools import ROOT

Connection = psycopg.Connection[Any]
FOLDERS = pa.schema([("queue_name", pa.string()), ("result", pa.string()), ("date", pa.date32())])


def rows_in_export(target: Path) -> list[tuple[Any, ...]]:
    """Return the rows of the files that a manifest names, in the order of their columns in the archive."""
    table = ds.dataset(export_files(str(target)), partitioning=ds.partitioning(FOLDERS, flavor="hive")).to_table()
    names = table.schema.names
    at = names.index("requeues") + 1
    columns = [*names[:at], "queue_name", "result", *names[at:-3], "date"]
    return [tuple(row.values()) for row in table.select(columns).sort_by("id").to_pylist()]


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
        "rows": 3000,
        "bytes": sum(Path(path).stat().st_size for path in export_files(str(target))),
        "files": len(export_files(str(target))),
    }
    assert (exists(conn, name), exists(conn, young)) == (False, True)
    assert rows_in_export(target) == expected
    assert exported_queues(str(target)) == {"orders", "returns"}
    again = do(partitions=name, drop=True)
    assert (again["skipped"], again["exported"], again["rows"]) == ([name], [], 0)


def test_an_export_that_finds_everything_done_writes_nothing(conn: Connection, target: Path, do: Export) -> None:
    name = make_partition(conn, 40, 1000)
    do()
    before = {path: (target / path).stat().st_mtime_ns for path in files(target)}
    assert do()["skipped"] == [name]
    assert {path: (target / path).stat().st_mtime_ns for path in files(target)} == before


def test_what_changed_is_exported_again(conn: Connection, target: Path, do: Export) -> None:
    name = make_partition(conn, 40, 1000)
    do()
    change(conn, name, "UPDATE {} SET details = 'changed' WHERE id % 2 = 0")
    assert do()["exported"] == [name]
    assert rows_in_export(target) == rows_in_archive(conn, name)
    assert len(ids_in_data(target)) == 1000


def test_a_dead_message_without_a_remedy_keeps_its_partition(
    conn: Connection, do: Export, queue: Callable[..., str]
) -> None:
    name = make_partition(conn, 40, 10)
    queue("orders")
    dead = die(conn, name)
    done = do(drop=True)
    assert (done["exported"], done["dropped"]) == ([name], [])
    assert "Requeue or dismiss them" in done["kept"][name]
    (leased,) = run(conn, verbs.lease_dead("orders"))
    run(conn, verbs.dismiss(leased.lock_token, [dead], "known"))
    assert do(drop=True)["dropped"] == [name]


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
    for mark in ("without Spark", "export files"):
        (example,) = of_page("docs/how-to/export.md", "py", mark)
        exec(example.replace("/data/messages", str(target)), documented)
    assert documented["summary"]["dropped"] == [name]
    assert sorted(documented["messages"].to_table()["id"].to_pylist()) == [row[0] for row in expected]


def test_while_files_are_read_back_it_says_how_many_are_done(
    conn: Connection, do: Export, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    name = make_partition(conn, 40, 100)
    do()
    monkeypatch.setattr(progress, "_EVERY", 0.01)
    said = rf"reading back partition {name}: \d of \d files done"
    see = Threads.__call__

    def read_when_said(self: Threads, items: Any, work: Any, doing: str = "") -> Any:
        def wait_and_work(item: Any) -> Any:
            until(lambda: any(re.fullmatch(said, line) for line in caplog.messages))
            return work(item)

        return see(self, items, wait_and_work if doing else work, doing)

    monkeypatch.setattr(Threads, "__call__", read_when_said)
    with caplog.at_level(logging.INFO):
        assert do(drop=True)["dropped"] == [name]


# What is refused ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [{"target": ""}, {"target": "gopher://x"}, {"older_than": timedelta(-1)}, {"parallelism": 0}, {"partitions": []}],
    ids=str,
)
def test_arguments_out_of_range_are_refused(do: Export, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match=next(iter(options))):
        do(**options)


def test_partitions_that_are_unknown_or_open_are_refused(conn: Connection, do: Export) -> None:
    with pytest.raises(InvalidArgument, match="'message_archive_1999' does not exist"):
        do(partitions=("message_archive_1999",))
    (current,) = conn.execute(
        "SELECT c.relname FROM messages.archive_partitions() p JOIN pg_class c ON c.oid = p.partition::regclass"
        " WHERE p.first_at <= now() AND p.end_at > now()"
    ).fetchone() or ("",)
    with pytest.raises(InvalidArgument, match="takes messages until"):
        do(partitions=current)


def test_a_target_that_cannot_be_written_drops_nothing(conn: Connection, tmp_path: Path, do: Export) -> None:
    name = make_partition(conn, 40, 10)
    (tmp_path / "file").touch()
    for target in (tmp_path / "file", tmp_path / "file" / "export", Path("/proc/export")):
        with pytest.raises(ExportError, match=r"cannot be used: .*(Not a directory|No such file).*give a folder"):
            do(target=str(target), drop=True)
    assert exists(conn, name)


def test_a_target_without_an_export_is_no_empty_export(target: Path) -> None:
    for read in (export_files, exported_queues):
        with pytest.raises(ExportError, match="has no exported partition"):
            read(str(target))


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
    conn: Connection, target: Path, do: Export, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    name = make_partition(conn, 40, 40)
    change(conn, name, "UPDATE {} SET message = to_jsonb(repeat('x', %s))", size)
    add = chunk._Split.add

    def break_all(split: Any, batch: pa.RecordBatch) -> None:
        conn.execute(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity"
            " WHERE datname = current_database() AND application_name = 'pgqueue export' AND query LIKE 'COPY%'"
        )
        add(split, batch)

    monkeypatch.setattr(chunk._Split, "add", break_all)
    with pytest.raises(ConnectionFailed, match=r"a range could not be read: (terminating|the connection broke)"):
        do(drop=True)
    assert (exists(conn, name), files(target)) == (True, [])
    monkeypatch.undo()
    assert do(drop=True)["dropped"] == [name]


def test_after_an_error_no_chunk_is_begun() -> None:
    begun: list[int] = []

    def work(item: int) -> None:
        begun.append(item)
        raise OSError(item)

    with pytest.raises(OSError, match="0"):
        Threads(1)(range(100), work)
    assert len(begun) < 100


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
