"""The cases compared with Spark's own JDBC source, in turns in one warm session: export, publish."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import psycopg
from pyspark.sql import functions as f

from airflow_provider_pgqueue.spark import export, read_export, register
from benchmarks.report import Line, Row
from benchmarks.spark.data import PARTITION, fill_archive, write_flights
from benchmarks.spark.place import Contestant, Place, execute
from benchmarks.spark.usage import Usage

_ARCHIVE: Final = """
(SELECT id, queue_name, result, created_at, leased_at, archived_at, priority, attempts, requeues, requeued_from,
        handled_by, details, reference, topic, group_key, fingerprint, resolution, resolved_at, resolved_by,
        requeued_as, dismissed_for, headers::text, output::text, failure::text, message::text, xid::text
   FROM messages.message_archive) AS archive
"""
_EMPTY: Final = "TRUNCATE messages.message"
_WAITING: Final = "SELECT count(*) FROM messages.message"
_BOUNDS: Final = "SELECT min(id), max(id) FROM messages.message_archive"


def export_and_jdbc(place: Place, rows: int, rounds: int) -> list[Line]:
    """Export a partition with manifest, and the same rows by JDBC to Parquet."""
    with place.database("export") as dsn:
        with psycopg.connect(dsn, autocommit=True) as conn:
            fill_archive(conn, rows)
        samples = place.in_turns(
            {
                "ours": _export(place, dsn),
                "jdbc": _jdbc_to_parquet(place, dsn, in_folders=False),
                "in folders": _jdbc_to_parquet(place, dsn, in_folders=True),
            },
            rounds,
            rows,
        )
    name, ours = f"export {rows:,}", samples["ours"]
    return [
        *_compared(name, "JDBC to Parquet", rows, ours, samples["jdbc"], wall=1.5),
        *_compared(name, "JDBC to Parquet, same folders", rows, ours, samples["in folders"]),
    ]


def _export(place: Place, dsn: str) -> Contestant:
    target = place.folder("ours")
    return Contestant(
        prepare=lambda: place.folder("ours"),
        work=lambda: export(place.spark, target=str(target), dsn=dsn, partitions=[PARTITION]),
        done=lambda: read_export(place.spark, str(target)).count(),
    )


def _jdbc_to_parquet(place: Place, dsn: str, *, in_folders: bool) -> Contestant:
    target = place.folder("jdbc")

    def work() -> None:
        with psycopg.connect(dsn) as conn:
            first, last = conn.execute(_BOUNDS).fetchone() or (0, 0)
        parts = {"partitionColumn": "id", "lowerBound": first, "upperBound": last, "numPartitions": 4}
        read = place.jdbc(place.spark.read, dsn, dbtable=_ARCHIVE, fetchsize=10_000, **parts).load()
        if in_folders:
            dated = read.withColumn("date", f.to_date("archived_at"))
            dated.write.partitionBy("queue_name", "result", "date").parquet(str(target))
        else:
            read.write.parquet(str(target))

    return Contestant(
        prepare=lambda: place.folder("jdbc"),
        work=work,
        done=lambda: place.spark.read.parquet(str(target)).count(),
    )


def publish_and_jdbc(place: Place, rows: int, rounds: int) -> list[Line]:
    """Publish the rows of a Parquet file, and append them to the same table by JDBC."""
    source = place.folder("flights")
    write_flights(place.spark, source, rows)
    with place.database("publish") as dsn:
        samples = place.in_turns(
            {
                "ours": _publish(place, dsn, source),
                "jdbc": _jdbc_append(place, dsn, source, rewrite=False),
                "rewritten": _jdbc_append(place, dsn, source, rewrite=True),
            },
            rounds,
            rows,
        )
    name, ours = f"publish {rows:,}", samples["ours"]
    return [
        *_compared(name, "JDBC append", rows, ours, samples["jdbc"], cpu=1.2),
        *_compared(name, "JDBC append, reWriteBatchedInserts", rows, ours, samples["rewritten"]),
    ]


def _publish(place: Place, dsn: str, source: Path, **given: str) -> Contestant:
    def work() -> None:
        options = given | {"queue": "bench", "runId": uuid4().hex}
        place.spark.read.parquet(str(source)).write.format("pgqueue").mode("append").options(**options).save()

    def prepare() -> None:
        register(place.spark, dsn)
        execute(dsn, _EMPTY)

    return Contestant(prepare, work, lambda: execute(dsn, _WAITING))


def _jdbc_append(place: Place, dsn: str, source: Path, *, rewrite: bool) -> Contestant:
    options: dict[str, Any] = {"dbtable": "messages.message", "stringtype": "unspecified"}
    if rewrite:
        options["reWriteBatchedInserts"] = "true"

    def work() -> None:
        flights = place.spark.read.parquet(str(source)).withColumn("queue_name", f.lit("bench"))
        place.jdbc(flights.write, dsn, **options).mode("append").save()

    return Contestant(lambda: execute(dsn, _EMPTY), work, lambda: execute(dsn, _WAITING))


def _compared(
    name: str,
    other: str,
    rows: int,
    ours: list[Usage],
    theirs: list[Usage],
    *,
    wall: float | None = None,
    cpu: float | None = None,
) -> list[Line]:
    def rates(samples: list[Usage]) -> list[float]:
        return [rows / one.seconds for one in samples]

    def per_cpu(samples: list[Usage]) -> list[float]:
        return [rows / one.cpu_seconds for one in samples]

    note = f"CPU s {_cpu(ours)} / {_cpu(theirs)}"
    return [
        Row(name, other, rates(ours), rates(theirs), "rows/s", wall),
        Row(f"{name}, CPU", other, per_cpu(ours), per_cpu(theirs), "rows/CPU s", cpu, note=note),
    ]


def _cpu(samples: list[Usage]) -> str:
    """Return the CPU seconds of Spark's JVM, Python and PostgreSQL, on average."""
    kinds = ("spark jvm", "spark", "postgres")
    return "+".join(f"{sum(one.cpu[kind] for one in samples) / len(samples):.1f}" for kind in kinds)
