"""SIGTERM and SIGINT as the wish that work ends cleanly."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from types import FrameType
from typing import Any, Final

log = logging.getLogger(__name__)

STOPS: Final = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def stop_on_signals(stop: Callable[[], None] = lambda: None) -> Iterator[Callable[[], bool]]:
    """Call `stop` on SIGTERM and SIGINT during the `with` block; yields what says whether one of them came.

    They come through even where they are blocked before and after the block. `stop` interrupts the main thread at any
    place, and another call of `stop`, so it must not take a lock. Outside of the main thread nothing is caught.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    stopped = False
    came: SimpleQueue[int | None] = SimpleQueue()

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal stopped
        stopped = True
        stop()
        came.put(number)

    def log_stop() -> None:
        for number in iter(came.get, None):
            log.info("stopping on %s", signal.Signals(number).name)

    # Not in the handler: it may have interrupted a line of the log, and what that is written to.
    logger = threading.Thread(target=log_stop, name="pgqueue-signals", daemon=True)
    logger.start()
    before: dict[signal.Signals, Any] = {number: signal.signal(number, handle) for number in STOPS}
    blocked = signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)
    try:
        yield lambda: stopped
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        for number, handler in before.items():
            signal.signal(number, handler)
        came.put(None)
        logger.join()
