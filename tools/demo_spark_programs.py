"""The programs of the Spark demo that are not pipelines: publish the flights, compare the figures."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from airflow_provider_pgqueue.spark import read_export, register

QUEUE: Final = "spark_flights"


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
    """Run one of the two in a Spark of its own and print what it says."""
    home, name, *rest = sys.argv[1:]
    spark = SparkSession.builder.master("local[2]").appName(f"pgqueue demo {name}").getOrCreate()
    register(spark)
    try:
        if name == "publish":
            said = publish(spark, Path(home), int(rest[0]) if rest else None)
        else:
            said = compare(spark, Path(rest[0]), int(rest[1]) if len(rest) > 1 else None)
    finally:
        spark.stop()
    print(json.dumps(said))


if __name__ == "__main__":
    main()
