"""Waits with many triggers in one event loop, as a triggerer does: `python -m benchmarks.triggers 1000 100`."""

from __future__ import annotations

import asyncio
import sys

from airflow_provider_pgqueue.triggers.message import PgQueueMessageTrigger


async def main(tasks: int, queues: int) -> None:
    """Print `ready` when all wait, then wait until killed."""
    triggers = [PgQueueMessageTrigger(queue_name=f"idle_{number % queues}", end_task=True) for number in range(tasks)]
    waiting = [asyncio.ensure_future(anext(aiter(trigger.run()))) for trigger in triggers]
    await asyncio.sleep(5)
    if ended := [one for one in waiting if one.done()]:
        raise RuntimeError(f"{len(ended)} triggers did not wait: {ended[0]}")
    print("ready", flush=True)
    await asyncio.gather(*waiting)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2])))
