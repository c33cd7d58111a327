"""What the commands of the pipelines share: a Spark session, the database, one line of JSON at the end."""

from __future__ import annotations

import functools
import os
import signal
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import click
from pyspark.sql import SparkSession
from pyspark.sql.utils import is_remote

from airflow_provider_pgqueue.core.duration import parse_duration
from airflow_provider_pgqueue.spark import register
from airflow_provider_pgqueue.spark.database import Database
from airflow_provider_pgqueue.spark.jobs.run import Summary, as_line, print_summary

_SHUFFLE_PARTITIONS: Final = "spark.sql.shuffle.partitions"
SUMMARY_FILE: Final = "PGQUEUE_SUMMARY"
NO_DSN = (
    "A connection string on a command line can be read by everybody on the machine, and Spark keeps the command line "
    "in its event log. Set PGQUEUE_DSN, or PGSERVICE, PGHOST, PGPASSFILE, … where the driver starts."
)


def _refuse(context: click.Context, parameter: click.Parameter, value: Any) -> None:
    if value is not None:
        raise click.UsageError(f"--dsn is refused on purpose. {NO_DSN}")


refuse_dsn = click.option("--dsn", hidden=True, expose_value=False, is_eager=True, callback=_refuse)


def on_spark(function: Callable[..., Summary]) -> Callable[..., None]:
    """Make a callback of a click command out of `function(spark, database, **options) -> summary`.

    The session is made when the options are right, knows `format("pgqueue")`, and is stopped at the end. The summary
    is printed on standard output, and written to the file that `PGQUEUE_SUMMARY` names, if it does. `--master` of the
    group says which Spark; by default what spark-submit or spark-defaults.conf says, else this machine.
    """

    @functools.wraps(function)
    def callback(**options: Any) -> None:
        context = click.get_current_context()
        database = Database()
        spark = _session(context)
        try:
            summary = function(spark, database, **options)
            print_summary(summary)
            if path := os.environ.get(SUMMARY_FILE):
                Path(path).write_text(as_line(summary))
        finally:
            spark.stop()

    return refuse_dsn(callback)


def _session(context: click.Context) -> SparkSession:
    builder = SparkSession.builder.appName(f"pgqueue {context.info_name}")
    master = (context.obj or {}).get("master")
    spark = (builder.master(master) if master else builder).getOrCreate()
    register(spark)
    shuffle_locally(spark)
    # PySpark's own handler cancels the jobs before a pipeline can let them finish what they have in hand.
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.default_int_handler)
    return spark


def shuffle_locally(spark: SparkSession) -> None:
    """Let a local Spark shuffle into twice as many parts as it has cores, at least 8, unless somebody said how many.

    Its own 200 are for clusters: of thousands of rows they make a thousand tasks that are almost empty.
    """
    if is_remote() or not (spark.sparkContext.master or "").startswith("local"):
        return
    if not spark.sparkContext.getConf().contains(_SHUFFLE_PARTITIONS):
        spark.conf.set(_SHUFFLE_PARTITIONS, max(8, 2 * spark.sparkContext.defaultParallelism))


def duration(text: str) -> timedelta:
    """Convert an option such as `90s`, `10m`, `1h30m`; click names it `DURATION` in the help."""
    try:
        return parse_duration(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def new_run_id(pipeline: str, *about: str) -> str:
    """Return a name for a run that nobody named: what it is about, and this moment."""
    return "-".join((pipeline, *about, datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")))
