"""How long a message that is retried waits, as a table says it."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Final

from airflow_provider_pgqueue.core.errors import InvalidArgument

_LONGEST: Final = timedelta(days=366)


def delay_of(seconds: float | None) -> timedelta | None:
    """Return the delay; None for the back-off of the queue. InvalidArgument if it is negative or too long."""
    # pandas says NaN where there is nothing, and Spark for 0.0 / 0.0 and a text that is none.
    if seconds is None or math.isnan(seconds):
        return None
    if not 0 <= seconds <= _LONGEST.total_seconds():
        raise InvalidArgument(f"delay_seconds is {seconds}. Give 0 to 366 days, or none for the back-off of the queue.")
    return timedelta(seconds=float(seconds))
