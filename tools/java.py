"""Keeps the classes and modules of Spark ready for the many processes of the tests, each of which lives for seconds.

    .venv/bin/python -m tools.java

A Spark of the tests needs 7 s of CPU to its first results with this archive of class data, and 14 s without it. The
archive fits one Java and one set of jars: a Java that it does not match ignores it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from tools import STATE

ARCHIVE: Final = STATE / "spark-classes.jsa"
# Of this Python, as the wheel is.
HOME: Final = Path(sys.prefix) / "spark-home"
# Compiled once and not again, collected by one thread, and quiet: the output of a driver is read by tests.
OPTIONS: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData -Xlog:disable"


def options() -> str:
    """Return what a Java process of the tests is started with."""
    return f"{OPTIONS} -XX:SharedArchiveFile={ARCHIVE}" if ARCHIVE.exists() else OPTIONS


def home() -> Path:
    """Return a home of Spark with the programs and the jars of the wheel, and not its Python in a zip.

    Each Python that Spark starts would import from that zip and compile it, for 0.8 s of CPU, and more after each fork.
    Without the zip they import the package that is installed.
    """
    spec = find_spec("pyspark")
    if spec is not None and spec.origin is not None:
        HOME.mkdir(exist_ok=True)
        for folder in ("bin", "jars"):
            with suppress(FileExistsError):
                (HOME / folder).symlink_to(Path(spec.origin).with_name(folder))
    return HOME


def main() -> None:
    """Run Spark as the tests do, and let Java write down what it loaded."""
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        print("There is no Java: the tests of Spark will fail.")
        return
    with tempfile.TemporaryDirectory(dir=STATE) as folder:
        written = Path(folder) / ARCHIVE.name
        environment = os.environ | {
            "SPARK_SUBMIT_OPTS": f"{OPTIONS} -XX:ArchiveClassesAtExit={written}",
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_HOME": str(home()),
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        subprocess.run([sys.executable, "-c", WORK, folder], env=environment, check=True, stderr=subprocess.DEVNULL)
        written.rename(ARCHIVE)


WORK: Final = """
import sys
from pyspark import SparkContext
from pyspark.sql import SparkSession, functions

folder = sys.argv[1]
spark = (
    SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    .config("spark.sql.shuffle.partitions", "2").getOrCreate()
)
rows = spark.range(100).withColumn("name", functions.udf(str)("id")).withColumn("at", functions.current_timestamp())
rows.write.parquet(folder + "/rows")
read = spark.read.schema(rows.schema).parquet(folder + "/rows")
read.groupBy("name").agg(functions.count("*"), functions.max("at")).orderBy("name").toPandas()
read.mapInArrow(lambda batches: batches, rows.schema).foreachPartition(lambda rows: None)
read.join(spark.createDataFrame([(1, "1")], ["id", "name"]), "id").collect()
stream = spark.readStream.schema(rows.schema).parquet(folder + "/rows").writeStream.trigger(availableNow=True)
stream.option("checkpointLocation", folder + "/checkpoint").foreachBatch(lambda rows, _: rows.count()).start()
for query in spark.streams.active:
    query.awaitTermination()
java = SparkContext._gateway.proc
spark.stop()
java.stdin.close()
java.wait()
"""


if __name__ == "__main__":
    main()
