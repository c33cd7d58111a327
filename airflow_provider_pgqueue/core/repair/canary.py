"""The first messages that a repair requeues: the others follow only if these live."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Final

import psycopg

from airflow_provider_pgqueue.core import verbs
from airflow_provider_pgqueue.core.client import run

if TYPE_CHECKING:
    from airflow_provider_pgqueue.core.repair.repair import Repair

log = logging.getLogger(__name__)

Connect = Callable[[], AbstractContextManager[psycopg.Connection[Any]]]
_LOOKS_AGAIN: Final = 0.5  # seconds
_SAYS_EVERY: Final = 10.0  # seconds


def wait_for_canary(repair: Repair, connect: Connect, stop: Callable[[], bool]) -> dict[str, Any]:
    """Wait until the canary is finished; return its counts, and in `stopped` why the run must end, if it must."""
    patience = time.monotonic() + repair.canary_wait.total_seconds()
    say_at = time.monotonic()
    with connect() as conn:
        while True:
            found = run(conn, verbs.requeued_results(repair.remedied_by, repair.canary))
            stopped = _why_stop(**found, stop_when_failing=repair.stop_when_failing)
            if stopped is None and time.monotonic() >= patience:
                stopped = "the canary was not finished in time"
            if stopped is None and stop():
                stopped = "told to stop"
            if stopped is not None or time.monotonic() >= say_at:
                log.info("canary of %s: %s requeued, %s finished, %s died again", repair.remedied_by, *found.values())
                say_at += _SAYS_EVERY
            if stopped is not None:
                counts = {"canary": {name: found[name] for name in ("requeued", "died_again")}}
                return counts | {"stopped": stopped} if stopped else counts
            time.sleep(_LOOKS_AGAIN)


def _why_stop(*, requeued: int, finished: int, died_again: int, stop_when_failing: float) -> str | None:
    """Return why to stop, an empty text to continue, or None to wait."""
    if not requeued:
        return "the canary requeued nothing"
    if 100 * died_again >= stop_when_failing * requeued:
        return "the canary died again"
    return "" if finished == requeued else None
