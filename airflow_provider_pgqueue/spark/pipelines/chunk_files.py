"""The part of an export that runs on the executors: a range of pages of a partition becomes Parquet files."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date
from typing import Any, Final
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from psycopg import sql
from pyarrow.fs import SubTreeFileSystem

from airflow_provider_pgqueue.core.errors import ExportDiffers
from airflow_provider_pgqueue.spark.database import Database
from airflow_provider_pgqueue.spark.pipelines.checksum import (
    Group,
    checksum_of_file,
    checksums_in_archive,
)
from airflow_provider_pgqueue.spark.pipelines.manifest import Chunk, Column, File, data_path, staging_folder
from airflow_provider_pgqueue.spark.pipelines.partition import Partition
from airflow_provider_pgqueue.spark.pipelines.target import sync

log = logging.getLogger(__name__)

_TRIES: Final = 3
_BUFFERED: Final = 64 * 1024 * 1024  # bytes in memory before row groups are written
_IN_FOLDERS: Final = ("queue_name", "result")
_ARROW: Final = {
    "bigint": pa.int64(),
    "integer": pa.int32(),
    "smallint": pa.int16(),
    "timestamp with time zone": pa.timestamp("us", tz="UTC"),
}


def export_chunk(
    database: Database, target: SubTreeFileSystem, partition: Partition, chunk: Chunk, export: str
) -> list[tuple[str, File]]:
    """Write the files of a chunk into the staging folder of an export; return them with the paths where they are.

    They were read back and are equal to what PostgreSQL has, at a moment after it was read. Each call has files of its
    own: of two attempts of a task neither touches what the other wrote. ExportDiffers if it changes all the time.
    """
    for _ in range(_TRIES):
        staged = _write(database, target, partition, chunk, export)
        written = {(file.queue_name, file.result, file.date): (file.rows, file.md5) for _, file in staged}
        if written == checksums_in_archive(database, partition.name, chunk):
            return staged
        for path, _file in staged:
            target.delete_file(path)
    raise ExportDiffers(
        f"archive partition {partition.name!r} differs from its export in the pages from {chunk.first_page} to before "
        f"{chunk.end_page}, {_TRIES} times. Look who changes it, and export it again."
    )


def differs(
    database: Database,
    target: SubTreeFileSystem,
    partition: str,
    chunk: Chunk,
    files: list[File],
    *,
    read_back: bool,
) -> bool:
    """Return whether the files of a chunk are not what PostgreSQL has; their content is read only for `read_back`."""
    noted = {(file.queue_name, file.result, file.date): (file.rows, file.md5) for file in files}
    if noted != checksums_in_archive(database, partition, chunk):
        return True
    for info, file in zip(target.get_file_info([file.path for file in files]), files, strict=True):
        if not info.is_file or info.size != file.bytes:
            return True
        if read_back and not _is_readable(target, file):
            return True
    return False


def _is_readable(target: SubTreeFileSystem, file: File) -> bool:
    try:
        return checksum_of_file(target, file.path) == (file.rows, file.md5)
    except (OSError, pa.ArrowException) as error:
        log.warning("%s cannot be read: %s", file.path, type(error).__name__)
        return False


def _write(
    database: Database, target: SubTreeFileSystem, partition: Partition, chunk: Chunk, export: str
) -> list[tuple[str, File]]:
    prefix = f"{staging_folder(partition.name, export)}/{chunk.number:05}-{uuid4().hex}"
    split = _Split(target, partition.columns, prefix)
    try:
        for batch in _read(database, partition, chunk):
            split.add(batch)
    finally:
        paths = split.close()
    return [
        (path, _noted(target, path, chunk, group, data_path(partition.name, export, chunk.number, *group)))
        for group, path in paths.items()
    ]


def _noted(target: SubTreeFileSystem, path: str, chunk: Chunk, group: Group, final_path: str) -> File:
    sync(target, [path])
    rows, digest = checksum_of_file(target, path)
    queue_name, result, day = group
    return File(
        chunk=chunk.number,
        path=final_path,
        queue_name=queue_name,
        result=result,
        date=day,
        rows=rows,
        bytes=target.get_file_info(path).size,
        md5=digest,
    )


def _read(database: Database, partition: Partition, chunk: Chunk) -> Iterator[pa.RecordBatch]:
    schema = arrow_schema(partition.columns)
    with database.arrow("pgqueue export") as conn, conn.cursor() as cursor:
        # Parallel workers would mix the order of the rows, which is the order of the checksum.
        cursor.execute("SET max_parallel_workers_per_gather = 0")
        cursor.execute("SET synchronize_seqscans = off")
        cursor.execute(_select(partition, chunk))
        for batch in cursor.fetch_record_batch():
            yield batch.cast(schema)


def _select(partition: Partition, chunk: Chunk) -> str:
    """Return the query for a chunk: of the table, pruned to the partition, which the role may not read by itself."""
    values = [
        sql.SQL("a.{0}" if column.kind in _ARROW else "a.{0}::text AS {0}").format(sql.Identifier(column.name))
        for column in partition.columns
    ]
    query = sql.SQL(
        "SELECT {values} FROM messages.message_archive a WHERE a.archived_at >= {first_at} AND a.archived_at < {end_at}"
        " AND a.ctid >= {first_row} AND a.ctid < {end_row}"
    ).format(
        values=sql.SQL(", ").join(values),
        first_at=sql.Literal(partition.first_at),
        end_at=sql.Literal(partition.end_at),
        first_row=sql.Literal(f"({chunk.first_page},0)"),
        end_row=sql.Literal(f"({chunk.end_page},0)"),
    )
    return query.as_string(None)


def arrow_schema(columns: tuple[Column, ...]) -> pa.Schema:
    """Return the schema of the archive in Arrow; what has no simple type is text, as JSON is."""
    return pa.schema([(column.name, _ARROW.get(column.kind, pa.string())) for column in columns])


@dataclass(slots=True)
class _Split:
    """Files by queue, result and day. Most are written at the end, in turn; one stays open if much was buffered."""

    target: SubTreeFileSystem
    columns: tuple[Column, ...]
    prefix: str
    buffers: dict[Group, list[pa.RecordBatch]] = field(default_factory=dict)
    buffered: int = 0
    writers: dict[Group, pq.ParquetWriter] = field(default_factory=dict)
    paths: dict[Group, str] = field(default_factory=dict)

    def add(self, batch: pa.RecordBatch) -> None:
        for group, part in _groups(batch):
            self.buffers.setdefault(group, []).append(part)
            self.buffered += part.nbytes
        if self.buffered > _BUFFERED:
            for group in list(self.buffers):
                self._flush(group)
            self.buffered = 0

    def close(self) -> Mapping[Group, str]:
        for group in list(self.buffers):
            self._flush(group)
            self.writers.pop(group).close()
        for writer in self.writers.values():
            writer.close()
        return self.paths

    def _flush(self, group: Group) -> None:
        table = pa.Table.from_batches(self.buffers.pop(group))
        if group not in self.writers:
            self.paths[group] = f"{self.prefix}-{len(self.paths)}.parquet"
            self.writers[group] = pq.ParquetWriter(
                self.paths[group], table.schema, filesystem=self.target, compression="zstd"
            )
        self.writers[group].write_table(table)


def _groups(batch: pa.RecordBatch) -> Iterator[tuple[Group, pa.RecordBatch]]:
    keys = [batch.column("queue_name"), batch.column("result"), batch.column("archived_at").cast(pa.date32())]
    found = pa.table(keys, names=["queue_name", "result", "date"]).group_by(["queue_name", "result", "date"])
    groups: list[dict[str, Any]] = found.aggregate([]).to_pylist()
    rest = batch.select([name for name in batch.schema.names if name not in _IN_FOLDERS])
    for group in groups:
        values: tuple[str, str, date] = (group["queue_name"], group["result"], group["date"])
        if len(groups) == 1:
            yield values, rest
        else:
            queue_name, result, day = (pc.equal(key, value) for key, value in zip(keys, values, strict=True))
            yield values, rest.filter(pc.and_(pc.and_(queue_name, result), day))
