"""Workers of each peer that handle the same messages, and what they recorded: which handler began and ended when."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from benchmarks.bench import Bench
from benchmarks.client import Client, clients
from benchmarks.measure import in_turns
from benchmarks.peer import Peer, scalar

_ROLES: Final = "benchmarks.anchors.roles"
_UNTIL_THEY_LISTEN: Final = 3  # seconds


@dataclass(frozen=True, slots=True)
class Handled:
    """The records of the workers: the key of each message, when its handler began and ended, and CPU seconds."""

    entries: Sequence[tuple[str, float, float]]
    cpu: float

    @property
    def seconds(self) -> float:
        """From the first handler's beginning to the last one's end."""
        return max(end for _, _, end in self.entries) - min(start for _, start, _ in self.entries)

    @property
    def rate(self) -> float:
        """Messages each second."""
        return len(self.entries) / self.seconds

    @property
    def busiest_second(self) -> int:
        """The most handlers that began within one second."""
        begun = sorted(start for _, start, _ in self.entries)
        return max(bisect_left(begun, start + 1) - number for number, start in enumerate(begun))

    @property
    def most_at_once(self) -> int:
        """The most handlers of one key that ran at the same time."""
        changes = defaultdict(list)
        for key, start, end in self.entries:
            changes[key] += [(start, 1), (end, -1)]
        most = 0
        for of_key in changes.values():
            now = 0
            for _, change in sorted(of_key):
                now += change
                most = max(most, now)
        return most

    def until_last_of(self, keys: Collection[str]) -> Handled:
        """Return what was handled until the last message of some keys had ended."""
        last = max(end for key, _, end in self.entries if key in keys)
        return Handled([entry for entry in self.entries if entry[2] <= last], self.cpu)


@dataclass(frozen=True, slots=True)
class Workers:
    """The workers of a peer, and how to publish to them.

    :param publish: publishes a message for each of `%(keys)s`, in this order.
    :param setup: sets what its queue promises.
    :param options: of its role.
    :param waiting: counts what the workers have to handle before they are stopped, if that is not everything.
    """

    peer: Peer
    publish: str
    setup: str = ""
    processes: int = 4
    options: Mapping[str, Any] = field(default_factory=dict)
    waiting: str = ""

    def handle(self, bench: Bench, database: str, keys: Sequence[str]) -> Handled:
        """Let workers wait, publish, and stop them when all is handled."""
        options = {"at_once": 10, "seconds": 0} | dict(self.options)
        arguments = f"handle_{self.peer.name}", bench.server.dsn(database), self.processes
        with bench.server.connect(database) as conn:
            conn.execute(self.peer.empty.encode())
            if self.setup:
                conn.execute(self.setup.encode())
            with clients(*arguments, module=_ROLES, **options) as started:
                _write(started, "go")
                time.sleep(_UNTIL_THEY_LISTEN)
                before = bench.server.cpu_seconds()
                conn.execute(self.publish.encode(), {"keys": list(keys)})
                self.peer.analyse(conn)
                while scalar(conn, self.waiting or self.peer.count):
                    time.sleep(0.2)
                server = bench.server.cpu_seconds() - before
                _write(started, "stop")
                results = [client.result() for client in started]
        entries = [tuple(entry) for result in results for entry in result["entries"]]
        return Handled(entries, server + sum(result["cpu"] for result in results))


def _write(started: Sequence[Client], word: str) -> None:
    for client in started:
        client.write(word)


def turns(bench: Bench, contestants: Mapping[str, Workers], keys: Sequence[str]) -> dict[str, list[Handled]]:
    """Let each handle the same messages in its turn, in a database of its own."""
    with ExitStack() as stack:
        calls = {}
        for name, workers in contestants.items():
            database = stack.enter_context(bench.server.database(name, workers.peer.name, workers.peer.install))
            calls[name] = partial(workers.handle, bench, database, keys)
        return in_turns(calls, min(bench.rounds, 3))
