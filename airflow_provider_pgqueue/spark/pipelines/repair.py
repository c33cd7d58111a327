"""Repairs many dead messages at once: the tasks of Spark share out what one process would do."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import timedelta
from typing import Final

from pyspark.sql import SparkSession

from airflow_provider_pgqueue.core import verbs
from airflow_provider_pgqueue.core.argument import check, optional, several, text
from airflow_provider_pgqueue.core.duration import Duration
from airflow_provider_pgqueue.core.message import DeadResult
from airflow_provider_pgqueue.core.progress import watching
from airflow_provider_pgqueue.core.repair import Repair, RepairFunction, Validator
from airflow_provider_pgqueue.core.repair.repair import repair_by
from airflow_provider_pgqueue.core.verbs import DeadFilter
from airflow_provider_pgqueue.spark.pipelines.pipeline import Pipeline, Summary, for_each, function_or_name

_RULES: Final = {"queue": optional(text), "function": function_or_name}
log = logging.getLogger(__name__)


def repair(
    spark: SparkSession,
    *,
    queue: str | None = None,
    function: str | RepairFunction,
    run_id: str | None = None,
    dsn: str | None = None,
    parallelism: int | None = None,
    validator: str | Validator | None = None,
    cause: str | None = None,
    results: Sequence[DeadResult] = (),
    fingerprints: Sequence[str] = (),
    max_messages: int | None = None,
    max_requeues: int | None = None,
    max_per_second: float | None = None,
    canary: int = 0,
    stop_when_failing: float = 10.0,
    canary_wait: Duration = timedelta(minutes=10),
    delay: Duration = timedelta(0),
    batch_size: int = 100,
    lease_for: Duration = timedelta(minutes=1),
    dry_run: bool = False,
) -> Summary:
    """Repair dead messages with a function and publish them again.

    The function gets a DeadMessage and returns a new body, or KEEP, LEAVE or Dismiss(reason) of
    airflow_provider_pgqueue.core. The summary is that of core's `Repair.run`, which does the same in one process.

    A run that finished is not done again. If a run is killed and run again, each message gets one resolution: what was
    leased is delivered again after `lease_for`. A dry run calls the function and changes nothing, not even its own run.

    :param queue: Only dead messages of this queue; needed unless a cause or fingerprints are given.
    :param function: Gets a dead message; it must be importable where the tasks run. See --py-files.
    :param validator: Checks each new body; or the .json file of a JSON Schema.
    :param cause: Only messages of this cause: a fingerprint, such as messages.dead_causes() shows.
    :param results: Only these results.
    :param fingerprints: Only these fingerprints.
    :param max_messages: At most this many, oldest first, over all tries of the run.
    :param max_requeues: Leave out messages that were requeued this many times.
    :param max_per_second: At most this many per second, all tasks together.
    :param canary: Requeue this many first and wait until they are finished.
    :param stop_when_failing: Stop if this percentage of the canary dies again.
    :param canary_wait: How long to wait for the canary; one that is not finished by then stops the run.
    :param delay: Keep requeued messages from being leased for this long.
    :param batch_size: Messages per lease.
    :param lease_for: How long the messages of a killed task wait; renewed while the function works.
    :param dry_run: Say what would be done and change nothing.
    :raises InvalidArgument: for a function, a cause or a number that cannot be used.
    """
    check(locals(), _RULES)
    pipeline = Pipeline.of(spark, "repair", run_id, dsn, parallelism, cause or queue or "all")
    wanted = Repair(
        function=function,
        run_id=pipeline.run_id,
        validator=validator,
        which=DeadFilter(
            queue,
            results=several("results", results) or None,
            fingerprints=several("fingerprints", fingerprints) or None,
            max_requeues=max_requeues,
        ),
        cause=cause,
        max_messages=max_messages,
        max_per_second=max_per_second,
        canary=canary,
        stop_when_failing=stop_when_failing,
        canary_wait=canary_wait,
        delay=delay,
        batch_size=batch_size,
        lease_for=lease_for,
        dry_run=dry_run,
    )

    def work() -> Summary:
        return repair_by(lambda wanted, ids: _repaired(pipeline, wanted, ids), wanted, pipeline.connect)

    return work() if dry_run else pipeline.once(work)


def _repaired(pipeline: Pipeline, wanted: Repair, ids: Sequence[int]) -> dict[int, str]:
    """Divide messages among tasks, and return what became of each."""
    tasks, database = min(pipeline.at_once(), len(ids)), pipeline.database

    def share(number: int) -> dict[int, str]:
        with database.connect("pgqueue repair", patient=True) as conn:
            return wanted.share(conn, tasks=tasks).work(ids[number::tasks])

    def log_progress() -> None:
        done = pipeline.ask(verbs.count_resolutions(wanted.resolved_by))
        log.info("%s: %s requeued, %s dismissed, %s in hand", wanted.resolved_by, *done.values(), len(ids))

    with watching(log_progress):
        found = for_each(pipeline.spark, range(tasks), share, at_once=tasks)
    return {id_: outcome for some in found for id_, outcome in some.items()}
