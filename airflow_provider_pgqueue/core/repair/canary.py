"""The canary of a run: the first messages that it requeues, whose end decides about the others."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, Final

import psycopg

from airflow_provider_pgqueue.core import verbs
from airflow_provider_pgqueue.core.client import run
from airflow_provider_pgqueue.core.duration import Duration, seconds

log = logging.getLogger(__name__)
_POLL_AGAIN: Final = 0.5  # seconds between two polls
_LOG_EVERY: Final = 10.0  # seconds between two log lines


def wait_for_canary(
    conn: psycopg.Connection[Any],
    resolved_by: str,
    number: int,
    *,
    stop_when_failing: float,
    canary_wait: Duration,
    stop: Callable[[], bool],
) -> dict[str, Any]:
    """Wait until the first messages that `resolved_by` requeued are finished; return how many of them died again.

    `stopped` is in the result only if the run must end, and says why: `stop_when_failing` percent of them died again,
    they were not finished within `canary_wait`, or `stop` returned True.
    """
    patience = time.monotonic() + seconds(canary_wait)
    log_at = time.monotonic()
    while True:
        found = run(conn, verbs.requeued_results(resolved_by, number))
        stopped = _why_stop(**found, stop_when_failing=stop_when_failing)
        if stopped is None and time.monotonic() >= patience:
            stopped = "the canary was not finished in time"
        if stopped is None and stop():
            stopped = "told to stop"
        if stopped is not None or time.monotonic() >= log_at:
            text = "canary of %s: %s requeued, of which consumers finished %s, and %s died again"
            log.info(text, resolved_by, *found.values())
            log_at += _LOG_EVERY
        if stopped is not None:
            counts = {"canary": {name: found[name] for name in ("requeued", "died_again")}}
            return counts | {"stopped": stopped} if stopped else counts
        time.sleep(_POLL_AGAIN)


def _why_stop(*, requeued: int, finished: int, died_again: int, stop_when_failing: float) -> str | None:
    """Return why to stop, an empty text to continue, or None to wait."""
    if not requeued:
        return "the canary requeued nothing"
    if 100 * died_again >= stop_when_failing * requeued:
        return "the canary died again"
    return "" if finished == requeued else None
