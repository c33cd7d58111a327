"""Runs what blocks next to an event loop, in threads of our own."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")


async def in_thread(call: Callable[..., T], *arguments: Any) -> T:
    """Return what a call returns, without blocking the event loop. A call that is no longer waited for runs to its end.

    Not `asyncio.to_thread`, whose few threads the triggerer needs for its log, and whose end its process waits for:
    what asks a supervisor that hangs or is gone would stop the triggerer, or keep it after its supervisor.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def settle(set_: Callable[[Any], None], value: object) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody waits
            loop.call_soon_threadsafe(lambda: None if done.done() else set_(value))

    def work() -> None:
        try:
            result = call(*arguments)
        except BaseException as error:
            settle(done.set_exception, error)
        else:
            settle(done.set_result, result)

    name = f"pgqueue {getattr(call, '__qualname__', 'call')}"
    threading.Thread(target=contextvars.copy_context().run, args=[work], name=name, daemon=True).start()
    return await done
