"""`df.write.format("pgqueue")` and `writeStream`: each row is published once, whatever dies, runs twice or is run again."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from airflow_provider_pgqueue.core.errors import (
    InvalidArgument,
    InvalidMessage,
    PermissionDenied,
    QueueFull,
    QueueNotFound,
    StageIncomplete,
)
from airflow_provider_pgqueue.spark.database import Database
from airflow_provider_pgqueue.spark.staging import Stage, Staged

Connection = psycopg.Connection[Any]


def publish(frame: DataFrame, **options: Any) -> None:
    frame.write.format("pgqueue").mode("append").options(**({"queue": "orders"} | options)).save()


def frame_of(spark: SparkSession, bodies: Any, partitions: int = 2) -> DataFrame:
    return spark.createDataFrame([(json.dumps(body),) for body in bodies], "message string").repartition(partitions)


def bodies(conn: Connection) -> list[Any]:
    return [body for (body,) in conn.execute("SELECT message FROM messages.message ORDER BY id")]


def stages(conn: Connection) -> list[str]:
    rows = conn.execute("SELECT relname FROM pg_class WHERE relname ~ '^publish_stage_[0-9]+$' ORDER BY 1").fetchall()
    return [name for (name,) in rows]


def test_rows_arrive_once_with_all_columns(spark: SparkSession, conn: Connection, queue: Callable[..., str]) -> None:
    queue()
    frame = spark.sql(
        """
        SELECT to_json(struct(id, 'a\\tb\\n"ü\\\\' AS text)) AS message, concat('order-', id) AS reference,
               '{"source": "shop"}' AS headers, 'shop.order' AS topic, 'g' AS group_key,
               cast(id AS smallint) AS priority, timestamp '2100-01-01' AS visible_at,
               timestamp '2101-01-01 12:00:00.000001' AS expires_at
          FROM range(3)
        """
    )
    with pytest.raises(Exception, match="visible_at is too far away"):
        publish(frame)
    assert stages(conn) == []
    publish(frame.withColumns({"visible_at": frame.visible_at - __import__("pyspark").sql.functions.expr("interval 73 years"), "expires_at": frame.expires_at- __import__("pyspark").sql.functions.expr("interval 73 years")}))
    rows = conn.execute("SELECT message, reference, headers, topic, group_key, priority, expires_at FROM messages.message ORDER BY id").fetchall()
    print(rows)
    assert stages(conn) == []


def test_a_second_run_with_the_same_run_id_publishes_nothing(spark: SparkSession, conn: Connection, queue: Callable[..., str]) -> None:
    queue()
    publish(frame_of(spark, range(5)), runId="nightly")
    publish(frame_of(spark, range(5)), runId="nightly")
    assert sorted(bodies(conn)) == [0, 1, 2, 3, 4]


def test_stream(spark: SparkSession, conn: Connection, queue: Callable[..., str], tmp_path) -> None:
    queue()
    frame_of(spark, range(10)).write.parquet(str(tmp_path / "in"))
    stream = spark.readStream.schema("message string").parquet(str(tmp_path / "in"))
    for _ in range(2):
        stream.writeStream.format("pgqueue").option("queue", "orders").option("checkpointLocation", str(tmp_path / "cp")).trigger(availableNow=True).start().awaitTermination()
    print(conn.execute("TABLE messages.pipeline_run").fetchall())
    assert sorted(bodies(conn)) == list(range(10))
    assert stages(conn) == []
