"""The partitions of the archive that can be exported: what PostgreSQL knows of them, and their end."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

import psycopg
from psycopg import sql
from psycopg.rows import kwargs_row

from airflow_provider_pgqueue.core import verbs
from airflow_provider_pgqueue.core.client import run
from airflow_provider_pgqueue.core.errors import ExportDiffers, ForeignPartition, UndecidedMessages, translate
from airflow_provider_pgqueue.core.quantity import quantity
from airflow_provider_pgqueue.spark.jobs.exported.manifest import ArchiveColumn, Chunk, Manifest, Version
from airflow_provider_pgqueue.spark.jobs.progress import watching

log = logging.getLogger(__name__)

_DROP_TRIES: Final = 6
_LARGEST: Final = 256 * 1024 * 1024  # bytes that a chunk has on average at most, bodies included
_ROWS_IN_PAGE: Final = 30  # of a partition that was never analysed


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """A partition of the archive of which the time is over, as it was when it was looked at."""

    name: str
    oid: int
    first_at: datetime
    end_at: datetime
    pages: int
    bytes: int
    rows_in_page: float
    columns: tuple[ArchiveColumn, ...]

    def chunks(self, rows_in_chunk: int) -> tuple[Chunk, ...]:
        """Cut the pages into ranges of about so many rows."""
        size = int(rows_in_chunk / self.rows_in_page)
        size = max(1, min(size, _LARGEST * self.pages // max(1, self.bytes)))
        starts = range(0, self.pages, size)
        return tuple(Chunk(number, first, min(first + size, self.pages)) for number, first in enumerate(starts))


def closed_partitions(
    conn: psycopg.Connection[Any], *, older_than: timedelta, names: Collection[str] = ()
) -> list[Partition]:
    """Return the partitions whose time ended so long ago, or those with the names; oldest first.

    Names that no partition has are left out. PermissionDenied for who may not read the archive.
    """
    try:
        conn.execute("SELECT FROM messages.message_archive LIMIT 0")
        columns = tuple(
            ArchiveColumn(*row)
            for row in conn.execute(
                "SELECT attname, format_type(atttypid, NULL) FROM pg_attribute"
                " WHERE attrelid = 'messages.message_archive'::regclass AND attnum > 0 AND NOT attisdropped"
                " ORDER BY attnum"
            )
        )
        with conn.cursor(row_factory=kwargs_row(_from(columns))) as cursor:
            return cursor.execute(
                """
                SELECT c.relname AS name, c.oid::bigint, p.first_at, p.end_at,
                       pg_relation_size(c.oid) / current_setting('block_size')::bigint AS pages,
                       pg_table_size(c.oid) AS bytes,
                       CASE WHEN c.reltuples > 0 AND c.relpages > 0 THEN c.reltuples / c.relpages
                            ELSE %(rows_in_page)s END AS rows_in_page
                  FROM messages.archive_partitions() p JOIN pg_class c ON c.oid = p.partition::regclass
                 WHERE p.end_at <= clock_timestamp()
                   AND CASE WHEN %(names)s::text[] = '{}' THEN p.end_at <= clock_timestamp() - %(older_than)s
                            ELSE c.relname = ANY (%(names)s) END
                 ORDER BY p.first_at
                """,
                {"names": list(names), "older_than": older_than, "rows_in_page": _ROWS_IN_PAGE},
            ).fetchall()
    except psycopg.Error as error:
        raise translate(error) from error


def version_of(conn: psycopg.Connection[Any], partition: Partition) -> Version:
    """Return the version of all rows of a partition now."""
    row = conn.execute(select_version(rows_of(partition)).encode()).fetchone()
    return Version(*(row or ()))


def drop_partition(conn: psycopg.Connection[Any], manifest: Manifest) -> str | None:
    """Let PostgreSQL compare the partition with its manifest and drop it; return why it is kept if it is."""
    statement = verbs.drop_archive_partition(manifest.partition, manifest.to_json())
    why = "it is in use"
    for attempt in range(_DROP_TRIES):
        try:
            with watching(lambda: log.info("partition %s: being compared with its export", manifest.partition)):
                rows = run(conn, statement)
        except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected):
            time.sleep(random.uniform(0.1, 0.3) * (attempt + 1))
        except (UndecidedMessages, ExportDiffers, ForeignPartition) as error:
            why = str(error)
            break
        else:
            log.info("partition %s: dropped with %s", manifest.partition, quantity(rows))
            return None
    log.warning("partition %s was not dropped: %s", manifest.partition, why)
    return why


def rows_of(partition: Partition, chunk: Chunk | None = None) -> sql.Composed:
    """Return the clauses from FROM on for a partition or a chunk of it.

    From the table, pruned to the partition, which the role may not read by itself.
    """
    clauses = sql.SQL("FROM messages.message_archive a WHERE a.archived_at >= {} AND a.archived_at < {}").format(
        partition.first_at, partition.end_at
    )
    if chunk is None:
        return clauses
    pages = [f"({page},0)" for page in (chunk.first_page, chunk.end_page)]
    return clauses + sql.SQL(" AND a.ctid >= {} AND a.ctid < {}").format(*pages)


def select_version(rows: sql.Composed, columns: Sequence[ArchiveColumn] = ()) -> str:
    """Return the query for the version of rows, and for how many have a value in each of some columns.

    Each change of a row makes a new version of it, at another place or by another transaction.
    """
    values = [
        sql.SQL("count(*), coalesce(bit_xor(hashtidextended(a.ctid, a.xmin::text::bigint)), 0)"),
        *(sql.SQL("count(a.{})").format(sql.Identifier(column.name)) for column in columns),
    ]
    return sql.SQL("SELECT {} {}").format(sql.SQL(", ").join(values), rows).as_string(None)


def _from(columns: tuple[ArchiveColumn, ...]) -> Any:
    return lambda **values: Partition(columns=columns, **values)
