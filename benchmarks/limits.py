"""The group `limits`: what the hot verbs could reach if they did without parts that a promise needs."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from benchmarks.backlog import next_to_ten_million
from benchmarks.bench import Bench, Contestant, case
from benchmarks.cases import contestants, rates, wal
from benchmarks.growth.body import body
from benchmarks.latency import latencies, percentile, publish_ours
from benchmarks.measure import Load, in_turns
from benchmarks.peers.pgmq import PGMQ, RINGS, RINGS_THROTTLED
from benchmarks.peers.pgqueue import PGQUEUE
from benchmarks.peers.procrastinate import PROCRASTINATE
from benchmarks.peers.raw import RAW
from benchmarks.peers.seed import SEED
from benchmarks.report import Limit, Line, Row
from benchmarks.server import Connection

GROUP: Final = "limits"

# Nobody finds a message by its reference, cause or time then.
_BARE_ARCHIVE: Final = """
DROP INDEX messages.message_archive_ranges_idx,
           messages.message_archive_reference_idx, messages.message_archive_dead_idx,
           messages.message_archive_remedied_by_idx;
"""
# Nobody is woken then.
_SILENT: Final = "SELECT messages.alter_queue('bench', notify => 'off');"


@case("limit-lease-archive-1", "lease and archive 1 at a time into a bare archive", quick=False, group=GROUP)
def one_at_a_time(bench: Bench) -> list[Line]:
    measured = contestants("lease_archive", PGQUEUE, PGMQ, SEED, PROCRASTINATE)
    return _with_bare(bench, measured, "1")


@case("limit-lease-archive-10", "lease and archive 10 at a time into a bare archive", quick=False, group=GROUP)
def ten_at_a_time(bench: Bench) -> list[Line]:
    return _with_bare(bench, contestants("lease_archive", PGQUEUE, PGMQ, batch=10), "10")


@case("limit-lease-archive-100", "lease and archive 100 at a time into a bare archive", quick=False, group=GROUP)
def hundred_at_a_time(bench: Bench) -> list[Line]:
    return _with_bare(bench, contestants("lease_archive", PGQUEUE, PGMQ, batch=100), "100")


@case("limit-lease-archive-100-sync", "the same, synchronous_commit on", quick=False, group=GROUP)
def hundred_at_a_time_sync(bench: Bench) -> list[Line]:
    measured = contestants("lease_archive_alone", PGQUEUE, batch=100, on=True)
    return _with_bare(bench, measured | contestants("lease_archive", PGMQ, batch=100, on=True), "100-sync")


@case("limit-waiting-10m", "the same 100 at a time with 10,000,000 waiting messages", quick=False, group=GROUP)
def ten_million_waiting(bench: Bench) -> list[Line]:
    samples = next_to_ten_million(bench, {"bare": (PGQUEUE, _BARE_ARCHIVE), "pgmq": (PGMQ, "")})
    return [Row("10,000,000 waiting, bare archive", "PGMQ", samples["bare rate"], samples["pgmq rate"])]


@case("limit-sessions", "SELECT 1, and an UPDATE of a row of its own, with 4 and 200 clients", quick=False, group=GROUP)
def sessions(bench: Bench) -> list[Line]:
    # Two hundred sessions take longer to begin than a short slice lasts.
    longer = replace(bench, seconds=max(bench.seconds, 5))
    plain = {"select": "SELECT 1", "update": "UPDATE of a row of its own"}
    measured = {
        f"{verb}_{clients}": Contestant(RAW, Load(RAW.script(verb), clients=clients))
        for verb in plain
        for clients in (4, 200)
    }
    samples = {name: rates(slices) for name, slices in longer.publish(measured).items()}
    leases = contestants("lease_archive", PGQUEUE, PGMQ, clients=200)
    return [
        *[
            Row(f"{name}, 200 sessions", "with 4", samples[f"{verb}_200"], samples[f"{verb}_4"])
            for verb, name in plain.items()
        ],
        *_with_bare(longer, leases, "1, 200 sessions"),
    ]


@case(
    "limit-body-10",
    "plain DELETE and INSERT of 10 bodies of 8 kB into a table without any index",
    quick=False,
    group=GROUP,
)
def large_body(bench: Bench) -> list[Line]:
    measured = contestants("consume_archive", RAW, batch=10) | contestants("lease_archive", PGMQ, batch=10)
    large = {key: replace(one, body=body(8000)) for key, one in measured.items()}
    samples = bench.consume(large, fastest=30_000)
    name, peer = "8,000 B, raw DELETE and INSERT", "PGMQ read + archive"
    return [
        Row(name, peer, rates(samples["raw"]), rates(samples["pgmq"])),
        Row(f"{name}, WAL", peer, wal(samples["raw"]), wal(samples["pgmq"]), "B/msg", at_least=False),
    ]


@case("limit-consume-100", "plain DELETE and INSERT of 100 into a table without any index", quick=False, group=GROUP)
def consume(bench: Bench) -> list[Line]:
    measured = contestants("consume", PGQUEUE, RAW, batch=100)
    measured["archived"] = contestants("consume_archive", RAW, batch=100)[RAW.name]
    samples = {name: rates(slices) for name, slices in bench.consume(measured, fastest=350_000).items()}
    name = "consume-100"
    return [
        Row(f"{name}, raw DELETE and INSERT", "raw DELETE, no archive", samples["archived"], samples["raw"]),
        Row(name, "raw DELETE and INSERT", samples["pgqueue"], samples["archived"]),
    ]


@case(
    "limit-latency",
    "from commit to deleted by plain SQL, one listener, 100 messages a second",
    quick=False,
    group=GROUP,
)
def latency(bench: Bench) -> list[Line]:
    measured = {
        "LISTEN, then DELETE": lambda: latencies(bench, RAW, "take_raw", _publish_raw, 10),
        "core.Worker": lambda: latencies(bench, PGQUEUE, "work_pgqueue", publish_ours, 10),
    }
    return [
        Limit(f"latency p{percent}, {name}", [percentile(times, percent) * 1000 for times in turns], "ms", None)
        for name, turns in in_turns(measured, 3).items()
        for percent in (50, 99)
    ]


def _publish_raw(conn: Connection, number: int) -> None:
    conn.execute(
        "WITH new AS (INSERT INTO raw (message) VALUES (jsonb_build_object('number', %s::int)) RETURNING id)"
        " SELECT pg_notify('raw', id::text) FROM new",
        [number],
    )


@case("limit-publish-1", "publish one at a time, silently", quick=False, group=GROUP)
def publish(bench: Bench) -> list[Line]:
    measured = contestants("publish", PGQUEUE, PGMQ)
    ours, theirs = measured["pgqueue"], measured["pgmq"]
    measured |= {
        "silent": replace(ours, setup=_SILENT),
        "rings": replace(theirs, setup=RINGS),
        "throttled": replace(theirs, setup=RINGS_THROTTLED),
    }
    samples = {name: rates(slices) for name, slices in bench.publish(measured).items()}
    return [
        Row("publish-1, silent", "PGMQ send, no NOTIFY", samples["silent"], samples["pgmq"]),
        Row("publish-1", "silent", samples["pgqueue"], samples["silent"]),
        Row("publish-1", "PGMQ send, NOTIFY each time", samples["pgqueue"], samples["rings"]),
        Row("publish-1", "PGMQ send, NOTIFY every 250 ms", samples["pgqueue"], samples["throttled"]),
    ]


def _with_bare(bench: Bench, measured: dict[str, Contestant], what: str) -> list[Line]:
    measured["bare"] = replace(measured["pgqueue"], setup=_BARE_ARCHIVE)
    samples = bench.consume(measured)
    name, bare = f"lease-archive-{what}, bare archive", samples.pop("bare")
    others = {"pgmq": "PGMQ read + archive", "pgqueue": "as it is"}
    return [
        *[Row(name, others.get(key, key), rates(bare), rates(slices)) for key, slices in samples.items()],
        Row(f"{name}, WAL", "PGMQ read + archive", wal(bare), wal(samples["pgmq"]), "B/msg", at_least=False),
    ]
