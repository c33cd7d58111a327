"""The ledger of runs: a run that has finished under its name is not done again."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from airflow_provider_pgqueue.core import verbs
from airflow_provider_pgqueue.core.client import to_json
from airflow_provider_pgqueue.spark.database import Database

log = logging.getLogger(__name__)

Summary = dict[str, Any]


def once(database: Database, pipeline: str, run_id: str, work: Callable[[], Summary]) -> Summary:
    """Do the work of a run and return its summary; for a run that has finished, return the recorded summary at once.

    A run that raises or dies is not finished and is done again under the same name; the work must allow for that. Of
    two at once the summary of the first stays, and both return it. InvalidArgument if the name belongs to a run of
    another pipeline.
    """
    # A session for each of the two questions: none has to survive the hours between them.
    noted = database.run(verbs.begin_run(run_id, pipeline), f"pgqueue {pipeline}")
    if noted is not None:
        log.info("run %s of pipeline %s had finished: nothing is done again", run_id, pipeline)
        return dict(noted)
    try:
        summary = work()
        noted = database.run(verbs.finish_run(run_id, to_json(summary)), f"pgqueue {pipeline}")
    except BaseException as error:
        # The text of the error may quote a body.
        log.error("run %s of pipeline %s ended with %s; run it again", run_id, pipeline, type(error).__name__)
        raise
    log.info("run %s of pipeline %s is done: %s", run_id, pipeline, as_line(summary))
    return dict(noted or summary)


def new_run_id(pipeline: str, *about: str) -> str:
    """Return a name for a run that nobody named: what it is about, and this moment."""
    return "-".join((pipeline, *about, datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")))


def as_line(summary: Mapping[str, Any]) -> str:
    """Return a summary as one line of JSON."""
    return json.dumps(summary, ensure_ascii=False, default=str)
