"""The cases that pgbench measures inside the server: lease and archive, consume, publish."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.bench import Bench, Contestant, case
from benchmarks.measure import Load, Slice
from benchmarks.peers import pgmq, pgqueue, raw
from benchmarks.report import Line, Row


def rates(slices: Sequence[Slice]) -> list[float]:
    """Return the messages a second of some slices."""
    return [one.rate for one in slices]


def wal(slices: Sequence[Slice]) -> list[float]:
    """Return the bytes of WAL for each message of some slices."""
    return [one.wal for one in slices]


def _lease_archive(
    bench: Bench, batch: int, target: float, *, clients: int = 4, synchronous: bool = False
) -> list[Line]:
    name = f"lease-archive-{batch}{'-sync' if synchronous else ''}"
    samples = bench.consume(
        {
            peer.NAME: Contestant(peer, Load(peer.lease_archive(batch), batch, clients, synchronous))
            for peer in (pgqueue, pgmq)
        }
    )
    ours, other = samples["pgqueue"], samples["pgmq"]
    lines: list[Line] = [Row(name, "PGMQ read + archive", rates(ours), rates(other), target=target)]
    if not synchronous:
        wanted = 0.6 if batch == 100 else None
        lines.append(Row(f"{name} WAL", "PGMQ", wal(ours), wal(other), "B/msg", wanted, at_least=False))
    return lines


@case("lease-archive-1", "lease and archive one at a time, 4 clients")
def lease_archive_1(bench: Bench) -> list[Line]:
    return _lease_archive(bench, 1, 1.4)


@case("lease-archive-10", "lease and archive 10 at a time, 4 clients")
def lease_archive_10(bench: Bench) -> list[Line]:
    return _lease_archive(bench, 10, 1.4)


@case("lease-archive-100", "lease and archive 100 at a time, 4 clients; and its WAL")
def lease_archive_100(bench: Bench) -> list[Line]:
    return _lease_archive(bench, 100, 1.6)


@case("lease-archive-1000", "lease and archive 1,000 at a time, 8 clients")
def lease_archive_1000(bench: Bench) -> list[Line]:
    return _lease_archive(bench, 1000, 1.7, clients=8)


@case("lease-archive-100-sync", "the same with synchronous_commit on, 100 at a time, 4 clients")
def lease_archive_100_sync(bench: Bench) -> list[Line]:
    return _lease_archive(bench, 100, 1.8, synchronous=True)


@case("consume-100", "take out and archive 100 in one transaction, 4 clients")
def consume_100(bench: Bench) -> list[Line]:
    samples = bench.consume(
        {
            "pgqueue": Contestant(pgqueue, Load(pgqueue.consume(100), 100)),
            "pgmq": Contestant(pgmq, Load(pgmq.lease_archive(100), 100)),
            "raw": Contestant(raw, Load(raw.consume(100), 100)),
        }
    )
    ours = rates(samples["pgqueue"])
    return [
        Row("consume-100", "PGMQ read + archive", ours, rates(samples["pgmq"]), target=2.0),
        Row("consume-100", "raw DELETE, no archive", ours, rates(samples["raw"]), target=0.5),
    ]


@case("publish-1", "publish one at a time with NOTIFY, 4 clients")
def publish_1(bench: Bench) -> list[Line]:
    samples = bench.publish({peer.NAME: Contestant(peer, Load(peer.publish())) for peer in (pgqueue, pgmq, raw)})
    ours = rates(samples["pgqueue"])
    return [
        Row("publish-1", "PGMQ send, no NOTIFY", ours, rates(samples["pgmq"]), target=1.3),
        Row("publish-1", "raw INSERT, no NOTIFY", ours, rates(samples["raw"])),
    ]


@case("publish-1-gated-sync", "publish one at a time, notify gated, synchronous_commit on, 8 clients")
def publish_1_gated_sync(bench: Bench) -> list[Line]:
    load = Load(pgqueue.publish(), clients=8, synchronous=True)
    samples = bench.publish(
        {
            mode: Contestant(pgqueue, load, f"SELECT messages.alter_queue('bench', notify => '{mode}')")
            for mode in ("gated", "off", "always")
        },
        rounds=bench.rounds + 2,
    )
    gated = rates(samples["gated"])
    return [
        Row("publish-1-gated-sync", "the same with notify off", gated, rates(samples["off"]), target=0.9),
        Row("publish-1-gated-sync", "the same with notify always", gated, rates(samples["always"])),
    ]
