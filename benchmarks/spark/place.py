"""The place of the measurements: the server, one warm Spark session, and a folder for files."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psycopg
from psycopg.conninfo import conninfo_to_dict
from pyspark.sql import SparkSession

from benchmarks.measure import in_turns
from benchmarks.peers.pgqueue import PGQUEUE
from benchmarks.server import Server
from benchmarks.spark.jdbc import jdbc_driver
from benchmarks.spark.usage import Usage, measured
from tools import STATE

HOME: Final = STATE / "bench" / "spark"


@dataclass(frozen=True, slots=True)
class Contestant:
    """Work that is measured in turns with other work; only `work` counts.

    :param prepare: makes what `work` begins with.
    :param done: counts the rows that `work` left behind.
    """

    prepare: Callable[[], Any]
    work: Callable[[], Any]
    done: Callable[[], int]


@dataclass(frozen=True, slots=True)
class Place:
    """The server, and a session of Spark with the driver of JDBC."""

    server: Server
    spark: SparkSession

    def in_turns(self, contestants: Mapping[str, Contestant], rounds: int, rows: int) -> dict[str, list[Usage]]:
        """Measure each so often, after one round that warms up; RuntimeError if one did not do all the rows."""
        calls = {name: lambda one=one: self.measure(one, rows) for name, one in contestants.items()}
        in_turns(calls, 1)
        return in_turns(calls, rounds)

    def measure(self, one: Contestant, rows: int) -> Usage:
        """Measure one piece of work."""
        one.prepare()
        with self.server.connect("postgres") as conn:
            conn.execute("CHECKPOINT")
        with measured({"postgres": [postmaster(self.server)], "spark": [os.getpid()]}) as usage:
            one.work()
        if (done := one.done()) != rows:
            raise RuntimeError(f"{done} of {rows} rows were done")
        return usage

    @contextmanager
    def database(self, name: str) -> Iterator[str]:
        """A database with the schema; its connection string."""
        with self.server.database(f"spark_{name}", PGQUEUE.name, PGQUEUE.install) as database:
            yield self.server.dsn(database)

    def jdbc(self, target: Any, dsn: str, **options: Any) -> Any:
        """Set the options with which Spark's JDBC source reaches a database, on a reader or a writer."""
        to = conninfo_to_dict(dsn)
        url = f"jdbc:postgresql://{to['host']}:{to['port']}/{to['dbname']}"
        given = {"url": url, "user": to["user"], "driver": "org.postgresql.Driver"} | options
        return target.format("jdbc").options(**given)

    def folder(self, name: str) -> Path:
        """Return the path of a folder that is not there."""
        path = HOME / name
        shutil.rmtree(path, ignore_errors=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        return path


def execute(dsn: str, statement: str) -> Any:
    """Run a statement in a session of its own, and return the first value of what it gives, if that is anything."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        cursor = conn.execute(statement.encode())
        row = cursor.fetchone() if cursor.description else None
    return row and row[0]


def postmaster(server: Server) -> int:
    """Return the process of the server of which all its others are children."""
    return int((server.data / "postmaster.pid").read_text().split()[0])


@contextmanager
def warm_session(server: Server) -> Iterator[Place]:
    """Start Spark with two cores in this process."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    spark = (
        SparkSession.builder.master("local[2]")
        .appName("pgqueue benchmark")
        .config("spark.driver.memory", "2g")
        .config("spark.driver.extraClassPath", str(jdbc_driver()))
        .config("spark.ui.enabled", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    try:
        yield Place(server, spark)
    finally:
        spark.stop()
