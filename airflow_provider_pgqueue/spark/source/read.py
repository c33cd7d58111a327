"""Reads the archive or the queue into Spark: in ranges of about one size, by short transactions."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import ceil
from typing import Any, Final

import psycopg
from psycopg import sql
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from airflow_provider_pgqueue.core.connection import check_version
from airflow_provider_pgqueue.core.errors import InvalidArgument, PermissionDenied, translate
from airflow_provider_pgqueue.core.query import query
from airflow_provider_pgqueue.spark.database import Database, rows
from airflow_provider_pgqueue.spark.source.schema import Table, arrow_schema, both
from airflow_provider_pgqueue.spark.source.selection import Selection, Span, compare

# In pages of 8 kB. A piece is one statement: long enough to be worth it, short enough to hold no snapshot for long.
_SMALLEST: Final = 64
_LARGEST: Final = 16384
# Pieces per range, so that ranges can be balanced; pages to look at for each cut, and for all cuts of an extent.
_PIECES: Final = 4
_SAMPLED: Final = 32
_SAMPLED_AT_MOST: Final = 4096


class RangeReader(DataSourceReader):
    """A batch read. Nothing is leased or changed; each action of a DataFrame reads anew.

    Guarantees: a message that is there from the begin of the action to its end comes exactly once, however many ranges
    there are and whatever is leased, archived or decided meanwhile. One that comes or goes meanwhile comes at most
    once. A task that fails reads its range again.
    """

    def __init__(self, database: Database, options: Mapping[str, Any], schema: StructType) -> None:
        """Check the options; opens nothing."""
        self.database = database
        selection = Selection.of_options(options)
        self.selection = replace(selection, columns=selection.table.columns_of(schema))

    def partitions(self) -> list[InputPartition]:
        """Plan the ranges, on the driver. Raises an error of the tree in `core.errors`."""
        with self.database.connect("pgqueue spark plan") as conn:
            try:
                check_version(conn)
                conn.read_only = True
                with conn.transaction():
                    _check_where(conn, self.selection)
                    return list(_plan(conn, self.selection))
            except (psycopg.errors.InsufficientPrivilege, PermissionDenied) as error:
                raise PermissionDenied(
                    f"role {conn.info.user!r} may not read the {self.selection.table.name}. "
                    f'Ask an admin: GRANT messages_reader TO "{conn.info.user}"'
                ) from error
            except psycopg.Error as error:
                raise translate(error) from error

    def read(self, partition: InputPartition | None) -> Iterator[Any]:
        """Stream the record batches of one range, on an executor; holds one batch at a time."""
        statements = partition.statements if isinstance(partition, Range) else ()
        if not statements:
            return
        schema = arrow_schema(self.selection.columns)
        with self.database.arrow("pgqueue spark read") as conn:
            for statement in statements:
                yield from rows(conn, statement, schema, has_where=self.selection.where is not None)


def _check_where(conn: psycopg.Connection[Any], selection: Selection) -> None:
    for statement in selection.checks():
        try:
            # In the binary format, which the server takes for one statement only.
            conn.execute(statement.encode(), binary=True)
        except psycopg.Error as error:
            if conn.closed:
                raise
            said = " ".join((error.diag.message_primary or "").split())
            raise InvalidArgument(
                f"option where is not a condition that PostgreSQL takes: {said}. Give one "
                f"condition on {selection.table.relation.as_string(conn)}, such as: priority > 0 AND attempts = 1"
            ) from None


@dataclass(frozen=True)
class Range(InputPartition):
    """What one task reads: statements, each to be run in a short transaction of its own."""

    statements: tuple[str, ...]
    pages: int


@dataclass(frozen=True, slots=True)
class _Extent:
    """A span of a table's time, how many pages hold it at most, and how many of them are not TOAST."""

    span: Span
    pages: int
    heap: int


@dataclass(frozen=True, slots=True)
class _Piece:
    """One statement and about how many pages it reads."""

    statement: str
    pages: int


def _plan(conn: psycopg.Connection[Any], selection: Selection) -> list[Range]:
    """Return ranges that together give each selected row once, at most `selection.max_ranges`.

    A row is in one range by its time and id, which never change: an update between two ranges, which moves the row to
    another page, neither doubles nor loses it. The ranges cover all times and ids, those to come too: Spark may keep a
    plan for the next action, which then finds what was archived since.
    """
    extents = [extent for extent in _extents(conn, selection) if not extent.span.is_empty]
    size = _piece_size(sum(extent.pages for extent in extents), selection.max_ranges)
    pieces = [piece for extent in _merged(extents, size) for piece in _cut(conn, selection, extent, size)]
    return _balance(pieces, selection.max_ranges)


def _extents(conn: psycopg.Connection[Any], selection: Selection) -> Iterator[_Extent]:
    """Give all of time, in its order."""
    leaves = conn.execute(query("extents"), {"table": selection.table.relation.as_string(conn)}).fetchall()
    # What no other has belongs to the default partition; all of it to a table without partitions.
    others = [sizes for begin, _, *sizes in leaves if not begin]
    elsewhere = list(map(sum, zip(*others, strict=True))) or [0, 0]
    edge = None
    for begin, end, *sizes in leaves:
        if begin:
            yield _Extent(Span(edge, begin) & selection.span, *elsewhere)
            yield _Extent(Span(begin, end) & selection.span, *sizes)
            edge = end
    yield _Extent(Span(edge) & selection.span, *elsewhere)


def _merged(extents: Sequence[_Extent], size: int) -> list[_Extent]:
    """Join neighbours that are one piece together."""
    merged: list[_Extent] = []
    for extent in extents:
        if merged and merged[-1].pages + extent.pages <= size:
            last = merged.pop()
            span = Span(last.span.begin, extent.span.end)
            extent = _Extent(span, last.pages + extent.pages, last.heap + extent.heap)
        merged.append(extent)
    return merged


def _piece_size(pages: int, max_ranges: int) -> int:
    return min(max(ceil(pages / (max_ranges * _PIECES)), _SMALLEST), _LARGEST)


def _cut(conn: psycopg.Connection[Any], selection: Selection, extent: _Extent, size: int) -> list[_Piece]:
    within = extent.span.conditions(selection.table.moment)
    cuts = _cuts(conn, selection.table, within, extent.heap, ceil(extent.pages / size))
    pages = ceil(extent.pages / (len(cuts) + 1))
    return [
        _Piece(selection.statement(*within, *_ids(begin, end)).as_string(conn), pages)
        for begin, end in pairwise([None, *cuts, None])
    ]


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


def _ids(begin: int | None, end: int | None) -> list[sql.Composable]:
    sides = [(">=", begin), ("<", end)]
    return [compare("id", sign, id_) for sign, id_ in sides if id_ is not None]


def _balance(pieces: Sequence[_Piece], max_ranges: int) -> list[Range]:
    """Give the largest piece that is left to the range that has the least."""
    loads: list[tuple[int, int]] = [(0, place) for place in range(min(max_ranges, len(pieces)))]
    given: list[list[str]] = [[] for _ in loads]
    for piece in sorted(pieces, key=lambda piece: -piece.pages):
        pages, place = loads[0]
        given[place].append(piece.statement)
        heapq.heapreplace(loads, (pages + piece.pages, place))
    return [Range(tuple(given[place]), pages) for pages, place in sorted(loads, key=lambda load: load[1])]
