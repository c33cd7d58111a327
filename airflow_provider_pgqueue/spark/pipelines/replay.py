"""Publishes finished messages again, out of the archive or out of an export."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from psycopg import sql
from pyspark.errors import AnalysisException, ParseException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from airflow_provider_pgqueue.core import verbs
from airflow_provider_pgqueue.core.argument import check, number, optional, several, text
from airflow_provider_pgqueue.core.client import run
from airflow_provider_pgqueue.core.errors import InvalidArgument, PgQueueError
from airflow_provider_pgqueue.core.json_text import to_json
from airflow_provider_pgqueue.core.message import Result
from airflow_provider_pgqueue.export import exported_queues
from airflow_provider_pgqueue.spark.pipelines.pipeline import Pipeline, Summary, check_time
from airflow_provider_pgqueue.spark.source.read_export import read_export

if TYPE_CHECKING:
    import psycopg
    import pyarrow as pa

Copy = dict[str, Any]

_COPIED: Final = ("id", "queue_name", "priority", "reference", "topic", "group_key", "headers", "message")
_CHOSEN_BY: Final = ("id", "queue_name", "result", "archived_at", "reference", "headers")
_CHUNK: Final = 500  # messages in one statement at most
_CHUNK_BYTES: Final = 8 << 20
_BAD_DATA: Final = "22"  # SQLSTATEs of values that an expression does not take


def replay(
    spark: SparkSession,
    *,
    queues: Sequence[str] = (),
    since: datetime | None = None,
    until: datetime | None = None,
    run_id: str | None = None,
    dsn: str | None = None,
    parallelism: int | None = None,
    results: Sequence[Result] = (),
    references: Sequence[str] = (),
    where: str | None = None,
    export: str | None = None,
    to_queue: str | None = None,
    rate: float = 0,
    dry_run: bool = False,
) -> Summary:
    """Publish finished messages again.

    A copy has a new id, the body, reference, topic, group, priority and headers of the old message, and the headers
    replay_of, the old id, and replay_run. Groups keep their order.

    Under one run_id each message is published once to a queue: a run that was killed goes on where it was when it is
    run again, within 90 days, and counts what it finds as known. A run never chooses what it has published itself.

    :param queues: Only messages of these queues.
    :param since: Archived at or after, such as 2026-01-31T08:00Z.
    :param until: Archived before. Default: now.
    :param results: Only these results.
    :param references: Only these references.
    :param where: A condition in Spark SQL on the columns of the archive. It is run as it is.
    :param export: The target of an export to read. Default: the archive.
    :param to_queue: Where to. Default: where each was.
    :param rate: Messages per second, in the order of their ids; 0 for no limit.
    :param dry_run: Only count.
    :raises QueueNotFound: before anything is published, also for one of `queues` that is not in the export either.
    :raises InvalidArgument: for a number or a condition that cannot be used, or fails for a row.
    """
    check({"rate": rate, "to_queue": to_queue}, {"rate": number(0, math.inf), "to_queue": optional(text)})
    among, *names = several("queues", queues), several("results", results), several("references", references)
    about = [*among, *([f"to={to_queue}"] if to_queue else ())]
    pipeline = Pipeline.of(spark, "replay", run_id, dsn, parallelism, *about, since=since, until=until)
    # The plan and the copies have one end: what is finished in between is neither checked nor counted.
    until = until or pipeline.database.now()
    check_time(since, until)
    choice = _Choice(pipeline, among, names[0], names[1], since, until, where, export)

    def work() -> Summary:
        plan = _plan(choice, to_queue)
        published, known = _copied(choice, to_queue, rate) if plan["chosen"] else (0, 0)
        return plan | {"published": published, "known": known}

    return _plan(choice, to_queue) | {"dry_run": True} if dry_run else pipeline.once(work)


@dataclass(frozen=True, slots=True)
class _Choice:
    """Which messages to publish again."""

    pipeline: Pipeline
    queues: Sequence[str]
    results: Collection[str]
    references: Collection[str]
    since: datetime | None
    until: datetime
    where: str | None
    export: str | None

    def rows(self, columns: tuple[str, ...]) -> DataFrame:
        """Return the messages, with these columns and more."""
        rows = self._archive(columns) if self.export is None else read_export(self.pipeline.spark, self.export)
        chosen_by = {"queue_name": self.queues, "result": self.results, "reference": self.references}
        for name, values in chosen_by.items():
            rows = rows.where(F.col(name).isin(*values)) if values else rows
        rows = rows.where(F.col("archived_at") < F.lit(self.until))
        if self.since is not None:
            rows = rows.where(F.col("archived_at") >= F.lit(self.since))
        # Leave out copies that were finished meanwhile, when a killed run is run again.
        own = F.get_json_object("headers", "$.replay_run").eqNullSafe(self.pipeline.run_id)
        return _filtered(rows, self.where).where(~own)

    def _archive(self, columns: tuple[str, ...]) -> DataFrame:
        """Read the archive; references are found by their index."""
        options = {"until": self.until.isoformat()}
        if self.results:
            options["result"] = ",".join(self.results)
        if self.references:
            among = sql.SQL(", ").join(map(sql.Literal, self.references))
            options["where"] = sql.SQL("reference IN ({})").format(among).as_string(None)
        names = "*" if self.where else ",".join(dict.fromkeys(columns + _CHOSEN_BY))
        return self.pipeline.read("archive", names, queues=self.queues, since=self.since, options=options)


def _plan(choice: _Choice, to_queue: str | None) -> Summary:
    """Count what is chosen, without reading bodies; QueueNotFound for a queue to read or to publish to."""
    # A queue of an export may be gone since.
    pipeline = choice.pipeline
    pipeline.require_queues(set(choice.queues) - (exported_queues(choice.export) if choice.export else set()))
    chosen = choice.rows(_CHOSEN_BY).groupBy("queue_name", "result").count()
    with pipeline.watching(", counting"), _explained(choice.where):
        counts = chosen.orderBy("queue_name", "result").collect()
    targets = {row["queue_name"] for row in counts} if to_queue is None else {to_queue}
    for target in sorted(targets):
        pipeline.ask(verbs.replay(pipeline.run_id, target, "[]"))
    return {
        "chosen": sum(row["count"] for row in counts),
        "from": [{"queue": row["queue_name"], "result": row["result"], "messages": row["count"]} for row in counts],
        "to": sorted(targets),
        "dry_run": False,
    }


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


@contextmanager
def _explained(where: str | None) -> Iterator[None]:
    """Raise InvalidArgument for a condition that fails for a row, without what Spark says: it quotes the row."""
    try:
        yield
    except PySparkException as error:
        if where is None or not (error.getSqlState() or "").startswith(_BAD_DATA):
            raise
        said = f"the filter {where!r} fails for a row: {error.getCondition()}"
        raise InvalidArgument(said, "Give one that fails for no row, such as one with try_cast().") from None


def _copied(choice: _Choice, to_queue: str | None, rate: float) -> tuple[int, int]:
    """Publish from the executors, each group in one task and in the order of ids; at a pace from a single task."""
    database, run_id, parallelism = choice.pipeline.database, choice.pipeline.run_id, choice.pipeline.at_once()
    copies = choice.rows(_COPIED)
    copies = (copies if to_queue is None else copies.withColumn("queue_name", F.lit(to_queue))).select(*_COPIED)
    size = min(_CHUNK, max(1, int(rate))) if rate else _CHUNK

    def publish(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        due, published, known = 0.0, 0, 0
        with database.connect("pgqueue replay", patient=True) as conn:
            for part in _chunks((row for batch in batches for row in batch.to_pylist()), size):
                time.sleep(max(0.0, due - time.monotonic()))
                began = time.monotonic()
                new = _publish(conn, run_id, part)
                # A pause is not made up for afterwards, and what the run had published before takes no time.
                due = began + new / rate if rate else 0.0
                published, known = published + new, known + len(part) - new
        yield pa.RecordBatch.from_pydict({"published": [published], "known": [known]})

    line = F.coalesce("group_key", F.col("id").cast("string"))
    tasks = copies.repartition(1) if rate else copies.repartition(parallelism, "queue_name", line)
    done = tasks.sortWithinPartitions("id").mapInArrow(publish, "published long, known long")
    with choice.pipeline.watching(), _explained(choice.where):
        published, known = done.agg(F.sum("published"), F.sum("known")).collect()[0]
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
        return run(conn, verbs.replay(run_id, chunk[0]["queue_name"], rows, priority=chunk[0]["priority"]))
    except PgQueueError as error:
        # Spark shows what an error came from, and what the driver says may quote a body.
        raise type(error)(str(error)) from None


def _as_json(copy: Copy) -> str:
    """Return a copy as an object; body and headers as the texts that PostgreSQL gave, numbers of any size too."""
    texts = {name: to_json(copy[name]) for name in ("id", "reference", "topic", "group_key")}
    texts |= {"message": copy["message"], "headers": copy["headers"] or "null"}
    return "{" + ",".join(f'"{name}":{text}' for name, text in texts.items()) + "}"
