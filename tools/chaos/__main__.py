"""Runs it: `python -m tools.chaos --seconds 600`. Exit status 1 if a message is lost, doubled, stale or blocked."""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import psycopg

from tools import STATE, SetupError
from tools.chaos import history, page
from tools.chaos.account import OF_OTHERS, OURS, Account, account
from tools.chaos.history import History
from tools.chaos.load import Load
from tools.chaos.nemesis import Nemesis
from tools.chaos.stage import Stage

LONGEST_DRAIN = 300.0  # seconds


def chaos(directory: Path, *, seconds: float, seed: int, with_others: bool = False, kind: str | None = None) -> Account:
    """Run load and nemesis for so many seconds, let the consumers finish, and account for every message.

    :param directory: keeps the histories and the page.
    :param with_others: consume with a real Airflow and with Spark, too, which take a minute to start.
    """
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
            _until_busy(stage)
            causing.start()
            time.sleep(seconds)
            nemesis.stopping.set()
            causing.join()
            nemesis.mend()
            load.stop_publishing()
            _until_empty(stage)
        finally:
            nemesis.stopping.set()
            load.stop()
            supervisor.join()
            load.stop()
        entries = list(history.read(directory / "history"))
        with psycopg.connect(stage.dsn, autocommit=True) as conn:
            found = account(conn, entries, consumers=OURS | OF_OTHERS if with_others else OURS)
        found.figures |= {"actors started again": load.restarts}
        page.write(directory / "page.html", found, entries, title=f"{seconds:.0f} seconds of faults, seed {seed}")
        return found


def _waiting(stage: Stage) -> tuple[int, int]:
    with psycopg.connect(stage.dsn, autocommit=True) as conn:
        row = conn.execute(
            "SELECT (SELECT count(*) FROM messages.message WHERE queue_name <> 'ticks'),"
            " (SELECT count(*) FROM messages.message_archive)"
        ).fetchone()
        assert row
        return int(row[0]), int(row[1])


def _until_busy(stage: Stage) -> None:
    deadline = time.monotonic() + 120.0
    while _waiting(stage)[1] < 100:
        if time.monotonic() > deadline:
            raise SetupError(f"the load does not start: see {stage.directory / 'history'}")
        time.sleep(0.2)


def _until_empty(stage: Stage) -> None:
    deadline = time.monotonic() + LONGEST_DRAIN
    with suppress(psycopg.OperationalError):
        while _waiting(stage)[0] and time.monotonic() < deadline:
            time.sleep(0.2)


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
    try:
        sys.exit(main())
    except SetupError as error:
        sys.exit(str(error))
