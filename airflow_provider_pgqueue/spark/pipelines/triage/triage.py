"""Triage: what messages died of lately, as a table for people and DAGs, and as a page with plots. Reads no bodies.

docs/decisions/0013-causes-of-death.md says what one cause is.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from pyspark.sql import SparkSession

from airflow_provider_pgqueue.core import verbs
from airflow_provider_pgqueue.core.argument import check, several, whole
from airflow_provider_pgqueue.core.dead_causes import Period
from airflow_provider_pgqueue.core.json_text import to_json
from airflow_provider_pgqueue.core.quantity import quantity
from airflow_provider_pgqueue.spark.pipelines.pipeline import Pipeline, Summary, check_time
from airflow_provider_pgqueue.spark.pipelines.triage.causes import SUMS, Cause, Causes, find_causes
from airflow_provider_pgqueue.spark.pipelines.triage.report import write_report

log = logging.getLogger(__name__)


def triage(
    spark: SparkSession,
    *,
    queues: Sequence[str] = (),
    since: datetime | None = None,
    until: datetime | None = None,
    run_id: str | None = None,
    dsn: str | None = None,
    parallelism: int | None = None,
    max_causes: int = 200,
    report: str | None = None,
) -> Summary:
    """Find out what messages died of: a table of causes, and optionally a page with plots.

    The causes are in messages.triage_causes() afterwards, in place of those that an earlier try of the run recorded.
    The summary has ids and counts, no text out of a message. It only reads the queue: a crash loses nothing.

    :param queues: Only what died in these queues.
    :param since: Died at or after, such as 2026-01-31T08:00Z. Default: 7 days before the end.
    :param until: Died before. Default: now.
    :param max_causes: Record at most this many, those with most deaths; 1 to 1000.
    :param report: Write a page with plots to this file.
    :raises QueueNotFound: for a name that no queue has.
    """
    check({"max_causes": max_causes}, {"max_causes": whole(1, 1000)})
    queues = several("queues", queues)
    pipeline = Pipeline.of(spark, "triage", run_id, dsn, parallelism, *queues, since=since, until=until)
    end = (until or pipeline.database.now()).astimezone(UTC)
    period = Period(begin=since.astimezone(UTC) if since else end - timedelta(days=7), end=end)
    check_time(period.begin, period.end)

    def work() -> Summary:
        pipeline.require_queues(queues)
        with pipeline.watching():
            found = find_causes(pipeline, period, queues, max_causes)
        _record(pipeline, period, found.causes)
        if report is not None:
            write_report(Path(report), pipeline.run_id, period, found)
        return _summary(period, found) | {"report": report}

    return pipeline.once(work)


def _record(pipeline: Pipeline, period: Period, causes: list[Cause]) -> None:
    steps = {"series_from": period.first_step, "series_step": f"{period.step.total_seconds():.0f} seconds"}
    recorded = pipeline.ask(verbs.record_triage_causes(pipeline.run_id, to_json([cause | steps for cause in causes])))
    log.info("run %s recorded %s of death", pipeline.run_id, quantity(recorded, "cause"))


def _summary(period: Period, found: Causes) -> Summary:
    return {
        **{name: found.sums[name] for name in ("causes", *SUMS)},
        "left_out": {"causes": found.sums["causes"] - len(found.causes), "dead": found.left_out},
        "trends": dict(sorted(Counter(cause["trend"] for cause in found.causes).items())),
        "largest": [
            {name: cause[name] for name in ("cause", "queue_name", "result", "trend", "dead", "unremedied")}
            for cause in found.causes[:5]
        ],
        "since": period.begin.isoformat(),
        "until": period.end.isoformat(),
    }
