"""With 1 and 16 tasks the same messages end in the same way."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from airflow_provider_pgqueue.core.tuning import TUNING
from airflow_provider_pgqueue.spark import drain, export
from tests.archive import cut, make_partition, rows_in_archive
from tests.spark.test_export import rows_in_export

Connection = psycopg.Connection[Any]
WIDTHS = (1, 16)
FINAL = """
SELECT reference, message, result, attempts, requeues, details, output, failure ->> 'error', topic, group_key
  FROM messages.message_archive WHERE queue_name = %s ORDER BY reference, id
"""


def judge(messages: pa.Table) -> pa.Table:
    """Succeed, fail, reject, try again or raise: what a body says."""
    bodies = list(map(int, messages["message"].to_pylist()))
    if any(body % 29 == 0 for body in bodies):
        raise ValueError("no such order")
    again = [
        body % 17 == 0 and attempts == 1
        for body, attempts in zip(bodies, messages["attempts"].to_pylist(), strict=True)
    ]
    results = ["rejected" if body % 7 == 0 else "failed" if body % 5 == 0 else "success" for body in bodies]
    return pa.table(
        {
            "id": messages["id"],
            "result": ["retry" if retry else result for retry, result in zip(again, results, strict=True)],
            "details": [f"body {body}" for body in bodies],
            "output": pa.array(
                [
                    str(2 * body) if result == "success" and not retry else None
                    for body, result, retry in zip(bodies, results, again, strict=True)
                ],
                pa.string(),
            ),
            "delay_seconds": pa.array([0 if retry else None for retry in again], pa.float64()),
        }
    )


def drain_all(spark: SparkSession, dsn: str, name: str, width: int) -> None:
    """Drain as often as messages wait for their next attempt."""
    for number in range(20):
        run_id = f"{name} {number}"
        summary = drain(spark, queue=name, function=judge, run_id=run_id, dsn=dsn, parallelism=width, batch_size=20)
        assert summary["parallelism"] == width
        if not summary["waiting"]:
            return
    raise AssertionError(summary)


def test_a_drain_ends_in_the_same_state(
    spark: SparkSession, dsn: str, conn: Connection, queue: Callable[..., str], fault: Callable[..., None]
) -> None:
    states: dict[int, list[Any]] = {}
    for width in WIDTHS:
        name = queue(f"orders_{width}", max_attempts=3, backoff_first="1 millisecond")
        conn.execute(
            "SELECT messages.publish(%s, to_jsonb(n), reference => 'order-' || n, topic => 'shop.order',"
            " group_key => CASE WHEN n %% 10 = 1 AND n %% 7 > 0 THEN 'group-' || n %% 3 END)"
            " FROM generate_series(1, 200) n",
            [name],
        )
        published = [id_ for (id_,) in conn.execute("SELECT id FROM messages.message WHERE queue_name = %s", [name])]
        drain_all(spark, dsn, name, width)
        states[width] = conn.execute(FINAL, [name]).fetchall()
        fault(
            f"failures and retries in a drain, parallelism {width}",
            where="local[2]",
            times=1,
            published=published,
            found=[
                id_ for (id_,) in conn.execute("SELECT id FROM messages.message_archive WHERE queue_name = %s", [name])
            ],
        )
    assert states[1] == states[16]
    assert {(result, attempts) for _, _, result, attempts, *_ in states[1]} == {
        ("success", 1), ("success", 2), ("failed", 1), ("failed", 2), ("failed", 3), ("rejected", 1), ("rejected", 2),
    }  # fmt: skip


def test_an_export_has_the_same_files_and_rows_and_says_how_far_it_is(
    session: SparkSession,
    dsn: str,
    conn: Connection,
    tmp_path: Path,
    fault: Callable[..., None],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = make_partition(conn, 40, 3000)
    cut(conn, name, 15)
    expected = rows_in_archive(conn, name)
    files = {}
    monkeypatch.setattr(TUNING, "log_every", 0.02)
    caplog.set_level(logging.INFO)
    for width in WIDTHS:
        target = tmp_path / str(width)
        export(session, target=str(target), dsn=dsn, parallelism=width, drop=width == 16)
        assert rows_in_export(session, target) == expected
        # The name of a file ends with that of its export.
        files[width] = {
            str(path.relative_to(target)).rpartition("-")[0]: pq.read_table(path)
            for path in (target / "data").rglob("*.parquet")
        }
        fault(
            f"an export, parallelism {width}",
            where="local[2]",
            times=1,
            published=[row[0] for row in expected],
            found=pq.read_table(target / "data", columns=["id"])["id"].to_pylist(),
            place="export",
        )
    assert len(files[1]) > 16
    assert files[1] == files[16]
    found = [re.fullmatch(rf"partition {name}: (\d+) of (\d+) parts in files, .* MB", line) for line in caplog.messages]
    assert any(0 < int(match[1]) < int(match[2]) for match in found if match)
    assert f"partition {name}: being compared with its export" in caplog.messages
    tasks = r"\d+ of \d+ tasks done, at work for \d+ s"
    assert any(re.fullmatch(rf"export \S+, reading back partition {name}: {tasks}", line) for line in caplog.messages)
