"""Runs tests with the clock set to times that tests of time have failed at; the database and Spark see it too."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from tools import ROOT, STATE, SetupError, run_main, server_user

MOMENTS: Final = (
    ("2027-05-12T23:50Z", "UTC"),  # the day ends
    ("2027-01-31T23:58Z", "UTC"),  # the month ends while they run
    ("2027-05-01T00:00:30Z", "UTC"),  # the month has just begun, and with it the archive of a fresh installation
    ("2028-02-29T12:00Z", "UTC"),
    ("2027-03-14T06:58Z", "America/New_York"),  # an hour is left out
    ("2027-11-07T05:58Z", "America/New_York"),  # an hour comes again
)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.clock", description=__doc__)
    parser.add_argument("--at", action="append", help="a time such as 2027-05-12T23:50Z; by default, six of them")
    parser.add_argument("pytest", nargs="*", help="what pytest gets: files, and options after --")
    given = parser.parse_args()
    moments = [(at, os.environ.get("TZ", "UTC")) for at in given.at] if given.at else MOMENTS
    failed = [at for at, time_zone in moments if _run(at, time_zone, given.pytest)]
    sys.exit(f"failed at {', '.join(failed)}" if failed else 0)


def _run(at: str, time_zone: str, arguments: list[str]) -> int:
    print(f"At {at}, TZ={time_zone}:", flush=True)
    offset = datetime.fromisoformat(at) - datetime.now(UTC)
    moved = {"LD_PRELOAD": str(_library()), "CLOCK_OFFSET": f"{offset.total_seconds():.0f}", "TZ": time_zone}
    return subprocess.run([sys.executable, "-m", "pytest", *arguments], env=os.environ | moved).returncode


def _library() -> Path:
    """Return what moves the clock, compiled anew; PostgreSQL's user can read it where it is."""
    compiler = shutil.which("cc")
    if compiler is None:
        raise SetupError("there is no C compiler. Install one: apt-get install gcc libc6-dev.")
    library = server_user.temporary(STATE / "clock") / "clock.so"
    server_user.make_directory(library.parent)
    command = [compiler, "-O2", "-shared", "-fPIC", "-o", str(library), str(ROOT / "tools" / "clock.c")]
    subprocess.run(command, check=True)
    return library


if __name__ == "__main__":
    run_main(main)
