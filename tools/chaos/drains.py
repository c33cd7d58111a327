"""The driver of the Spark drains, and the function that they call; it goes to the executors without the rest of tools.

    spark-submit … drains.py QUEUE MESSAGES

It drains one slice of the queue after the other. Each is a run; one that fails is tried again under its name, and the
driver that follows a killed one continues with the slice that was not finished.
"""

from __future__ import annotations

import json
import os
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

HISTORY = "CHAOS_HISTORY"


def note(name: str, kind: str, **entry: Any) -> None:
    """Append to the history of this process."""
    text = json.dumps({"kind": kind, "at": round(time.time(), 3), **entry}, separators=(",", ":"))
    file = os.open(Path(os.environ[HISTORY]) / f"{name}.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(file, f"{text}\n".encode())
    os.close(file)


def handle(table: Any) -> None:
    """Note the deliveries: all succeed."""
    keys = [json.loads(body)["k"] for body in table["message"].to_pylist()]
    note(f"spark-{os.getpid()}", "deliver", q="d_slices", keys=keys)
    time.sleep(0.1)


def main() -> None:
    from pyspark.sql import SparkSession

    from airflow_provider_pgqueue.spark import drain

    queue, messages = sys.argv[1], int(sys.argv[2])
    spark = SparkSession.builder.appName("slices").getOrCreate()
    number = len((Path(os.environ[HISTORY]) / "slices.jsonl").read_text().splitlines())
    while True:
        run_id = f"slice-{number}"
        try:
            summary = drain(
                spark, queue=queue, function="drains:handle", run_id=run_id, parallelism=2, batch_size=25,
                max_messages=messages, lease_for=timedelta(seconds=5),
            )  # fmt: skip
        except Exception as error:
            # Of the queue or of Spark, whose job ends when a task failed four times.
            text = str(error).strip() or type(error).__name__
            note("spark", "error", actor="spark", type=type(error).__name__, text=text[:200])
            note("spark", "drain failed", run=run_id)
            if spark.sparkContext._jsc.sc().isStopped():
                raise
            time.sleep(0.5)
        else:
            note("slices", "drained", run=run_id, archived=summary["archived"], most=messages)
            number += 1
            if not summary["archived"]:
                time.sleep(1.0)


if __name__ == "__main__":
    main()
