"""The cost of many sessions at the head of one queue."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from benchmarks.bench import Bench, Contestant, case
from benchmarks.cases import rates
from benchmarks.growth.sample import GROUP, turns
from benchmarks.measure import Load
from benchmarks.peers.pgmq import PGMQ
from benchmarks.peers.pgqueue import PGQUEUE
from benchmarks.report import Line, Row

_FEW: Final = 4


@case("growth-sessions-1", "lease and archive one at a time with 4, 64, 200 clients", quick=False, group=GROUP)
def one_at_a_time(bench: Bench) -> list[Line]:
    return _sessions(bench, 1)


@case("growth-sessions-10", "lease and archive 10 at a time with 4, 64, 200 clients", group=GROUP)
def ten_at_a_time(bench: Bench) -> list[Line]:
    return _sessions(bench, 10)


def _sessions(bench: Bench, batch: int) -> list[Line]:
    sizes = [_FEW, 200] if bench.quick else [_FEW, 64, 200]
    measured = {
        f"{peer.name}_{clients}": Contestant(peer, Load(peer.script("lease_archive", batch), batch, clients))
        for clients in sizes
        for peer in (PGQUEUE, PGMQ)
    }
    # Two hundred sessions take longer to begin than a short slice lasts.
    longer = replace(bench, seconds=max(bench.seconds, 5))
    samples = {key: rates(slices) for key, slices in longer.consume(measured, rounds=turns(bench)).items()}
    ours, theirs = ({size: samples[f"{name}_{size}"] for size in sizes} for name in ("pgqueue", "pgmq"))
    bench.curve(f"growth-sessions-{batch}", "sessions", "messages per second", {"pgqueue": ours, "PGMQ": theirs})
    lines: list[Line] = []
    for size in sizes[1:]:
        last = size == sizes[-1]
        name = f"lease-archive-{batch}, {size} sessions"
        lines.append(Row(name, f"with {_FEW}", ours[size], ours[_FEW], target=0.8 if last else None))
        lines.append(Row(name, "PGMQ read + archive", ours[size], theirs[size], target=1.5 if last else None))
        lines.append(Row(f"{name}, PGMQ", f"with {_FEW}", theirs[size], theirs[_FEW]))
    return lines
