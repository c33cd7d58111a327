"""What a case gets: the server, how long and how often to measure, and the ways to take samples in turns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Final

from benchmarks.measure import Drained, Load, Slice, consume_slice, in_turns, publish_slice
from benchmarks.report import Line
from benchmarks.server import Server

# Messages a second that nobody here exceeds, by batch: what a slice has to find in the queue at first.
_FASTEST: Final = {1: 10_000, 10: 45_000, 100: 130_000, 1000: 180_000}
_MOST: Final = 3_000_000


@dataclass(frozen=True, slots=True)
class Bench:
    """How this run measures.

    :param seconds: length of a slice of pgbench.
    :param rounds: how often each peer has its turn.
    :param minutes: how long the held snapshot lasts.
    """

    server: Server
    quick: bool
    seconds: float
    rounds: int
    minutes: float

    def consume(
        self,
        contestants: Mapping[str, Contestant],
        *,
        rounds: int | None = None,
    ) -> dict[str, list[Slice]]:
        """Sample loads that take messages out; all find the same number of messages, and no slice drains them."""
        level = max(_FASTEST[one.load.batch] for one in contestants.values()) * self.seconds

        def sample(name: str, one: Contestant) -> Slice:
            nonlocal level
            while True:
                with self.server.connect(name) as conn:
                    conn.execute("CHECKPOINT")
                    one.fill(conn, round(level))
                try:
                    return consume_slice(self.server, name, one.load, self.seconds, one.peer.count)
                except Drained:
                    if level >= _MOST:
                        raise
                    level *= 1.6

        return self._turns(contestants, sample, rounds)

    def publish(self, contestants: Mapping[str, Contestant], *, rounds: int | None = None) -> dict[str, list[Slice]]:
        """Sample loads that publish, each into a queue of a thousand messages."""

        def sample(name: str, one: Contestant) -> Slice:
            with self.server.connect(name) as conn:
                conn.execute("CHECKPOINT")
                one.fill(conn, 1000)
            return publish_slice(self.server, name, one.load, self.seconds)

        return self._turns(contestants, sample, rounds)

    def _turns(
        self, contestants: Mapping[str, Contestant], sample: Callable[[str, Contestant], Slice], rounds: int | None
    ) -> dict[str, list[Slice]]:
        with ExitStack() as stack:
            calls = {}
            for key, one in contestants.items():
                name = stack.enter_context(self.server.database(key, one.peer.NAME, one.peer.install))
                one.prepare(self.server, name)
                calls[key] = _bound(sample, name, one)
            return in_turns(calls, rounds or self.rounds)


@dataclass(frozen=True, slots=True)
class Contestant:
    """One of those who are measured in turns.

    :param peer: a module of `peers`.
    :param setup: run once in its database, before the first slice.
    :param before_fill: how many messages, of what kind, to put below those that are leased.
    """

    peer: Any
    load: Load
    setup: str = ""
    preload: Callable[[Any], None] | None = None

    def prepare(self, server: Server, database: str) -> None:
        """Do what is done once."""
        if self.setup:
            with server.connect(database) as conn:
                conn.execute(self.setup.encode())

    def fill(self, conn: Any, messages: int) -> None:
        """Empty the queue, then put in what lies before, then what will be leased."""
        self.peer.empty(conn)
        if self.preload:
            self.preload(conn)
        self.peer.add(conn, messages)
        self.peer.analyse(conn)


def _bound(sample: Callable[[str, Contestant], Slice], name: str, one: Contestant) -> Callable[[], Slice]:
    return lambda: sample(name, one)


@dataclass(frozen=True, slots=True)
class Case:
    """A row of the report, or several that come from the same samples.

    :param quick: whether `make bench-quick` measures it.
    """

    name: str
    what: str
    run: Callable[[Bench], list[Line]]
    quick: bool


CASES: Final[dict[str, Case]] = {}


def case(
    name: str, what: str, *, quick: bool = True
) -> Callable[[Callable[[Bench], list[Line]]], Callable[[Bench], list[Line]]]:
    """Register a case under the name that --only takes."""

    def register(run: Callable[[Bench], list[Line]]) -> Callable[[Bench], list[Line]]:
        CASES[name] = Case(name, what, run, quick)
        return run

    return register
