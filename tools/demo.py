"""Runs the main job end to end on real flights, kills a consumer on the way, and reconciles the accounts."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psycopg
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from tools import AIRFLOW_DATABASE, QUEUE_DATABASE, STATE, SetupError
from tools.airflow import Stack, demo_stack, stop_demo_stacks
from tools.postgres import Cluster, demo_cluster
from tools.reconciliation import Account, read_account

ALL_FLIGHTS = 336_776
PROBES = 12
STALLED = 60.0  # seconds
DAGS = ("pgqueue_setup", "pgqueue_publish", "pgqueue_consume_on_event", "pgqueue_resolve_dead", "pgqueue_wakeups")
console = Console(soft_wrap=True)

_WAITING = "SELECT count(*) FROM messages.message WHERE queue_name = 'flights'"
_FINISHED = "SELECT count(*) FROM messages.message_archive WHERE queue_name = 'flights'"
_PUBLISHED = f"SELECT ({_WAITING} AND requeued_from IS NULL) + ({_FINISHED} AND requeued_from IS NULL)"
_OPEN = "SELECT count(*) FROM messages.dead_message WHERE queue_name = 'flights'"
_PROBED = "SELECT count(*) FROM messages.message_archive WHERE queue_name = 'wakeups'"
_HOLDERS = "SELECT DISTINCT locked_by FROM messages.message WHERE queue_name = 'flights' AND lock_expires_at > now()"
_HELD = "SELECT count(*) FROM messages.message WHERE locked_by = %s"
_LISTENERS = """
SELECT count(*) FROM pg_stat_activity
 WHERE datname = current_database() AND application_name LIKE 'pgqueue%listen%'
"""


def demonstrate(description: str | None, run: Callable[[int | None], int]) -> int:
    """Run a demo with the number of flights of the command line, and return its exit status."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--flights", type=int, default=None, help=f"how many flights to publish (all {ALL_FLIGHTS})")
    flights = parser.parse_args().flights
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return run(flights)
    except (SetupError, subprocess.CalledProcessError) as error:
        console.print(f"[red]{error}")
        return 1
    except KeyboardInterrupt:
        console.print("[yellow]Interrupted; everything is stopped.")
        return 130


def _run(flights: int | None) -> int:
    with fresh_stack() as (cluster, stack), psycopg.connect(cluster.dsn(QUEUE_DATABASE), autocommit=True) as conn:
        demo = Demo(stack, conn, flights)
        account = demo.run()
    # After everything is stopped, so that the result is the last thing on the screen.
    console.print(f"[bold]{account.sentence}")
    if demo.killed is None:
        console.print("No consumer was killed: too few flights.")
    console.print("Next: `make up` starts it all again, with what happened here, and prints the address of the page.")
    return 0 if account.balances and account.published == min(flights or ALL_FLIGHTS, ALL_FLIGHTS) else 1


@contextmanager
def fresh_stack() -> Iterator[tuple[Cluster, Stack]]:
    """Start PostgreSQL and Airflow with empty databases, and stop them at the end, come what may."""
    cluster = demo_cluster()
    stop_demo_stacks()
    try:
        with step(f"Starting PostgreSQL {cluster.binaries.version} ({cluster.binaries.kind})"):
            cluster.start()
            for database in (QUEUE_DATABASE, AIRFLOW_DATABASE):
                cluster.drop_database(database)
        stack = demo_stack(cluster)
        with step("Starting Airflow: api-server, scheduler, triggerer, dag-processor"):
            stack.start()
            for dag in DAGS:
                stack.client.wait_for_dag(dag)
        yield cluster, stack
    finally:
        with step("Stopping everything"):
            stop_demo_stacks()
            cluster.stop()


@contextmanager
def step(what: str) -> Iterator[None]:
    """Say what happens and how long it took."""
    started = time.monotonic()
    console.print(f"{what} …")
    yield
    console.print(f"  done in {time.monotonic() - started:.1f} s")


class Demo:
    """The main job, step by step."""

    def __init__(self, stack: Stack, conn: psycopg.Connection[Any], flights: int | None) -> None:
        self.stack = stack
        self.client = stack.client
        self.maintenance = ""
        self.conn = conn
        self.flights = flights
        self.expected = min(flights or ALL_FLIGHTS, ALL_FLIGHTS)
        self.killed: str | None = None
        self.listeners: tuple[int, int] = (0, 0)

    def run(self) -> Account:
        """Run all steps, print the summary, and return the account."""
        with step("Installing the queue (DAG pgqueue_setup)"):
            self._install()
            console.print(f"  maintenance: [bold]{self.maintenance}")
        started = time.monotonic()
        with step(
            f"Publishing and consuming {self.expected:,} flights (DAGs pgqueue_publish, pgqueue_consume_on_event)"
        ):
            self._process()
        with step("Resolving and requeuing the dead messages"):
            self._wait(lambda: self._number(_OPEN) + self._number(_WAITING) == 0, "open dead messages")
        elapsed = time.monotonic() - started
        with step(f"Measuring the time from commit to lease with {PROBES} single messages (DAG pgqueue_wakeups)"):
            self._probe()
        account = read_account(self.conn)
        self._summary(account, elapsed)
        return account

    def _install(self) -> None:
        run_id = self.client.trigger("pgqueue_setup")
        if (state := self.client.wait_for_run("pgqueue_setup", run_id)) != "success":
            raise SetupError(f"pgqueue_setup ended as {state}. Logs are in {self.stack.home}.")
        self.maintenance = self.client.xcom("pgqueue_setup", run_id, "install")["maintenance_mode"]

    def _process(self) -> None:
        run_id = self.client.trigger("pgqueue_publish", {"flights": self.flights} if self.flights else {})
        columns = (TextColumn("  {task.description:10}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=console) as progress:
            published = progress.add_task("published", total=self.expected)
            finished = progress.add_task("finished", total=self.expected)
            moved, moved_at = -1, time.monotonic()
            while not progress.finished:
                if (now := int(sum(task.completed for task in progress.tasks))) != moved:
                    moved, moved_at = now, time.monotonic()
                elif time.monotonic() - moved_at > STALLED:
                    state = self.client.run("pgqueue_publish", run_id)["state"]
                    raise SetupError(
                        f"nothing moved for {STALLED:.0f} s; pgqueue_publish is {state}. Logs are in {self.stack.home}."
                    )
                progress.update(published, completed=self._number(_PUBLISHED))
                progress.update(finished, completed=min(self._number(_FINISHED), self.expected))
                if self.killed is None and progress.tasks[finished].completed > self.expected * 0.2:
                    self._kill_a_consumer()
                time.sleep(0.5)

    def _kill_a_consumer(self) -> None:
        """Kill one that holds messages: stopped first, so that it cannot finish them in between."""
        for (holder,) in self.conn.execute(_HOLDERS).fetchall():
            pid = int(holder.rsplit("@", 2)[-2])
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
                held = self.conn.execute(_HELD, [holder]).fetchone()
                if held and held[0]:
                    os.kill(pid, signal.SIGKILL)
                    self.killed = f"process {pid} with {held[0]} leased messages"
                    console.print(f"  [red]kill -9[/red] of {self.killed}")
                    return
                os.kill(pid, signal.SIGCONT)

    def _probe(self) -> None:
        with psycopg.connect(self.stack.metadata, autocommit=True) as metadata:
            triggers = metadata.execute("SELECT count(*) FROM trigger").fetchone()
        self.listeners = (self._number(_LISTENERS), triggers[0] if triggers else 0)
        for number in range(PROBES):
            self.conn.execute("SELECT messages.publish('wakeups', %s)", [f'{{"probe": {number}}}'])
            self._wait(lambda: self._number(_PROBED) > number, "a probe without a consumer")  # noqa: B023
            time.sleep(1.0 + 0.37 * (number % 3))

    def _wait(self, done: Callable[[], bool], what: str, timeout: float = 240.0) -> None:
        deadline = time.monotonic() + timeout
        while not done():
            if time.monotonic() > deadline:
                raise SetupError(f"gave up after {timeout:.0f} s: {what}. Logs are in {STATE}.")
            time.sleep(0.5)

    def _number(self, query: str) -> int:
        row = self.conn.execute(query.encode()).fetchone()
        return int(row[0]) if row else 0

    def _summary(self, account: Account, elapsed: float) -> None:
        table = Table(title="Reconciliation", show_header=False)
        table.add_row("published", f"{account.published:,}")
        table.add_row("requeued from the archive", f"{account.requeued:,}")
        for result, number in sorted(account.results.items()):
            table.add_row(f"  {result}", f"{number:,}")
        table.add_row("still queued", f"{account.results.get('still queued', 0):,}")
        table.add_row("dismissed with a reason", f"{account.dismissed:,}")
        table.add_row("departures recorded", f"{account.departures:,}")
        table.add_row("archived twice / in queue and archive", f"{account.archived_twice} / {account.in_both}")
        table.add_row("killed with kill -9", self.killed or "nobody: too few flights")
        table.add_row("delivered more than once", f"{account.delivered_again:,}")
        table.add_row("consumers", f"{account.consumers}")
        table.add_row("publish rate", f"{account.published / max(account.publish_seconds, 0.001):,.0f} messages/s")
        table.add_row("consume rate", f"{account.published / max(account.consume_seconds, 0.001):,.0f} messages/s")
        table.add_row("all of it took", f"{elapsed:.0f} s")
        table.add_row(
            "from commit to lease", f"p50 {account.until_leased[0]:.2f} s, p95 {account.until_leased[1]:.2f} s"
        )
        table.add_row("connections that wait", f"{self.listeners[0]} for {self.listeners[1]} waiting triggers")
        table.add_row("maintenance", self.maintenance)
        console.print(table)
        sign = "=" if account.balances else "≠"
        console.print(
            f"published {account.published:,} + requeued {account.requeued:,} {sign} "
            + " + ".join(f"{result} {number:,}" for result, number in sorted(account.results.items()))
        )


if __name__ == "__main__":
    sys.exit(demonstrate(__doc__, _run))
