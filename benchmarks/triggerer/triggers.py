"""Triggers that record when they fire, and how late the loop of the triggerer is."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from typing import Any

from airflow.triggers.base import BaseEventTrigger, TriggerEvent

from airflow_provider_pgqueue.triggers.message import PgQueueMessageTrigger

TICK = 0.02


def note(text: str) -> None:
    """Append a line with the time, in one write, so that those of many triggers do not mix."""
    file = os.open(os.environ["BENCH_NOTES"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(file, f"{text} {time.time():.6f}\n".encode())
    finally:
        os.close(file)


class RecordedTrigger(PgQueueMessageTrigger):
    """The message trigger, which records each notification: `fired QUEUE TIME`."""

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Fire as ever."""
        async for fired in super().run():
            note(f"fired {self.queue_name}")
            yield fired

    async def filter_shared_stream(self, shared_stream: AsyncIterator[Any]) -> AsyncIterator[TriggerEvent]:
        """Fire as ever, for a watcher."""
        async for fired in super().filter_shared_stream(shared_stream):
            note(f"fired {self.queue_name}")
            yield fired


class LoopDelayTrigger(BaseEventTrigger):
    """Never fires; records once a second the longest delay of the loop: `late SECONDS TIME`."""

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class; it has no arguments."""
        return f"{type(self).__module__}.{type(self).__qualname__}", {}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Measure forever."""
        while True:
            delays = []
            for _ in range(round(1 / TICK)):
                began_at = time.monotonic()
                await asyncio.sleep(TICK)
                delays.append(time.monotonic() - began_at - TICK)
            note(f"late {max(delays):.6f} {sorted(delays)[len(delays) // 2]:.6f}")
        yield  # it is a generator
