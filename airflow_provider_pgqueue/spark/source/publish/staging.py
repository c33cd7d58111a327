"""Stages: tasks put rows aside, each attempt under its own number; one transaction publishes those that won."""

from __future__ import annotations

import json
import random
import secrets
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

import psycopg
import pyarrow as pa
from pyspark.sql.datasource import WriterCommitMessage

from airflow_provider_pgqueue.core import verbs
from airflow_provider_pgqueue.core.client import run
from airflow_provider_pgqueue.core.errors import ConnectionFailed
from airflow_provider_pgqueue.core.verbs import Statement
from airflow_provider_pgqueue.spark.database import Database
from airflow_provider_pgqueue.spark.source.publish.copy import copy, lines

_IN_MEMORY: Final = 16 * 1024 * 1024
_PATIENCE: Final = 60.0
# A host that vanishes must not keep its slot for the two hours of the system's default.
_SLOT: Final = """
SELECT set_config('tcp_keepalives_idle', '10', true), set_config('tcp_keepalives_interval', '5', true),
       set_config('tcp_keepalives_count', '3', true), set_config('application_name', 'pgqueue spark publish', true)
  FROM generate_series(1, %(slots)s) AS slot
 WHERE pg_try_advisory_xact_lock(
           hashtextextended(concat_ws('.', 'messages.publish_stage', session_user, %(stage_id)s::text, slot), 0))
 LIMIT 1
"""


@dataclass(frozen=True)
class StagedRows(WriterCommitMessage):
    """What an attempt tells the driver: under which number it put how many rows of a partition, and in which stage."""

    stage_id: str
    partition: int
    attempt: int
    rows: int


@dataclass(frozen=True, slots=True)
class Stage:
    """The staging table of one job, or of one stream.

    :param stage_id: its name, of a job random, of a stream the id of its query; made at first use, dropped when the job
        was published, emptied after each batch of a stream.
    :param slots: how many tasks write at the same time; the others wait.
    """

    database: Database
    stage_id: str
    slots: int = 8

    def open(self, *, queue_name: str | None = None, run_id: str | None = None) -> bool:
        """Make the stage unless it exists; return False if the run was published before.

        Raises QueueNotFound, PermissionDenied, or InvalidArgument if another pipeline has a run of this name.
        """
        return self.database.run(self._found(queue_name=queue_name, run_id=run_id)) is not None

    def put(self, partition: int, batches: Iterator[pa.RecordBatch]) -> StagedRows:
        """Stage the rows of a partition, all or none; each call is an attempt, of which the driver publishes one.

        The rows are collected first, on the local disk if they are many. So the session lasts as long as the transfer
        and not as long as Spark computes, and its snapshot never holds back the vacuum of the queue.

        Raises InvalidMessage or InvalidArgument with the number of the row, never with its content.
        """
        staged = StagedRows(self.stage_id, partition, secrets.randbits(62), 0)
        with tempfile.SpooledTemporaryFile(_IN_MEMORY) as file:
            columns: Sequence[str] = ()
            for batch in batches:
                columns = batch.schema.names
                file.write(lines(batch, attempt=staged.attempt, after=staged.rows))
                staged = replace(staged, rows=staged.rows + batch.num_rows)
            if staged.rows:
                file.seek(0)
                with self._slot() as (conn, table):
                    copy(conn, table, columns, file, partition)
        return staged

    def publish(
        self,
        winners: Sequence[StagedRows],
        *,
        run_id: str,
        queue_name: str | None = None,
        dedup_window: str | None = None,
        batch: int | None = None,
    ) -> dict[str, Any]:
        """Publish the attempts that won in one transaction; return the numbers `rows`, `published` and `duplicates`.

        The same run or batch again publishes nothing and returns the old numbers with `repeated`. So a commit
        whose reply was lost is repeated. Raises StageIncomplete if rows are gone, or an error of publishing: then
        nothing was published.
        """
        given = json.dumps(
            [{"partition": w.partition, "attempt": w.attempt, "rows": w.rows} for w in winners if w.rows]
        )
        statement = verbs.publish_staged(
            self.stage_id, run_id, given, queue_name=queue_name, dedup_window=dedup_window, batch=batch
        )
        for pause in (1, 2):
            try:
                return self.database.run(statement)
            except ConnectionFailed:
                time.sleep(pause)
        return self.database.run(statement)

    def drop(self) -> None:
        """Drop the stage; what a task that still runs keeps from being dropped is left to the upkeep."""
        self.database.run(verbs.drop_stage(self.stage_id))

    def _found(self, **arguments: str | None) -> Statement[str | None]:
        return verbs.stage_publish(self.stage_id, **arguments)

    @contextmanager
    def _slot(self) -> Iterator[tuple[psycopg.Connection[Any], str | None]]:
        """Give a transaction with one of the slots, and the table of the stage; the slot goes with it, however it ends.

        Not with the session, which behind a pooler is somebody else's next and would keep the slot.
        """
        give_up = time.monotonic() + _PATIENCE
        pause = 0.05
        while True:
            try:
                conn = self.database.connect("pgqueue spark waiting")
            except ConnectionFailed:  # perhaps the server has no room now
                if time.monotonic() > give_up:
                    raise
            else:
                with conn:
                    # Before the transaction: the others would wait for one that made the stage and goes on to copy.
                    table = run(conn, self._found())
                    give_up = time.monotonic() + _PATIENCE
                    with conn.transaction():
                        if conn.execute(_SLOT, {"slots": self.slots, "stage_id": self.stage_id}).rowcount:
                            yield conn, table
                            return
            time.sleep(pause * random.uniform(0.5, 1))
            pause = min(2 * pause, 2.0)
