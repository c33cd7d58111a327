"""The session that the commands of the pipelines make."""

from __future__ import annotations

import subprocess
import sys

from pyspark.sql import SparkSession

from airflow_provider_pgqueue.spark.jobs.command import shuffle_locally
from tools import ROOT

PLAIN = """
from pyspark.sql import SparkSession
from airflow_provider_pgqueue.spark.jobs.command import shuffle_locally

spark = SparkSession.builder.master("local[6]").config("spark.ui.enabled", "false").getOrCreate()
shuffle_locally(spark)
print("parts:", spark.conf.get("spark.sql.shuffle.partitions"))
"""


def test_a_local_spark_shuffles_into_few_parts() -> None:
    done = subprocess.run([sys.executable, "-c", PLAIN], cwd=ROOT, capture_output=True, text=True, timeout=180)
    assert "parts: 12" in done.stdout, done.stderr


def test_the_number_of_parts_that_somebody_gave_stays(session: SparkSession) -> None:
    shuffle_locally(session)
    assert session.conf.get("spark.sql.shuffle.partitions") == "4"
