"""Runs blocking calls next to an event loop, in threads of our own."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")


async def in_thread(call: Callable[..., T], *arguments: Any) -> T:
    """Return the result of a blocking call without blocking the event loop. A cancelled call still runs to its end.

    `asyncio.to_thread` does not do: the triggerer needs its few threads for the log, and a process waits for them at
    exit. A call to a supervisor that hangs or is gone would stop the triggerer, or keep it alive after its supervisor.
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
