"""The queue on Spark: a data source `pgqueue`, and three pipelines for large volumes. Needs the extra `spark`.

register(spark)
spark.read.format("pgqueue").option("table", "archive").load()
drain(spark, queue="orders", function="packing:pack")

The pipelines have one signature. `run_id` names a run, which is done once: under the same name it goes on with what is
left, and once it has finished it returns the same summary; None makes a new name. `dsn` is a connection string, by
default `PGQUEUE_DSN` or libpq's own variables. `parallelism` is how many tasks talk to PostgreSQL at once, at most as
many as it has connections for.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

if find_spec("pyspark") is None:
    _MISSING: Final = 'pyspark is not installed. Install it with: pip install "airflow-provider-pgqueue[spark]"'
    if sys.argv[:1] == ["-m"] and __name__ in sys.orig_argv:  # `python -m` imports this before its __main__
        sys.stderr.write(f"error: {_MISSING}\n")
        sys.exit(2)
    raise ModuleNotFoundError(_MISSING, name="pyspark")

if TYPE_CHECKING:
    from airflow_provider_pgqueue.spark.pipelines.drain.drain import drain
    from airflow_provider_pgqueue.spark.pipelines.export import export
    from airflow_provider_pgqueue.spark.pipelines.repair import repair
    from airflow_provider_pgqueue.spark.source.data_source import register
    from airflow_provider_pgqueue.spark.source.read_export import read_export

__all__ = ["drain", "export", "read_export", "register", "repair"]

# Each is loaded when it is asked for: the workers of Spark import this package, and need none of them.
_HOMES: Final = {
    "drain": "pipelines.drain.drain",
    "export": "pipelines.export",
    "read_export": "source.read_export",
    "register": "source.data_source",
    "repair": "pipelines.repair",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
