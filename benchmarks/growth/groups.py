"""The cost of groups: publish 1,000 messages into many groups, and drain them, each group in its order."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial

from benchmarks.bench import Bench, Contestant, case
from benchmarks.cases import rates
from benchmarks.growth.sample import GROUP, prepared, turns
from benchmarks.measure import Load, in_turns, run_pgbench
from benchmarks.peer import Peer
from benchmarks.peers.pgmq import PGMQ
from benchmarks.peers.pgqueue import PGQUEUE
from benchmarks.report import Line, Row

_NONE = 0


@case("growth-groups-publish", "publish 1,000 a call into 1 to 10,000 groups, one session", group=GROUP)
def publish(bench: Bench) -> list[Line]:
    sizes = [100] if bench.quick else [1, 100, 10_000]

    def contestant(peer: Peer, groups: int) -> Contestant:
        verb = "publish_groups" if groups else "publish_1000"
        return Contestant(peer, Load(peer.script(verb, 1000).replace(":groups", str(groups)), 1000, clients=1))

    wanted = {f"{peer.name}_{size}": (peer, size) for peer in (PGQUEUE, PGMQ) for size in (_NONE, *sizes)}
    samples = bench.publish({key: contestant(*one) for key, one in wanted.items()}, rounds=turns(bench))

    def of(peer: Peer, size: int) -> list[float]:
        return rates(samples[f"{peer.name}_{size}"])

    lines: list[Line] = []
    for size in sizes:
        row = f"publish 1,000 into {size:,} group{'s' if size > 1 else ''}"
        lines.append(Row(row, "without groups", of(PGQUEUE, size), of(PGQUEUE, _NONE), target=0.5))
        lines.append(Row(row, "PGMQ send_batch with group header", of(PGQUEUE, size), of(PGMQ, size)))
    return lines


@case("growth-groups-drain", "drain 100 and 10,000 groups 10 at a time, 4 clients", group=GROUP)
def drain(bench: Bench) -> list[Line]:
    sizes = [100] if bench.quick else [100, 10_000]
    messages = 30_000 if bench.quick else 50_000
    with ExitStack() as stack:
        calls = {}
        for size in sizes:
            for peer in (_grouped(PGQUEUE, size), _grouped(PGMQ, size)):
                database, _ = stack.enter_context(prepared(bench, f"groups_{peer.name}_{size}", peer))
                calls[peer.name, size] = partial(_drain, bench, database, peer, messages)
        samples = in_turns(calls, turns(bench))
    ours, theirs = ({size: samples[peer.name, size] for size in sizes} for peer in (PGQUEUE, PGMQ))
    bench.curve(
        "growth-groups-drain", "groups", "messages per second", {"pgqueue": ours, "PGMQ, read_grouped_rr": theirs}
    )
    return [
        Row(f"drain {size:,} groups", "PGMQ read_grouped_rr", ours[size], theirs[size], target=5.0) for size in sizes
    ]


def _grouped(peer: Peer, groups: int) -> Peer:
    """Return the peer with a plain INSERT that spreads its messages over groups."""
    group = f"'g' || n %% {groups}"
    if peer is PGQUEUE:
        return peer.with_column("group_key", group)
    return peer.with_column("headers", f"jsonb_build_object('x-pgmq-group', {group})")


def _drain(bench: Bench, database: str, peer: Peer, messages: int) -> float:
    """Return messages a second. Leases may be partial: of each group one message can be leased."""
    with bench.server.connect(database) as conn:
        conn.execute("CHECKPOINT")
        peer.refill(conn, messages)
        before = peer.waiting(conn)
        run = run_pgbench(bench.server, database, Load(peer.script("drain_groups", 10), 10), bench.seconds)
        after = peer.waiting(conn)
    if after == 0:
        raise RuntimeError(f"{peer.name} drained {messages:,} messages within {bench.seconds:g} s")
    return run.per_second * (before - after) / run.transactions
