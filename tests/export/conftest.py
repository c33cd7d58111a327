"""The target of an export, the export by threads of this process, and what it left."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from airflow_provider_pgqueue.export import export_archive, export_files
from airflow_provider_pgqueue.export.exporter import Exporter
from tests.archive import change

Connection = psycopg.Connection[Any]
Export = Callable[..., dict[str, Any]]
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
