"""Waits with a hundred triggers of one kind in one event loop, as a triggerer does, and prints when each fires."""

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


async def main() -> None:
    """Let all wait until all have fired."""
    classpath, arguments, count = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3])
    await asyncio.gather(*(wait(classpath, arguments, number) for number in range(count)))


if __name__ == "__main__":
    asyncio.run(main())
