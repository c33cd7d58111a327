"""Ends work cleanly on SIGTERM and SIGINT."""

from __future__ import annotations

import logging
import os
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
    """Call `stop` on SIGTERM and SIGINT during the `with` block; yields a function that returns whether one arrived.

    The block unblocks the signals, even where they are blocked before and after it. `stop` may interrupt the main
    thread anywhere, even inside another call of `stop`, so it must not take a lock. Outside of the main thread no
    signal is caught.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    stopped = False
    owner = os.getpid()
    came: SimpleQueue[int | None] = SimpleQueue()

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal stopped
        if os.getpid() != owner:
            # In a process that a handler forked, nobody looks at `stopped`.
            signal.signal(number, before[signal.Signals(number)] or signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        stopped = True
        stop()
        came.put(number)

    def log_stop() -> None:
        for number in iter(came.get, None):
            log.info("stopping on %s", signal.Signals(number).name)

    # The handler must not log: it may have interrupted a log call that holds the lock of the log handler.
    logging_thread = threading.Thread(target=log_stop, name="pgqueue-signals", daemon=True)
    logging_thread.start()
    before: dict[signal.Signals, Any] = {number: signal.signal(number, handle) for number in STOPS}
    blocked = signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)
    try:
        yield lambda: stopped
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        for number, handler in before.items():
            signal.signal(number, handler)
        came.put(None)
        logging_thread.join()
