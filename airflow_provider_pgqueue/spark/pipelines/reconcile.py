"""Compares what was to be published, what became of it in the queue, and which effects it had."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import PurePath
from typing import Final, Literal

import psycopg
import pyarrow as pa
from psycopg import sql
from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from airflow_provider_pgqueue.core.argument import check, duration, one_of, optional, several
from airflow_provider_pgqueue.core.duration import Duration, seconds
from airflow_provider_pgqueue.core.errors import (
    ConnectionFailed,
    InvalidArgument,
    PermissionDenied,
    PgQueueError,
    translate,
)
from airflow_provider_pgqueue.core.query import query
from airflow_provider_pgqueue.export.connection import Database, rows
from airflow_provider_pgqueue.export.target import shown
from airflow_provider_pgqueue.spark.pipelines.pipeline import Pipeline, Summary, as_line

log = logging.getLogger(__name__)

_KINDS: Final = ("lost", "doubled", "missing_effect", "effect_without_success", "slow")
_COLUMNS: Final = ("kind", "key", "ids", "successes", "effects", "seconds")
_IDS: Final = 100  # of one key
_SAMPLE: Final = 20  # keys of each kind in the summary
_RULES: Final = {
    "by": one_of("reference", "id"),
    "output_format": one_of("parquet", "csv"),
    "slow_after": optional(duration(timedelta(0), timedelta(days=36_500))),
}
_FORMATS: Final = {".csv": "csv", ".json": "json", ".jsonl": "json", ".ndjson": "json"}


def reconcile(
    spark: SparkSession,
    *,
    queues: Sequence[str] = (),
    since: datetime | None = None,
    until: datetime | None = None,
    run_id: str | None = None,
    dsn: str | None = None,
    parallelism: int | None = None,
    by: Literal["reference", "id"] = "reference",
    expected: str | None = None,
    expected_query: str | None = None,
    expected_column: str | None = None,
    expected_dsn_variable: str | None = None,
    business: str | None = None,
    business_query: str | None = None,
    business_column: str | None = None,
    business_dsn_variable: str | None = None,
    slow_after: Duration | None = None,
    output: str | None = None,
    output_format: Literal["parquet", "csv"] = "parquet",
    strict: bool = False,
) -> Summary:
    """Compare what was to be published with what is archived and with a business table.

    Counts each kind of discrepancy, with a sample of the keys. `lost`: expected, and neither in the queue nor in the
    archive. `doubled`: more than one success, or more than one effect. `missing_effect`: a success without effect.
    `effect_without_success`: an effect whose message did not succeed and is not in the queue any more. `slow`: finished
    too late, or unfinished though it is too late. Without a list of what is expected, no message can be reported lost;
    with one, messages under other keys are compared with the effects only.

    Only reads. The order is expected, queue, archive, business, so that a system at work loses and misses nothing in
    between; for the effects without success of one, give a time and a query of that time.

    :param queues: Only messages of these queues.
    :param since: Published at or after, such as 2026-01-31T08:00Z.
    :param until: Published before.
    :param by: What the keys are.
    :param expected: Files with the keys of what must be there: Parquet, CSV with a header, or JSON lines.
    :param expected_query: Or a query. It is run as it is.
    :param expected_column: The column with the keys. Default: as --by.
    :param expected_dsn_variable: Environment variable with the database of the query. Default: the queue's.
    :param business: Files with the effects, a row for each.
    :param business_query: Or a query, such as: TABLE shop.invoice. It is run as it is.
    :param business_column: The column with the keys. Default: as --by.
    :param business_dsn_variable: Environment variable with the database of the query. Default: the queue's.
    :param slow_after: From publish to archive: 90s, 10m, 2h, 1d.
    :param output: Where the full list goes, into its folder `discrepancies`, in place of an older one.
    :param output_format: Of the list.
    :param strict: Fail if there is any discrepancy. The run is not finished then: run again, it compares again.
    :raises QueueNotFound: for a name that no queue has.
    """
    check(locals(), _RULES)
    queues = several("queues", queues)
    pipeline = Pipeline.of(spark, "reconcile", run_id, dsn, parallelism, *queues, since=since, until=until)
    expected_keys = _Keys("expected", expected, expected_query, expected_dsn_variable, expected_column or by)
    business_keys = _Keys("business", business, business_query, business_dsn_variable, business_column or by)

    def work() -> Summary:
        pipeline.require_queues(queues)
        with pipeline.watching():
            # Both are checked before the work begins, and read in their turn.
            wanted, effects = expected_keys.of(pipeline), business_keys.of(pipeline)
            wanted = wanted and wanted.localCheckpoint()
            messages = _messages(pipeline, by, queues, since, until)
            effects = effects and effects.localCheckpoint()
            found = _found(_joined(wanted, messages, effects), slow_after).localCheckpoint()
            summary = {"by": by, **_counts(wanted, messages, effects), **_kinds(found)}
            summary["output"] = None if output is None else _write(found, output, output_format)
        if strict and (number := summary["discrepancies"]):
            log.error("reconcile %s: %s", pipeline.run_id, as_line(summary))
            raise PgQueueError(
                f"{number:,} {'discrepancy' if number == 1 else 'discrepancies'} in run {pipeline.run_id}"
            )
        return summary

    return pipeline.once(work)


def _messages(
    pipeline: Pipeline, by: str, queues: Sequence[str], since: datetime | None, until: datetime | None
) -> DataFrame:
    """Return the messages to compare: key, id, whether finished, whether a success, seconds since it was published."""

    def read(table: str, columns: str) -> DataFrame:
        rows = pipeline.read(table, columns, queues=queues, since=since)
        rows = rows if since is None else rows.where(F.col("created_at") >= F.lit(since))
        return (rows if until is None else rows.where(F.col("created_at") < F.lit(until))).localCheckpoint()

    def keyed(rows: DataFrame, success: Column, end: Column, *, finished: bool) -> DataFrame:
        return rows.select(
            F.col(by).cast("string").alias("key"),
            "id",
            F.lit(finished).alias("finished"),
            success.alias("success"),
            ((F.unix_micros(end) - F.unix_micros("created_at")) / 1_000_000).alias("seconds"),
        )

    # Read the queue before the archive: a message that moves in between is then seen twice, and not missed.
    waiting = read("queue", "id,queue_name,created_at,reference")
    archive = read("archive", "id,queue_name,result,created_at,archived_at,reference")
    still = waiting.join(archive.select("id"), "id", "left_anti")
    done = keyed(archive, F.col("result") == "success", F.col("archived_at"), finished=True)
    return done.unionAll(keyed(still, F.lit(False), F.lit(pipeline.database.now()), finished=False))


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


def _found(keys: DataFrame, slow_after: Duration | None) -> DataFrame:
    """Return one row for each discrepancy; a key may have several."""
    wanted, successes, effects = F.col("wanted"), F.col("successes"), F.col("effects")
    slow = F.lit(False) if slow_after is None else F.col("seconds") > seconds(slow_after)
    conditions = {
        "lost": wanted & F.col("ids").isNull(),
        "doubled": (wanted & (successes > 1)) | (effects > 1),
        "missing_effect": wanted & (successes > 0) & (effects == 0),
        "effect_without_success": (effects > 0) & (successes == 0) & (F.col("unfinished") == 0),
        "slow": wanted & slow,
    }
    kinds = F.array_compact(F.array(*(F.when(condition, F.lit(kind)) for kind, condition in conditions.items())))
    return keys.withColumn("kind", F.explode(kinds)).select(*_COLUMNS)


def _counts(expected: DataFrame | None, messages: DataFrame, business: DataFrame | None) -> Summary:
    return {
        "messages": messages.count(),
        "without_key": messages.where(F.col("key").isNull()).count(),
        "unfinished": messages.where(~F.col("finished")).count(),
        "expected": None if expected is None else expected.distinct().count(),
        "effects": None if business is None else business.count(),
    }


def _kinds(found: DataFrame) -> Summary:
    number, sample = F.count("*").alias("number"), F.min_by("key", "key", _SAMPLE).alias("sample")
    kinds = {row["kind"]: row for row in found.groupBy("kind").agg(number, sample).collect()}
    counts = {kind: kinds[kind]["number"] if kind in kinds else 0 for kind in _KINDS}
    return {
        "discrepancies": sum(counts.values()),
        "found": counts,
        "sample": {kind: kinds[kind]["sample"] for kind in _KINDS if kind in kinds},
    }


def _write(found: DataFrame, output: str, output_format: str) -> str:
    """Write the list; a folder of its own, because what was in it goes."""
    folder = f"{output.rstrip('/')}/discrepancies"
    # CSV has no lists.
    rows = found.withColumn("ids", F.concat_ws(" ", "ids")).orderBy("kind", "key")
    try:
        rows.write.format(output_format).options(header="true", escape='"').mode("overwrite").save(folder)
    except (Py4JJavaError, PySparkException) as error:
        raise InvalidArgument(f"output {shown(output)!r} cannot be written", "See why in Spark's log.") from error
    return folder


@dataclass(frozen=True, slots=True)
class _Keys:
    """Where the keys that are `expected`, or those of the `business` table, come from: files, a query, or nowhere."""

    name: str
    files: str | None
    query: str | None
    dsn_variable: str | None
    column: str

    def of(self, pipeline: Pipeline) -> DataFrame | None:
        """Return the keys, as texts in a column `key`, without NULL; None if they come from nowhere.

        InvalidArgument for what has no such column.
        """
        name, variable = self.name, self.dsn_variable
        if self.files is not None and self.query is not None:
            raise InvalidArgument(f"{name} and {name}_query are both given. Give files or a query.")
        if variable is not None and not os.environ.get(variable):
            raise InvalidArgument(f"the variable {variable} is not set. Put the connection string of {name} into it.")
        if self.query is not None:
            database = pipeline.database if variable is None else Database(os.environ[variable])
            keys = _of_query(pipeline.spark, database, self.query, self.column)
        elif self.files is not None:
            keys = _of_files(pipeline.spark, self.files, self.column)
        else:
            return None
        return keys.where("key IS NOT NULL")


def _of_files(spark: SparkSession, path: str, column: str) -> DataFrame:
    kind = next((_FORMATS[suffix] for suffix in PurePath(path).suffixes if suffix in _FORMATS), "parquet")
    try:
        rows = spark.read.format(kind).option("header", True).load(path)  # only CSV has this option
        columns = rows.columns
    except AnalysisException as error:
        raise InvalidArgument(f"{path!r} cannot be read as {kind}: {str(error).splitlines()[0]}") from error
    if column not in columns:
        raise InvalidArgument(f"{path!r} has no column {column!r}. It has {', '.join(columns)}.")
    return rows.select(F.col(f"`{column.replace('`', '``')}`").cast("string").alias("key"))


def _of_query(spark: SparkSession, database: Database, given: str, column: str) -> DataFrame:
    text = sql.SQL(query("keys").decode()).format(sql.Identifier(column), sql.SQL(given.strip().rstrip(";")))
    with database.connect("pgqueue keys") as conn:
        statement = text.as_string(conn)
        try:
            # Let PostgreSQL plan it before Spark starts anything.
            conn.execute(f"EXPLAIN {statement}".encode())
        except psycopg.Error as error:
            known = translate(error)
            if isinstance(known, ConnectionFailed | PermissionDenied):
                raise known from error
            said = error.diag.message_primary
            raise InvalidArgument(f"the query is not valid: {said}. Give a SELECT that has the column.") from error

    def fetch(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            with database.arrow("pgqueue keys") as session:
                yield from rows(session, statement, pa.schema([("key", pa.string())]), given="the query")

    # One task: a query cannot be cut into ranges, and one column of it flows through COPY as it is read.
    return spark.range(0, 1, 1, 1).mapInArrow(fetch, "key string")
