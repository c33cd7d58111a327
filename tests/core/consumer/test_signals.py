"""A signal at an awkward time: inside what its handler calls too, inside the log, and between any two lines."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from airflow_provider_pgqueue.core.worker import Bell
from tests.waiting import PATIENCE

INSIDE_OF_WHAT_IT_CALLS = """
import signal, sys
from airflow_provider_pgqueue.core import Consumer, Worker
from airflow_provider_pgqueue.core.worker import Bell

def interrupt(frame, event, argument):
    signal.raise_signal(signal.SIGTERM)
    return interrupt

def interrupted(call, *arguments, by):
    signal.signal(signal.SIGTERM, lambda *_: by())
    sys.settrace(interrupt)
    call(*arguments)
    sys.settrace(None)

bell = Bell()
interrupted(bell.ring, by=bell.ring)
interrupted(bell.wait, 3600, by=bell.ring)
worker = Worker(conninfo="", consumer=Consumer(queue_name="orders", handle=print))
interrupted(worker.stop, by=worker.stop)
"""

INSIDE_OF_THE_LOG = """
import logging, signal, threading
from airflow_provider_pgqueue.core.signals import stop_on_signals

class Exclusive(logging.Handler):  # as one that writes to a queue
    exclusive, said = threading.Lock(), []

    def emit(self, record):
        with self.exclusive:
            if not self.said:
                signal.raise_signal(signal.SIGTERM)
            self.said.append(record.getMessage())

logging.basicConfig(level="INFO", handlers=[Exclusive()])
with stop_on_signals() as told_to_stop:
    logging.info("at work")
    assert told_to_stop()
assert Exclusive.said == ["at work", "stopping on SIGTERM"], Exclusive.said
"""

BLOCKED_OUTSIDE = """
import signal
from airflow_provider_pgqueue.core.signals import STOPS, stop_on_signals

signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
signal.raise_signal(signal.SIGINT)
with stop_on_signals() as told_to_stop:
    assert told_to_stop()
signal.raise_signal(signal.SIGTERM)
assert signal.sigpending() == {signal.SIGTERM}
"""

AT_EACH_LINE = """
import signal, sys
from airflow_provider_pgqueue.core import Consumer, Worker, worker

FILES = {worker.__file__}

def stopped_at(place):
    made = Worker(conninfo=sys.argv[1], consumer=Consumer(queue_name="orders", handle=print), poll_interval=0.001)
    left = place

    def trace(frame, event, argument):
        nonlocal left
        if frame.f_code.co_filename not in FILES:
            return None
        if event == "line":
            left -= 1
            if left == 0:
                made.poll_interval = 3600  # for which it would sleep if it did not notice
                signal.raise_signal(signal.SIGTERM)
        return trace

    signal.signal(signal.SIGTERM, lambda *_: made.stop())
    sys.settrace(trace)
    made.run()
    sys.settrace(None)
    assert left <= 0

for place in range(1, 61):
    stopped_at(place)
"""


def run_program(text: str, *arguments: str) -> None:
    """Fail if a program fails or does not end. In this process, one that blocks would block the tests."""
    subprocess.run([sys.executable, "-c", text, *arguments], check=True, timeout=PATIENCE)


@pytest.mark.parametrize("program", [INSIDE_OF_WHAT_IT_CALLS, INSIDE_OF_THE_LOG, BLOCKED_OUTSIDE])
def test_a_signal_blocks_nothing_and_is_not_lost(program: str) -> None:
    run_program(program)


def test_a_signal_at_any_line_stops_a_worker(dsn: str, queue: Callable[..., str]) -> None:
    queue("orders")
    run_program(AT_EACH_LINE, dsn)


def test_a_ring_is_kept_for_the_next_wait_and_many_are_one() -> None:
    bell = Bell()
    for _ in range(1000):
        bell.ring()
    bell.wait(3600)
    began = time.monotonic()
    bell.wait(0.01)
    assert time.monotonic() - began >= 0.01
