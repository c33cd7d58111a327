"""Runs the private PostgreSQL and the Airflow that the demo and the tests use."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final, NoReturn

from airflow_provider_pgqueue.testing import SetupError as SetupError

ROOT: Final = Path(__file__).resolve().parents[1]
STATE: Final = ROOT / ".run"
QUEUE_DATABASE: Final = "pgqueue"
AIRFLOW_DATABASE: Final = "airflow"


def run_main(main: Callable[[], int | None]) -> NoReturn:
    """Run a program and end the process; what the user can fix is its last line."""
    try:
        sys.exit(main())
    except SetupError as error:
        sys.exit(str(error))
