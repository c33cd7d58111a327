"""The cases that pgbench measures inside the server: lease and archive, consume, publish."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from benchmarks.bench import Bench, Contestant, case
from benchmarks.measure import Load, Slice
from benchmarks.peer import Peer
from benchmarks.peers.pgmq import NOTIFICATIONS, NOTIFICATIONS_THROTTLED, PGMQ, TUNED
from benchmarks.peers.pgqueue import PGQUEUE
from benchmarks.peers.procrastinate import PROCRASTINATE
from benchmarks.peers.raw import RAW
from benchmarks.peers.seed import SEED
from benchmarks.report import Line, Row


def rates(slices: Sequence[Slice]) -> list[float]:
    """Return the messages a second of some slices."""
    return [one.rate for one in slices]


def wal(slices: Sequence[Slice]) -> list[float]:
    """Return the bytes of WAL for each message of some slices."""
    return [one.wal for one in slices]


def contestants(verb: str, *peers: Peer, batch: int = 1, clients: int = 4, on: bool = False) -> dict[str, Contestant]:
    """Return peers that all do the same; `on` turns synchronous_commit on."""
    return {peer.name: Contestant(peer, Load(peer.script(verb, batch), batch, clients, on)) for peer in peers}


def _others(bench: Bench) -> list[Peer]:
    """Return those who are measured compared with PGMQ for information, where there is time."""
    return [] if bench.quick else [SEED, PROCRASTINATE]


def _lease_archive(name: str, samples: dict[str, list[Slice]], target: float) -> list[Line]:
    return [Row(name, "PGMQ read + archive", rates(samples["pgqueue"]), rates(samples["pgmq"]), target=target)]


def _wal(name: str, samples: dict[str, list[Slice]]) -> Line:
    ours, other = wal(samples["pgqueue"]), wal(samples["pgmq"])
    return Row(f"{name} WAL", "PGMQ read + archive", ours, other, "B/msg", at_least=False)


@case("lease-archive-1", "lease and archive one at a time, 4 clients")
def lease_archive_1(bench: Bench) -> list[Line]:
    samples = bench.consume(contestants("lease_archive", PGQUEUE, PGMQ, *_others(bench)))
    ours = rates(samples["pgqueue"])
    return [
        *_lease_archive("lease-archive-1", samples, 1.4),
        _wal("lease-archive-1", samples),
        *[
            Row("lease-archive-1", peer.name, ours, rates(samples[peer.name]), target=least)
            for peer, least in zip(_others(bench), (1.0, 1.2), strict=False)
        ],
    ]


@case("lease-archive-10", "lease and archive 10 at a time, 4 clients")
def lease_archive_10(bench: Bench) -> list[Line]:
    samples = bench.consume(contestants("lease_archive", PGQUEUE, PGMQ, batch=10))
    return [*_lease_archive("lease-archive-10", samples, 1.25), _wal("lease-archive-10", samples)]


@case("lease-archive-100", "lease and archive 100 at a time, 4 clients; and its WAL")
def lease_archive_100(bench: Bench) -> list[Line]:
    measured = contestants("lease_archive", PGQUEUE, PGMQ, batch=100)
    if not bench.quick:
        measured["tuned"] = replace(measured["pgmq"], setup=TUNED)
    samples = bench.consume(measured)
    lines = [*_lease_archive("lease-archive-100", samples, 1.3), _wal("lease-archive-100", samples)]
    if tuned := samples.get("tuned"):
        lines.append(Row("lease-archive-100", "PGMQ, tuned", rates(samples["pgqueue"]), rates(tuned)))
    return lines


@case("lease-archive-1000", "lease and archive 1,000 at a time, 8 clients", quick=False)
def lease_archive_1000(bench: Bench) -> list[Line]:
    samples = bench.consume(contestants("lease_archive", PGQUEUE, PGMQ, batch=1000, clients=8))
    return _lease_archive("lease-archive-1000", samples, 1.3)


@case("lease-archive-100-sync", "lease and archive 100 at a time, 4 clients, synchronous_commit on")
def lease_archive_100_sync(bench: Bench) -> list[Line]:
    # As our client sends it, where only the archive waits for the disk; docs/decisions/0015-leases-are-not-flushed.md
    ours = contestants("lease_archive_alone", PGQUEUE, batch=100, on=True)
    both = ours | contestants("lease_archive", PGMQ, batch=100, on=True)
    return _lease_archive("lease-archive-100-sync", bench.consume(both, rounds=bench.noisy_rounds), 1.25)


@case("consume-100", "take out and archive 100 in one transaction, 4 clients")
def consume_100(bench: Bench) -> list[Line]:
    samples = bench.consume(
        contestants("consume", PGQUEUE, RAW, batch=100) | contestants("lease_archive", PGMQ, batch=100),
        fastest=350_000,
    )
    ours = rates(samples["pgqueue"])
    return [
        Row("consume-100", "PGMQ read + archive", ours, rates(samples["pgmq"]), target=2.0),
        Row("consume-100", "raw DELETE, no archive", ours, rates(samples["raw"]), target=0.6),
    ]


@case("publish-1", "publish one at a time with NOTIFY, 4 clients")
def publish_1(bench: Bench) -> list[Line]:
    measured = contestants("publish", PGQUEUE, PGMQ, RAW, *_others(bench))
    measured["notifies"] = replace(measured["pgmq"], setup=NOTIFICATIONS)
    measured["throttled"] = replace(measured["pgmq"], setup=NOTIFICATIONS_THROTTLED)
    samples = bench.publish(measured)
    ours = rates(samples["pgqueue"])
    return [
        Row("publish-1", "PGMQ send, no NOTIFY", ours, rates(samples["pgmq"]), target=1.1),
        Row("publish-1", "PGMQ send, NOTIFY each time", ours, rates(samples["notifies"]), target=1.8),
        Row("publish-1", "PGMQ send, NOTIFY every 250 ms", ours, rates(samples["throttled"]), target=1.3),
        Row("publish-1", "raw INSERT, no NOTIFY", ours, rates(samples["raw"])),
        *[Row("publish-1", f"{peer.name}, with NOTIFY", ours, rates(samples[peer.name])) for peer in _others(bench)],
    ]


@case("publish-1-gated-sync", "publish one at a time, notify gated, 8 clients, synchronous_commit on", quick=False)
def publish_1_gated_sync(bench: Bench) -> list[Line]:
    load = Load(PGQUEUE.script("publish"), clients=8, synchronous=True)
    samples = bench.publish(
        {
            mode: Contestant(PGQUEUE, load, setup=f"SELECT messages.alter_queue('bench', notify => '{mode}')")
            for mode in ("gated", "off", "always")
        },
        rounds=bench.noisy_rounds,
    )
    gated = rates(samples["gated"])
    return [
        Row("publish-1-gated-sync", "the same with notify off", gated, rates(samples["off"]), target=0.9),
        Row("publish-1-gated-sync", "the same with notify always", gated, rates(samples["always"])),
    ]
