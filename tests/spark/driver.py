"""A Spark driver in a process of its own, to be killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from tools import ROOT

# Each script has a thread of its own, and what it registers a name of its own. Tasks that hang take a slot each. One
# begins after the other: a Python process that Spark starts has ten seconds to say that it is there.
PROGRAM = """
import os, signal, traceback
from pathlib import Path
from pyspark.sql import SparkSession
from pyspark.util import InheritableThread
from tests.spark.faulty_publisher import activate
from tests.waiting import until

def run(text, dsn, folder):
    def pause(name):
        Path(folder, name).touch()
        while True:
            signal.pause()

    activate(spark)
    given = {"__name__": Path(folder).name, "spark": spark, "DSN": dsn, "FOLDER": folder, "pause": pause}
    try:
        exec(compile(text, folder, "exec"), given | {"Path": Path, "signal": signal})
    except Exception:
        traceback.print_exc()
        os._exit(1)

spark = (
    SparkSession.builder.master("local[8,3]").config("spark.driver.memory", "1g").config("spark.ui.enabled", "false")
    .config("spark.sql.session.timeZone", "UTC").getOrCreate()
)
spark.sparkContext.setLogLevel("ERROR")
for text, dsn, folder in SCRIPTS:
    until(Path(folder, "begin").exists, 300)
    InheritableThread(run, args=(text, dsn, folder), session=spark).start()
while True:
    signal.pause()
"""


@contextmanager
def driver(folder: Path, scripts: Mapping[str, tuple[str, str]]) -> Iterator[subprocess.Popen[bytes]]:
    """Run scripts by name, each with its DSN, in one driver; with `pause(name)` they say where they are and stay there.

    Each begins when there is a file `begin` in its folder. At the end the driver is killed, with its JVM, by SIGKILL.
    What it said is in `driver.log`.
    """
    given = []
    for name, (text, dsn) in scripts.items():
        place = folder / name
        place.mkdir()
        given.append((text, dsn, str(place)))
    program = folder / "driver_program.py"
    program.write_text(f"SCRIPTS = {given!r}\n{PROGRAM}")
    with (folder / "driver.log").open("wb") as log:
        command = [sys.executable, str(program)]
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
