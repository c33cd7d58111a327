"""Why the source takes no filters: Spark 4.2 gives all scans of a DataFrame the plan of the one that it filtered."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from pyspark.sql import DataFrame, SparkSession

Connection = psycopg.Connection[Any]


@pytest.fixture
def pushing(spark: SparkSession) -> Iterator[SparkSession]:
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    yield spark
    spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_unions_and_self_joins_of_filtered_reads_are_right_with_push_down(
    pushing: SparkSession, conn: Connection, queue: Callable[..., str]
) -> None:
    queue("orders")
    conn.execute(
        "SELECT messages.publish('orders', to_jsonb(n), reference => CASE WHEN n %% 3 > 0 THEN 'r' || n %% 5 END)"
        " FROM generate_series(1, %s) n",
        [200],
    )
    conn.execute("CREATE VIEW m AS SELECT id, reference, created_at FROM messages.message")
    read: DataFrame = pushing.read.format("pgqueue").options(table="queue", columns="id,reference,created_at").load()
    read.createOrReplaceTempView("m")
    for statement in (
        "SELECT id FROM m WHERE id < 10 UNION ALL SELECT id FROM m WHERE id >= 100",
        "SELECT id FROM m WHERE id < 10 UNION ALL SELECT id FROM m",
        "SELECT id FROM m WHERE reference = 'r1' UNION ALL SELECT id FROM m WHERE reference IS NULL",
        "SELECT a.id FROM m a JOIN m b ON a.reference = b.reference WHERE a.id < 9 AND b.id IN (2, 0)",
        "SELECT a.id FROM m a WHERE a.reference > 'r3' AND a.created_at <= (SELECT max(created_at) FROM m)",
    ):
        wanted = sorted(conn.execute(statement.encode()).fetchall())
        assert wanted, statement
        assert sorted(tuple(row) for row in pushing.sql(statement).collect()) == wanted, statement
