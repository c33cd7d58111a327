"""Publishes a folder of Parquet files: `publish_program.py FOLDER QUEUE`."""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession

from airflow_provider_pgqueue.spark import register

if __name__ == "__main__":
    spark = SparkSession.builder.getOrCreate()
    register(spark)
    folder, queue_name = sys.argv[1:]
    spark.read.parquet(folder).write.format("pgqueue").mode("append").option("queue", queue_name).save()
    spark.stop()
