"""Reads the archive or the queue into Spark: in ranges of about one size, by short transactions."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from itertools import pairwise
from typing import Any, Final, NamedTuple

import psycopg
from psycopg import sql
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from airflow_provider_pgqueue.core.connection import check_version
from airflow_provider_pgqueue.core.errors import InvalidArgument, refused
from airflow_provider_pgqueue.core.query import query
from airflow_provider_pgqueue.export.connection import Database, room, rows
from airflow_provider_pgqueue.spark.source import options as given
from airflow_provider_pgqueue.spark.source.tables import Table, both, compare, conditions, table_of

OPTIONS: Final = (
    "table", "columns", "queue", "result", "reference", "topic", "where", "since", "until", "numPartitions",
)  # fmt: skip
# In pages of 8 kB. A piece is one statement: long enough to be worth it, short enough to hold no snapshot for long.
_SMALLEST: Final = 64
_LARGEST: Final = 16384
# Pieces per range, so that ranges can be balanced; pages to sample for each cut, and for all cuts of an extent.
_PIECES: Final = 4
_SAMPLED: Final = 32
_SAMPLED_AT_MOST: Final = 4096
_CHEAPER: Final = 4  # times, than all pages: then an index finds the rows
_Piece = tuple[str, int]  # a statement, and about how many pages it reads


class RangeReader(DataSourceReader):
    """A batch read: each action of a DataFrame reads anew, and changes nothing.

    What it promises beyond that stands in docs/reference/spark-source.md.
    """

    def __init__(self, database: Database, options: Mapping[str, Any], schema: StructType) -> None:
        """Check the options, of which InvalidArgument names the one that is wrong; opens nothing."""
        given.check_names(options, OPTIONS, "A read")
        self.database = database
        self.table = table_of(options)
        if "result" in options and "result" not in self.table.columns:
            raise InvalidArgument(
                f"the {self.table.name} has no results. Leave out option result, or read the archive."
            )
        self.schema = self.table.arrow_schema(schema)
        self.begin, self.end = (
            given.moment(name, options[name]) if name in options else None for name in ("since", "until")
        )
        if self.begin and self.end and self.begin > self.end:
            since, until = options["since"], options["until"]
            raise InvalidArgument(f"option since ({since}) is after option until ({until}). Swap them.")
        self.queues = given.queues(options)
        self.conditions = conditions(options)
        self.where = options.get("where")
        self.max_ranges = given.number(options, "numPartitions", 8, at_most=9999)

    def partitions(self) -> list[InputPartition]:
        """Plan the ranges, on the driver. Raises an error of the tree in `core.errors`."""
        with self.database.connect("pgqueue spark plan") as conn:
            try:
                check_version(conn)
                conn.read_only = True
                with conn.transaction():
                    self._check_where(conn)
                    # The bounds of the partitions, which cut the archive, are texts.
                    conn.execute("SET LOCAL DateStyle = 'ISO'")
                    planned = self._plan(conn)
                    given.check_queues(conn, self.queues)
                    return planned
            except psycopg.Error as error:
                raise refused(conn, error, wants="reader") from error

    def read(self, partition: InputPartition | None) -> Iterator[Any]:
        """Stream the record batches of one range, on an executor; holds one batch at a time."""
        if partition is None:  # there is none
            return
        with self.database.arrow("pgqueue spark read") as conn:
            for statement in partition.value:
                yield from rows(conn, statement, self.schema, given="" if self.where is None else "option where")

    def statement(self, *more: sql.Composable) -> str:
        """Return the SELECT of the rows that the options choose and that meet these conditions too.

        Option `where` is SQL of the author of the job. It stands in parentheses and on lines of its own; the server
        checks first that it cannot reach beyond them.
        """
        where = [] if self.where is None else [sql.SQL("(\n") + sql.SQL(self.where) + sql.SQL("\n)")]
        return self.table.statement(self.schema.names, [*self.conditions, *where, *more])

    def _check_where(self, conn: psycopg.Connection[Any]) -> None:
        """Let PostgreSQL plan two statements that are valid only if `where` is one whole condition; they read no row.

        In parentheses it cannot end with ORDER BY. Without them it cannot be a SELECT, or close a parenthesis that it
        did not open. A comment or a text that does not end is an error in both.
        """
        relation = self.table.relation.as_string(conn)
        for condition in () if self.where is None else (f"\n{self.where}\n", f" (\n{self.where}\n)"):
            try:
                # Use the binary format, which the server takes for one statement only.
                conn.execute(f"EXPLAIN SELECT FROM {relation} WHERE{condition}".encode(), binary=True)
            except psycopg.Error as error:
                if conn.closed:
                    raise
                said = " ".join((error.diag.message_primary or "").split())
                raise InvalidArgument(
                    f"option where is not a condition that PostgreSQL takes: {said}. Give one "
                    f"condition on {relation}, such as: priority > 0 AND attempts = 1"
                ) from None

    def _plan(self, conn: psycopg.Connection[Any]) -> list[InputPartition]:
        """Return ranges that together give each selected row once, at most `max_ranges`, and only as many as there are
        connections; each is a list of statements.

        A row is in one range by its time and id, which never change: an update between two ranges, which moves the row
        to another page, neither doubles nor loses it. The ranges cover all times and ids, those to come too: Spark may
        keep a plan for the next action, which then finds what was archived since.
        """
        where = {"table": self.table.relation.as_string(conn), "from": self.begin, "to": self.end}
        extents = [_Extent(*row) for row in conn.execute(query("extents"), where, binary=True)]
        pages = sum(extent.pages for extent in extents)
        if self._is_found_by_an_index(conn, pages):
            return [InputPartition([self.statement(*_between(self.table.moment, self.begin, self.end))])]
        size = min(max(math.ceil(pages / (self.max_ranges * _PIECES)), _SMALLEST), _LARGEST)
        pieces = [piece for extent in _merged(extents, size) for piece in self._cut(conn, extent, size)]
        return _balance(pieces, room(conn, min(self.max_ranges, len(pieces))))

    def _is_found_by_an_index(self, conn: psycopg.Connection[Any], pages: int) -> bool:
        """Return whether the rows that the options choose, such as those of one reference, are one short statement.

        Cut into ranges, each would look through the same index, and open a connection for it.
        """
        if self.where is None and not self.conditions:
            return False
        statement = self.statement(*_between(self.table.moment, self.begin, self.end))
        row = conn.execute(f"EXPLAIN (FORMAT JSON) {statement}".encode()).fetchone()
        cost = math.inf if row is None else row[0][0]["Plan"]["Total Cost"]
        # To read a page in the order of the table costs 1.
        return bool(cost < _LARGEST and _CHEAPER * cost < pages)

    def _cut(self, conn: psycopg.Connection[Any], extent: _Extent, size: int) -> list[_Piece]:
        within = _between(self.table.moment, extent.begin, extent.end)
        cuts = _cuts(conn, self.table, within, extent.heap, math.ceil(extent.pages / size))
        pages = math.ceil(extent.pages / (len(cuts) + 1))
        ids = pairwise([None, *cuts, None])
        return [(self.statement(*within, *_between("id", begin, end)), pages) for begin, end in ids]


class _Extent(NamedTuple):
    """A stretch of a table's time, how many pages hold it at most, and how many of them are not TOAST."""

    begin: datetime | None
    end: datetime | None
    pages: int
    heap: int


def _between(column: str, begin: datetime | int | None, end: datetime | int | None) -> list[sql.Composable]:
    """Return the conditions that a column is from `begin` to before `end`; None leaves that side open."""
    return [compare(column, sign, value) for sign, value in ((">=", begin), ("<", end)) if value is not None]


def _merged(extents: Sequence[_Extent], size: int) -> list[_Extent]:
    """Join neighbours that are one piece together."""
    merged: list[_Extent] = []
    for extent in extents:
        if merged and merged[-1].pages + extent.pages <= size:
            last = merged.pop()
            extent = _Extent(last.begin, extent.end, last.pages + extent.pages, last.heap + extent.heap)
        merged.append(extent)
    return merged


def _cuts(
    conn: psycopg.Connection[Any], table: Table, within: Sequence[sql.Composable], heap: int, pieces: int
) -> list[int]:
    """Return ids that cut an extent into pieces with about as many rows each, by looking at some of its pages."""
    if pieces < 2:
        return []
    percent = min(100.0, 100 * min(_SAMPLED * pieces, _SAMPLED_AT_MOST) / heap)
    statement = sql.SQL(query("quantiles_of_ids").decode()).format(table.relation, both(within))
    row = conn.execute(statement, [[number / pieces for number in range(1, pieces)], percent]).fetchone()
    return sorted(set(row[0])) if row and row[0] else []


def _balance(pieces: Sequence[_Piece], max_ranges: int) -> list[InputPartition]:
    """Deal out the pieces, the largest first, so that the ranges have about one size."""
    statements = [statement for statement, _ in sorted(pieces, key=lambda piece: -piece[1])]
    return [InputPartition(statements[place::max_ranges]) for place in range(min(max_ranges, len(statements)))]
