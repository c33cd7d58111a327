"""While a pipeline waits, it says how far it is."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark.sql import SparkSession

from airflow_provider_pgqueue.core.progress import watching
from airflow_provider_pgqueue.core.tuning import TUNING
from airflow_provider_pgqueue.export.connection import Database
from airflow_provider_pgqueue.spark import export, reconcile, replay, triage
from airflow_provider_pgqueue.spark.pipelines.pipeline import Pipeline
from tests.archive import cut, make_partition
from tests.waiting import until

Connection = psycopg.Connection[Any]
DAY = timedelta(days=1)
OLD = datetime.now(UTC) - 41 * DAY
TASKS = r"\d+ of \d+ tasks done, at work for \d+ s"


def test_it_is_said_again_and_again_whatever_goes_wrong_in_it(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TUNING, "say_every", 0.01)
    said: list[float] = []

    def say() -> None:
        said.append(time.monotonic())
        raise ValueError("canary")

    with watching(say):
        until(lambda: len(said) > 2)
    assert "pgqueue-progress" not in [thread.name for thread in threading.enumerate()]
    assert "cannot report the progress: ValueError" in caplog.messages
    assert "canary" not in caplog.text


def test_the_tasks_that_are_done_are_counted(
    session: SparkSession, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(TUNING, "say_every", 0.05)
    seen = tmp_path / "seen"

    def wait(batches: Any) -> Any:
        for batch in batches:
            if batch.column(0)[0].as_py() >= 2:
                until(seen.exists)
            yield batch

    def touch_when_seen() -> None:
        said = re.compile(r"four tasks: [12] of 4 tasks done, at work for \d+ s")
        until(lambda: any(said.fullmatch(line) for line in caplog.messages))
        seen.touch()

    frame = session.range(0, 4, 1, 4).mapInArrow(wait, "id long")
    watcher = threading.Thread(target=touch_when_seen)
    with caplog.at_level(logging.INFO), Pipeline(session, "four", "tasks", Database(), 4).watching():
        watcher.start()
        frame.collect()
    watcher.join()
    assert seen.exists()


@pytest.mark.parametrize(
    ("pipeline", "options", "lines"),
    [
        (triage, {"since": OLD, "until": OLD + 2 * DAY}, [f"triage night: {TASKS}"]),
        (reconcile, {}, [f"reconcile night: {TASKS}"]),
        (
            replay,
            {"to_queue": "orders"},
            [f"replay night, counting: {TASKS}", f"replay night: {TASKS}"],
        ),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_pipeline_says_how_far_it_is(
    spark: SparkSession,
    dsn: str,
    conn: Connection,
    queue: Callable[..., str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    pipeline: Callable[..., Any],
    options: dict[str, Any],
    lines: list[str],
) -> None:
    queue("orders")
    make_partition(conn, 40, 50)
    monkeypatch.setattr(TUNING, "say_every", 0.02)
    with caplog.at_level(logging.INFO):
        pipeline(spark, run_id="night", dsn=dsn, **options)
    assert all(any(re.fullmatch(line, message) for message in caplog.messages) for line in lines), caplog.messages


def test_an_export_counts_the_parts_that_are_in_files(
    session: SparkSession,
    dsn: str,
    conn: Connection,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    name = make_partition(conn, 40, 3000)
    cut(conn, name, 30)
    monkeypatch.setattr(TUNING, "say_every", 0.02)
    with caplog.at_level(logging.INFO):
        export(session, target=str(tmp_path), dsn=dsn, drop=True)
    found = [re.fullmatch(rf"partition {name}: (\d+) of (\d+) parts in files, .* MB", line) for line in caplog.messages]
    parts = [tuple(map(int, match.groups())) for match in found if match]
    assert parts == sorted(parts)
    assert any(0 < begun < number for begun, number in parts)
    assert f"partition {name}: being compared with its export" in caplog.messages
    assert any(re.fullmatch(rf"export \S+, reading back partition {name}: {TASKS}", line) for line in caplog.messages)
