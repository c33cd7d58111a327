"""The cost of a lease in a queue that has had many priorities."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial

from benchmarks.bench import Bench, case
from benchmarks.growth.sample import GROUP, milliseconds, prepared, turns
from benchmarks.measure import in_turns
from benchmarks.peers.pgmq import PGMQ
from benchmarks.peers.pgqueue import PGQUEUE
from benchmarks.report import Line, Row
from benchmarks.server import Connection

_ALL = 10


@case("growth-priorities", "a lease that finds nothing, in a queue that has seen 1 to 10 priorities", group=GROUP)
def empty_lease(bench: Bench) -> list[Line]:
    with ExitStack() as stack:
        calls = {}
        for number in [1, _ALL] if bench.quick else [1, 4, _ALL]:
            database, conn = stack.enter_context(prepared(bench, f"priorities_{number}", PGQUEUE))
            _see_priorities(conn, number)
            calls[number] = partial(milliseconds, bench, database, "SELECT count(*) FROM messages.lease('bench', 1);")
        database, _ = stack.enter_context(prepared(bench, "priorities_pgmq", PGMQ))
        calls[0] = partial(milliseconds, bench, database, "SELECT count(*) FROM pgmq.read('bench', 300, 1);")
        samples = in_turns(calls, turns(bench))
    theirs = samples.pop(0)
    lines: list[Line] = [
        Row(f"empty lease, {number} priorities", "with 1", samples[number], samples[1], "ms", target, at_least=False)
        for number, target in ((number, 2.0 if number == _ALL else None) for number in samples if number > 1)
    ]
    return [*lines, Row("empty lease, 1 priority", "PGMQ read", samples[1], theirs, "ms", at_least=False)]


def _see_priorities(conn: Connection, number: int) -> None:
    for priority in range(number):
        conn.execute("SELECT messages.publish('bench', '{}', priority => %s)", [(4 + priority) % _ALL])
    conn.execute("SELECT count(*) FROM messages.consume('bench', 1000)")
    conn.execute("VACUUM (ANALYZE) messages.message")
