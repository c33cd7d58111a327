"""Calls a handler, with a time limit if there is one."""

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
    """A call took longer than it may; it continues in a thread that nobody waits for."""


class Caller:
    """Calls functions in this thread, or with a limit in another one, always the same until a call exceeds the limit.

    Python cannot end a thread. One that hangs is left behind: what it returns later is dropped, and it does not keep
    the process from ending. The next call gets a new thread.
    """

    def __init__(self) -> None:
        self._thread: _Thread | None = None
        self._left: list[_Thread] = []

    @property
    def hanging(self) -> int:
        """How many calls that exceeded their limit still run."""
        self._left = [thread for thread in self._left if thread.is_alive()]
        return len(self._left)

    def call(self, function: Callable[[A], T], argument: A, limit: timedelta | None) -> T:
        """Return what the function returns, and raise what it raises; TimeIsUp after the limit."""
        if limit is None:
            return function(argument)
        if self._thread is None:
            self._thread = _Thread()
        future = self._thread.begin(function, argument)
        try:
            error = future.exception(limit.total_seconds())
        except TimeoutError:
            self._leave(self._thread)
            raise TimeIsUp from None
        if error is not None:
            raise error
        return future.result()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """End the thread when its call returns."""
        if self._thread is not None:
            self._thread.end()

    def _leave(self, thread: _Thread) -> None:
        thread.end()
        self._left.append(thread)
        self._thread = None


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
                # Whoever waits for it raises it.
                future.set_exception(error)
