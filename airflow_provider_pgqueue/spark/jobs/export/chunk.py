"""The tasks of an export: a range of pages of a partition becomes Parquet files, which are read back."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, is_dataclass
from hashlib import md5
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from psycopg import sql
from pyarrow.fs import SubTreeFileSystem

from airflow_provider_pgqueue.spark.database import Database
from airflow_provider_pgqueue.spark.jobs.export.checksum import Group, between, checksum_of_file, texts_of
from airflow_provider_pgqueue.spark.jobs.export.partition import Partition, rows_of, select_version
from airflow_provider_pgqueue.spark.jobs.exported.manifest import (
    ArchiveColumn,
    Chunk,
    File,
    Version,
    data_path,
    staging_folder,
)
from airflow_provider_pgqueue.spark.jobs.exported.target import sync

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

_BUFFERED: Final = 64 * 1024 * 1024  # bytes in memory before row groups are written
_IN_FOLDERS: Final = ["queue_name", "result"]
_OF_FEW_VALUES: Final = {"priority", "attempts", "requeues", "handled_by", "details", "topic", "fingerprint", "remedy"}
_ARROW: Final = {
    "bigint": pa.int64(),
    "integer": pa.int32(),
    "smallint": pa.int16(),
    "timestamp with time zone": pa.timestamp("us", tz="UTC"),
}


@dataclass(frozen=True, slots=True)
class StagedChunk:
    """The files of a chunk, where they are now, and the version of the rows that are in them."""

    files: tuple[tuple[str, File], ...]
    version: Version


def for_each_chunk(
    spark: SparkSession, chunks: Sequence[Chunk], work: Callable[[Chunk], Any], *, at_once: int
) -> list[Any]:
    """Return what the work gives for each chunk, as JSON has it, of the attempt that Spark counts.

    OSError if a task could not use the target.
    """
    if not chunks:
        return []

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield pa.RecordBatch.from_pydict({"report": [_report(work, chunks[number])]})

    rows = spark.range(0, len(chunks), 1, min(len(chunks), at_once)).mapInArrow(task, "report string").collect()
    return [_done(json.loads(row.report)) for row in rows]


def _report(work: Callable[[Chunk], Any], chunk: Chunk) -> str:
    try:
        return json.dumps({"done": work(chunk)}, default=_plain)
    except OSError as error:  # of the target: to try again would not help
        return json.dumps({"refused": [error.errno, error.strerror or str(error)]})


def _done(report: dict[str, Any]) -> Any:
    if "refused" in report:
        raise OSError(*report["refused"])
    return report["done"]


def _plain(value: Any) -> Any:
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else value.isoformat()


def export_chunk(
    database: Database, target: SubTreeFileSystem, partition: Partition, chunk: Chunk, export: str
) -> StagedChunk:
    """Write the files of a chunk into the staging folder of an export, of one moment of PostgreSQL.

    Each call has files of its own: of two attempts of a task neither touches what the other wrote.
    """
    prefix = f"{staging_folder(partition.name, export)}/{chunk.number:05}-{uuid4().hex}"
    split = _Split(target, prefix, _schema_of_files(partition))
    try:
        version = _read(database, partition, chunk, split.add)
    finally:
        split.close()
    sync(target, [part.path for part in split.parts.values()])
    files = (
        (
            part.path,
            File(
                chunk=chunk.number,
                path=data_path(partition.name, export, chunk.number, *group),
                queue_name=group[0],
                result=group[1],
                date=group[2],
                rows=part.rows,
                bytes=target.get_file_info(part.path).size,
                md5=part.digest.hexdigest(),
            ),
        )
        for group, part in split.parts.items()
    )
    return StagedChunk(tuple(files), version)


def are_readable(target: SubTreeFileSystem, files: list[File]) -> bool:
    """Read files back, and return whether each has the content that its manifest notes."""
    return all(_is_readable(target, file) for file in files)


def _is_readable(target: SubTreeFileSystem, file: File) -> bool:
    try:
        return checksum_of_file(target, file.path) == (file.rows, file.md5)
    except (OSError, pa.ArrowException) as error:
        log.warning("%s cannot be read: %s", file.path, type(error).__name__)
        return False


def _read(database: Database, partition: Partition, chunk: Chunk, take: Callable[[pa.RecordBatch], None]) -> Version:
    """Give the rows of a chunk, in their physical order, and return their version; both of one moment.

    Columns without any value in the chunk are left out: most messages use few, and each costs as much without values.
    """
    rows = rows_of(partition, chunk)
    with database.arrow("pgqueue export") as conn, conn.cursor() as cursor:
        # Parallel workers would mix the order of the rows, which is the order of the checksum.
        cursor.execute("SET max_parallel_workers_per_gather = 0")
        cursor.execute("SET synchronize_seqscans = off")
        cursor.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        cursor.execute(select_version(rows, partition.columns))
        number, hash_, *values = cursor.fetchone()
        used = [column for column, count in zip(partition.columns, values, strict=True) if count]
        cursor.execute(_select(used, rows))
        schema = arrow_schema(used)
        for batch in cursor.fetch_record_batch() if number else ():
            take(batch.cast(schema))
        cursor.execute("COMMIT")
    return Version(number, hash_)


def _select(columns: Sequence[ArchiveColumn], rows: sql.Composed) -> str:
    values = [
        sql.SQL("a.{0}" if column.kind in _ARROW else "a.{0}::text AS {0}").format(sql.Identifier(column.name))
        for column in columns
    ]
    return sql.SQL("SELECT {} {}").format(sql.SQL(", ").join(values), rows).as_string(None)


def arrow_schema(columns: Iterable[ArchiveColumn]) -> pa.Schema:
    """Return the schema of columns of the archive in Arrow; what has no simple type is text, as JSON is."""
    return pa.schema([(column.name, _ARROW.get(column.kind, pa.string())) for column in columns])


def _schema_of_files(partition: Partition) -> pa.Schema:
    return arrow_schema(column for column in partition.columns if column.name not in _IN_FOLDERS)


def _with_all(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return the batch with all columns of the schema; those that it does not have are without values."""
    found = set(batch.schema.names)
    columns = [batch[field.name] if field.name in found else pa.nulls(batch.num_rows, field.type) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


@dataclass(slots=True)
class _Part:
    """A file that is written, with what is known of its content."""

    path: str
    digest: Any = field(default_factory=lambda: md5(usedforsecurity=False))
    rows: int = 0
    buffer: list[pa.RecordBatch] = field(default_factory=list)
    writer: pq.ParquetWriter | None = None


@dataclass(slots=True)
class _Split:
    """Files by queue, result and day. Most are written at the end, in turn; one stays open if much was buffered."""

    target: SubTreeFileSystem
    prefix: str
    schema: pa.Schema
    parts: dict[Group, _Part] = field(default_factory=dict)
    buffered: int = 0

    def add(self, batch: pa.RecordBatch) -> None:
        some, groups = _grouped(batch)
        rows = _with_all(some, self.schema)
        texts = texts_of(rows)
        first = 0
        for group, number in groups:
            part = self.parts.setdefault(group, _Part(f"{self.prefix}-{len(self.parts)}.parquet"))
            part.digest.update(between(texts, first, first + number))
            part.rows += number
            part.buffer.append(rows.slice(first, number))
            first += number
        self.buffered += rows.nbytes
        if self.buffered > _BUFFERED:
            for part in self.parts.values():
                self._flush(part)
            self.buffered = 0

    def close(self) -> None:
        for part in self.parts.values():
            self._flush(part)
            if part.writer is not None:
                part.writer.close()

    def _flush(self, part: _Part) -> None:
        if not part.buffer:
            return
        table = pa.Table.from_batches(part.buffer)
        part.buffer = []
        if part.writer is None:
            few = [name for name in table.schema.names if name in _OF_FEW_VALUES]
            part.writer = pq.ParquetWriter(
                part.path, table.schema, filesystem=self.target, compression="zstd", use_dictionary=few
            )
        part.writer.write_table(table)


def _grouped(batch: pa.RecordBatch) -> tuple[pa.RecordBatch, list[tuple[Group, int]]]:
    """Return the rows by queue, result and day, in each of these in their order, and how many each has."""
    names = ["queue_name", "result", "date"]
    keys = pa.table([batch["queue_name"], batch["result"], batch["archived_at"].cast(pa.date32())], names=names)
    by = [(name, "ascending") for name in names]
    counts = keys.group_by(names).aggregate([([], "count_all")]).sort_by(by).to_pylist()
    rows = batch.drop_columns(_IN_FOLDERS)
    if len(counts) > 1:
        rows = rows.take(pc.sort_indices(keys, by))
    return rows, [((found["queue_name"], found["result"], found["date"]), found["count_all"]) for found in counts]
