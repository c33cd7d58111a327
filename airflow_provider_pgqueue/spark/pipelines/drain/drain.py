"""Handles a large backlog in parallel: each task of a Spark job leases, handles and archives until nothing is ready."""

from __future__ import annotations

import logging
import secrets
import time
from collections import Counter
from concurrent.futures import Future, wait
from dataclasses import replace
from typing import Any, Final

import psycopg
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.utils import is_remote
from pyspark.util import InheritableThread

from airflow_provider_pgqueue.core import run, verbs
from airflow_provider_pgqueue.core.argument import LEASE_FOR, check, optional, text, whole
from airflow_provider_pgqueue.core.duration import Duration, as_timedelta
from airflow_provider_pgqueue.core.errors import ConnectionFailed, PgQueueError
from airflow_provider_pgqueue.core.function import check_call, load_function
from airflow_provider_pgqueue.core.message import Row
from airflow_provider_pgqueue.core.progress import watching
from airflow_provider_pgqueue.core.quantity import deaths_text, quantity
from airflow_provider_pgqueue.core.tuning import TUNING
from airflow_provider_pgqueue.spark.pipelines.drain.task import BatchFunction, Share
from airflow_provider_pgqueue.spark.pipelines.pipeline import Pipeline, Summary, for_each, function_or_name

log = logging.getLogger(__name__)

_LONGEST_PAUSE: Final = 5.0  # seconds between two rounds, when one leased nothing
_GRACE: Final = 15.0  # seconds for the batches in hand when the driver is asked to stop
_RESULTS: Final = ("success", "rejected", "failed", "lock_expired")
_RULES: Final = {
    "queue": text,
    "function": function_or_name,
    "batch_size": whole(1, 10_000),
    "max_messages": optional(whole(1, 2**62)),
    "lease_for": optional(LEASE_FOR),
    "give_up_after": whole(0, 10**6),
}


def drain(
    spark: SparkSession,
    *,
    queue: str,
    function: str | BatchFunction,
    run_id: str | None = None,
    dsn: str | None = None,
    parallelism: int | None = None,
    batch_size: int = 1000,
    lease_for: Duration | None = None,
    max_messages: int | None = None,
    give_up_after: int = 100,
) -> Summary:
    """Lease, handle and archive a large backlog in parallel.

    The function gets a pyarrow.Table with id, message (JSON), reference, attempts, headers (JSON), topic, group_key and
    created_at. It returns nothing if all succeeded, or a table or a pandas.DataFrame with id, result (success,
    rejected, failed or retry) and optionally details, output and delay_seconds.

    Delivery is at least once, and each message is archived once. When a task, an executor or the driver dies, its
    messages are delivered again when their lease ends. The run ends when no message is ready and it holds none;
    messages that are delayed, or blocked in their group, stay in the queue and are counted as waiting. When a run is
    stopped, its tasks have 15 seconds to finish the current batch before they are canceled.

    :param queue: The queue to drain.
    :param function: Gets a table of messages; it must be importable where the tasks run. See --py-files.
    :param parallelism: Consumers. Default: the cores that Spark has.
    :param batch_size: Messages per lease; never more than a task's share of what is ready.
    :param lease_for: How long the messages of a killed task wait; renewed while the function works. Default: the
        policy of the queue.
    :param max_messages: Archive at most this many, over all tries of the run.
    :param give_up_after: End when the function fails on this many messages of a task in a row; the rest is given back
        without counting an attempt. Messages that failed before do not count. 0 never gives up.
    :raises HandlerBroken: for a function that keeps failing like that.
    :raises QueueNotFound: and QueuePaused.
    :raises InvalidArgument: for a function that is not there, or returns something unusable.
    """
    check(locals(), _RULES)
    pipeline = Pipeline.of(spark, "drain", run_id, dsn, _cores(spark) if parallelism is None else parallelism, queue)
    share = Share(
        database=pipeline.database,
        queue=queue,
        function=function,
        parallelism=pipeline.parallelism,
        batch_size=batch_size,
        lease_for=None if lease_for is None else as_timedelta(lease_for),
        max_messages=max_messages,
        give_up_after=give_up_after,
        holder=pipeline.ask(verbs.run_holder(pipeline.run_id)),
        stop_key=secrets.randbits(63),
    )
    return pipeline.once(_Drain(pipeline, share).summary)


def _cores(spark: SparkSession) -> int:
    if not is_remote():
        return spark.sparkContext.defaultParallelism
    # Spark Connect does not say it, but cuts by it.
    return spark.range(100_000).select(F.spark_partition_id()).distinct().count()


def _is_final(error: Exception) -> bool:
    """Return whether another attempt of a task would end in the same way."""
    return isinstance(error, PgQueueError) and type(error) not in (PgQueueError, ConnectionFailed)


class _Drain:
    """One try of a run, on the driver; its tasks get `share`, with less where less is left."""

    def __init__(self, pipeline: Pipeline, share: Share) -> None:
        self._pipeline = pipeline
        self._spark = pipeline.spark
        self._share = share
        self._tag = f"pgqueue-drain-{share.stop_key}"
        # The time of the last progress line, the numbers of messages then and at first, and the time of the next poll.
        self._logged_at, self._there, self._at_first, self._poll_at = time.monotonic(), 0, 0, 0.0

    def summary(self) -> Summary:
        """Drain, and return what the archive says about it."""
        function = self._share.function
        check_call(load_function(function), "a table of messages")
        with watching(self._log_progress):
            reported, rounds = self._rounds()
        left, archived = self._poll(), self._archived()
        seconds, worked = archived.pop("seconds"), archived.pop("worked")
        done = sum(archived.values())
        if died := {result: archived[result] for result in ("failed", "lock_expired") if archived[result]}:
            log.warning("%s. See why: pgqueue dead %s", deaths_text(died), self._share.queue)
        return {
            "run_id": self._pipeline.run_id,
            "queue": self._share.queue,
            "archived": done,
            "results": archived,
            "died": sum(died.values()),
            "retried": reported["retried"],
            "lost": reported["lost"],
            **left,
            "seconds": round(seconds, 3),
            # The start of Spark does not count: the time is from the first lease to the last result.
            "messages_per_second": round(done / worked, 1) if worked else 0.0,
            "rounds": rounds,
            "stopped": f"messages were ready after {rounds} rounds"
            if rounds == TUNING.drain_rounds and left["ready"]
            else None,
            "parallelism": self._share.parallelism,
        }

    def _rounds(self) -> tuple[Counter[str], int]:
        """Start a Spark job, again and again, until nothing is ready and nothing is held; return what they report."""
        reported: Counter[str] = Counter()
        pause = 0.25
        for done in range(TUNING.drain_rounds):
            left, wanted = self._settled()
            if left["ready"] == 0 or wanted == 0:
                return reported, done
            before = reported["leased"]
            reported.update(self._round(left["ready"], wanted))
            if reported["leased"] == before:
                # Another consumer was faster, a limit of the queue is reached, or a scan has yet to find the messages.
                pause = min(2 * pause, _LONGEST_PAUSE)
                time.sleep(pause)
        log.warning("queue %s still has messages after %s rounds", self._share.queue, TUNING.drain_rounds)
        return reported, TUNING.drain_rounds

    def _settled(self) -> tuple[Row, int | None]:
        """Wait until this run holds nothing or has something to do; return what is left and how many are wanted.

        What a killed task held stays held until its lease ends.
        """
        share = self._share
        lease_for = share.lease_for or self._pipeline.ask(verbs.lease_policy(share.queue)).lease_for
        until = time.monotonic() + 2 * lease_for.total_seconds() + 10
        while True:
            left = self._poll()
            wanted = self._wanted(left)
            if not left["held"] or (left["ready"] and wanted != 0):
                break
            if time.monotonic() > until:
                log.warning("a task that Spark gave up still holds %s", quantity(left["held"]))
                break
            time.sleep(0.5)
        return left, wanted

    def _wanted(self, left: Row) -> int | None:
        """Return how many more messages to lease; those that the run still holds count as archived."""
        most = self._share.max_messages
        if most is None:
            return None
        archived = self._archived()
        done: int = sum(archived[result] for result in _RESULTS)
        return max(0, most - done - int(left["held"]))

    def _round(self, ready: int, wanted: int | None) -> Counter[str]:
        """Run one consumer per task, and add up what they report; an error that one reports is raised."""
        tasks = self._pipeline.at_once()
        # No task takes more than its part: one that leased the heads of all groups would work alone.
        size = min(self._share.batch_size, -(-ready // tasks))
        share = replace(self._share, parallelism=tasks, batch_size=size, max_messages=wanted)
        log.info("drain of queue %s: %s ready, %s", share.queue, f"{ready:,}", quantity(tasks, "task"))
        return sum(self._reports(share, range(tasks)), Counter())

    def _reports(self, share: Share, parts: range) -> list[Counter[str]]:
        """Run the tasks in a thread of the driver, so that this one can be interrupted."""
        future: Future[list[Counter[str]]] = Future()

        def act() -> None:
            try:
                self._spark.addTag(self._tag)
                if not is_remote():
                    self._spark.sparkContext.setJobDescription(f"drain of queue {self._share.queue}")
                reports = for_each(self._spark, parts, share.run, at_once=len(parts), is_final=_is_final)
                future.set_result(reports)
            except BaseException as error:
                future.set_exception(error)

        thread = InheritableThread(act, session=self._spark)
        thread.daemon = True
        thread.start()
        try:
            wait([future])
        except BaseException:
            self._stop(future)
            raise
        return future.result()

    def _stop(self, future: Future[list[Counter[str]]]) -> None:
        """Let the tasks finish the batch in hand; cancel those that are not done then."""
        log.info("stopping: waiting for the batches in hand, at most %.0f s", _GRACE)
        try:
            # The lock is one of the transaction: behind a pooler the session goes on, and would keep it.
            with self._share.database.connect("pgqueue drain stop") as conn, conn.transaction():
                conn.execute("SELECT pg_advisory_xact_lock(%s)", [self._share.stop_key])
                wait([future], timeout=_GRACE)
        except (PgQueueError, psycopg.Error) as error:
            log.warning("the tasks could not be asked to stop: %s", type(error).__name__)
        if not future.done():
            log.warning("canceling the tasks: what they hold is delivered again when its lease ends")
            self._spark.interruptTag(self._tag)

    def _poll(self) -> Row:
        with self._pipeline.connect() as conn:
            # Messages whose lease or delay ended are ready only after a scan, and perhaps no other session runs it.
            run(conn, verbs.scan([self._share.queue], count_up_to=0))
            return self._share.backlog(conn)

    def _log_progress(self) -> None:
        """Log the progress. This counts every message, so it may take 2 % of the time at most."""
        began = time.monotonic()
        if began < self._poll_at:
            return
        left = self._poll()
        there, now = sum(left.values()), time.monotonic()
        self._at_first = self._at_first or there
        done, speed = self._at_first - there, (self._there - there) / (now - self._logged_at) if self._there else 0
        said = "{ready:,} ready, {held:,} held, {waiting:,} waiting".format(**left)
        log.info("drain of queue %s: %s done, %s, %s/s", self._share.queue, f"{done:,}", said, f"{speed:,.0f}")
        self._logged_at, self._there, self._poll_at = now, there, now + 50 * (now - began)

    def _archived(self) -> dict[str, Any]:
        return self._pipeline.ask(verbs.run_archived(self._pipeline.run_id))
