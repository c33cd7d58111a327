"""Takes samples: slices of pgbench, in turns, with what each wrote to the WAL."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import TypeVar

from benchmarks.peer import BODY, Peer
from benchmarks.server import Connection, Server, pgbench

T = TypeVar("T")
Name = TypeVar("Name")
_BODIES = {
    "body": BODY,
    "ten_bodies": f"[{', '.join([BODY] * 10)}]",
    "ten_in_array": "{" + ", ".join([json.dumps(BODY)] * 10) + "}",
}


# What a script stumbles over when nothing was leased.
_SIGNS_OF_AN_EMPTY_QUEUE = (
    "malformed array",
    "for type uuid",
    "for type bigint",
    "expected one row",
    "Job was not found",
)


class Drained(Exception):
    """The queue ran empty during a slice, so the slice does not count."""


@dataclass(frozen=True, slots=True)
class Load:
    """The load of pgbench: a script, how many clients, how many messages each transaction handles."""

    script: str
    batch: int = 1
    clients: int = 4
    synchronous: bool = False


@dataclass(frozen=True, slots=True)
class Run:
    """The result of pgbench: transactions in all, transactions each second, and per second if that was asked for."""

    transactions: int
    per_second: float
    progress: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Slice:
    """One sample: messages each second and bytes of WAL for each message."""

    rate: float
    wal: float


def run_pgbench(server: Server, database: str, load: Load, seconds: float, *, every_second: bool = False) -> Run:
    """Run the load; Drained if a client stopped because there was nothing to lease."""
    with tempfile.NamedTemporaryFile("w", suffix=".sql") as script:
        script.write(load.script)
        script.flush()
        variables = _BODIES | {"clients": load.clients, "number": 0}
        command = [
            *[str(pgbench()), "-n", "-M", "prepared", "-f", script.name, "-c", str(load.clients), "-j", "2"],
            *["-T", str(max(1, round(seconds))), *(["-P", "1"] if every_second else [])],
            *[argument for name, value in variables.items() for argument in ("-D", f"{name}={value}")],
            server.dsn(database),
        ]
        done = subprocess.run(command, capture_output=True, text=True, env=os.environ | _options(load))
    if done.returncode or "aborted" in done.stderr:
        if any(sign in done.stderr for sign in _SIGNS_OF_AN_EMPTY_QUEUE):
            raise Drained
        raise RuntimeError(f"pgbench failed:\n{done.stderr[-2000:]}")
    return Run(
        int(_find(r"number of transactions actually processed: (\d+)", done.stdout)),
        float(_find(r"tps = ([\d.]+)", done.stdout)),
        tuple(float(tps) for tps in re.findall(r"progress: [\d.]+ s, ([\d.]+) tps", done.stderr)),
    )


def _options(load: Load) -> dict[str, str]:
    return {"PGOPTIONS": "-c synchronous_commit=on"} if load.synchronous else {}


def _find(pattern: str, text: str) -> str:
    if found := re.search(pattern, text):
        return found[1]
    raise RuntimeError(f"pgbench said nothing about {pattern!r}:\n{text[-2000:]}")


def consume_slice(server: Server, database: str, peer: Peer, load: Load, seconds: float) -> Slice:
    """Sample a load that takes messages out; counts what really left the queue, and refuses a run that drained it."""
    with server.connect(database) as conn:
        before, position = peer.waiting(conn), _wal_position(conn)
        run = run_pgbench(server, database, load, seconds)
        wal, after = _wal_position(conn) - position, peer.waiting(conn)
    handled = before - after
    if after <= load.clients * load.batch or handled < 0.98 * run.transactions * load.batch:
        raise Drained
    return Slice(run.per_second * handled / run.transactions, wal / handled)


def full_slice(server: Server, database: str, load: Load, seconds: float) -> Slice:
    """Sample a load each of whose transactions handles a whole batch."""
    with server.connect(database) as conn:
        position = _wal_position(conn)
        run = run_pgbench(server, database, load, seconds)
        wal = _wal_position(conn) - position
    return Slice(run.per_second * load.batch, wal / (run.transactions * load.batch))


def _wal_position(conn: Connection) -> int:
    row = conn.execute("SELECT pg_current_wal_insert_lsn() - '0/0'").fetchone()
    return int(row[0]) if row else 0


def in_turns(sampled: Mapping[Name, Callable[[], T]], rounds: int) -> dict[Name, list[T]]:
    """Take one sample of each in random order, so often; what disturbs the machine disturbs everybody."""
    samples: dict[Name, list[T]] = {name: [] for name in sampled}
    for _ in range(rounds):
        for name in random.sample(list(sampled), len(sampled)):
            samples[name].append(sampled[name]())
    return samples


def spread(values: list[float]) -> float:
    """Return half of what lies between the smallest and the largest, as a part of the median."""
    middle = median(values)
    return (max(values) - min(values)) / 2 / middle if middle else 0.0
