"""Calls a handler that has a time limit."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from datetime import timedelta
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")
A = TypeVar("A")


class TimeIsUp(Exception):
    """A call took longer than `limit`; it continues in a thread that is no longer waited for.

    `hanging` is the number of messages whose own calls continue like that.
    """

    def __init__(self, limit: timedelta, hanging: int) -> None:
        super().__init__(f"the call took longer than {limit}")
        self.limit = limit
        self.hanging = hanging


class Caller:
    """Calls functions; with a limit, in another thread, which is always the same until a call exceeds the limit.

    Python cannot end a thread. One that hangs is left behind: what it returns later is dropped, and it does not keep
    the process from ending. The next call gets a new thread.
    """

    def __init__(self, limit: timedelta | None = None) -> None:
        self.limit = limit
        self._thread: _Thread | None = None
        self._left: list[tuple[_Thread, int]] = []

    def call(self, function: Callable[[A], T], argument: A, ids: Sequence[int]) -> T:
        """Return what the function returns for these messages, and raise what it raises; TimeIsUp after the limit."""
        if self.limit is None:
            return function(argument)
        if self._thread is None:
            self._thread = _Thread()
        future = self._thread.begin(function, argument)
        try:
            error = future.exception(self.limit.total_seconds())
        except TimeoutError:
            raise TimeIsUp(self.limit, self._leave(self._thread, ids)) from None
        if error is not None:
            raise error
        return future.result()

    def close(self) -> None:
        """End the thread when its call returns."""
        if self._thread is not None:
            self._thread.end()

    def _leave(self, thread: _Thread, ids: Sequence[int]) -> int:
        """Continue without the thread, and return for how many single messages one that was left still runs."""
        thread.end()
        self._thread = None
        if len(ids) == 1:
            self._left.append((thread, ids[0]))
        return len({id_ for left, id_ in self._left if left.is_alive()})


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
