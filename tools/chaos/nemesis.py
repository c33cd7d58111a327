"""The faults, and their repair at the end."""

from __future__ import annotations

import math
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import psycopg

from airflow_provider_pgqueue.core import migrate
from tools.chaos.history import History
from tools.chaos.leases import LIMITED
from tools.chaos.load import Load
from tools.chaos.stage import DATABASE, Stage

SETTINGS = {
    "DateStyle": "German",
    "IntervalStyle": "iso_8601",
    "TimeZone": "Asia/Tokyo",
    "standard_conforming_strings": "off",
    "bytea_output": "escape",
    "extra_float_digits": "-3",
    "enable_indexscan": "off",
    "jit": "on",
    "plan_cache_mode": "force_custom_plan",
    "backslash_quote": "on",
    "quote_all_identifiers": "on",
}
POLICIES = (
    "notify => 'off'",
    "notify => 'gated'",
    "notify => 'always'",
    "max_leased => 5",
    "max_leased => 0",
    "rate_limit => 500",
    "rate_limit => 0",
    "backoff_first => '0'",
    "dedup_window => '1 hour'",
)
# Seconds at least between two: what is always down tests nothing, and these start slowly.
SELDOM = {
    "restart the server at once": 6.0,
    "kill the triggerer": 40.0,
    "kill the scheduler": 60.0,
    "kill an executor": 20.0,
    "kill the driver": 90.0,
}


@dataclass
class Nemesis:
    """Causes one fault after the other until it is stopped, at random, but each kind in its turn."""

    stage: Stage
    load: Load
    history: History
    random: random.Random
    stopping: threading.Event = field(default_factory=threading.Event)
    counts: dict[str, int] = field(default_factory=dict)
    _last: dict[str, float] = field(default_factory=dict)

    def run(self) -> None:
        """Cause faults until `stop`, then repair all of them."""
        faults: list[Callable[[], None]] = []
        while not self.stopping.wait(self.random.uniform(0.2, 1.0)):
            faults = faults or self.random.sample(self.faults, len(self.faults))
            fault = faults.pop()
            name = fault.__name__.replace("_", " ")
            if time.monotonic() - self._last.get(name, -math.inf) < SELDOM.get(name, 0.0):
                continue
            self.history.write("fault", what=name)
            try:
                fault()
            except (psycopg.Error, OSError) as error:
                # Another fault, such as a server that is starting, was in the way of this one.
                self.history.write("fault failed", what=name, text=f"{type(error).__name__}: {error}"[:200])
            else:
                self.counts[name] = self.counts.get(name, 0) + 1
                self._last[name] = time.monotonic()

    @property
    def faults(self) -> list[Callable[[], None]]:
        """Each kind of fault."""
        possible = [
            self.kill_processes, self.stop_processes, self.end_sessions, self.restart_the_server_at_once,
            self.cut_sockets, self.hold_sockets, self.swallow_replies, self.change_a_setting, self.change_a_policy,
            self.pause_a_queue, self.upgrade, self.drop_a_queue, self.purge_a_queue, self.hold_a_snapshot,
            self.four_maintenance_runs_at_once, self.lose_the_marks,
        ]  # fmt: skip
        if self.stage.small_disk:
            possible.append(self.fill_the_disk)
        if self.stage.airflow:
            possible += [self.kill_the_triggerer, self.kill_the_scheduler, *[self.kill_a_task] * 3]
        if self.stage.slices:
            possible += [self.kill_an_executor, self.kill_the_driver]
        return possible

    def admin(self) -> psycopg.Connection[Any]:
        """A session next to the proxy."""
        return psycopg.connect(self.stage.dsn, autocommit=True, connect_timeout=5)

    def wait(self, shortest: float, longest: float) -> None:
        self.stopping.wait(self.random.uniform(shortest, longest))

    def kill_processes(self) -> None:
        for pid in self.random.sample(self.load.pids(), min(2, len(self.load.pids()))):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def stop_processes(self) -> None:
        pids = self.random.sample(self.load.pids(), min(3, len(self.load.pids())))
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
        self.wait(1.0, 3.0)  # longer than a lease
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def kill_the_triggerer(self) -> None:
        assert self.stage.airflow
        self.stage.airflow.kill("triggerer")

    def kill_the_scheduler(self) -> None:
        assert self.stage.airflow
        self.stage.airflow.kill("scheduler")

    def kill_a_task(self) -> None:
        assert self.stage.airflow
        if not self.stage.airflow.kill_a_task(self.random):
            raise OSError("no task runs")

    def kill_an_executor(self) -> None:
        assert self.stage.slices
        if not self.stage.slices.kill_an_executor(self.random):
            raise OSError("no executor runs")

    def kill_the_driver(self) -> None:
        assert self.stage.slices
        if not self.stage.slices.kill_the_driver():
            raise OSError("no driver runs")

    def end_sessions(self) -> None:
        with self.admin() as conn:
            conn.execute(
                "SELECT pg_terminate_backend(pid) FROM (SELECT pid FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid() ORDER BY random() LIMIT 3) few"
            )

    def restart_the_server_at_once(self) -> None:
        self.stage.cluster.restart(mode="immediate")

    def cut_sockets(self) -> None:
        self.stage.proxy.cut()

    def hold_sockets(self) -> None:
        self.stage.proxy.held = True
        self.wait(0.5, 2.5)
        self.stage.proxy.held = False

    def swallow_replies(self) -> None:
        self.stage.proxy.swallowing = True
        self.wait(0.1, 0.5)
        self.stage.proxy.swallowing = False

    def fill_the_disk(self) -> None:
        filler = self.stage.small_disk / "filler" if self.stage.small_disk else None
        if filler is None:
            return
        try:
            with suppress(OSError), filler.open("wb") as file:
                while True:
                    file.write(b"\0" * 2**20)
                    file.flush()
            self.wait(0.5, 2.0)
        finally:
            filler.unlink(missing_ok=True)

    def change_a_setting(self) -> None:
        name = self.random.choice(sorted(SETTINGS))
        with self.admin() as conn:
            conn.execute(f"ALTER DATABASE {DATABASE} SET {name} = '{SETTINGS[name]}'".encode())
        self.stage.proxy.cut()  # so that sessions have it
        self.wait(0.5, 2.0)
        self.repair_settings()

    def repair_settings(self) -> None:
        with self.admin() as conn:
            conn.execute(f"ALTER DATABASE {DATABASE} RESET ALL".encode())

    def change_a_policy(self) -> None:
        with self.admin() as conn:
            queue = self.random.choice(["a_orders", "a_groups", "b_orders", "b_dedup", "a_effects", "volatile"])
            conn.execute(f"SELECT messages.alter_queue('{queue}', {self.random.choice(POLICIES)})".encode())

    def pause_a_queue(self) -> None:
        queue = self.random.choice(["a_orders", "a_groups", "b_orders"])
        with self.admin() as conn:
            conn.execute("SELECT messages.pause_queue(%s)", [queue])
            self.wait(0.2, 1.0)
            conn.execute("SELECT messages.resume_queue(%s)", [queue])

    def upgrade(self) -> None:
        with self.admin() as conn:
            migrate(conn)

    def drop_a_queue(self) -> None:
        with self.admin() as conn:
            conn.execute("SELECT messages.drop_queue('volatile', force => true)")
            self.wait(0.0, 0.3)
        self.stage.create_queues()

    def purge_a_queue(self) -> None:
        with self.admin() as conn:
            conn.execute("SELECT messages.purge_queue('volatile')")

    def hold_a_snapshot(self) -> None:
        with self.admin() as conn, conn.transaction():
            conn.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            conn.execute("SELECT count(*) FROM messages.message")
            self.wait(1.0, 3.0)

    def four_maintenance_runs_at_once(self) -> None:
        def maintain() -> None:
            with suppress(psycopg.Error), self.admin() as conn:
                conn.execute("SELECT messages.maintain()")

        threads = [threading.Thread(target=maintain) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def lose_the_marks(self) -> None:
        """Change the marks, so that leases and scans begin anywhere: that may cost time, but no message.

        A rate whose mark is lost begins anew, so the queue whose rate is accounted for keeps its mark.
        """
        with self.admin() as conn:
            conn.execute(
                "SELECT setval(sequence, greatest(1, (%s * extract(epoch FROM clock_timestamp()) * 1000000)::bigint))"
                " FROM (SELECT mark AS sequence FROM messages.lane"
                "       UNION ALL SELECT scan_due FROM messages.queue"
                "       UNION ALL SELECT rate_mark FROM messages.queue WHERE queue_name <> %s) x"
                " WHERE sequence IS NOT NULL",
                [self.random.choice([0, 1, 2]), LIMITED],
            )

    def repair(self) -> None:
        """Repair all that faults may have left: start the server, open the proxy, reset settings and policies."""
        self.stage.proxy.held = self.stage.proxy.swallowing = False
        self.stage.cluster.start()
        self.repair_settings()
        self.stage.create_queues()
        with self.admin() as conn:
            conn.execute(
                "SELECT messages.alter_queue(queue_name, max_leased => 0, rate_limit => 0,"
                " paused => false) FROM messages.queue WHERE queue_name <> %s",
                [LIMITED],
            )
        self.stage.proxy.cut()
