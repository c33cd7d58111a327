"""Handles a large backlog in parallel: each task of a Spark job leases, handles and archives until nothing is ready."""

from __future__ import annotations

import logging
import secrets
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

import click
import psycopg
from pyspark.sql import Row, SparkSession
from pyspark.sql.utils import is_remote
from pyspark.util import InheritableThread

from airflow_provider_pgqueue.core import errors, verbs
from airflow_provider_pgqueue.core.client import run as run_statement
from airflow_provider_pgqueue.core.errors import InvalidArgument, PgQueueError
from airflow_provider_pgqueue.core.function import load_function
from airflow_provider_pgqueue.core.quantity import quantity
from airflow_provider_pgqueue.spark.database import Database
from airflow_provider_pgqueue.spark.jobs.command import duration, new_run_id, on_spark
from airflow_provider_pgqueue.spark.jobs.drain.batches import BatchFunction, Form
from airflow_provider_pgqueue.spark.jobs.drain.task import REPORT, Backlog, Share, backlog
from airflow_provider_pgqueue.spark.jobs.run import EVERY, Progress, Summary, run

log = logging.getLogger(__name__)

_MOST_ROUNDS: Final = 20
_LONGEST_PAUSE: Final = 5.0  # seconds between two rounds, when one leased nothing
_GRACE: Final = 15.0  # seconds for the batches in hand when the driver is asked to stop
_RESULTS: Final = ("success", "rejected", "failed", "lock_expired")


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainOptions:
    """What to drain, and with what.

    `function` is `module:function`, importable where the tasks run, or a callable that can be pickled. It gets a
    pyarrow.Table or a pandas.DataFrame, as `as_` says, with id, message (JSON), reference, attempts, headers (JSON),
    topic, group_key and created_at, and returns what `batches.outcomes_of` accepts. `parallelism` is the number of
    consumers, by default the cores that Spark has. `lease_for` is renewed while the function works: it is how long the
    messages of a killed task wait. `max_messages` bounds what the tries of a run archive, one after the other. `topic`
    is a pattern.
    """

    queue_name: str
    function: str | BatchFunction
    run_id: str
    parallelism: int | None = None
    batch_size: int = 1000
    lease_for: timedelta = timedelta(minutes=5)
    as_: Form = "arrow"
    topic: str | None = None
    max_messages: int | None = None

    def __post_init__(self) -> None:
        for name, least, most in (("parallelism", 1, 10_000), ("batch_size", 1, 10_000), ("max_messages", 1, 2**62)):
            value = getattr(self, name)
            if value is not None and not least <= value <= most:
                raise InvalidArgument(f"{name} is {value}. Give a number from {least} to {most}.")
        if not timedelta(milliseconds=1) <= self.lease_for <= timedelta(hours=12):
            raise InvalidArgument(f"lease_for is {self.lease_for}. Give 1 millisecond to 12 hours.")
        if self.as_ not in ("arrow", "pandas"):
            raise InvalidArgument(f"as_ is {self.as_!r}. Give arrow or pandas.")


def drain(spark: SparkSession, options: DrainOptions, database: Database) -> Summary:
    """Handle what is ready in a queue and return a summary; a run that had finished returns its own again.

    Delivery is at least once and each message is archived once. Nothing is lost when a task, an executor or the driver
    dies: what they held is delivered again when its lease ends, to this run if it lives, else to the same run done
    again or to any other consumer. The run ends when nothing is ready and it holds nothing; messages that are delayed,
    such as those that are retried after a back-off, or blocked in their group, stay and are counted as `waiting`.

    On an exception in the calling thread, such as a signal handler raises, the tasks finish the batch in hand, at most
    for 15 seconds, and are cancelled. (PySpark's own handler of SIGINT cancels them at once.)

    QueueNotFound, QueuePaused, InvalidArgument for a function that is not there or gives answers that are none.
    """
    with run(database, options.run_id, "drain") as this:
        if this.summary is not None:
            return this.summary
        if isinstance(options.function, str):
            load_function(options.function)
        return this.finish(_Drain(spark, options, database).summary())


class _Drain:
    """One try of a run, on the driver."""

    def __init__(self, spark: SparkSession, options: DrainOptions, database: Database) -> None:
        self._spark = spark
        self._options = options
        self._database = database
        self._parallelism = options.parallelism or spark.sparkContext.defaultParallelism
        self._stop_key = secrets.randbits(63)
        self._tag = f"pgqueue-drain-{self._stop_key}"
        self._progress = Progress(f"drain of queue {options.queue_name}")
        self._at_first: int | None = None

    @property
    def _holder(self) -> str:
        return f"spark {self._options.run_id} "

    def summary(self) -> Summary:
        """Drain, and return what the archive says about it."""
        reported, rounds = self._rounds()
        left, archived = self._look(), self._archived()
        seconds = archived.pop("seconds")
        done = sum(archived.values())
        return {
            "run_id": self._options.run_id,
            "queue_name": self._options.queue_name,
            "archived": done,
            "results": archived,
            "retried": reported["retried"],
            "lost": reported["lost"],
            "ready": left.ready,
            "held": left.held,
            "waiting": left.waiting,
            "seconds": round(seconds, 3),
            "messages_per_second": round(done / seconds, 1) if seconds else 0.0,
            "rounds": rounds,
            "parallelism": self._parallelism,
        }

    def _rounds(self) -> tuple[Counter[str], int]:
        """Start a Spark job, again and again, until nothing is ready and nothing is held; what they report."""
        reported: Counter[str] = Counter()
        pause = 0.25
        for done in range(_MOST_ROUNDS):
            left, wanted = self._settled()
            if left.ready == 0 or wanted == 0:
                return reported, done
            before = reported["leased"]
            reported.update(self._job(left.ready, wanted))
            if reported["leased"] == before:
                # Somebody else was faster, a limit of the queue is reached, or no sweep is due.
                pause = min(2 * pause, _LONGEST_PAUSE)
                time.sleep(pause)
        log.warning("queue %s still has messages after %s rounds", self._options.queue_name, _MOST_ROUNDS)
        return reported, _MOST_ROUNDS

    def _settled(self) -> tuple[Backlog, int | None]:
        """Look what is left and how much of it is wanted, when this run holds nothing or has something to do.

        Killed tasks hold for a lease.
        """
        until = time.monotonic() + 2 * self._options.lease_for.total_seconds() + 10
        while True:
            left = self._look()
            wanted = self._wanted(left)
            if not left.held or (left.ready and wanted != 0):
                break
            if time.monotonic() > until:
                log.warning("a task that Spark gave up still holds %s", quantity(left.held))
                break
            self._say(left)
            time.sleep(0.5)
        return left, wanted

    def _wanted(self, left: Backlog) -> int | None:
        """Return how many more are to be leased: what the run holds may be archived yet, what it held is by now."""
        most = self._options.max_messages
        if most is None:
            return None
        archived = self._archived()
        done: int = sum(archived[result] for result in _RESULTS)
        return max(0, most - done - left.held)

    def _job(self, ready: int, wanted: int | None) -> Counter[str]:
        """Run one consumer a task, and add up what they report; an error that one reports is raised."""
        share = self._share(ready, wanted)
        log.info(
            "drain of queue %s: %s ready, %s",
            self._options.queue_name,
            f"{ready:,}",
            quantity(self._parallelism, "task"),
        )
        parts = self._spark.range(0, self._parallelism, 1, self._parallelism)
        rows = self._finished(lambda: parts.mapInArrow(share.run, REPORT).collect())
        for row in rows:
            if row.error is not None:
                raise getattr(errors, row.kind, PgQueueError)(row.error)
        counts: Counter[str] = Counter()
        for row in rows:
            counts.update({name: row[name] for name in ("retried", "lost", "released", "leased")})
        return counts

    def _share(self, ready: int, wanted: int | None) -> Share:
        options = self._options
        # No task takes more than its share: one that leased the heads of all groups would work alone.
        fair = -(-ready // self._parallelism)
        return Share(
            database=self._database,
            queue_name=options.queue_name,
            function=options.function,
            form=options.as_,
            parallelism=self._parallelism,
            batch_size=min(options.batch_size, fair),
            lease_for=options.lease_for,
            topic=options.topic,
            max_messages=wanted,
            holder=self._holder,
            stop_key=self._stop_key,
        )

    def _finished(self, action: Callable[[], list[Row]]) -> list[Row]:
        """Run an action in a thread, so that this one can say how far it is and can be interrupted."""
        future: Future[list[Row]] = Future()

        def act() -> None:
            try:
                self._spark.addTag(self._tag)
                if not is_remote():
                    self._spark.sparkContext.setJobDescription(f"drain of queue {self._options.queue_name}")
                future.set_result(action())
            except BaseException as error:
                future.set_exception(error)

        thread = InheritableThread(act, session=self._spark)
        thread.daemon = True
        thread.start()
        try:
            while not wait([future], timeout=0.5).done:
                if self._progress.due:
                    self._look_and_say()
        except BaseException:
            self._stop(future)
            raise
        return future.result()

    def _stop(self, future: Future[list[Row]]) -> None:
        """Let the tasks finish the batch in hand; cancel those that are not done then."""
        log.info("stopping: waiting for the batches in hand, at most %.0f s", _GRACE)
        try:
            with self._database.connect("pgqueue drain stop") as conn:
                conn.execute("SELECT pg_advisory_lock(%s)", [self._stop_key])
                wait([future], timeout=_GRACE)
        except (PgQueueError, psycopg.Error) as error:
            log.warning("the tasks could not be asked to stop: %s", type(error).__name__)
        if not future.done():
            log.warning("cancelling the tasks: what they hold comes back when its lease ends")
            self._spark.interruptTag(self._tag)

    def _look(self) -> Backlog:
        with self._database.connect("pgqueue drain") as conn:
            began = time.monotonic()
            left = backlog(conn, self._holder, self._options.queue_name, self._options.topic)
            # It counts every message: at most 2 % of the time.
            self._progress.every = max(EVERY, 50 * (time.monotonic() - began))
        return left

    def _look_and_say(self) -> None:
        try:
            self._say(self._look())
        except PgQueueError as error:
            log.warning("cannot look how far it is: %s", type(error).__name__)

    def _say(self, left: Backlog) -> None:
        total = left.ready + left.held + left.waiting
        if self._at_first is None:
            self._at_first = total
        self._progress.at(self._at_first - total, ready=left.ready, held=left.held, waiting=left.waiting)

    def _archived(self) -> dict[str, Any]:
        with self._database.connect("pgqueue drain") as conn:
            return run_statement(conn, verbs.run_archived(self._options.run_id))


@click.command("drain")
@click.option("--queue", "queue_name", required=True, help="The queue to drain.")
@click.option("--function", required=True, metavar="MODULE:FUNCTION", help="Gets a table of messages. See --py-files.")
@click.option("--run-id", help="A run that finished under this name is not done again. Default: a new name.")
@click.option("--parallelism", type=click.IntRange(1, 10_000), help="Consumers. Default: the cores that Spark has.")
@click.option("--batch-size", type=click.IntRange(1, 10_000), default=1000, show_default=True, help="Messages a lease.")
@click.option("--lease-for", type=duration, default="5m", show_default=True, help="Renewed while the function works.")
@click.option("--as", "as_", type=click.Choice(["arrow", "pandas"]), default="arrow", show_default=True)
@click.option("--topic", metavar="PATTERN", help="Only messages whose topic matches.")
@click.option("--max-messages", type=click.IntRange(1), help="Archive at most so many.")
@on_spark
def command(spark: SparkSession, database: Database, run_id: str | None, **options: Any) -> Summary:
    """Lease, handle and archive a large backlog in parallel.

    The function gets a pyarrow.Table (or pandas.DataFrame) with id, message, reference, attempts, headers, topic,
    group_key and created_at. It returns nothing if all succeeded, or a table with id, result (success, rejected, failed
    or retry) and if wanted details, output and delay_seconds.
    """
    run_id = run_id or new_run_id("drain", options["queue_name"])
    return drain(spark, DrainOptions(run_id=run_id, **options), database)
