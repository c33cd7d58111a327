"""The program of a resident: does what comes through a pipe, a line for each order, and says how it ended."""

from __future__ import annotations

import json
import os
import runpy
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from airflow_provider_pgqueue.spark import __main__ as command_line


def main(home: Path) -> None:
    spark = SparkSession.builder.getOrCreate()
    # A command stops the session at its end.
    SparkSession.stop = lambda self: None  # type: ignore[method-assign]
    # For writing too: a pipe ends when nobody has it open for that.
    with os.fdopen(os.open(home / "orders", os.O_RDWR), closefd=True) as orders:
        write(home / "application", spark.sparkContext.applicationId)
        for line in orders:
            order = json.loads(line)
            place = home / order["name"]
            with place.with_suffix(".out").open("w") as out, redirect_stdout(out):
                status = done(spark, order)
            write(place.with_suffix(".status"), str(status))


def done(spark: SparkSession, order: dict[str, Any]) -> int:
    """Carry out an order and return its exit status."""
    os.environ["PGQUEUE_DSN"] = order["dsn"]
    try:
        with settings(spark, order["conf"]):
            if not order["arguments"]:
                runpy.run_path(order["file"], run_name="__main__")
                return 0
            spark.sparkContext.addPyFile(order["file"])
            return command_line.run(order["arguments"])
    except Exception:
        traceback.print_exc()
        return 1


@contextmanager
def settings(spark: SparkSession, conf: dict[str, str]) -> Iterator[None]:
    """Set what Spark reads anew for each stage, such as when it speculates, until the order is done."""
    context: Any = spark.sparkContext._jsc
    live = context.sc().conf()
    before = {key: live.get(key) for key in conf}
    for key, value in conf.items():
        live.set(key, value)
    try:
        yield
    finally:
        for key, value in before.items():
            live.set(key, value)


def write(path: Path, text: str) -> None:
    """Write a file that nobody sees half of."""
    part = path.with_suffix(".part")
    part.write_text(text)
    part.replace(path)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
