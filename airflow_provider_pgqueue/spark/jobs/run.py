"""Runs of the pipelines: a finished one is not done again, and one that takes long says how far it is."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import click

from airflow_provider_pgqueue.core import verbs
from airflow_provider_pgqueue.core.client import run as run_statement
from airflow_provider_pgqueue.core.client import to_json
from airflow_provider_pgqueue.core.connection import check_version
from airflow_provider_pgqueue.core.verbs import Statement
from airflow_provider_pgqueue.spark.database import Database

log = logging.getLogger(__name__)

Summary = dict[str, Any]
EVERY: Final = 5.0  # seconds between two lines of progress


class Run:
    """One run of a pipeline; `summary` is what it returned if it finished before, else None."""

    def __init__(self, database: Database, run_id: str, pipeline: str) -> None:
        self.run_id = run_id
        self.pipeline = pipeline
        self._database = database
        self.summary: Summary | None = self._ask(verbs.begin_run(run_id, pipeline))

    def finish(self, summary: Mapping[str, Any]) -> Summary:
        """Note that the run is done and return its summary: of two at once, the one that was noted first."""
        self.summary = self._ask(verbs.finish_run(self.run_id, to_json(dict(summary))))
        log.info("run %s of pipeline %s is done: %s", self.run_id, self.pipeline, as_line(summary))
        return self.summary if self.summary is not None else dict(summary)

    def _ask(self, statement: Statement[Any]) -> Any:
        # A session for each of the two: none has to survive the hours between them.
        with self._database.connect(f"pgqueue {self.pipeline}") as conn:
            check_version(conn)
            return run_statement(conn, statement)


@contextmanager
def run(database: Database, run_id: str, pipeline: str) -> Iterator[Run]:
    """Open a run: `with run(database, run_id, "drain") as this:` and at the end `return this.finish({...})`.

    If `this.summary` is not None, the run had finished: return that and do nothing. A run that raises or dies is not
    finished and is done again under the same name; the work of a pipeline must bear that. InvalidArgument if the name
    belongs to a run of another pipeline.
    """
    this = Run(database, run_id, pipeline)
    if this.summary is not None:
        log.info("run %s of pipeline %s had finished: nothing is done again", run_id, pipeline)
    try:
        yield this
    except BaseException as error:
        # The text of the error may quote a body.
        log.error("run %s of pipeline %s ended with %s; run it again", run_id, pipeline, type(error).__name__)
        raise


class Progress:
    """Says in the log how far a long work is, at most `every` so many seconds; `what` names it."""

    def __init__(self, what: str, *, every: float = EVERY) -> None:
        self._what = what
        self.every = every
        self._said_at = time.monotonic()
        self._done = 0

    @property
    def due(self) -> bool:
        """Whether `at` would say something now: ask before counting what is expensive to count."""
        return time.monotonic() - self._said_at >= self.every

    def at(self, done: int, **others: int) -> None:
        """Log how much is done since the start, at which rate, and other counts: `at(3000, left=7000)`."""
        if not self.due:
            return
        rate = (done - self._done) / (time.monotonic() - self._said_at)
        also = "".join(f", {count:,} {name}" for name, count in others.items())
        log.info("%s: %s done%s, %s/s", self._what, f"{done:,}", also, f"{rate:,.0f}")
        self._said_at, self._done = time.monotonic(), done


def as_line(summary: Mapping[str, Any]) -> str:
    """Return a summary as one line of JSON."""
    return json.dumps(summary, ensure_ascii=False, default=str)


def print_summary(summary: Mapping[str, Any]) -> None:
    """Print a summary on standard output as one line of JSON, for the program that started this one."""
    click.echo(as_line(summary))
