"""Runs it: `python -m tools.chaos --seconds 600`. Exit status 1 if a message is lost, doubled, stale or blocked."""

from __future__ import annotations

import argparse
import random
import shutil
import threading
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path

import psycopg

from tools import STATE, SetupError, run_main
from tools.chaos import history, page
from tools.chaos.account import OF_OTHERS, OURS, Account, account, consumers
from tools.chaos.history import History
from tools.chaos.load import Load
from tools.chaos.nemesis import Nemesis
from tools.chaos.stage import Stage

# In seconds. A machine may be slow: Spark and Airflow have been seen to need five minutes for a first task.
LONGEST_START = 900.0
LONGEST_STANDSTILL = 300.0  # at the end, in which nothing is archived although messages wait
LONGEST_END = 3600.0


def chaos(directory: Path, *, seconds: float, seed: int, with_others: bool = False, kind: str | None = None) -> Account:
    """Run load and nemesis for so many seconds, let the consumers finish, and account for every message.

    :param directory: keeps the histories and the page.
    :param with_others: consume with a real Airflow and with Spark, too, which take a minute to start.
    """
    kinds = OURS | OF_OTHERS if with_others else OURS
    for old in ("history", "spark", "airflow"):
        shutil.rmtree(directory / old, ignore_errors=True)
    (directory / "history").mkdir(parents=True)
    with Stage(directory, megabytes=256 + int(seconds), kind=kind, with_others=with_others) as stage:
        load = Load(stage, seed)
        nemesis = Nemesis(stage, load, History(directory / "history" / "nemesis.jsonl"), random.Random(seed))
        supervisor = threading.Thread(target=load.supervise)
        causing = threading.Thread(target=nemesis.run)
        supervisor.start()
        try:
            _until_busy(stage, kinds)
            began = time.time()
            causing.start()
            time.sleep(seconds)
            nemesis.stopping.set()
            causing.join()
            nemesis.repair()
            load.stop_publishing()
            took = until_empty(lambda: waiting(stage.dsn))
        finally:
            nemesis.stopping.set()
            load.stop()
            supervisor.join()
            load.stop()
        entries = list(history.read(directory / "history"))
        with psycopg.connect(stage.dsn, autocommit=True) as conn:
            found = account(conn, entries, kinds=kinds, since=began)
        found.figures |= {"actors started again": load.restarts, "seconds in which the rest was handled": round(took)}
        page.write(directory / "page.html", found, entries, title=f"{seconds:.0f} seconds of faults, seed {seed}")
        return found


def _until_busy(stage: Stage, kinds: Collection[str]) -> None:
    """Wait until each kind of consumer has archived a message, so that the first fault finds all of them at work."""
    deadline = time.monotonic() + LONGEST_START
    missing = set(kinds)
    while missing:
        if time.monotonic() > deadline:
            raise SetupError(f"still at rest: {', '.join(sorted(missing))}; see {stage.directory}")
        time.sleep(0.5)
        with psycopg.connect(stage.dsn, autocommit=True) as conn:
            missing -= consumers(conn).keys()


def until_empty(poll: Callable[[], tuple[int, int]], *, standstill: float = LONGEST_STANDSTILL) -> float:
    """Wait until no message waits, for as long as messages are archived now and then; return the seconds it took.

    :param poll: returns how many messages wait, and how many are archived.
    """
    began = progressed = time.monotonic()
    before: tuple[int, int] | None = None
    while (now := time.monotonic()) < min(progressed + standstill, began + LONGEST_END):
        with suppress(psycopg.OperationalError):
            seen = poll()
            if not seen[0]:
                break
            if seen != before:
                before, progressed = seen, now
        time.sleep(0.2)
    return now - began


def waiting(dsn: str) -> tuple[int, int]:
    """Return how many messages have not ended, and how many messages are archived."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        row = conn.execute(
            "SELECT (SELECT count(*) FROM messages.message), (SELECT count(*) FROM messages.message_archive)"
        ).fetchone()
        assert row
        return int(row[0]), int(row[1])


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m tools.chaos", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument(
        "--others",
        action=argparse.BooleanOptionalAction,
        help="with a real Airflow and Spark; from 300 seconds on by default",
    )
    parser.add_argument("--directory", type=Path, default=STATE / "chaos")
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}", flush=True)
    with_others = arguments.seconds >= 300 if arguments.others is None else arguments.others
    found = chaos(arguments.directory, seconds=arguments.seconds, seed=arguments.seed, with_others=with_others)
    print("\n".join(page.lines(found)))
    print(arguments.directory / "page.html")
    return 0 if found.is_clean else 1


if __name__ == "__main__":
    run_main(main)
