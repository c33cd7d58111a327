"""The queue in Spark: a data source `pgqueue` and the pipelines that do the volume. Needs the extra `spark`."""

from __future__ import annotations

import warnings
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

if find_spec("pyspark") is None:
    raise ModuleNotFoundError(
        'pyspark is not installed. Install it with: pip install "airflow-provider-pgqueue[spark]"', name="pyspark"
    )


def _warn_of_mixed_versions() -> None:
    """Warn if pyspark and pyspark-client, which share a directory, overwrote files of each other."""
    found = {}
    for name in ("pyspark", "pyspark-client"):
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    if len(set(found.values())) > 1:
        installed = " and ".join(f"{name} {number}" for name, number in found.items())
        warnings.warn(
            f"{installed} share a directory, so that files of two versions lie there. Install both in one version.",
            stacklevel=2,
        )


_warn_of_mixed_versions()


def register(spark: SparkSession, conninfo: str = "") -> None:
    """Make `format("pgqueue")` known to a session, for batch and for streams; again replaces the connection.

    :param conninfo: libpq connection string or URL; by default `PGQUEUE_DSN`, or libpq's own variables and service
        file. It is resolved here, on the driver, and travels to the executors inside their tasks: it stands in no
        argument, plan, configuration or page of Spark.
    """
    from airflow_provider_pgqueue.spark.source.data_source import data_source

    spark.dataSource.register(data_source(conninfo))


__all__ = ["register"]
