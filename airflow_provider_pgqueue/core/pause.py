"""How long whoever lost the server waits before the next try."""

from __future__ import annotations

import random


def pause_after(failures: int) -> float:
    """Return the seconds until the next try after so many failures in a row: from about half a second up to 30."""
    # Growing and random, so that they do not all come back at once to a server that restarts.
    return min(0.5 * 2.0 ** min(failures - 1, 6), 30.0) * random.uniform(0.5, 1.0)
