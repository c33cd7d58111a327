"""Publishes finished messages again, out of the archive or out of an export."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import click
from psycopg import sql
from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from airflow_provider_pgqueue.core import verbs
from airflow_provider_pgqueue.core.client import run as run_statement
from airflow_provider_pgqueue.core.client import to_json
from airflow_provider_pgqueue.core.errors import InvalidArgument, PgQueueError
from airflow_provider_pgqueue.spark.database import Database
from airflow_provider_pgqueue.spark.jobs.command import new_run_id, on_spark
from airflow_provider_pgqueue.spark.jobs.moment import moment, now
from airflow_provider_pgqueue.spark.jobs.queues import require_queues
from airflow_provider_pgqueue.spark.jobs.run import Progress, Summary, run
from airflow_provider_pgqueue.spark.jobs.watch import watching_tasks

if TYPE_CHECKING:
    import psycopg
    import pyarrow as pa

Copy = dict[str, Any]

_COPIED: Final = ("id", "queue_name", "priority", "reference", "topic", "group_key", "headers", "message")
_CHOSEN_BY: Final = ("id", "queue_name", "result", "archived_at", "reference", "headers")
_CHUNK_BYTES: Final = 8 << 20
# In a dedup key it stands between `replay/` and an id, and a key has at most 255 characters.
_LONGEST_RUN_ID: Final = 225


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOptions:
    """Which messages to publish again, where to, and how fast.

    `queue` is where to, by default where each was. `export` is the target of an export, by default the archive is
    read. `queues`, `results`, `references` and the time of archiving from `first_at` to before `end_at` (by default
    now) choose among the messages, and so does `where`, a Spark SQL expression on the columns of the archive; it comes
    from who operates the system and is run as it is. `rate` is messages a second, 0 as fast as `connections` can.
    A statement has at most `chunk` messages, and about 8 MiB.
    """

    run_id: str
    queue: str | None = None
    export: str | None = None
    queues: tuple[str, ...] = ()
    results: tuple[str, ...] = ()
    references: tuple[str, ...] = ()
    first_at: datetime | None = None
    end_at: datetime | None = None
    where: str | None = None
    rate: float = 0
    connections: int = 4
    chunk: int = 500
    dry_run: bool = False

    def __post_init__(self) -> None:
        for name, least in (("rate", 0), ("connections", 1), ("chunk", 1)):
            if not getattr(self, name) >= least:
                raise InvalidArgument(f"{name} is {getattr(self, name)}. Give a number from {least} on.")
        if len(self.run_id) > _LONGEST_RUN_ID:
            raise InvalidArgument(f"run_id has {len(self.run_id)} characters. Give at most {_LONGEST_RUN_ID}.")


def replay(spark: SparkSession, options: ReplayOptions, database: Database) -> Summary:
    """Publish copies of the chosen messages; how many were chosen, by queue and result, and published.

    A copy has the body, reference, topic, group, priority and headers of the old message, and the headers `replay_of`,
    its id, and `replay_run`. Under one `run_id` each message is published once to a queue: a run that was killed goes
    on where it was when it is run again, within 90 days, and counts what it finds as `known`. What a run has published
    itself it does not choose again. Groups keep their order. A dry run only counts. QueueNotFound before anything is
    published, also for one of `queues` that is neither there nor in the export; InvalidArgument for a filter that is
    none.
    """
    if options.dry_run:
        return _plan(spark, options, database)
    with run(database, options.run_id, "replay") as this:
        if this.summary is not None:
            return this.summary
        plan = _plan(spark, options, database)
        copies = _choose(spark, options, database, _COPIED).withColumn("queue_name", _target(options)).select(*_COPIED)
        publish = _at_pace if options.rate else _at_once
        published, known = publish(copies, options, database) if plan["chosen"] else (0, 0)
        return this.finish(plan | {"published": published, "known": known})


def _plan(spark: SparkSession, options: ReplayOptions, database: Database) -> Summary:
    """Count what is chosen, without reading bodies; QueueNotFound for a queue to read or to publish to."""
    require_queues(database, set(options.queues) - _exported(options))
    chosen = _choose(spark, options, database, _CHOSEN_BY).groupBy("queue_name", "result").count()
    with watching_tasks(spark, f"replay {options.run_id}, counting"):
        counts = chosen.orderBy("queue_name", "result").collect()
    targets = {options.queue} if options.queue is not None else {row["queue_name"] for row in counts}
    with database.connect("pgqueue replay") as conn:
        for target in sorted(targets):
            run_statement(conn, verbs.replay(options.run_id, target, "[]"))
    found = [{"queue": row["queue_name"], "result": row["result"], "messages": row["count"]} for row in counts]
    return {
        "chosen": sum(row["count"] for row in counts),
        "from": found,
        "to": sorted(targets),
        "dry_run": options.dry_run,
    }


def _exported(options: ReplayOptions) -> set[str]:
    """Return the queues of an export, which may be gone since."""
    if options.export is None:
        return set()
    from airflow_provider_pgqueue.spark.jobs.export.read_export import exported_queues

    return exported_queues(options.export)


def _target(options: ReplayOptions) -> Column:
    return F.col("queue_name") if options.queue is None else F.lit(options.queue)


def _choose(spark: SparkSession, options: ReplayOptions, database: Database, columns: tuple[str, ...]) -> DataFrame:
    end_at = options.end_at or now(database)
    if options.export is None:
        rows = _archive(spark, options, columns)
    else:
        from airflow_provider_pgqueue.spark.jobs.export.read_export import read_export

        rows = read_export(spark, options.export)
    for name, values in (
        ("queue_name", options.queues),
        ("result", options.results),
        ("reference", options.references),
    ):
        rows = rows.where(F.col(name).isin(*values)) if values else rows
    rows = rows.where(F.col("archived_at") < F.lit(end_at))
    if options.first_at is not None:
        rows = rows.where(F.col("archived_at") >= F.lit(options.first_at))
    # Copies that were finished meanwhile, when a killed run is run again.
    own = F.get_json_object("headers", "$.replay_run").eqNullSafe(options.run_id)
    return _filtered(rows, options.where).where(~own)


def _archive(spark: SparkSession, options: ReplayOptions, columns: tuple[str, ...]) -> DataFrame:
    """Read the archive; references are found by their index."""
    references = sql.SQL(", ").join(map(sql.Literal, options.references))
    given = {
        "table": "archive",
        "columns": "*" if options.where else ",".join(dict.fromkeys(columns + _CHOSEN_BY)),
        "queue": ",".join(options.queues),
        "result": ",".join(options.results),
        "from": options.first_at.isoformat() if options.first_at else "",
        "to": options.end_at.isoformat() if options.end_at else "",
        "where": sql.SQL("reference IN ({})").format(references).as_string(None) if options.references else "",
    }
    return spark.read.format("pgqueue").options(**{name: value for name, value in given.items() if value}).load()


def _filtered(rows: DataFrame, where: str | None) -> DataFrame:
    if where is None:
        return rows
    try:
        found = rows.where(where)
        found.schema  # noqa: B018 over Spark Connect the expression is looked at here
    except (AnalysisException, ParseException) as error:
        reason = str(error).strip().splitlines()[0]
        raise InvalidArgument(
            f"the filter {where!r} is not one: {reason} Give a Spark SQL condition on {', '.join(rows.columns)}."
        ) from error
    return found


def _at_pace(copies: DataFrame, options: ReplayOptions, database: Database) -> tuple[int, int]:
    """Publish from the driver in the order of ids; a pause is not made up for afterwards."""
    size = max(1, min(options.chunk, int(options.rate)))
    rows = (row.asDict() for row in copies.orderBy("id").toLocalIterator())
    progress = Progress(f"replay {options.run_id}")
    due, published, known = 0.0, 0, 0
    with database.connect("pgqueue replay") as conn:
        for chunk in _chunks(rows, size):
            time.sleep(max(0.0, due - time.monotonic()))
            began = time.monotonic()
            new = _publish(conn, options.run_id, chunk)
            # What the run published before it was killed takes no time.
            due = began + new / options.rate
            published, known = published + new, known + len(chunk) - new
            progress.at(published, known=known)
    return published, known


def _at_once(copies: DataFrame, options: ReplayOptions, database: Database) -> tuple[int, int]:
    """Publish from the executors; a group is in one task, in the order of ids."""
    run_id, size = options.run_id, options.chunk

    def publish(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        published = known = 0
        with database.connect("pgqueue replay") as conn:
            for chunk in _chunks((row for batch in batches for row in batch.to_pylist()), size):
                new = _publish(conn, run_id, chunk)
                published, known = published + new, known + len(chunk) - new
        yield pa.RecordBatch.from_pydict({"published": [published], "known": [known]})

    line = F.coalesce("group_key", F.col("id").cast("string"))
    tasks = copies.repartition(options.connections, "queue_name", line).sortWithinPartitions("id")
    done = tasks.mapInArrow(publish, "published long, known long").agg(F.sum("published"), F.sum("known"))
    with watching_tasks(copies.sparkSession, f"replay {run_id}"):
        published, known = done.collect()[0]
    return published, known


def _chunks(rows: Iterable[Copy], size: int) -> Iterator[list[Copy]]:
    """Cut rows, in their order, where the queue or the priority changes or a chunk is large enough."""
    chunk: list[Copy] = []
    length = 0
    for row in rows:
        same = chunk and all(row[name] == chunk[0][name] for name in ("queue_name", "priority"))
        if chunk and not (same and len(chunk) < size and length < _CHUNK_BYTES):
            yield chunk
            chunk, length = [], 0
        chunk.append(row)
        length += len(row["message"])
    if chunk:
        yield chunk


def _publish(conn: psycopg.Connection[Any], run_id: str, chunk: list[Copy]) -> int:
    """Publish one chunk in one transaction; how many of it were new."""
    rows = f"[{','.join(map(_as_json, chunk))}]"
    try:
        return run_statement(conn, verbs.replay(run_id, chunk[0]["queue_name"], rows, priority=chunk[0]["priority"]))
    except PgQueueError as error:
        # Spark shows what an error came from, and what the driver says may quote a body.
        raise type(error)(str(error)) from None


def _as_json(copy: Copy) -> str:
    """Return a copy as an object; body and headers as the texts that PostgreSQL gave, numbers of any size too."""
    texts = {name: to_json(copy[name]) for name in ("id", "reference", "topic", "group_key")}
    texts |= {"message": copy["message"], "headers": copy["headers"] or "null"}
    return "{" + ",".join(f'"{name}":{text}' for name, text in texts.items()) + "}"


@click.command("replay")
@click.option("--run-id", help="Under one name each message is published once. Default: a new name.")
@click.option("--to-queue", "queue", help="Where to. Default: where each was.")
@click.option("--export", metavar="FOLDER", help="Read an export. Default: the archive.")
@click.option("--queue", "queues", multiple=True, help="Only messages of this queue; several times for several.")
@click.option("--result", "results", multiple=True, help="Only this result; several times for several.")
@click.option("--reference", "references", multiple=True, help="Only this reference; several times for several.")
@click.option("--from", "first_at", type=moment, help="Archived at or after, such as 2026-01-31T08:00Z.")
@click.option("--to", "end_at", type=moment, help="Archived before. Default: now.")
@click.option("--where", metavar="SQL", help="A condition in Spark SQL on the columns of the archive. Trusted.")
@click.option("--rate", type=click.FloatRange(0), default=0, show_default=True, help="Messages a second; 0: no limit.")
@click.option("--connections", type=click.IntRange(1), default=4, show_default=True, help="At most, without a rate.")
@click.option("--dry-run", is_flag=True, help="Only count.")
@on_spark
def command(spark: SparkSession, database: Database, run_id: str | None, **options: Any) -> Summary:
    """Publish finished messages again.

    Copies get new ids and the header replay_of with the old one. A run that was killed goes on under its --run-id.
    """
    return replay(spark, ReplayOptions(run_id=run_id or new_run_id("replay"), **options), database)
