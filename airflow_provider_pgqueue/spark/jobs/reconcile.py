"""Compares what was to be published, what the queue made of it, and what effects the business has of it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

import click
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from airflow_provider_pgqueue.core.errors import InvalidArgument
from airflow_provider_pgqueue.spark.database import Database
from airflow_provider_pgqueue.spark.jobs.command import duration, new_run_id, on_spark
from airflow_provider_pgqueue.spark.jobs.key_source import Keys, read_keys
from airflow_provider_pgqueue.spark.jobs.moment import moment, now
from airflow_provider_pgqueue.spark.jobs.queues import require_queues
from airflow_provider_pgqueue.spark.jobs.run import Summary, print_summary, run
from airflow_provider_pgqueue.spark.jobs.watch import watching_tasks

KINDS: Final = ("lost", "doubled", "missing_effect", "effect_without_success", "slow")
_KEYS: Final = ("reference", "id")
_FORMATS: Final = ("parquet", "csv")
_COLUMNS: Final = ("kind", "key", "ids", "successes", "effects", "seconds")
_IDS: Final = 100  # of one key


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconcileOptions:
    """What to compare, by `reference` or by `id`.

    `expected` are the keys that must have been published; without them the messages speak for themselves and none can
    be lost. `business` are the keys of the effects, a row for each. Messages are those of `queues` (by default of all)
    that were published from `first_at` to before `end_at`. What takes longer than `slow_after` from publish to
    archive is slow. The list of all that was found goes to the folder `discrepancies` in `output`, in place of an
    older one.
    """

    run_id: str
    by: str = "reference"
    expected: Keys | None = None
    business: Keys | None = None
    queues: tuple[str, ...] = ()
    first_at: datetime | None = None
    end_at: datetime | None = None
    slow_after: timedelta | None = None
    output: str | None = None
    output_format: str = "parquet"
    sample: int = 20

    def __post_init__(self) -> None:
        for name, value, among in (
            ("by", self.by, _KEYS),
            ("output_format", self.output_format, _FORMATS),
        ):
            if value not in among:
                raise InvalidArgument(f"{name} is {value!r}. Give {' or '.join(among)}.")
        if self.slow_after is not None and self.slow_after < timedelta(0):
            raise InvalidArgument(f"slow_after is {self.slow_after}. Give a duration from zero on.")


def reconcile(spark: SparkSession, options: ReconcileOptions, database: Database) -> Summary:
    """Return how many discrepancies of each kind there are, with a sample of their keys.

    `lost`: expected, and neither in the queue nor in the archive. `doubled`: more than one success, or more than one
    effect. `missing_effect`: a success without effect. `effect_without_success`: an effect whose message did not
    succeed and is not in the queue any more. `slow`: finished too late, or not yet though it is too late. With
    `expected`, messages under other keys count for nothing but the effects.

    Only reads. The order is expected, queue, archive, business, so that a system at work loses and misses nothing in
    between; for the effects without success of one, give a time and a query of that time. QueueNotFound for a name that
    no queue has.
    """
    with run(database, options.run_id, "reconcile") as this:
        if this.summary is not None:
            return this.summary
        require_queues(database, options.queues)
        with watching_tasks(spark, f"reconcile {options.run_id}"):
            return this.finish(_compared(spark, options, database))


def _compared(spark: SparkSession, options: ReconcileOptions, database: Database) -> Summary:
    # Both are checked before the work begins, and read in their turn.
    expected, business = _keys(spark, options.expected, database), _keys(spark, options.business, database)
    expected = expected and expected.localCheckpoint()
    messages = _messages(spark, options, database)
    business = business and business.localCheckpoint()
    found = _found(_joined(expected, messages, business), options).localCheckpoint()
    return {
        "by": options.by,
        "messages": messages.count(),
        "without_key": messages.where(F.col("key").isNull()).count(),
        "unfinished": messages.where(~F.col("finished")).count(),
        "expected": None if expected is None else expected.distinct().count(),
        "effects": None if business is None else business.count(),
        **_summary(found, options),
    }


def _keys(spark: SparkSession, keys: Keys | None, database: Database) -> DataFrame | None:
    return None if keys is None else read_keys(spark, keys, database)


def _messages(spark: SparkSession, options: ReconcileOptions, database: Database) -> DataFrame:
    """Return all messages: key, id, whether finished, whether a success, seconds since it was published."""
    # The queue before the archive: what moves from one to the other in between is seen twice, not never.
    waiting = _read(spark, options, "queue", "id,queue_name,created_at,reference").localCheckpoint()
    archive = _read(
        spark, options, "archive", "id,queue_name,result,created_at,archived_at,reference"
    ).localCheckpoint()
    still = waiting.join(archive.select("id"), "id", "left_anti")
    return _as_messages(archive, options, F.col("result") == "success", F.col("archived_at"), finished=True).unionAll(
        _as_messages(still, options, F.lit(False), F.lit(now(database)), finished=False)
    )


def _as_messages(
    rows: DataFrame, options: ReconcileOptions, success: Column, until: Column, *, finished: bool
) -> DataFrame:
    return rows.select(
        F.col(options.by).cast("string").alias("key"),
        "id",
        F.lit(finished).alias("finished"),
        success.alias("success"),
        ((F.unix_micros(until) - F.unix_micros("created_at")) / 1_000_000).alias("seconds"),
    )


def _read(spark: SparkSession, options: ReconcileOptions, table: str, columns: str) -> DataFrame:
    given = {"table": table, "columns": columns}
    if options.queues:
        given["queue"] = ",".join(options.queues)
    if options.first_at is not None:
        given["from"] = options.first_at.isoformat()
    rows = spark.read.format("pgqueue").options(**given).load()
    if options.first_at is not None:
        rows = rows.where(F.col("created_at") >= F.lit(options.first_at))
    return rows if options.end_at is None else rows.where(F.col("created_at") < F.lit(options.end_at))


def _joined(expected: DataFrame | None, messages: DataFrame, business: DataFrame | None) -> DataFrame:
    """Return one row for each key."""
    rows = (
        messages.where(F.col("key").isNotNull())
        .groupBy("key")
        .agg(
            F.slice(F.array_sort(F.collect_set("id")), 1, _IDS).alias("ids"),
            F.count_if("success").alias("successes"),
            F.count_if(~F.col("finished")).alias("unfinished"),
            F.max("seconds").alias("seconds"),
        )
    )
    if expected is None:
        rows = rows.withColumn("wanted", F.lit(True))
    else:
        rows = rows.join(expected.distinct().withColumn("wanted", F.lit(True)), "key", "full_outer")
    if business is None:
        rows = rows.withColumn("effects", F.lit(None).cast("bigint"))
    else:
        rows = rows.join(business.groupBy("key").agg(F.count("*").alias("effects")), "key", "full_outer")
        rows = rows.fillna(0, ["effects"])
    return rows.fillna(0, ["successes", "unfinished"]).fillna(False, ["wanted"])


def _found(keys: DataFrame, options: ReconcileOptions) -> DataFrame:
    """Return one row for each discrepancy; a key may have several."""
    wanted, successes, effects = F.col("wanted"), F.col("successes"), F.col("effects")
    slow = F.lit(False) if options.slow_after is None else F.col("seconds") > options.slow_after.total_seconds()
    conditions = {
        "lost": wanted & F.col("ids").isNull(),
        "doubled": (wanted & (successes > 1)) | (effects > 1),
        "missing_effect": wanted & (successes > 0) & (effects == 0),
        "effect_without_success": (effects > 0) & (successes == 0) & (F.col("unfinished") == 0),
        "slow": wanted & slow,
    }
    kinds = F.array_compact(F.array(*(F.when(condition, F.lit(kind)) for kind, condition in conditions.items())))
    return keys.withColumn("kind", F.explode(kinds)).select(*_COLUMNS)


def _summary(found: DataFrame, options: ReconcileOptions) -> dict[str, Any]:
    counts = {row["kind"]: row["count"] for row in found.groupBy("kind").count().collect()}
    place = F.row_number().over(Window.partitionBy("kind").orderBy("key"))
    shown = found.withColumn("place", place).where(F.col("place") <= options.sample).orderBy("kind", "place").collect()
    return {
        "discrepancies": sum(counts.values()),
        "found": {kind: counts.get(kind, 0) for kind in KINDS},
        "sample": {kind: [row["key"] for row in shown if row["kind"] == kind] for kind in KINDS if kind in counts},
        "output": _write(found, options),
    }


def _write(found: DataFrame, options: ReconcileOptions) -> str | None:
    """Write the list; a folder of its own, because what was in it goes."""
    if options.output is None:
        return None
    folder = f"{options.output.rstrip('/')}/discrepancies"
    # CSV has no lists.
    rows = found.withColumn("ids", F.concat_ws(" ", "ids")).orderBy("kind", "key")
    written = {"header": "true", "escape": '"'}
    rows.write.format(options.output_format).options(**written).mode("overwrite").save(folder)
    return folder


@click.command("reconcile")
@click.option("--run-id", help="A run that finished under this name is not done again. Default: a new name.")
@click.option("--by", type=click.Choice(_KEYS), default="reference", show_default=True)
@click.option("--expected", "expected_files", metavar="FILES", help="Files with what must be there.")
@click.option("--expected-query", metavar="SQL", help="Or a query. Trusted.")
@click.option("--expected-column", help="Default: as --by.")
@click.option("--expected-dsn-variable", metavar="NAME", help="Variable with the database. Default: the queue's.")
@click.option("--business", "business_files", metavar="FILES", help="Files with the effects.")
@click.option("--business-query", metavar="SQL", help="Or a query, such as: TABLE shop.invoice. Trusted.")
@click.option("--business-column", help="Default: as --by.")
@click.option("--business-dsn-variable", metavar="NAME", help="Variable with the database. Default: the queue's.")
@click.option("--queue", "queues", multiple=True, help="Only messages of this queue; several times for several.")
@click.option("--from", "first_at", type=moment, help="Published at or after, such as 2026-01-31T08:00Z.")
@click.option("--to", "end_at", type=moment, help="Published before.")
@click.option("--slow-after", type=duration, help="From publish to archive: 90s, 10m, 2h, 1d.")
@click.option("--output", metavar="FOLDER", help="Where the full list goes, into its folder discrepancies.")
@click.option("--output-format", type=click.Choice(_FORMATS), default="parquet", show_default=True)
@click.option("--strict", is_flag=True, help="Exit with 1 if there is any discrepancy.")
@on_spark
def command(spark: SparkSession, database: Database, run_id: str | None, strict: bool, **given: Any) -> Summary:
    """Compare what was published with what is archived and with a business table.

    Says what was lost, doubled, had no effect, had an effect without success, or was slow.
    """
    sources: dict[str, Any] = {name: _source(name, given) for name in ("expected", "business")}
    options = ReconcileOptions(run_id=run_id or new_run_id("reconcile"), **sources, **given)
    summary = reconcile(spark, options, database)
    if strict and summary["discrepancies"]:
        print_summary(summary)
        raise click.ClickException(f"{summary['discrepancies']} discrepancies in run {options.run_id}.")
    return summary


def _source(name: str, given: dict[str, Any]) -> Keys | None:
    """Take the options of one source out of those that were given."""
    files, query, column, variable = (
        given.pop(f"{name}_{part}") for part in ("files", "query", "column", "dsn_variable")
    )
    if files is None and query is None:
        return None
    if variable is not None and not os.environ.get(variable):
        raise click.UsageError(f"the variable {variable} is not set. Put the connection string of {name} into it.")
    where = Database(os.environ[variable]) if variable is not None else None
    return Keys(column=column or given["by"], query=query, files=files, database=where)
