"""What blocks runs next to an event loop, and keeps neither the loop nor the process."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading

import pytest

from airflow_provider_pgqueue.core.thread import in_thread
from tools import ROOT

HANGS = """
import asyncio, threading
from airflow_provider_pgqueue.core.thread import in_thread
from tools import ROOT

async def main():
    called = asyncio.Event()
    loop = asyncio.get_running_loop()
    def call():
        loop.call_soon_threadsafe(called.set)
        threading.Event().wait()
    asyncio.create_task(in_thread(call))
    await called.wait()

asyncio.run(main())
"""


def test_a_call_that_never_ends_does_not_keep_the_process() -> None:
    assert subprocess.run([sys.executable, "-c", HANGS], timeout=30).returncode == 0


def test_calls_that_hang_leave_the_threads_of_the_loop_to_others() -> None:
    go_on = threading.Event()

    async def main() -> None:
        hanging = [asyncio.create_task(in_thread(go_on.wait)) for _ in range(100)]
        await asyncio.sleep(0)  # they begin, before the next call does
        try:
            async with asyncio.timeout(20):
                assert await asyncio.to_thread(lambda: 7) == 7
        finally:
            go_on.set()
        assert await asyncio.gather(*hanging) == [True] * 100

    asyncio.run(main())


def test_an_error_of_the_call_is_raised_where_it_is_waited_for() -> None:
    with pytest.raises(ZeroDivisionError):
        asyncio.run(in_thread(lambda: 1 // 0))


def test_nothing_in_the_package_uses_the_threads_of_the_loop() -> None:
    files = (ROOT / "airflow_provider_pgqueue").rglob("*.py")
    assert [file for file in files if "asyncio.to_thread(" in file.read_text()] == []
