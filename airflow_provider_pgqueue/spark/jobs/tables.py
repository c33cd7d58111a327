"""What the jobs read: the archive and the queue, by the names and the clock of the database."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from itertools import count
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal, cast

from airflow_provider_pgqueue.core import verbs
from airflow_provider_pgqueue.core.client import run
from airflow_provider_pgqueue.core.errors import InvalidArgument
from airflow_provider_pgqueue.spark.database import Database
from airflow_provider_pgqueue.spark.source.data_source import PgQueueSource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Result = Literal["success", "failed", "rejected", "lock_expired", "expired"]
_PARALLELISM: Final = 8
_number = count(1)
_formats: Final[dict[Database, str]] = {}


def tasks_at_once(parallelism: int | None) -> int:
    """Return how many tasks may talk to PostgreSQL at once, as the argument says; InvalidArgument for none."""
    if parallelism is not None and not 1 <= parallelism <= 9999:
        raise InvalidArgument(f"parallelism is {parallelism}. Give a number from 1 to 9999.")
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

    `since` is of archiving or of publishing. `options` are more ones of the data source.
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
    members: dict[str, Any] = {"database": database, "name": classmethod(lambda cls: name), "__module__": __name__}
    spark.dataSource.register(type("PgQueueSourceOfOneJob", (PgQueueSource,), members))
    return name


def several(names: str | Sequence[str]) -> tuple[str, ...]:
    """Return names that were given as a sequence, or as one text, which is not a sequence of letters here."""
    return (names,) if isinstance(names, str) else tuple(names)


def require_queues(database: Database, queues: Collection[str]) -> None:
    """Raise QueueNotFound for the first of these names that no queue has: none of them is a queue without messages."""
    if queues:
        with database.connect("pgqueue pipeline") as conn:
            run(conn, verbs.check_queues_exist(queues))


def now(database: Database) -> datetime:
    """Return what the database says the time is: its clock is the only one."""
    with database.connect("pgqueue pipeline") as conn:
        ((moment,),) = conn.execute("SELECT clock_timestamp()").fetchall()
    return cast("datetime", moment)
