"""Runs the private PostgreSQL and the Airflow that the demo and the tests use."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final, NoReturn

ROOT: Final = Path(__file__).resolve().parents[1]
STATE: Final = ROOT / ".run"
QUEUE_DATABASE: Final = "pgqueue"
AIRFLOW_DATABASE: Final = "airflow"


class SetupError(Exception):
    """Something that the user can fix is in the way; the message says what and how."""


def run_main(main: Callable[[], int | None]) -> NoReturn:
    """Run a program and end the process; what the user can fix is its last line."""
    try:
        sys.exit(main())
    except SetupError as error:
        sys.exit(str(error))
