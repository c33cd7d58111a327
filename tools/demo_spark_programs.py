"""The programs of the Spark demo that are not pipelines: publish the flights, join, compare, publish again."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from airflow_provider_pgqueue.spark import read_export, register

QUEUE: Final = "spark_flights"
AGAIN: Final = "spark_flights_again"


def publish(spark: SparkSession, home: Path, limit: int | None) -> dict[str, Any]:
    """Publish each row of the data file as a message whose reference is its number, and keep the references."""
    from flights import read_flights

    source = home / "flights.jsonl"
    with source.open("w") as file:
        for number, flight in enumerate(read_flights(limit), start=1):
            file.write(json.dumps({"reference": f"flight-{number}", "message": json.dumps(flight)}) + "\n")
    flights: DataFrame = spark.read.schema("reference string, message string").json(str(source))
    flights.select("reference").write.mode("overwrite").parquet(str(home / "expected"))
    flights.write.format("pgqueue").mode("append").option("queue", QUEUE).option("runId", "demo").save()
    return {"published": flights.count()}


def join(spark: SparkSession, home: Path) -> dict[str, Any]:
    """Count the flights that are neither in the queue nor in the archive, succeeded twice, or did not succeed."""

    def messages(table: str, columns: str) -> DataFrame:
        return spark.read.format("pgqueue").options(table=table, queue=QUEUE, columns=columns).load()

    wanted = spark.read.parquet(str(home / "expected")).withColumn("wanted", f.lit(True))
    waiting = messages("queue", "reference").withColumn("result", f.lit("waiting")).localCheckpoint()
    known = waiting.union(messages("archive", "reference,result")).groupBy("reference")
    joined = wanted.join(known.agg(f.expr("count_if(result = 'success') AS successes")), "reference", "full")
    counted = joined.agg(
        f.expr("count_if(wanted AND successes IS NULL) AS lost"),
        f.expr("count_if(wanted IS NULL) AS unknown"),
        f.expr("count_if(successes > 1) AS doubled"),
        f.expr("count_if(successes = 0) AS without_success"),
    )
    return counted.collect()[0].asDict()


def publish_again(spark: SparkSession, target: Path) -> dict[str, Any]:
    """Publish the flights of January again, out of the export, twice under one name: the second time publishes none."""
    january = read_export(spark, str(target)).where(f.get_json_object("message", "$.month") == "1")
    chosen = january.where("result = 'success'").orderBy("id").select("reference", "priority", "headers", "message")
    for _ in range(2):
        chosen.write.format("pgqueue").mode("append").options(queue=AGAIN, runId="January again").save()
    waiting = spark.read.format("pgqueue").options(table="queue", queue=AGAIN, columns="reference").load()
    return {"chosen": chosen.count(), "published": waiting.count(), "waiting": waiting.distinct().count()}


def compare(spark: SparkSession, target: Path, limit: int | None) -> dict[str, Any]:
    """Compute the mean delay of each carrier and month from the export and from the file; count the differences."""
    from flights_on_spark import delays, mean_delays

    from flights import read_flights

    archived = mean_delays(read_export(spark, str(target)).where(f.col("queue_name") == QUEUE))
    expected = delays(read_flights(limit))
    worst = max(expected, key=lambda name: expected[name][1])
    different = [name for name in archived | expected if archived.get(name) != expected.get(name)]
    return {"figures": len(expected), "different": len(different), "worst": worst, "minutes": expected[worst][1]}


def main() -> None:
    """Run one of them in a Spark of its own and print what it says."""
    home, name, *rest = sys.argv[1:]
    spark = SparkSession.builder.master("local[2]").appName(f"pgqueue demo {name}").getOrCreate()
    register(spark)
    try:
        if name == "publish":
            said = publish(spark, Path(home), int(rest[0]) if rest else None)
        elif name == "join":
            said = join(spark, Path(home))
        elif name == "publish_again":
            said = publish_again(spark, Path(rest[0]))
        else:
            said = compare(spark, Path(rest[0]), int(rest[1]) if len(rest) > 1 else None)
    finally:
        spark.stop()
    print(json.dumps(said))


if __name__ == "__main__":
    main()
