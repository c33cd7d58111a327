"""The export by tasks of Spark, and what Spark reads of an export; tests/export has what both kinds of export share."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from airflow_provider_pgqueue.core import InvalidArgument
from airflow_provider_pgqueue.core.errors import ExportError
from airflow_provider_pgqueue.export import export_archive
from airflow_provider_pgqueue.spark import export, read_export
from tests.archive import change, cut, exists, ids_in_data, make_partition, rows_in_archive
from tests.waiting import until

Connection = psycopg.Connection[Any]
Export = Callable[..., dict[str, Any]]


def rows_in_export(spark: SparkSession, target: Path) -> list[tuple[Any, ...]]:
    table = read_export(spark, str(target)).toArrow().sort_by("id")
    return [tuple(row.values()) for row in table.to_pylist()]


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "export"


@pytest.fixture
def do(session: SparkSession, dsn: str, target: Path) -> Export:
    """Export to the target as the owner of the tests: `do(drop=True)`."""
    return lambda **options: export(session, dsn=dsn, **{"target": str(target), "parallelism": 2} | options)


@pytest.fixture
def threads(dsn: str, target: Path) -> Export:
    """The same, by threads of this process."""
    return lambda **options: export_archive(dsn, target=str(target), parallelism=2, **options)


# By tasks -------------------------------------------------------------------------------------------------------------


def test_an_export_with_spark_and_one_without_are_the_same_and_continue_each_other(
    conn: Connection, session: SparkSession, target: Path, do: Export, threads: Export
) -> None:
    names = [make_partition(conn, 41, 400), make_partition(conn, 40, 100)]
    cut(conn, names[0], 3)
    expected = rows_in_archive(conn, names[0]) + rows_in_archive(conn, names[1])
    began, continued = do(partitions=names[:1]), threads()
    assert set(began) == set(continued)
    assert (began["exported"], continued["skipped"], continued["exported"]) == (names[:1], names[:1], names[1:])
    assert rows_in_export(session, target) == expected

    def content() -> dict[str, pa.Table]:
        paths = (target / "data").rglob("*.parquet")
        return {str(path.relative_to(target)).rpartition("-")[0]: pq.read_table(path) for path in paths}

    by_both = content()
    assert len(by_both) > 10
    shutil.rmtree(target)
    assert threads()["exported"] == names
    assert content() == by_both
    change(conn, names[0], "UPDATE {} SET details = 'changed' WHERE id % 2 = 0")
    expected = rows_in_archive(conn, names[0]) + rows_in_archive(conn, names[1])
    done = do(drop=True)
    assert (done["exported"], done["skipped"], done["dropped"]) == (names[:1], names[1:], names)
    assert rows_in_export(session, target) == expected
    again = threads(partitions=names, drop=True)
    assert (again["skipped"], again["dropped"], ids_in_data(target)) == (names, [], [row[0] for row in expected])


def test_an_age_out_of_range_is_refused(do: Export) -> None:
    with pytest.raises(InvalidArgument, match="older_than"):
        do(older_than=timedelta(-1))


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


# What Spark reads -----------------------------------------------------------------------------------------------------


def test_names_that_are_no_names_of_files_stay_in_their_folder(
    conn: Connection, session: SparkSession, target: Path, threads: Export
) -> None:
    name = make_partition(conn, 40, 8)
    for place, queue_name in enumerate(("../../up", "a=b/c", "%41 {x}*?", "naïve")):
        change(conn, name, "UPDATE {} SET queue_name = %s WHERE id %% 4 = %s", queue_name, place)
    threads()
    assert rows_in_export(session, target) == rows_in_archive(conn, name)
    assert {path.name for path in target.parent.iterdir()} == {"export"}


def test_only_what_a_manifest_names_is_read_and_what_is_wrong_with_an_export_is_named(
    conn: Connection, session: SparkSession, target: Path, threads: Export
) -> None:
    for folder in (target, target.parent):
        with pytest.raises(ExportError, match="has no exported partition"):
            read_export(session, str(folder))
    name = make_partition(conn, 40, 100)
    threads()
    file = next(target.rglob("*.parquet"))
    shutil.copy(file, file.with_name(f"{name}-00099-{'0' * 32}.parquet"))
    assert read_export(session, str(target)).count() == 100
    file.unlink()
    with pytest.raises(ExportError, match=r"is not there.*read again"):
        read_export(session, str(target))
    manifest = target / "_manifests" / f"{name}.json"
    manifest.write_text(manifest.read_text()[:-100])
    with pytest.raises(ExportError, match=rf"manifest _manifests/{name}.json is damaged. Export"):
        read_export(session, str(target))
