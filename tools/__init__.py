"""Runs the private PostgreSQL and the Airflow that the demo and the tests use."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from airflow_provider_pgqueue.testing import SetupError as SetupError

ROOT: Final = Path(__file__).resolve().parents[1]
STATE: Final = ROOT / ".run"
QUEUE_DATABASE: Final = "pgqueue"
AIRFLOW_DATABASE: Final = "airflow"
