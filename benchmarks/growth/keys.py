"""What it costs that keys take turns: publish and lease with 1 to 1,000 keys, and in a queue that is not fair."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from typing import Final

from benchmarks.bench import Bench, case
from benchmarks.growth.sample import GROUP, milliseconds, prepared, turns
from benchmarks.measure import in_turns
from benchmarks.peers.pgqueue import PGQUEUE
from benchmarks.report import Line, Row

_PLAIN: Final = 0
_PUBLISH: Final = """\\set key random(1, {keys})
SELECT messages.publish('bench', '{{}}', headers => jsonb_build_object('fair_key', :key::text));"""
_LEASE: Final = "SELECT count(*) FROM messages.lease('bench', 1);"
_FILL: Final = """
    INSERT INTO messages.message (queue_name, message, headers)
    SELECT 'bench', '{}', jsonb_build_object('fair_key', %s::text) FROM generate_series(1, %s)
"""
_WAITING: Final = 50_000


@case(
    "growth-keys", "publish and lease one message with 1 to 1,000 keys that take turns, and without turns", group=GROUP
)
def keys(bench: Bench) -> list[Line]:
    sizes = [_PLAIN, 1, 1000] if bench.quick else [_PLAIN, 1, 10, 100, 1000]
    with ExitStack() as stack:
        publishes, leases = {}, {}
        for size in sizes:
            database, conn = stack.enter_context(prepared(bench, f"keys_{size}", PGQUEUE))
            if size != _PLAIN:
                conn.execute("SELECT messages.alter_queue('bench', fair_by => 'group')")
            number = max(size, 1)
            for key in range(1, number + 1):
                conn.execute(_FILL, [key, _WAITING // number])
            publishes[size] = partial(milliseconds, bench, database, _PUBLISH.format(keys=number))
            leases[size] = partial(milliseconds, bench, database, _LEASE)
        samples = {"publish": in_turns(publishes, turns(bench)), "lease": in_turns(leases, turns(bench))}
    lines: list[Line] = []
    for verb, of in samples.items():
        plain = of.pop(_PLAIN)
        bench.curve(
            f"growth-keys-{verb}",
            "keys",
            f"a {verb} of one message, ms",
            {"keys take turns": of, "a queue without turns": dict.fromkeys(of, plain)},
        )
        lines += [
            Row(
                f"{verb} 1, {size:,} key{'s' if size > 1 else ''}",
                "without turns",
                of[size],
                plain,
                "ms",
                at_least=False,
            )
            for size in of
        ]
        lines.append(Row(f"{verb} 1, 1,000 keys", "1 key", of[1000], of[1], "ms", 2.0, at_least=False))
    return lines
