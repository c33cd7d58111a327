"""The handler of the worker, which only records the age of some messages when they arrive."""

from __future__ import annotations

import os
import time

from airflow_provider_pgqueue.core import Message
from benchmarks.soak import NOTES

_SHARE = 50  # one message in so many

_notes = open(os.environ[NOTES], "a", buffering=1)  # noqa: SIM115 (until the worker ends)


def handle(message: Message) -> None:
    """Record the age of one message in fifty."""
    if message.body["number"] % _SHARE == 0:
        now = time.time()
        _notes.write(f"{now} {now - message.body['at']}\n")
