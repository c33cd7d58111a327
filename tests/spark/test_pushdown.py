"""Why the source takes no filters: Spark 4.2 gives all scans of a DataFrame the plan of the one that it filtered."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, Filter, GreaterThanOrEqual, InputPartition, LessThan

Connection = psycopg.Connection[Any]


class Careful(DataSource):
    """Numbers to 200; it takes ranges, and lets Spark apply each filter once more."""

    @classmethod
    def name(cls) -> str:
        return "careful"

    def schema(self) -> str:
        return "id long"

    def reader(self, schema: Any) -> DataSourceReader:
        class Reader(DataSourceReader):
            taken: list[Filter]

            def pushFilters(self, filters: list[Filter]) -> list[Filter]:
                self.taken = filters
                return filters

            def partitions(self) -> list[InputPartition]:
                return [InputPartition(0)]

            def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
                taken = getattr(self, "taken", [])
                least = max((one.value for one in taken if isinstance(one, GreaterThanOrEqual)), default=0)
                end = min((one.value for one in taken if isinstance(one, LessThan)), default=200)
                yield from ((number,) for number in range(least, end))

        return Reader()


@pytest.fixture
def pushing(spark: SparkSession) -> Iterator[SparkSession]:
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    yield spark
    spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_spark_still_loses_rows_of_a_source_that_takes_filters(pushing: SparkSession) -> None:
    pushing.dataSource.register(Careful)
    numbers = pushing.read.format("careful").load()
    both = numbers.where("id < 10").union(numbers.where("id >= 100"))
    # If it is 110, decision 9 can be made anew.
    assert both.count() == 100


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
