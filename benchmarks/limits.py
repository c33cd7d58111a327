"""The group `limits`: what the hot verbs could reach if they did without parts that a promise needs."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from benchmarks.bench import Bench, case
from benchmarks.cases import contestants, rates
from benchmarks.peers.pgmq import PGMQ, RINGS, RINGS_THROTTLED
from benchmarks.peers.pgqueue import PGQUEUE
from benchmarks.report import Line, Row

GROUP: Final = "limits"

# Nobody finds a message by its id, reference, cause or time then, no dead message is listed, and plain SQL may archive
# whatever it likes.
_BARE_ARCHIVE: Final = """
DROP INDEX messages.message_archive_archived_at_idx, messages.message_archive_xid_idx,
           messages.message_archive_reference_idx, messages.message_archive_dead_idx,
           messages.message_archive_remedied_by_idx;
ALTER TABLE messages.message_archive DROP CONSTRAINT archive_result;
DROP TRIGGER message_archived ON messages.message_archive;
"""
# Nobody is woken then.
_SILENT: Final = "SELECT messages.alter_queue('bench', notify => 'off');"
# And whatever plain SQL inserts is not checked.
_UNCHECKED: Final = "DROP TRIGGER new_message ON messages.message;"


@case("limit-lease-archive-1", "lease and archive 1 at a time into a bare archive", quick=False, group=GROUP)
def one_at_a_time(bench: Bench) -> list[Line]:
    return _bare_archive(bench, 1)


@case("limit-lease-archive-10", "lease and archive 10 at a time into a bare archive", quick=False, group=GROUP)
def ten_at_a_time(bench: Bench) -> list[Line]:
    return _bare_archive(bench, 10)


@case("limit-lease-archive-100", "lease and archive 100 at a time into a bare archive", quick=False, group=GROUP)
def hundred_at_a_time(bench: Bench) -> list[Line]:
    return _bare_archive(bench, 100)


@case("limit-publish-1", "publish one at a time, silently and without the trigger", quick=False, group=GROUP)
def publish(bench: Bench) -> list[Line]:
    measured = contestants("publish", PGQUEUE, PGMQ)
    ours, theirs = measured["pgqueue"], measured["pgmq"]
    measured |= {
        "silent": replace(ours, setup=_SILENT),
        "unchecked": replace(ours, setup=_UNCHECKED),
        "both": replace(ours, setup=_SILENT + _UNCHECKED),
        "rings": replace(theirs, setup=RINGS),
        "throttled": replace(theirs, setup=RINGS_THROTTLED),
    }
    samples = {name: rates(slices) for name, slices in bench.publish(measured).items()}
    return [
        Row("publish-1, silent", "PGMQ send, no NOTIFY", samples["silent"], samples["pgmq"]),
        Row("publish-1, silent, no trigger", "PGMQ send, no NOTIFY", samples["both"], samples["pgmq"]),
        Row("publish-1, no trigger", "PGMQ send, NOTIFY each time", samples["unchecked"], samples["rings"]),
        Row("publish-1, no trigger", "PGMQ send, NOTIFY every 250 ms", samples["unchecked"], samples["throttled"]),
        Row("publish-1", "silent, no trigger", samples["pgqueue"], samples["both"]),
    ]


def _bare_archive(bench: Bench, batch: int) -> list[Line]:
    measured = contestants("lease_archive", PGQUEUE, PGMQ, batch=batch)
    measured["bare"] = replace(measured["pgqueue"], setup=_BARE_ARCHIVE)
    samples = {name: rates(slices) for name, slices in bench.consume(measured).items()}
    name = f"lease-archive-{batch}, bare archive"
    return [
        Row(name, "PGMQ read + archive", samples["bare"], samples["pgmq"]),
        Row(name, "as it is", samples["bare"], samples["pgqueue"]),
    ]
