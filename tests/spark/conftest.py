"""A real Spark for the tests: one session in this process, and a standalone cluster of two workers on loopback."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.spark.fault_table import Fault, lines
from tools.standalone import Standalone

# The workers must find the packages of this environment, activated or not.
os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"

_FAULTS = pytest.StashKey[list[Fault]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_FAULTS] = []


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if faults := config.stash[_FAULTS]:
        terminalreporter.section("faults that the tests caused")
        for line in lines(faults):
            terminalreporter.line(line)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.spark)
            # Spark's own code warns of its own deprecations.
            item.add_marker(pytest.mark.filterwarnings("default"))


@pytest.fixture(scope="session")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Spark in this process, `local[2]`; its Python workers are processes of their own."""
    home = tmp_path_factory.mktemp("spark")
    spark = (
        SparkSession.builder.master("local[2]")
        .appName("pgqueue tests")
        .config("spark.driver.memory", "1g")
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "4")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", str(home / "warehouse"))
        .config("spark.sql.streaming.metricsEnabled", "false")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    yield spark
    spark.stop()


@pytest.fixture
def spark(session: SparkSession, dsn: str) -> SparkSession:
    """The session, with `format("pgqueue")` for the database of this test."""
    from airflow_provider_pgqueue.spark import register

    register(session, dsn)
    return session


@pytest.fixture(scope="session")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    """A standalone cluster: a master and two workers of one core, started when a test first asks for it."""
    cluster = Standalone(tmp_path_factory.mktemp("standalone"))
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture
def fault(pytestconfig: pytest.Config) -> Callable[..., None]:
    """Count what a fault did, for the table at the end, and fail unless it did no harm.

    `fault("an executor is killed", where="cluster", times=1, published=ids, found=archived, effects=…, allowed=10)`
    """

    def count(name: str, **given: Any) -> None:
        counted = Fault.counted(name, **given)
        pytestconfig.stash[_FAULTS].append(counted)
        assert counted.is_harmless, counted

    return count
