"""Runs the private PostgreSQL and the Airflow that the demo and the tests use."""

from __future__ import annotations

from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
STATE: Final = ROOT / ".run"
QUEUE_DATABASE: Final = "pgqueue"
AIRFLOW_DATABASE: Final = "airflow"


class SetupError(Exception):
    """Something that the user can cure is in the way; the message says what and how."""
