"""The cost of the limits of a queue for its leases."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from benchmarks.bench import Bench, Contestant, case
from benchmarks.cases import rates
from benchmarks.growth.sample import GROUP, turns
from benchmarks.measure import Load
from benchmarks.peer import Peer
from benchmarks.peers.pgqueue import PGQUEUE
from benchmarks.report import Line, Row
from benchmarks.server import Connection

# None of them is ever reached.
_LIMITS: Final = {
    "rate_limit": "rate_limit => 1000000, rate_burst => 10000",
    "max_leased": "max_leased => 1000000",
    "max_leased_per_group": "max_leased_per_group => 10000",
}


@case("growth-limits", "lease and archive 10 at a time under each limit, 4 clients", group=GROUP)
def limits(bench: Bench) -> list[Line]:
    spread = replace(PGQUEUE.with_column("group_key", "(n %% 1000)::text"), name="grouped")
    peers = {"none": PGQUEUE, "none_grouped": spread} | {
        name: _under(policy, spread if name.endswith("per_group") else PGQUEUE) for name, policy in _LIMITS.items()
    }
    measured = {name: Contestant(peer, Load(PGQUEUE.script("lease_archive", 10), 10)) for name, peer in peers.items()}
    samples = bench.consume(measured, rounds=turns(bench))

    def of(name: str) -> list[float]:
        return rates(samples[name])

    return [
        Row("lease-archive-10 under a rate_limit", "no limit", of("rate_limit"), of("none"), target=0.5),
        Row("lease-archive-10 under a max_leased", "no limit", of("max_leased"), of("none")),
        Row("lease-archive-10 of groups of many", "groups of one", of("max_leased_per_group"), of("none_grouped")),
    ]


def _under(policy: str, peer: Peer) -> Peer:
    def install(conn: Connection) -> None:
        peer.install(conn)
        conn.execute(f"SELECT messages.alter_queue('bench', {policy})".encode())

    return replace(peer, install=install)
