"""The cost of a large body, which from 2 kB on lies next to the row, in several places."""

from __future__ import annotations

import base64
import json
import random
from typing import Final

from benchmarks.bench import Bench, Contestant, case
from benchmarks.cases import rates, wal
from benchmarks.growth.sample import GROUP, turns
from benchmarks.measure import Load
from benchmarks.peers.pgmq import PGMQ
from benchmarks.peers.pgqueue import PGQUEUE
from benchmarks.report import Line, Row

# Bytes, and about how many messages a second that may be.
_SIZES: Final = {100: 45_000, 1000: 45_000, 8000: 9_000}
_LARGEST: Final = max(_SIZES)


def body(size: int) -> str:
    """Return a body that PostgreSQL cannot make smaller, so that its size is what is moved; always the same one."""
    noise = base64.b64encode(random.Random(size).randbytes(size)).decode()
    return json.dumps({"noise": noise[: size - len('{"noise": ""}')]})


@case("growth-body-10", "lease and archive 10 at a time with bodies of 100 B, 1 kB, 8 kB, 4 clients", group=GROUP)
def bodies(bench: Bench) -> list[Line]:
    sizes = [_LARGEST] if bench.quick else list(_SIZES)
    samples = {}
    for size in sizes:
        samples[size] = bench.consume(
            {
                peer.name: Contestant(peer, Load(peer.script("lease_archive", 10), 10), body=body(size))
                for peer in (PGQUEUE, PGMQ)
            },
            rounds=turns(bench),
            fastest=_SIZES[size],
        )
    names = {"pgqueue": "pgqueue", "PGMQ": "pgmq"}
    series = {label: {size: wal(samples[size][key]) for size in sizes} for label, key in names.items()}
    bench.curve("growth-body-10-wal", "bytes of the body", "WAL, bytes per message", series)
    lines: list[Line] = []
    for size in sizes:
        ours, theirs = samples[size]["pgqueue"], samples[size]["pgmq"]
        last = size == _LARGEST
        name, peer = f"lease-archive-10, {size:,} B", "PGMQ read + archive"
        lines.append(Row(name, peer, rates(ours), rates(theirs), target=1.3 if last else None))
        limit = 0.6 if last else None
        lines.append(Row(f"{name}, WAL", peer, wal(ours), wal(theirs), "B/msg", limit, at_least=False))
    return lines
