"""The tasks of an export: a range of pages of a partition becomes Parquet files, which are read back."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import date
from hashlib import md5
from itertools import groupby
from typing import Any, Final
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from psycopg import sql

from airflow_provider_pgqueue.export.connection import Database, reading, translated
from airflow_provider_pgqueue.export.manifest import (
    TYPES,
    Chunk,
    File,
    Version,
    arrow_schema,
    data_path,
    staging_folder,
)
from airflow_provider_pgqueue.export.partition import Partition
from airflow_provider_pgqueue.export.target import Target

log = logging.getLogger(__name__)

_BUFFERED: Final = 64 * 1024 * 1024  # bytes in memory before row groups are written
_Group = tuple[str, str, date]  # queue, result, day
_IN_FOLDERS: Final = ["queue_name", "result"]
_OF_FEW_VALUES: Final = {
    "priority",
    "attempts",
    "requeues",
    "handled_by",
    "details",
    "topic",
    "fingerprint",
    "resolution",
}
_LONG: Final = 1024


def export_chunk(
    database: Database, target: Target, partition: Partition, chunk: Chunk, export: str
) -> tuple[dict[str, File], Version]:
    """Write the files of a chunk into the staging folder; return them by folder, and the version of their rows.

    The rows are those of one point in time of PostgreSQL. Each call has files of its own: of two attempts of a task
    neither touches what the other wrote.
    """
    prefix = f"{staging_folder(partition.name, export)}/{chunk.number:05}-{uuid4().hex}"
    columns = {name: kind for name, kind in partition.columns.items() if name not in _IN_FOLDERS}
    split = _Split(target, prefix, arrow_schema(columns))
    try:
        version = _read(database, partition, chunk, split.add)
    finally:
        split.close()
    target.sync(part.path for part in split.parts.values())
    files = {
        part.path: File(
            chunk=chunk.number,
            path=data_path(partition.name, export, chunk.number, *group),
            queue_name=group[0],
            result=group[1],
            date=group[2],
            rows=part.rows,
            bytes=target.folder.get_file_info(part.path).size,
        )
        for group, part in split.parts.items()
    }
    return files, version


def checksum_of(target: Target, path: str) -> str | None:
    """Read a file back and return the md5 of its rows; None if it is damaged."""
    digest = md5(usedforsecurity=False)
    try:
        with target.folder.open_input_file(path) as stream:
            file = pq.ParquetFile(stream, page_checksum_verification=True)
            for group in range(file.num_row_groups):
                for batch in file.read_row_group(group).to_batches(max_chunksize=10_000):
                    digest.update(_texts(batch))
    except (OSError, pa.ArrowException) as error:
        log.warning("%s cannot be read: %s", path, type(error).__name__)
        return None
    return digest.hexdigest()


def _read(database: Database, partition: Partition, chunk: Chunk, take: Callable[[pa.RecordBatch], None]) -> Version:
    """Give the rows of a chunk, in their physical order, and return their version; both of one point in time.

    Columns without any value in the chunk are left out: most messages use few, and each costs as much without values.
    """
    with database.arrow("pgqueue export") as conn, reading(conn, "REPEATABLE READ") as cursor:
        # Parallel workers would mix the order of the rows, which is the order of the checksum.
        cursor.execute("SET LOCAL max_parallel_workers_per_gather = 0")
        cursor.execute("SET LOCAL synchronize_seqscans = off")
        cursor.execute(partition.select_version(chunk))
        number, hash_, *values = cursor.fetchone()
        counts = zip(partition.columns.items(), values, strict=True)
        used = {name: kind for (name, kind), count in counts if count}
        cursor.execute(partition.select(chunk, map(_value, used, used.values())))
        schema = arrow_schema(used)
        for batch in _batches(cursor) if number else ():
            take(batch.cast(schema))
    return Version(number, hash_)


def _batches(cursor: Any) -> Iterator[pa.RecordBatch]:
    """Give the rows; ConnectionFailed if the connection breaks, which Arrow raises as an OSError."""
    try:
        yield from cursor.fetch_record_batch()
    except OSError as error:
        raise translated(error) from None


def _value(name: str, kind: str) -> sql.Composed:
    return sql.SQL("a.{0}" if kind in TYPES else "a.{0}::text AS {0}").format(sql.Identifier(name))


@dataclass(slots=True)
class _Part:
    """A file that is written, with what is known of its content."""

    path: str
    rows: int = 0
    buffer: list[pa.RecordBatch] = field(default_factory=list)
    writer: pq.ParquetWriter | None = None


@dataclass(slots=True)
class _Split:
    """Files by queue, result and day. Most are written at the end, in turn; one stays open if much was buffered."""

    target: Target
    prefix: str
    schema: pa.Schema
    parts: dict[_Group, _Part] = field(default_factory=dict)
    buffered: int = 0

    def add(self, batch: pa.RecordBatch) -> None:
        rows, groups = _grouped(batch)
        first = 0
        for group, number in groups:
            part = self.parts.setdefault(group, _Part(f"{self.prefix}-{len(self.parts)}.parquet"))
            part.rows += number
            part.buffer.append(rows.slice(first, number))
            first += number
        self.buffered += rows.nbytes
        if self.buffered > _BUFFERED:
            for part in self.parts.values():
                self._flush(part)
            self.buffered = 0

    def close(self) -> None:
        try:
            for part in self.parts.values():
                self._flush(part)
                if part.writer is not None:
                    part.writer.close()
        finally:
            # A writer that could not write the end leaves its file open, and the process may live on, as Spark's do.
            for part in self.parts.values():
                if part.writer is not None and part.writer.file_handle is not None:
                    with suppress(OSError):
                        part.writer.file_handle.close()

    def _flush(self, part: _Part) -> None:
        if not part.buffer:
            return
        # With the columns that the batches do not have, without values.
        tables = [self.schema.empty_table(), pa.Table.from_batches(part.buffer)]
        table = pa.concat_tables(tables, promote_options="default")
        part.buffer = []
        if part.writer is None:
            few = [name for name in table.schema.names if name in _OF_FEW_VALUES]
            part.writer = pq.ParquetWriter(
                part.path,
                table.schema,
                filesystem=self.target.folder,
                compression="zstd",
                use_dictionary=few,
                write_page_checksum=True,
            )
        part.writer.write_table(table)


def _grouped(batch: pa.RecordBatch) -> tuple[pa.RecordBatch, list[tuple[_Group, int]]]:
    """Return the rows by queue, result and day, in each of these in their order, and how many each has."""
    names = ["queue_name", "result", "date"]
    keys = pa.table([batch["queue_name"], batch["result"], batch["archived_at"].cast(pa.date32())], names=names)
    by = [(name, "ascending") for name in names]
    counts = keys.group_by(names).aggregate([([], "count_all")]).sort_by(by).to_pylist()
    rows = batch.drop_columns(_IN_FOLDERS)
    if len(counts) > 1:
        rows = rows.take(pc.sort_indices(keys, by))
    return rows, [((found["queue_name"], found["result"], found["date"]), found["count_all"]) for found in counts]


def _texts(batch: pa.RecordBatch) -> memoryview:
    """Return the texts of the rows, one behind the other."""
    texts = pc.binary_join_element_wise(*_fields(batch), "\n", "|", null_handling="replace", null_replacement="")
    _, _, characters = texts.buffers()
    return memoryview(characters or b"")[: pc.sum(pc.binary_length(texts)).as_py() or 0]


def _fields(batch: pa.RecordBatch) -> Iterator[pa.Array | str]:
    """Give what is joined to the texts; columns without any value next to each other as one."""
    for empty, columns in groupby(batch.columns, key=lambda column: column.null_count == len(column)):
        if empty:
            yield "|" * (sum(1 if _is_number(column) else 2 for column in columns) - 1)
        else:
            for column in columns:
                yield from _values(column)


def _values(column: pa.Array) -> Iterator[pa.Array]:
    if pa.types.is_timestamp(column.type):
        yield column.cast(pa.int64()).cast(pa.string())
    elif _is_number(column):
        yield column.cast(pa.string())
    else:
        length = pc.binary_length(column)
        yield length.cast(pa.string())
        yield _shortened(column, length)


def _is_number(column: pa.Array) -> bool:
    return bool(pa.types.is_timestamp(column.type) or pa.types.is_integer(column.type))


def _shortened(column: pa.Array, length: pa.Array) -> pa.Array:
    if pc.max(length).as_py() <= _LONG:
        return column
    long = pc.fill_null(pc.greater(length, _LONG), False)
    hashes = [md5(value.as_buffer(), usedforsecurity=False).hexdigest() for value in column.filter(long)]
    return pc.replace_with_mask(column, long, pa.array(hashes, pa.string()))
