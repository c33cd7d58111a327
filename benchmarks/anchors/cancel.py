"""Cancels waiting messages by their ids, with each peer in the way that its documentation shows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import Any, Final

from airflow_provider_pgqueue.core import connect, run, verbs
from benchmarks.bench import Bench
from benchmarks.measure import in_turns
from benchmarks.peer import Peer
from benchmarks.peers.dbos import DBOS_PEER
from benchmarks.peers.pgqueue import PGQUEUE
from benchmarks.peers.pgqueuer import PGQUEUER
from benchmarks.peers.procrastinate import PROCRASTINATE

# Its NOTIFY names the ids, and has 8,000 bytes at most.
_IDS_OF_A_CALL: Final = 500
_CALLS_AT_ONCE: Final = 100
Seconds = float


def _pgqueue(dsn: str, ids: Sequence[Any]) -> Seconds:
    with connect(dsn) as conn:
        started = monotonic()
        run(conn, verbs.cancel("bench", ids))
        return monotonic() - started


async def _procrastinate(dsn: str, ids: Sequence[Any]) -> Seconds:
    from procrastinate import App, PsycopgConnector

    app = App(connector=PsycopgConnector(conninfo=dsn))
    async with app.open_async():
        started = monotonic()
        for first in range(0, len(ids), _CALLS_AT_ONCE):
            some = ids[first : first + _CALLS_AT_ONCE]
            await asyncio.gather(*(app.job_manager.cancel_job_by_id_async(one) for one in some))
        return monotonic() - started


async def _pgqueuer(dsn: str, ids: Sequence[Any]) -> Seconds:
    import asyncpg
    from pgqueuer import Queries

    conn = await asyncpg.connect(dsn)
    queries = Queries.from_asyncpg_connection(conn)
    started = monotonic()
    for first in range(0, len(ids), _IDS_OF_A_CALL):
        await queries.mark_job_as_cancelled(list(ids[first : first + _IDS_OF_A_CALL]))
    seconds = monotonic() - started
    await conn.close()
    return seconds


def _dbos(dsn: str, ids: Sequence[Any]) -> Seconds:
    from dbos import DBOSClient

    client = DBOSClient(system_database_url=dsn)
    started = monotonic()
    client.cancel_workflows(list(ids))
    seconds = monotonic() - started
    client.destroy()
    return seconds


@dataclass(frozen=True, slots=True)
class _Cancel:
    """The way in which a peer cancels, and the statement that returns the ids of waiting messages.

    :param cancel: returns the seconds that it took, without those to connect.
    """

    peer: Peer
    cancel: Callable[[str, Sequence[Any]], Any]
    ids: str
    way: str


CANCELS: Final = {
    "pgqueue": _Cancel(PGQUEUE, _pgqueue, "SELECT id FROM messages.message", "one call"),
    "procrastinate": _Cancel(PROCRASTINATE, _procrastinate, "SELECT id FROM procrastinate_jobs", "a call for each"),
    "pgqueuer": _Cancel(PGQUEUER, _pgqueuer, "SELECT id FROM pgqueuer", f"{_IDS_OF_A_CALL} a call"),
    "DBOS": _Cancel(DBOS_PEER, _dbos, "SELECT workflow_uuid FROM dbos.workflow_status", "one call"),
}


def cancelled(bench: Bench, messages: int) -> dict[str, list[float]]:
    """Let each cancel so many messages in its turn, and return how many of them it cancelled in a second."""
    with ExitStack() as stack:
        calls = {}
        for name, one in CANCELS.items():
            database = stack.enter_context(bench.server.database(name.lower(), one.peer.name, one.peer.install))
            calls[name] = partial(_sample, bench, database, one, messages)
        return in_turns(calls, bench.rounds)


def _sample(bench: Bench, database: str, one: _Cancel, messages: int) -> float:
    with bench.server.connect(database) as conn:
        one.peer.refill(conn, messages)
        ids = [row[0] for row in conn.execute(one.ids.encode())]
        seconds = one.cancel(bench.server.dsn(database), ids)
        if isinstance(seconds, Coroutine):
            seconds = asyncio.run(seconds)
        if left := one.peer.waiting(conn):
            raise RuntimeError(f"{one.peer.name} left {left} of {messages} messages")
    return messages / seconds
