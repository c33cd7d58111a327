"""Stages: tasks put rows aside, each attempt under its own number; one transaction publishes those that won."""

from __future__ import annotations

import json
import random
import re
import secrets
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import IO, Any, Final

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from psycopg import sql
from pyspark.sql.datasource import WriterCommitMessage

from airflow_provider_pgqueue.core import verbs
from airflow_provider_pgqueue.core.client import run
from airflow_provider_pgqueue.core.errors import (
    ConnectionFailed,
    InvalidArgument,
    InvalidMessage,
    PgQueueError,
    translate,
)
from airflow_provider_pgqueue.core.message import PLURALS
from airflow_provider_pgqueue.core.query import query
from airflow_provider_pgqueue.export.connection import Database

_IN_MEMORY: Final = 16 * 1024 * 1024
_CHUNK: Final = 256 * 1024
_WAITING: Final = "pgqueue spark waiting"  # the session of a task until it has a slot
_TEXT: Final = pa.large_string()
_ESCAPES: Final = (("\\", "\\\\"), ("\n", "\\n"), ("\r", "\\r"), ("\t", "\\t"))
_ROW: Final = re.compile(r"^COPY \w+, line (\d+)", re.M)
_RULES: Final = {
    **{name: f"its {name} is empty or too long. Give a text of 1 to 255 characters, or NULL." for name in PLURALS},
    "headers": "its headers are not a JSON object, or larger than 64 kB. Give a small object, or NULL.",
    "queue_name": "its queue_name is NULL. Name a queue in each row, or leave out the column and give option queue.",
    "reference": "its reference is too long. Give a text of at most 2,600 bytes, or NULL.",
    "topic": "its topic is not valid. Use words of letters, digits, - and _ with single dots between them.",
    "priority": "its priority is out of range. Give a whole number from 0 to 9, or NULL.",
    "22009": "its visible_at or expires_at is too long ago. Leave it NULL.",
    "22021": "a text in it has a NUL, or is not UTF-8. Replace such characters first.",
    "visible_at": "its visible_at is too far away. Give a time within the next ten years, or NULL.",
    "expires_at": "its expires_at is before 1970 or too far away. Give a time within the next ten years, or NULL.",
}


@dataclass(frozen=True)
class StagedRows(WriterCommitMessage):
    """The commit message of an attempt: its number, the stage, the partition and the number of staged rows."""

    stage_id: str
    partition: int
    attempt: int
    rows: int

    def winner(self) -> dict[str, int]:
        """Return the fields with which PostgreSQL publishes the rows."""
        return {"partition": self.partition, "attempt": self.attempt, "rows": self.rows}


@dataclass(frozen=True, slots=True)
class Stage:
    """The staging table of one job, or of one stream.

    :param stage_id: its name, of a job random, of a stream the id of its query; made at first use, dropped when the job
        was published, emptied after each batch of a stream.
    :param queue_name: the queue of all rows; None if each row names its own.
    :param dedup_window: how long a `dedup_key` is remembered, in the words of PostgreSQL; None is the queue's.
    :param slots: how many tasks write at the same time; the others wait.
    """

    database: Database
    stage_id: str
    queue_name: str | None = None
    dedup_window: str | None = None
    slots: int = 8

    def open(self, run_id: str | None = None) -> bool:
        """Make the stage unless it exists; return False if the run was published before.

        Raises QueueNotFound, PermissionDenied, or InvalidArgument if another pipeline has a run of this name, or the
        run has published to another queue.
        """
        opened = verbs.stage_publish(self.stage_id, queue_name=self.queue_name, run_id=run_id)
        return self.database.run(opened) is not None

    def put(self, partition: int, batches: Iterator[pa.RecordBatch]) -> StagedRows:
        """Stage the rows of a partition, all or none; each call is an attempt, of which the driver publishes one.

        The rows are collected first, on the local disk if they are many. So the session lasts as long as the transfer
        and not as long as Spark computes, and its snapshot never holds back the vacuum of the queue.

        Raises InvalidMessage or InvalidArgument with the number of the row, never with its content.
        """
        staged, columns = StagedRows(self.stage_id, partition, secrets.randbits(62), 0), list[str]()
        with tempfile.SpooledTemporaryFile(_IN_MEMORY) as file:
            for batch in batches:
                columns = [name.lower() for name in batch.schema.names]  # as Spark compares them
                file.write(_lines(batch, attempt=staged.attempt, after=staged.rows))
                staged = replace(staged, rows=staged.rows + batch.num_rows)
            file.seek(0)
            if staged.rows:
                # In a session of its own: the other tasks would wait for one that made the stage and still copies.
                with self.database.connect(_WAITING, patient=True) as conn:
                    table = run(conn, verbs.stage_publish(self.stage_id))
                with self._slot() as conn:
                    copy(conn, table, columns, file, partition)
        return staged

    def publish(self, winners: Sequence[StagedRows], *, run_id: str, batch: int | None = None) -> dict[str, Any]:
        """Publish the attempts that won in one transaction; return the numbers `rows`, `published` and `duplicates`.

        The same run or batch again publishes nothing and returns the old numbers with `repeated`. So a commit
        whose reply was lost is repeated. Raises StageIncomplete if rows are gone, or an error of publishing: then
        nothing was published.
        """
        given = json.dumps([winner.winner() for winner in winners if winner.rows])
        to = {"queue_name": self.queue_name, "dedup_window": self.dedup_window}
        statement = verbs.publish_staged(self.stage_id, run_id, given, batch=batch, **to)
        for pause in (1, 2):
            try:
                return self.database.run(statement)
            except ConnectionFailed:
                time.sleep(pause)
        return self.database.run(statement)

    def drop(self) -> None:
        """Drop the stage; maintenance drops it later if a task that still runs holds it."""
        self.database.run(verbs.drop_stage(self.stage_id))

    @contextmanager
    def _slot(self) -> Iterator[psycopg.Connection[Any]]:
        """Wait for one of the slots, and give its transaction; the slot goes with it, however it ends.

        A lock of the session does not do: behind a pooler the session goes to another client and would keep the slot.
        """
        pause = 0.05
        while True:
            with self.database.connect(_WAITING, patient=True) as conn, conn.transaction():
                if any(self._take(conn, slot) for slot in range(1, self.slots + 1)):
                    yield conn
                    return
            time.sleep(pause * random.uniform(0.5, 1))
            pause = min(2 * pause, 2.0)

    def _take(self, conn: psycopg.Connection[Any], slot: int) -> bool:
        row = conn.execute(query("take_slot"), {"slot": slot, "stage_id": self.stage_id}).fetchone()
        return row is not None and bool(row[0])


def _lines(batch: pa.RecordBatch, *, attempt: int, after: int) -> memoryview:
    """Return the rows of a batch as lines: the attempt, the ordinal, which continues after `after`, and the columns."""
    ordinals = pa.array(range(after + 1, after + 1 + batch.num_rows), pa.int64())
    fields = [pa.scalar(str(attempt), _TEXT), ordinals.cast(_TEXT), *map(_field, batch.columns)]
    joined = pc.binary_join_element_wise(
        *fields, pa.scalar("\t", _TEXT), null_handling="replace", null_replacement="\\N"
    )
    ended = pc.binary_join_element_wise(joined, pa.scalar("", _TEXT), pa.scalar("\n", _TEXT))
    # The characters of an array lie one after the other, so no copy and no Python object per row is needed.
    return memoryview(ended.buffers()[2])[: pc.sum(pc.binary_length(ended)).as_py() or 0]


def _field(column: Any) -> Any:
    if pa.types.is_timestamp(column.type):
        return column.cast(pa.timestamp("us", tz="UTC")).cast(_TEXT)
    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        return column.cast(_TEXT)
    field = column.cast(_TEXT)
    for character, escaped in _ESCAPES:
        field = pc.replace_substring(field, character, escaped)
    return field


def copy(
    conn: psycopg.Connection[Any], table: str | None, columns: Sequence[str], file: IO[bytes], partition: int
) -> None:
    """Copy lines into a stage. An error names the row, and quotes no content as DETAIL and CONTEXT do."""
    statement = sql.SQL("COPY {} ({}) FROM STDIN (ENCODING 'UTF8')").format(
        sql.Identifier(*str(table).split(".")),
        sql.SQL(", ").join(map(sql.Identifier, ["attempt", "ordinal", *columns])),
    )
    try:
        with conn.cursor() as cursor, cursor.copy(statement) as copy:
            while chunk := file.read(_CHUNK):
                copy.write(chunk)
    except psycopg.Error as error:
        raise _refusal(error, partition) from None


def _refusal(error: psycopg.Error, partition: int) -> PgQueueError:
    """Return the error of the tree for a COPY that failed."""
    place = _ROW.search(error.diag.context or "")
    row = f"row {place[1]} of partition {partition} cannot be published: " if place else ""
    if rule := _RULES.get(error.diag.constraint_name or error.sqlstate or ""):
        return InvalidArgument(row + rule)
    if error.sqlstate == "23502":
        return InvalidMessage(row + "its message is NULL. Leave such rows out, or publish the JSON text null.")
    known = translate(error)
    kind = type(known) if isinstance(known, PgQueueError) else PgQueueError
    if kind is InvalidMessage:
        row += "its message or headers are not JSON that PostgreSQL can store: "
    return kind(row + (error.diag.message_primary or str(error).strip()))
