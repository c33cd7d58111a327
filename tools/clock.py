"""Runs tests with the clock set to moments that tests of time have failed at; the database and Spark see it too."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from tools import ROOT, SetupError

MOMENTS: Final = (
    ("2027-05-12T23:50Z", "UTC"),  # the day ends
    ("2027-01-31T23:58Z", "UTC"),  # the month ends while they run
    ("2028-02-29T12:00Z", "UTC"),
    ("2027-03-14T06:58Z", "America/New_York"),  # an hour is left out
    ("2027-11-07T05:58Z", "America/New_York"),  # an hour comes again
)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.clock", description=__doc__)
    parser.add_argument("--at", action="append", help="a moment such as 2027-05-12T23:50Z; by default, five of them")
    parser.add_argument("pytest", nargs="*", help="what pytest gets: files, and options after --")
    given = parser.parse_args()
    moments = [(at, os.environ.get("TZ", "UTC")) for at in given.at] if given.at else MOMENTS
    failed = [at for at, time_zone in moments if _run(at, time_zone, given.pytest)]
    sys.exit(f"failed at {', '.join(failed)}" if failed else 0)


def _run(at: str, time_zone: str, arguments: list[str]) -> int:
    print(f"At {at}, TZ={time_zone}:", flush=True)
    # An offset, because a start would be that of each process; without the monotonic clock, which measures time-outs.
    offset = datetime.fromisoformat(at) - datetime.now(UTC)
    faked = {
        "LD_PRELOAD": str(_library()),
        "FAKETIME": f"{offset.total_seconds():+.0f}s",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "TZ": time_zone,
        "PYTHONPATH": str(ROOT),  # or the processes of xdist do not find the plugin
    }
    command = [sys.executable, "-m", "pytest", "-p", "tools.faked_clock", *arguments]
    return subprocess.run(command, env=os.environ | faked).returncode


def _library() -> Path:
    if found := next(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"), None):
        return found
    raise SetupError("there is no libfaketime. Install it: apt-get install faketime.")


if __name__ == "__main__":
    try:
        main()
    except SetupError as error:
        sys.exit(str(error))
