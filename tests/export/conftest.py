"""The target of an export, the export by threads of this process, and what it left."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from airflow_provider_pgqueue.export import export_archive, export_files
from airflow_provider_pgqueue.export.connection import Database
from airflow_provider_pgqueue.export.export import Threads
from airflow_provider_pgqueue.export.exporter import Exporter, Until
from airflow_provider_pgqueue.export.target import Target
from tests.archive import change

Connection = psycopg.Connection[Any]
Export = Callable[..., dict[str, Any]]
THREADS = Threads(3)
FOLDERS = pa.schema([("queue_name", pa.string()), ("result", pa.string()), ("date", pa.date32())])


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "export"


@pytest.fixture
def do(dsn: str, target: Path) -> Export:
    """Export to the target as the owner of the tests: `do(drop=True)`."""
    return lambda **options: export_archive(dsn, **{"target": str(target), "parallelism": 3} | options)


def rows_in_export(target: Path) -> list[tuple[Any, ...]]:
    """Return the rows of the files that a manifest names, in the order of their columns in the archive."""
    table = ds.dataset(export_files(str(target)), partitioning=ds.partitioning(FOLDERS, flavor="hive")).to_table()
    names = table.schema.names
    at = names.index("requeues") + 1
    columns = [*names[:at], "queue_name", "result", *names[at:-3], "date"]
    return [tuple(row.values()) for row in table.select(columns).sort_by("id").to_pylist()]


@dataclass(frozen=True)
class Disturbed(Exporter):
    """An export during which somebody acts: before each partition is exported, and after it."""

    before: Callable[[], object]
    after: Callable[[], object]

    def ensure(self, *arguments: Any, **named: Any) -> Any:
        self.before()
        done = super().ensure(*arguments, **named)
        self.after()
        return done


@pytest.fixture
def amid(dsn: str, target: Path) -> Export:
    """Export as `do`, while somebody acts: `amid(drop=True, after=act)`."""

    def export(
        *,
        partitions: Sequence[str] = (),
        drop: bool = False,
        before: Callable[[], object] = int,
        after: Callable[[], object] = int,
        for_each: Callable[..., list[Any]] = THREADS,
        database: type[Database] = Database,
        to: type[Target] = Target,
        until: Until = "completed",
    ) -> dict[str, Any]:
        exporter = Disturbed(database(dsn), to.open(str(target)), for_each, before, after)
        return exporter.all(timedelta(0), partitions, drop=drop, until=until)

    return export


def changing(conn: Connection, partition: str, statement: str, *, times: int) -> Callable[..., list[Any]]:
    """Return threads that change a partition right after its ranges were read, the first times."""
    left = [statement] * times

    def read_and_change(items: Sequence[Any], work: Callable[[Any], Any], doing: str = "") -> list[Any]:
        done = THREADS(items, work, doing)
        if left and not doing:
            change(conn, partition, left.pop())
        return done

    return read_and_change
