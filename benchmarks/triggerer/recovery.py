"""Causes one fault at a time, and measures how soon sensors are notified of a message published meanwhile."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping
from statistics import median
from typing import Final

import psycopg

from airflow_provider_pgqueue.core import run, verbs
from benchmarks.triggerer.bench import WAITERS, Bench, ended, wait


def kill_triggerer(bench: Bench) -> None:
    """Kill it as a crash does, and start it again at once, as a supervisor does."""
    bench.stack.kill("triggerer", signal.SIGKILL)
    wait(lambda: not bench.stack.component_processes("triggerer"), "end of the triggerer")
    bench.stack.start_component("triggerer")


def end_listener(bench: Bench) -> None:
    """End the session that listens."""
    with bench.queue() as conn:
        for pid, _ in bench.listeners():
            conn.execute("SELECT pg_terminate_backend(%s)", [pid])


def restart_postgres(bench: Bench) -> None:
    """Restart the server of the queue."""
    bench.pair.primary.restart()


def fail_over(bench: Bench) -> None:
    """Crash the primary, and promote the standby."""
    bench.pair.fail_over(silent=False)


def fail_over_silently(bench: Bench) -> None:
    """Let the primary hang, so that no connection to it ends, and promote the standby."""
    bench.pair.fail_over(silent=True)


FAULTS: Final[Mapping[str, tuple[str, Callable[[Bench], None]]]] = {
    "listener": ("the listening session is ended", end_listener),
    "restart": ("PostgreSQL is restarted", restart_postgres),
    "failover": ("failover: the primary crashes, a standby is promoted", fail_over),
    "silence": ("failover: the primary hangs, a standby is promoted", fail_over_silently),
    "triggerer": ("`kill -9` of the triggerer, which is started again at once", kill_triggerer),
}


def recover(bench: Bench, fault: str, queues: range) -> None:
    """Cause a fault once for each queue, each time after recovery, and print how long the tasks waited."""
    title, fail = FAULTS[fault]
    written, notifications, ends = [], [], []
    for number in queues:
        if fail in (fail_over, fail_over_silently):
            bench.pair.repair()
        wait(bench.listeners, "a session that listens")
        began_at = time.time()
        fail(bench)
        written.append(_publish(bench, number) - began_at)
        wait(lambda number=number, since=began_at: _all_notified(bench, number, since), "events after a fault")
        notifications.append(max(bench.fired(f"wait_{number}", began_at)) - began_at)
        ends.append(max(ended(bench, range(number, number + 1))[number]) - began_at)
    bench.add_row(title, str(len(queues)), *(_times(values) for values in (written, notifications, ends)))


def _all_notified(bench: Bench, number: int, since: float) -> bool:
    return len(bench.fired(f"wait_{number}", since)) >= WAITERS


def _publish(bench: Bench, number: int) -> float:
    """Publish a message as soon as the database takes one, and return when that was."""
    while True:
        try:
            with bench.queue() as conn:
                run(conn, verbs.publish(f"wait_{number}", 1))
            return time.time()
        except psycopg.OperationalError:
            time.sleep(0.1)


def _times(values: list[float]) -> str:
    return f"{median(values):.1f} ({max(values):.1f})"
