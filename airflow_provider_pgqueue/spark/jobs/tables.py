"""What the jobs read: the archive and the queue, by the names and the clock of the database."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from itertools import count
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Literal

from airflow_provider_pgqueue.core import verbs
from airflow_provider_pgqueue.core.argument import check, optional, whole
from airflow_provider_pgqueue.spark.database import Database
from airflow_provider_pgqueue.spark.source.data_source import data_source

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Result = Literal["success", "failed", "rejected", "lock_expired", "expired"]
_PARALLELISM: Final = 8
_number = count(1)
_formats: Final[dict[Database, str]] = {}


def tasks_at_once(parallelism: int | None) -> int:
    """Return how many tasks may talk to PostgreSQL at once: 8, unless the argument says otherwise."""
    check({"parallelism": parallelism}, {"parallelism": optional(whole(1, 9999))})
    return parallelism or _PARALLELISM


def read(
    spark: SparkSession,
    database: Database,
    table: str,
    columns: str,
    *,
    parallelism: int,
    queues: Sequence[str] = (),
    since: datetime | None = None,
    options: Mapping[str, str] = MappingProxyType({}),
) -> DataFrame:
    """Return rows of the `archive` or the `queue` of this database.

    `since` is a time of archiving, or of publishing. `options` are further options of the data source.
    """
    given = {"table": table, "columns": columns, "numPartitions": str(parallelism)} | dict(options)
    if queues:
        given["queue"] = ",".join(queues)
    if since is not None:
        given["from"] = since.isoformat()
    return spark.read.format(_registered(spark, database)).options(**given).load()


def _registered(spark: SparkSession, database: Database) -> str:
    """Return a format of this database alone: `pgqueue` may be registered for another one in the session."""
    name = _formats.setdefault(database, f"pgqueue_{next(_number)}")
    spark.dataSource.register(data_source(database, name))
    return name


def several(names: str | Sequence[str]) -> tuple[str, ...]:
    """Return names as a tuple; a single text is one name, not a sequence of letters."""
    return (names,) if isinstance(names, str) else tuple(names)


def require_queues(database: Database, queues: Collection[str]) -> None:
    """Raise QueueNotFound for the first name that no queue has, so that it does not pass for an empty queue."""
    if queues:
        database.run(verbs.check_queues_exist(queues))
