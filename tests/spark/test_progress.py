"""While a pipeline waits, it says how far it is."""

from __future__ import annotations

import logging
import re
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from airflow_provider_pgqueue.core.progress import watching
from airflow_provider_pgqueue.core.tuning import TUNING
from airflow_provider_pgqueue.export.connection import Database
from airflow_provider_pgqueue.spark.pipelines.pipeline import Pipeline
from tests.waiting import until


def test_it_is_said_again_and_again_whatever_goes_wrong_in_it(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TUNING, "log_every", 0.01)
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
    monkeypatch.setattr(TUNING, "log_every", 0.05)
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
