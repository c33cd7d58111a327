"""Triage: what messages died of lately, as a table for people and DAGs, and as a page with plots. Reads no bodies.

docs/decisions/0013-causes-of-death.md says what one cause is.
"""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from airflow_provider_pgqueue.core import verbs
from airflow_provider_pgqueue.core.client import run as run_statement
from airflow_provider_pgqueue.core.client import to_json
from airflow_provider_pgqueue.core.errors import InvalidArgument
from airflow_provider_pgqueue.core.quantity import quantity
from airflow_provider_pgqueue.spark.database import Database
from airflow_provider_pgqueue.spark.jobs.command import new_run_id, on_spark
from airflow_provider_pgqueue.spark.jobs.dead.causes import SUMS, Cause, Causes, find_causes
from airflow_provider_pgqueue.spark.jobs.dead.trend import Window
from airflow_provider_pgqueue.spark.jobs.dead.triage_report import write_report
from airflow_provider_pgqueue.spark.jobs.queues import require_queues
from airflow_provider_pgqueue.spark.jobs.run import Summary, run
from airflow_provider_pgqueue.spark.jobs.watch import watching_tasks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class TriageOptions:
    """Which deaths, and what to make of them.

    `begin` to before `end`, by default the last seven days; `queue_names`, by default all; the `max_causes` with most
    deaths are recorded, at most 1000; `report`, the HTML file to write.
    """

    run_id: str
    queue_names: tuple[str, ...] = ()
    begin: datetime | None = None
    end: datetime | None = None
    max_causes: int = 200
    report: Path | None = None

    @property
    def window(self) -> Window:
        """The time to look at; InvalidArgument if there is none."""
        end = self.end or datetime.now(UTC)
        begin = self.begin or end - timedelta(days=7)
        if begin.tzinfo is None or end.tzinfo is None or begin >= end:
            raise InvalidArgument(f"the window from {begin} to {end} cannot be. Give a time zone, and an end after it.")
        return Window(begin=begin.astimezone(UTC), end=end.astimezone(UTC))


def triage(spark: SparkSession, options: TriageOptions, database: Database | None = None) -> Summary:
    """Record the causes of death and return their numbers: ids and counts, no text out of a message.

    The causes of a run replace what the same run recorded before, in one transaction; a run that finished is not done
    again. It only reads the queue: dying at any point loses nothing. QueueNotFound for a name that no queue has.
    """
    if not 1 <= options.max_causes <= 1000:
        raise InvalidArgument(f"max_causes is {options.max_causes}. Give a number from 1 to 1000.")
    window = options.window
    database = database or Database()
    with run(database, options.run_id, "triage") as this:
        if this.summary is not None:
            return this.summary
        require_queues(database, options.queue_names)
        with watching_tasks(spark, f"triage {options.run_id}"):
            found = find_causes(spark, database, window, options.queue_names, max_causes=options.max_causes)
        _record(database, options.run_id, found.causes)
        if options.report:
            write_report(options.report, options.run_id, window, found)
        return this.finish(_summary(options, window, found))


def _record(database: Database, run_id: str, causes: list[Cause]) -> None:
    given = [{name: _plain(value) for name, value in cause.items()} for cause in causes]
    with database.connect("pgqueue triage") as conn:
        recorded = run_statement(conn, verbs.record_triage_causes(run_id, to_json(given)))
    log.info("run %s recorded %s of death", run_id, quantity(recorded, "cause"))


def _summary(options: TriageOptions, window: Window, found: Causes) -> Summary:
    return {
        **{name: found.sums[name] for name in ("causes", *SUMS)},
        "left_out": {"causes": found.sums["causes"] - len(found.causes), "dead": found.left_out},
        "trends": dict(sorted(Counter(cause["trend"] for cause in found.causes).items())),
        "largest": [
            {name: cause[name] for name in ("cause", "queue_name", "result", "trend", "dead", "undecided")}
            for cause in found.causes[:5]
        ],
        "from": window.begin.isoformat(),
        "to": window.end.isoformat(),
        "report": None if options.report is None else str(options.report),
    }


def _plain(value: Any) -> Any:
    match value:
        case datetime():
            return value.isoformat()
        case timedelta():
            return f"{value.total_seconds():.0f} seconds"
    return value


def _aware(context: click.Context, parameter: click.Parameter, text: str | None) -> datetime | None:
    try:
        moment = None if text is None else datetime.fromisoformat(text)
    except ValueError as error:
        raise click.BadParameter("write 2026-01-31T06:00+00:00") from error
    if moment is not None and moment.tzinfo is None:
        raise click.BadParameter("it has no time zone: write 2026-01-31T06:00+00:00")
    return moment


@click.command("triage")
@click.option("--queue", "queue_names", multiple=True, help="Only of this queue; may be repeated.")
@click.option("--from", "begin", metavar="MOMENT", callback=_aware, help="ISO 8601 with zone; default: 7 days before.")
@click.option("--to", "end", metavar="MOMENT", callback=_aware, help="ISO 8601 with zone; default: now.")
@click.option("--max-causes", type=click.IntRange(1, 1000), default=200, show_default=True, help="How many at most.")
@click.option("--report", type=click.Path(dir_okay=False, path_type=Path), help="Write a page with plots here.")
@click.option("--run-id", help="A run that finished under this name is not done again. Default: a new name.")
@on_spark
def command(
    spark: SparkSession, database: Database, run_id: str | None, queue_names: tuple[str, ...], **options: Any
) -> Summary:
    """Find out what messages died of.

    The causes are in messages.triage_causes() afterwards.
    """
    run_id = run_id or new_run_id("triage", *queue_names)
    return triage(spark, TriageOptions(run_id=run_id, queue_names=queue_names, **options), database)
