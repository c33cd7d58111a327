"""The partitions of the archive that can be exported: what PostgreSQL knows of them, and their end."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

import psycopg
from psycopg import sql

from airflow_provider_pgqueue.core import verbs
from airflow_provider_pgqueue.core.client import run
from airflow_provider_pgqueue.core.duration import Duration
from airflow_provider_pgqueue.core.errors import ConnectionFailed, ForeignPartition, OpenDeadMessages
from airflow_provider_pgqueue.core.progress import watching
from airflow_provider_pgqueue.core.quantity import quantity
from airflow_provider_pgqueue.export.manifest import Chunk, Manifest, Version

log = logging.getLogger(__name__)

_DROP_TRIES: Final = 6
_ROWS_IN_CHUNK: Final = 250_000
_LARGEST: Final = 256 * 1024 * 1024  # bytes that a chunk has on average at most, bodies included
_VERSION: Final = sql.SQL("count(*), coalesce(bit_xor(hashtidextended(a.ctid, a.xmin::text::bigint)), 0)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """A partition of the archive, as it was when it was read.

    :param before_xid: of one that still takes messages, the transaction before which an export reads what was archived.
    """

    name: str
    oid: int
    first_at: datetime
    end_at: datetime
    pages: int
    bytes: int
    rows_in_page: float
    columns: dict[str, str]
    before_xid: int | None = None

    @property
    def is_open(self) -> bool:
        """Whether it still takes messages."""
        return self.before_xid is not None

    def chunks(self) -> tuple[Chunk, ...]:
        """Cut the pages into ranges of at most about 250,000 messages and 256 MB."""
        size = max(1, min(int(_ROWS_IN_CHUNK / self.rows_in_page), _LARGEST * self.pages // max(1, self.bytes)))
        starts = range(0, self.pages, size)
        return tuple(Chunk(number, first, min(first + size, self.pages)) for number, first in enumerate(starts))

    def version(self, conn: psycopg.Connection[Any]) -> Version:
        """Return the version that its rows have now."""
        row = conn.execute(sql.SQL("SELECT {} {}").format(_VERSION, self._rows())).fetchone()
        return Version(*(row or ()))

    def select(self, chunk: Chunk, columns: Iterable[sql.Composable]) -> str:
        """Return the query for some columns of the rows of a chunk."""
        pages = [f"({page},0)" for page in (chunk.first_page, chunk.end_page)]
        within = sql.SQL("{} AND a.ctid >= {} AND a.ctid < {}").format(self._rows(), *pages)
        return sql.SQL("SELECT {} {}").format(sql.SQL(", ").join(columns), within).as_string(None)

    def select_version(self, chunk: Chunk) -> str:
        """Return the query for the version of a chunk: two numbers, then how many rows have a value in each column.

        Each change of a row makes a new version of it, at another place or by another transaction.
        """
        counts = (sql.SQL("count(a.{})").format(sql.Identifier(name)) for name in self.columns)
        return self.select(chunk, [_VERSION, *counts])

    def _rows(self) -> sql.Composed:
        # From the table, pruned to the partition, which the role may not read by itself.
        before = sql.SQL("") if self.before_xid is None else sql.SQL(" AND a.xid < {}").format(self.before_xid)
        within = sql.SQL("FROM messages.message_archive a WHERE a.archived_at >= {} AND a.archived_at < {}{}")
        return within.format(self.first_at, self.end_at, before)


def partitions_to_export(
    conn: psycopg.Connection[Any],
    *,
    older_than: Duration = timedelta(0),
    names: Collection[str] = (),
    with_open: bool = True,
) -> list[Partition]:
    """Return the partitions whose time ended so long ago, or those with these names; oldest first.

    With `with_open` also those with messages that still take some. Names that no partition has are left out. Raises
    PermissionDenied if the role may not export.
    """
    statement = verbs.closed_archive_partitions(older_than=older_than, names=list(names) or None, with_open=with_open)
    found = run(conn, statement)
    return [Partition(**row | {"columns": dict(row["columns"])}) for row in found]


def drop_partition(conn: psycopg.Connection[Any], manifest: Manifest, md5s: Sequence[str]) -> str | None:
    """Let PostgreSQL compare the partition with what its files have, and drop it; return why it is kept if it is.

    ExportDiffers if it is not what the files have.
    """
    statement = verbs.drop_archive_partition(manifest.partition, manifest.with_checksums(md5s))
    why = "it is in use"
    for attempt in range(_DROP_TRIES):
        try:
            with watching(lambda: log.info("partition %s: being compared with its export", manifest.partition)):
                rows = run(conn, statement)
        except ConnectionFailed as error:
            if not isinstance(error.__cause__, psycopg.errors.LockNotAvailable | psycopg.errors.DeadlockDetected):
                raise
            time.sleep(random.uniform(0.1, 0.3) * (attempt + 1))
        except (OpenDeadMessages, ForeignPartition) as error:
            why = str(error)
            break
        else:
            log.info("partition %s: dropped with %s", manifest.partition, quantity(rows))
            return None
    log.warning("partition %s was not dropped: %s", manifest.partition, why)
    return why
