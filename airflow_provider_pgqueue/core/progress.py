"""Logs the progress of a long piece of work."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from airflow_provider_pgqueue.core.tuning import TUNING

log = logging.getLogger(__name__)


@contextmanager
def watching(log_progress: Callable[[], None]) -> Iterator[None]:
    """Call `log_progress` in a thread every five seconds while the block runs, and log its errors."""
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(TUNING.log_every):
            try:
                log_progress()
            except Exception as error:
                # The text of the error may quote data.
                log.warning("cannot report the progress: %s", type(error).__name__)

    thread = threading.Thread(target=watch, name="pgqueue-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
