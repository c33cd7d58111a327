"""A task of a drain compared with a Consumer: its function gets a table of messages instead of an object each."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import psycopg
import pyarrow as pa

from airflow_provider_pgqueue.core import Consumer, Message, Outcome, Success
from airflow_provider_pgqueue.export.connection import Database
from airflow_provider_pgqueue.spark.pipelines.drain.task import Share
from benchmarks.peers.pgqueue import PGQUEUE
from benchmarks.report import Line, Row
from benchmarks.spark.place import Contestant, Place, execute

_BATCH: Final = 1000
_ARCHIVED: Final = "SELECT count(*) FROM messages.message_archive"


def drain_and_objects(place: Place, messages: int, rounds: int) -> list[Line]:
    """Work a queue off in one task, and as a Consumer does; no Spark in between."""
    functions: dict[str, tuple[Callable[[pa.Table], Any], Callable[[list[Message]], Any]]] = {
        "nothing": (lambda table: None, lambda found: None),
        "an output": (_check, lambda found: [_outcome(message) for message in found]),
    }
    lines: list[Line] = []
    with place.database("drain") as dsn:
        for what, (of_table, of_objects) in functions.items():
            samples = place.in_turns(
                {
                    "table": _contestant(dsn, messages, partial(_drain, dsn, of_table)),
                    "objects": _contestant(dsn, messages, partial(_consume, dsn, of_objects)),
                },
                rounds,
                messages,
            )
            for unit, seconds in (("msg/s", "seconds"), ("msg/CPU s", "cpu_seconds")):
                ours, theirs = ([messages / getattr(one, seconds) for one in samples[n]] for n in ("table", "objects"))
                lines.append(Row(f"drain {messages:,}, {what}", "Consumer, handle_batch", ours, theirs, unit))
    return lines


def _contestant(dsn: str, messages: int, work: Callable[[], Any]) -> Contestant:
    def prepare() -> None:
        with psycopg.connect(dsn, autocommit=True) as conn:
            PGQUEUE.refill(conn, messages)

    return Contestant(prepare, work, lambda: execute(dsn, _ARCHIVED))


def _drain(dsn: str, function: Callable[[pa.Table], Any]) -> None:
    Share(
        database=Database(dsn),
        queue="bench",
        function=function,
        parallelism=1,
        batch_size=_BATCH,
        lease_for=None,
        max_messages=None,
        give_up_after=20,
        holder="spark bench ",
        stop_key=1,
    ).run(0)


def _consume(dsn: str, function: Callable[[list[Message]], Any]) -> None:
    with psycopg.connect(dsn, autocommit=True) as conn:
        Consumer(queue_name="bench", handle_batch=function, batch_size=_BATCH).drain(conn)


def _check(table: pa.Table) -> pa.Table:
    outputs = [_output(json.loads(message)) for message in table["message"].to_pylist()]
    return pa.table({"id": table["id"], "result": ["success"] * len(table), "output": map(json.dumps, outputs)})


def _outcome(message: Message) -> Outcome:
    return Success(output=_output(message.body))


def _output(flight: dict[str, Any]) -> dict[str, Any]:
    return {"carrier": flight["carrier"], "distance": flight["distance"], "dep_delay": flight["dep_delay"]}
