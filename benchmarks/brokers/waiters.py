"""Waits with many triggers of one kind in one event loop, as a triggerer does, and prints when each fires.

python -m benchmarks.brokers.waiters CLASSPATH ARGUMENTS COUNT
"""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
import time
from typing import Any


def trigger(classpath: str, arguments: dict[str, Any], number: int) -> Any:
    """Return a trigger whose arguments have the number of its queue."""
    module, _, name = classpath.rpartition(".")
    given = {key: value.format(number) if isinstance(value, str) else value for key, value in arguments.items()}
    return getattr(importlib.import_module(module), name)(**given)


async def wait(classpath: str, arguments: dict[str, Any], number: int) -> None:
    """Print `fired NUMBER TIME` at the first event."""
    async for _ in trigger(classpath, arguments, number).run():
        print(f"fired {number} {time.time():.6f}", flush=True)
        return


async def main(classpath: str, arguments: str, count: str) -> None:
    """End when all have fired; RuntimeError if one does not wait."""
    waiting = [asyncio.ensure_future(wait(classpath, json.loads(arguments), number)) for number in range(int(count))]
    await asyncio.sleep(5)
    if ended := [one for one in waiting if one.done()]:
        raise RuntimeError(f"{len(ended)} triggers did not wait: {ended[0]}")
    await asyncio.gather(*waiting)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
