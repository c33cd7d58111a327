"""The arguments of a case: the server, how long and how often to measure, and the ways to take samples in turns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from benchmarks.curve import Curve, Series
from benchmarks.measure import Drained, Load, Slice, consume_slice, full_slice, in_turns
from benchmarks.peer import BODY, Peer
from benchmarks.report import Line
from benchmarks.server import Connection, Server

# Messages a second that no queue here exceeds, by batch size: so many must be in the queue before a slice.
_FASTEST: Final = {1: 10_000, 10: 45_000, 100: 130_000, 1000: 180_000}
_MOST: Final = 3_000_000


@dataclass(frozen=True, slots=True)
class Bench:
    """The settings of a run.

    :param seconds: length of a slice of pgbench.
    :param rounds: how often each peer has its turn.
    :param minutes: how long the held snapshot lasts.
    :param curves: what the cases add for the plots.
    """

    server: Server
    quick: bool
    seconds: float
    rounds: int
    minutes: float
    curves: list[Curve] = field(default_factory=list)

    def curve(self, name: str, x: str, y: str, series: Series, limit: float | None = None) -> None:
        """Add a curve for the plots."""
        self.curves.append(Curve(name, x, y, series, limit))

    @property
    def noisy_rounds(self) -> int:
        """The number of turns where the disk decides."""
        return self.rounds + (0 if self.quick else 2)

    def consume(
        self, contestants: Mapping[str, Contestant], *, rounds: int | None = None, fastest: int | None = None
    ) -> dict[str, list[Slice]]:
        """Sample loads that take messages out; all find the same number of messages, and no slice drains them.

        :param fastest: messages a second to fill for at first.
        """
        level = self.seconds * (fastest or max(_FASTEST[one.load.batch] for one in contestants.values()))

        def sample(database: str, one: Contestant) -> Slice:
            nonlocal level
            while True:
                self._refill(database, one, round(level))
                try:
                    return consume_slice(self.server, database, one.peer, one.load, self.seconds)
                except Drained:
                    if level >= _MOST:
                        raise
                    level *= 1.6

        return self._turns(contestants, sample, rounds)

    def publish(self, contestants: Mapping[str, Contestant], *, rounds: int | None = None) -> dict[str, list[Slice]]:
        """Sample loads that publish, each into a queue of a thousand messages."""

        def sample(database: str, one: Contestant) -> Slice:
            self._refill(database, one, 1000)
            return full_slice(self.server, database, one.load, self.seconds)

        return self._turns(contestants, sample, rounds)

    def _refill(self, database: str, one: Contestant, messages: int) -> None:
        with self.server.connect(database) as conn:
            # Before the messages come: then no page is written whole during the slice.
            conn.execute("CHECKPOINT")
            one.peer.refill(conn, messages, one.before, one.body)

    def _turns(
        self, contestants: Mapping[str, Contestant], sample: Callable[[str, Contestant], Slice], rounds: int | None
    ) -> dict[str, list[Slice]]:
        with ExitStack() as stack:
            calls = {}
            for key, one in contestants.items():
                database = stack.enter_context(self.server.database(key, one.peer.name, one.peer.install))
                if one.setup:
                    with self.server.connect(database) as conn:
                        conn.execute(one.setup.encode())
                calls[key] = partial(sample, database, one)
            return in_turns(calls, rounds or self.rounds)


@dataclass(frozen=True, slots=True)
class Contestant:
    """A queue that is measured in turns with others.

    :param setup: run once in its database.
    :param before: puts in what lies in the queue before the messages that are leased.
    :param body: what these messages say.
    """

    peer: Peer
    load: Load
    setup: str = ""
    before: Callable[[Connection], None] | None = None
    body: str = BODY


Run = Callable[[Bench], list[Line]]


@dataclass(frozen=True, slots=True)
class Case:
    """A row of the report, or several that come from the same samples.

    :param quick: whether `make bench-quick` measures it.
    """

    name: str
    what: str
    run: Run
    quick: bool
    group: str = ""


CASES: Final[dict[str, Case]] = {}


def case(
    name: str, what: str, *, quick: bool = True, group: str = ""
) -> Callable[[Callable[[Bench], list[Line]]], Callable[[Bench], list[Line]]]:
    """Register a case under the name that --only takes; that of its group stands for all its cases."""

    def register(run: Run) -> Run:
        CASES[name] = Case(name, what, run, quick, group)
        return run

    return register
