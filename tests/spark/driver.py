"""A Spark driver in a process of its own, to be killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path

from tests.waiting import until
from tools import ROOT

PREAMBLE = """
import signal
from pathlib import Path
from pyspark.sql import SparkSession
from airflow_provider_pgqueue.spark import register

DSN, FOLDER = {dsn!r}, {folder!r}

def pause(name):
    Path(FOLDER, name + " paused").touch()
    signal.pause()

spark = (
    SparkSession.builder.master("local[2]").config("spark.driver.memory", "700m").config("spark.ui.enabled", "false")
    .config("spark.sql.session.timeZone", "UTC").getOrCreate()
)
spark.sparkContext.setLogLevel("ERROR")
register(spark, DSN)
"""


def killed_driver(script: str, dsn: str, folder: Path, *, pauses: Collection[str], within: float = 300) -> None:
    """Run a script with `spark` in it until it called each `pause(name)`; then kill it and its JVM with SIGKILL."""
    program, output = folder / "driver_script.py", folder / "driver.log"
    program.write_text(PREAMBLE.format(dsn=dsn, folder=str(folder)) + script)
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with output.open("w") as log:
        driver = subprocess.Popen(
            [sys.executable, str(program)], stdout=log, stderr=log, env=environment, start_new_session=True
        )
    try:
        what = f"the driver to pause; see {output}"
        until(lambda: all((folder / f"{name} paused").exists() for name in pauses), within, what, process=driver)
    finally:
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()
