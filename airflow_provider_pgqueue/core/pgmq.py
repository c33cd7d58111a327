"""The names of PGMQ for the queues, which its clients call, and the move of its own: docs/how-to/move-here.md."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from math import inf
from typing import Any, Final

import psycopg
from psycopg import sql

from airflow_provider_pgqueue.core import verbs
from airflow_provider_pgqueue.core.client import run
from airflow_provider_pgqueue.core.errors import InUse, QueueNotFound, translate
from airflow_provider_pgqueue.core.query import query, sql_folder
from airflow_provider_pgqueue.core.tuning import TUNING

Connection = psycopg.Connection[Any]
_Names = dict[str, sql.Composable]
_BATCH: Final = 1000


@dataclass(frozen=True, slots=True)
class Adopted:
    """What was moved from a queue of PGMQ; `leased` messages are still with its workers, until `leased_until`."""

    queue_name: str
    moved: int
    archived: int
    leased: int
    leased_until: datetime | None


def names_of_pgmq() -> str:
    """Return `sql/pgmq.sql`, which is a transaction of its own."""
    return (sql_folder() / "pgmq.sql").read_text(encoding="utf-8")


def install_names(conn: Connection) -> None:
    """Make schema `pgmq`, or bring it up to date; ForeignSchema next to the extension. Needs autocommit."""
    try:
        conn.execute(names_of_pgmq().encode())
    except psycopg.Error as error:
        conn.rollback()
        raise translate(error) from error


def adopt(conn: Connection, name: str, queue_name: str) -> Adopted:
    """Move a queue of the extension PGMQ to `queue_name`, which is made if it is missing, and forward what comes later.

    Most of it moves in batches, while publishers continue; for the last ones they wait: a second or so, or, where they
    send as fast as this moves, as long as the first ones took. After that a trigger publishes what they send there.
    Order, headers and delays stay; an id becomes the reference `pgmq 7`. What PGMQ archived is archived anew, with the
    first time in its details. What a worker of PGMQ has at the moment is left to it. Running it again, also after a
    crash, moves what is there then.
    Raises QueueNotFound, and InUse if transactions hold the table for ten seconds. Needs autocommit.
    """
    (waiting,), (archive,) = conn.execute(query("pgmq_tables"), {"name": name}).fetchall()
    if waiting is None:
        raise QueueNotFound(f"schema pgmq has no queue {name!r}", "See: SELECT pgmq.list_queues()")
    run(conn, verbs.create_queue(queue_name))
    names = {
        "table": sql.Identifier(waiting),
        "queue_name": sql.Literal(queue_name),
        "at_most": sql.Literal(_BATCH),
    }
    try:
        moved = _move(conn, "pgmq_move", names)
        archived = _move(conn, "pgmq_move_archive", names | {"table": sql.Identifier(archive)}) if archive else 0
        moved += _forward(conn, names)
        leased, until = _left(conn, names)
    except psycopg.Error as error:
        raise translate(error) from error
    return Adopted(queue_name, moved, archived, leased, until)


def _move(conn: Connection, kind: str, names: _Names) -> int:
    """Move what is there, and then what came meanwhile, until that is little or not half: publishers may be as fast."""
    moved, (there, _) = 0, _left(conn, names)
    while True:
        now = _batches(conn, kind, names, there)
        moved += now
        came, _ = _left(conn, names)
        if came <= _BATCH or came > now // 2:
            return moved
        there = came


def _forward(conn: Connection, names: _Names) -> int:
    """Move the last of them and make the trigger, in one transaction that keeps publishers out."""
    for _ in range(TUNING.adopt_tries):
        try:
            with conn.transaction():
                conn.execute(_statement("pgmq_lock", names))
                moved = _batches(conn, "pgmq_move", names)
                conn.execute(_statement("pgmq_forward", names))
                return moved
        except psycopg.errors.LockNotAvailable:
            continue
    raise InUse("transactions hold the queue of PGMQ", "Most is moved. Run it again when they have ended.")


def _batches(conn: Connection, kind: str, names: _Names, at_most: float = inf) -> int:
    """Move in batches, until one finds nothing or so many are moved."""
    moved = 0
    while moved < at_most:
        ((batch,),) = conn.execute(_statement(kind, names)).fetchall()
        if not batch:
            break
        moved += batch
    return moved


def _left(conn: Connection, names: _Names) -> tuple[int, datetime | None]:
    ((number, until),) = conn.execute(_statement("pgmq_left", names)).fetchall()
    return number, until


def _statement(name: str, names: _Names) -> sql.Composed:
    return sql.SQL(query(name).decode()).format(**names)
