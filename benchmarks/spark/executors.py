"""The drain on one executor and on two: a standalone cluster whose workers have a core each."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Final

import psycopg

from benchmarks.measure import in_turns
from benchmarks.peers.pgqueue import PGQUEUE
from benchmarks.report import Line, Row
from benchmarks.spark.place import Place
from tools.standalone import Standalone

_FUNCTIONS: Final = '''
import time

def work(messages):
    """Keep the processor busy for half a millisecond a message."""
    for _ in range(len(messages)):
        end = time.perf_counter() + 0.0005
        while time.perf_counter() < end:
            pass

def call(messages):
    """Wait for two milliseconds a message, as for another service."""
    time.sleep(0.002 * len(messages))
'''
_ARCHIVED: Final = """
SELECT count(*), extract(epoch FROM max(archived_at) - min(leased_at))::float8 FROM messages.message_archive
"""


def drain_on_executors(place: Place, messages: int, rounds: int) -> list[Line]:
    """Drain the same queue with one executor and with two, with work that computes and work that waits."""
    home = place.folder("cluster")
    home.mkdir()
    cluster = Standalone(home)
    functions = home / "functions.py"
    functions.write_text(_FUNCTIONS)
    try:
        cluster.start()
        with place.database("drain") as dsn:
            lines = []
            for function, what, number, target in (
                ("work", "0.5 ms of computing", messages, 1.6),
                ("call", "2 ms of waiting", messages // 4, None),
            ):
                calls = {cores: partial(_drain, cluster, dsn, functions, function, cores, number) for cores in (1, 2)}
                samples = in_turns(calls, rounds)
                name = f"drain {number:,}, {what} each, two executors"
                lines.append(Row(name, "one executor", samples[2], samples[1], target=target))
            return lines
    finally:
        cluster.stop()


def _drain(cluster: Standalone, dsn: str, functions: Path, function: str, executors: int, messages: int) -> float:
    """Drain by spark-submit; messages a second from the first lease to the last result, as the archive has them."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        PGQUEUE.refill(conn, messages)
    arguments = ["drain", "--queue", "bench", "--function", f"functions:{function}"]
    arguments += ["--parallelism", str(executors), "--batch-size", "500"]
    name = f"drain-{function}-{executors}"
    driver = cluster.submit(name, *arguments, dsn=dsn, functions=functions, conf={"spark.cores.max": str(executors)})
    if driver.wait():
        raise RuntimeError(f"{name} ended with {driver.returncode}; see {cluster.home}")
    with psycopg.connect(dsn) as conn:
        archived, seconds = conn.execute(_ARCHIVED).fetchone() or (0, 0.0)
    if archived != messages:
        raise RuntimeError(f"{name} archived {archived} of {messages} messages")
    return float(archived / seconds)
