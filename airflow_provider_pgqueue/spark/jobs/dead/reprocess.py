"""Reprocess: repair dead messages with a function, check them, publish them again; the archive keeps both versions."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from airflow_provider_pgqueue.core import verbs
from airflow_provider_pgqueue.core.client import run as run_statement
from airflow_provider_pgqueue.core.errors import InvalidArgument
from airflow_provider_pgqueue.core.verbs import Statement
from airflow_provider_pgqueue.spark.database import Database
from airflow_provider_pgqueue.spark.jobs.command import duration, new_run_id, on_spark
from airflow_provider_pgqueue.spark.jobs.dead.remedy import Repair, Validator, load, load_validator
from airflow_provider_pgqueue.spark.jobs.dead.task import Repairs
from airflow_provider_pgqueue.spark.jobs.run import Progress, Summary, run
from airflow_provider_pgqueue.spark.jobs.watch import watching

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

T = TypeVar("T")
_RESULTS: Final = ("failed", "rejected", "lock_expired", "expired")
_LOOKS_AGAIN: Final = 0.5  # seconds, at the canary
_SAYS_EVERY: Final = 10.0  # seconds
_FEW: Final = 100  # ids of each outcome in the summary
_OUTCOMES: Final = ("requeued", "dismissed", "left", "invalid", "raised", "lost", "held", "decided")
_DONE: Final = """
SELECT remedy, count(*) FROM messages.message_archive WHERE remedied_by = %s AND remedy IS NOT NULL GROUP BY remedy
"""
# What became of the first that this run requeued.
_CANARY: Final = """
SELECT count(*), count(again.id), count(again.id) FILTER (WHERE again.result <> 'success')
  FROM (SELECT a.requeued_as FROM messages.message_archive a
         WHERE a.remedied_by = %s AND a.remedy = 'requeued' ORDER BY a.remedied_at, a.id LIMIT %s) AS first
  LEFT JOIN messages.message_archive again ON again.id = first.requeued_as
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReprocessOptions:
    """Which dead messages, and what to do with them.

    `cause` names one that `messages.triage_causes()` has; or give `queue_name`, `results`, `fingerprints`, each None
    for any.
    `repair` is `module:function` or a function: it gets a DeadMessage (`body`, `failure`, `reference`, `attempts`, …)
    and returns a new body, KEEP, LEAVE or Dismiss(reason). `validator` checks each body that would be published:
    `module:function`, which returns what is wrong or None, or the `.json` file of a JSON Schema.

    At most `max_messages`, oldest first, and none that was requeued `max_requeues` times before; `max_per_second` of
    them, all tasks together. With a `canary` so many are requeued first, and the others only if fewer than
    `stop_when_failing` percent of them have died again when all are finished, in `canary_wait` at most.
    """

    run_id: str
    repair: str | Repair
    validator: str | Validator | None = None
    cause: str | None = None
    queue_name: str | None = None
    results: tuple[str, ...] | None = None
    fingerprints: tuple[str, ...] | None = None
    max_messages: int | None = None
    max_requeues: int | None = None
    max_per_second: float | None = None
    canary: int = 0
    stop_when_failing: float = 10.0
    canary_wait: timedelta = timedelta(minutes=10)
    delay: timedelta = timedelta(0)
    batch_size: int = 100
    tasks: int = 4
    lease_for: timedelta = timedelta(minutes=1)
    dry_run: bool = False

    def __post_init__(self) -> None:
        for name, least in (("max_messages", 1), ("canary", 0), ("batch_size", 1), ("tasks", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise InvalidArgument(f"{name} is {value}. Give a number from {least} on.")
        others = (self.queue_name, self.results, self.fingerprints)
        if self.cause is not None and any(value is not None for value in others):
            raise InvalidArgument("a cause has queue, result and fingerprints. Give either it or them.")
        if self.max_per_second is not None and self.max_per_second <= 0:
            raise InvalidArgument(f"max_per_second is {self.max_per_second}. Give more than 0.")
        if not 0 < self.stop_when_failing <= 100:
            raise InvalidArgument(
                f"stop_when_failing is {self.stop_when_failing}. Give a percentage above 0, up to 100."
            )


def reprocess(spark: SparkSession, options: ReprocessOptions, database: Database | None = None) -> Summary:
    """Decide about dead messages and return how many ended how, with at most a hundred ids of each.

    `requeued` and `dismissed` count all that this run decided, over crashes. The others stay dead: `left` (the repair
    said so, or max_requeues), `invalid` (the body, says the validator or PostgreSQL), `raised` (the repair did), `lost`
    and `held` (somebody else has them), `decided` (by somebody else meanwhile). `stopped` says if the canary died.

    A run that finished is not done again. Killed at any point and run again, each message gets one remedy: what was
    leased comes round again after `lease_for`. A dry run asks the repair and changes nothing, not even its own run.
    """
    work = _Work(spark, options, database or Database())
    if options.dry_run:
        return _summary(options, work.do(work.ids()), Counter())
    with run(work.database, options.run_id, "reprocess") as this:
        if this.summary is not None:
            return this.summary
        ids = work.ids()
        first = ids[: max(0, options.canary - work.done()["requeued"])]
        found = work.do(first)
        canary = work.canary() if options.canary else {}
        if not canary.get("stopped"):
            found |= work.do(ids[len(first) :])
        return this.finish(_summary(options, found, work.done()) | canary)


class _Work:
    """The dead messages of one run, and who works on them."""

    def __init__(self, spark: SparkSession, options: ReprocessOptions, database: Database) -> None:
        self.database = database
        self._spark = spark
        self._options = options
        self._remedied_by = f"reprocess {options.run_id}"
        self._validator = load_validator(options.validator)
        load(options.repair)

    def ids(self) -> list[int]:
        """Return what is to be done, oldest first, less what an earlier try of this run did."""
        most = self._options.max_messages
        if most is not None and (most := most - sum(self.done().values())) <= 0:
            return []
        return self._ask(verbs.dead_ids(**self._selection, max_messages=most))

    def done(self) -> Counter[str]:
        """Count what this run decided so far, whichever try of it."""
        with self.database.connect("pgqueue reprocess") as conn:
            return Counter(dict(conn.execute(_DONE, [self._remedied_by]).fetchall()))

    def do(self, ids: Sequence[int]) -> dict[int, str]:
        """Let tasks decide about messages, and return what became of each."""
        if not ids:
            return {}
        options = self._options
        tasks = min(options.tasks, len(ids))
        repairs = Repairs(
            database=self.database,
            ids=ids,
            tasks=tasks,
            repair=options.repair,
            validator=self._validator,
            remedied_by=self._remedied_by,
            queue_name=self._selection["queue_name"],
            batch_size=options.batch_size,
            lease_for=options.lease_for,
            delay=options.delay,
            per_second=options.max_per_second,
            max_requeues=options.max_requeues,
            dry_run=options.dry_run,
        )
        numbers = self._spark.range(0, tasks, 1, tasks)
        progress = Progress("reprocess", every=0)
        with watching(lambda: progress.at(sum(self.done().values()), **{"in all": len(ids)}), every=_SAYS_EVERY):
            found = numbers.mapInArrow(repairs.work, "id bigint, outcome string").toArrow()
        return dict(zip(found["id"].to_pylist(), found["outcome"].to_pylist(), strict=True))

    def canary(self) -> dict[str, Any]:
        """Wait until the first messages are finished; `stopped` if too many died again, or not all were in time."""
        options = self._options
        patience = time.monotonic() + options.canary_wait.total_seconds()
        progress = Progress(f"canary of {options.run_id}", every=_SAYS_EVERY)
        with self.database.connect("pgqueue reprocess") as conn:
            while True:
                requeued, finished, died = conn.execute(_CANARY, [self._remedied_by, options.canary]).fetchone() or (
                    0,
                    0,
                    0,
                )
                progress.at(finished, requeued=requeued, **{"died again": died})
                stopped = _verdict(requeued, finished, died, options.stop_when_failing)
                if stopped is None and time.monotonic() >= patience:
                    stopped = "the canary was not finished in time"
                if stopped is not None:
                    log.info("canary of %s: %s requeued, %s died again", options.run_id, requeued, died)
                    return {"stopped": stopped or None, "canary": {"requeued": requeued, "died_again": died}}
                time.sleep(_LOOKS_AGAIN)

    @cached_property
    def _selection(self) -> dict[str, Any]:
        """What to reprocess; asked for when it is needed, because a run that finished may outlive its cause."""
        options = self._options
        given = {"queue_name": options.queue_name, "results": options.results, "fingerprints": options.fingerprints}
        if options.cause is None:
            return given
        causes = self._ask(verbs.triage_causes(cause=options.cause))
        if not causes:
            raise InvalidArgument(
                f"the last triage found no cause {options.cause!r}. Look in messages.triage_causes()."
            )
        (cause,) = causes
        return {
            "queue_name": cause["queue_name"],
            "results": [cause["result"]],
            "fingerprints": cause["fingerprints"],
        }

    def _ask(self, statement: Statement[T]) -> T:
        with self.database.connect("pgqueue reprocess") as conn:
            return run_statement(conn, statement)


def _verdict(requeued: int, finished: int, died: int, stop_when_failing: float) -> str | None:
    """Return why to stop, an empty text to go on, or None to wait."""
    if not requeued:
        return "the canary requeued nothing"
    if 100 * died >= stop_when_failing * requeued:
        return "the canary died again"
    return "" if finished == requeued else None


def _summary(options: ReprocessOptions, found: dict[int, str], done: Counter[str]) -> Summary:
    """Count the outcomes; of what was decided the database knows best, because an earlier try may have died."""
    counts = Counter(found.values()) | done
    ids = {name: [id_ for id_, outcome in found.items() if outcome == name] for name in _OUTCOMES}
    return {
        **{name: counts[name] for name in _OUTCOMES},
        "ids": {name: sorted(some)[:_FEW] for name, some in ids.items() if some},
        "stopped": None,
        "dry_run": options.dry_run,
    }


@click.command("reprocess")
@click.option(
    "--repair", required=True, metavar="MODULE:FUNCTION", help="Gets a dead message, says what to do with it."
)
@click.option(
    "--validator", metavar="MODULE:FUNCTION", help="Checks each new body; or the .json file of a JSON Schema."
)
@click.option("--cause", help="All of one cause of messages.triage_causes().")
@click.option("--queue", "queue_name", help="Only of this queue.")
@click.option("--result", "results", multiple=True, type=click.Choice(_RESULTS), help="Only these; may be repeated.")
@click.option("--fingerprint", "fingerprints", multiple=True, help="Only of this cause; may be repeated.")
@click.option("--max", "max_messages", type=click.IntRange(1), help="How many at most; default: all.")
@click.option("--max-requeues", type=click.IntRange(1), help="Leave those that were requeued so often before.")
@click.option(
    "--max-per-second", type=click.FloatRange(0, min_open=True), help="How many a second, all tasks together."
)
@click.option("--canary", type=click.IntRange(0), default=0, help="Requeue so many first and wait for them.")
@click.option(
    "--stop-when-failing",
    type=click.FloatRange(0, 100, min_open=True),
    default=10.0,
    show_default=True,
    help="Stop if so many percent of the canary die again.",
)
@click.option("--canary-wait", type=duration, default="10m", show_default=True, help="How long to wait for it.")
@click.option("--delay", type=duration, default="0", help="Not leased before: 90s, 10m, 2h, 1d.")
@click.option("--tasks", type=click.IntRange(1), default=4, show_default=True, help="How many at once.")
@click.option("--batch-size", type=click.IntRange(1, 10_000), default=100, show_default=True, help="Messages a lease.")
@click.option("--lease-for", type=duration, default="1m", show_default=True, help="Renewed while the function works.")
@click.option("--dry-run", is_flag=True, help="Ask the repair and say what would be done; change nothing.")
@click.option("--run-id", help="A run that finished under this name is not done again. Default: a new name.")
@on_spark
def command(
    spark: SparkSession,
    database: Database,
    run_id: str | None,
    results: tuple[str, ...],
    fingerprints: tuple[str, ...],
    **given: Any,
) -> Summary:
    """Repair dead messages and publish them again.

    The function gets a DeadMessage and returns a new body, or KEEP, LEAVE or Dismiss(reason) of
    airflow_provider_pgqueue.spark.jobs.dead.remedy.
    """
    run_id = run_id or new_run_id("reprocess", given["cause"] or given["queue_name"] or "all")
    options = ReprocessOptions(run_id=run_id, results=results or None, fingerprints=fingerprints or None, **given)
    return reprocess(spark, options, database)
