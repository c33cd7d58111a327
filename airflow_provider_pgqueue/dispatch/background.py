"""Work that a listener hands to a thread, so that its process never waits for another database."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final, Generic, TypeVar

T = TypeVar("T")
_MOST: Final = 10_000
LAST_SECONDS: Final = 3.0


class Background(Generic[T]):
    """Calls a function with each item that was put in, in a thread of its own that starts with the first item.

    :param name: the name of the thread.
    :param work: the function, which must not raise.
    """

    def __init__(self, name: str, work: Callable[[T], None]) -> None:
        self._name = name
        self._work = work
        self._forget()
        # A fork has the locks as they were at that time, but not the thread that would release them.
        os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        self._waiting: queue.Queue[T] = queue.Queue(_MOST)
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None

    def put(self, one: T) -> bool:
        """Hand over work, and return False if ten thousand wait already. Never waits."""
        with self._starting:
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
        try:
            self._waiting.put_nowait(one)
        except queue.Full:
            return False
        return True

    def flush(self, seconds: float = LAST_SECONDS) -> bool:
        """Wait until all work is done, at most so many seconds; return whether it is."""
        waiting = self._waiting
        with waiting.all_tasks_done:
            return waiting.all_tasks_done.wait_for(lambda: not waiting.unfinished_tasks, seconds)

    def _run(self) -> None:
        waiting = self._waiting
        while True:
            one = waiting.get()
            try:
                self._work(one)
            finally:
                waiting.task_done()


def loaded(thing: Any) -> dict[str, Any]:
    """Return the fields that an object has in memory: SQLAlchemy may load any other field in a session of Airflow."""
    fields: dict[str, Any] = vars(thing)
    return fields


def is_row(fields: Mapping[str, Any]) -> bool:
    """Return whether these are the fields of a row: the scheduler and the API server, which live on, have those.

    Any other object comes from the process of a task, which ends with the task: call `flush` before that.
    """
    return "_sa_instance_state" in fields
