"""A real Spark for the tests: one session in this process, and a standalone cluster of two workers on loopback."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.spark.fault_table import Fault
from tools import java
from tools.binaries import unpacked
from tools.standalone import Standalone

# The workers must find the packages of this environment, activated or not.
os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.spark)
            # Spark's own code warns of its own deprecations.
            item.add_marker(pytest.mark.filterwarnings("default"))


def jdbc_driver() -> Path:
    """Return PostgreSQL's driver for Spark's JDBC source, which a page compares with this one."""
    return unpacked("libpostgresql-jdbc-java") / "usr" / "share" / "java" / "postgresql.jar"


@pytest.fixture(scope="session")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Spark in this process, `local[2]`; its Python workers are processes of their own."""
    home = tmp_path_factory.mktemp("spark")
    spark = (
        SparkSession.builder.master("local[2]")
        .appName("pgqueue tests")
        .config("spark.driver.memory", "1g")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "4")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", str(home / "warehouse"))
        .config("spark.sql.streaming.metricsEnabled", "false")
        .config("spark.jars", str(jdbc_driver()))
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    # Its connections say at INFO that they close, after pytest: to a handler of Airflow, whose stream has ended then.
    logging.getLogger("py4j").setLevel(logging.WARNING)
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
    """A standalone cluster: a master and two workers, with room for three applications of two executors."""
    home = tmp_path_factory.mktemp("standalone")
    cluster = Standalone(home, cores=3, java_options=java.options())
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture
def fault(record_property: Callable[[str, object], None]) -> Callable[..., None]:
    """Count what a fault did, for the table at the end of the run, and fail unless it did no harm.

    `fault("an executor is killed", where="cluster", times=1, published=ids, found=archived, effects=…, allowed=10)`
    """

    def count(name: str, **given: Any) -> None:
        counted = Fault.counted(name, **given)
        record_property("fault", asdict(counted))
        assert counted.is_harmless, counted

    return count
