"""Calls a handler that has a time limit."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from concurrent.futures import Future
from datetime import timedelta
from queue import SimpleQueue
from typing import Any, Self, TypeVar

T = TypeVar("T")
A = TypeVar("A")


class TimeIsUp(Exception):
    """A call took longer than `limit`; it continues in a thread that nobody waits for, as `hanging` calls now do."""

    def __init__(self, limit: timedelta, hanging: int) -> None:
        super().__init__(f"the call took longer than {limit}")
        self.limit = limit
        self.hanging = hanging


class Caller:
    """Calls functions in another thread, always the same until a call exceeds the limit.

    Python cannot end a thread. One that hangs is left behind: what it returns later is dropped, and it does not keep
    the process from ending. The next call gets a new thread.
    """

    def __init__(self, limit: timedelta) -> None:
        self.limit = limit
        self._thread: _Thread | None = None
        self._left: list[_Thread] = []

    def call(self, function: Callable[[A], T], argument: A, times: int = 1) -> T:
        """Return what the function returns, and raise what it raises; TimeIsUp after so many times the limit."""
        if self._thread is None:
            self._thread = _Thread()
        future, limit = self._thread.begin(function, argument), self.limit * times
        try:
            error = future.exception(limit.total_seconds())
        except TimeoutError:
            raise TimeIsUp(limit, self._leave(self._thread)) from None
        if error is not None:
            raise error
        return future.result()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """End the thread when its call returns."""
        if self._thread is not None:
            self._thread.end()

    def _leave(self, thread: _Thread) -> int:
        """Continue without the thread, and return how many of the threads that were left still run."""
        thread.end()
        self._left = [left for left in self._left if left.is_alive()] + [thread]
        self._thread = None
        return len(self._left)


class _Thread(threading.Thread):
    def __init__(self) -> None:
        super().__init__(name="pgqueue-handler", daemon=True)
        self._calls: SimpleQueue[tuple[Future[Any], contextvars.Context, Callable[[Any], Any], Any] | None] = (
            SimpleQueue()
        )
        self.start()

    def begin(self, function: Callable[[A], T], argument: A) -> Future[T]:
        future: Future[T] = Future()
        self._calls.put((future, contextvars.copy_context(), function, argument))
        return future

    def end(self) -> None:
        self._calls.put(None)

    def run(self) -> None:
        while call := self._calls.get():
            future, context, function, argument = call
            try:
                future.set_result(context.run(function, argument))
            except BaseException as error:
                # The thread that waits for the result raises it.
                future.set_exception(error)
