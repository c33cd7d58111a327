"""Kills each of two schedulers and two triggerers while messages come; exit status 1 if one is not handled once.

A thousand messages are consumed by runs that a watcher starts, and another thousand by runs that a dispatcher starts.
What was killed starts again after the others have handled everything that was published until then.
"""

from __future__ import annotations

import argparse
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psycopg

from airflow_provider_pgqueue.core import install, run, verbs
from tools import ROOT, STATE, run_main
from tools.airflow import Stack
from tools.chaos.airflow import SETTINGS
from tools.failover import dags
from tools.postgres import Cluster

QUEUES: Final = ("watched", "dispatched")
DAGS: Final = ("failover_watched", "failover_dispatch", "failover_work")
FAULTS: Final = [(component, number) for component in ("scheduler", "triggerer") for number in (1, 2)]
PATIENCE: Final = 600.0
_COUNTS: Final = """
    SELECT (SELECT count(*) FROM messages.message_archive WHERE queue_name = %(queue)s AND result = 'success'),
           (SELECT count(*) FROM messages.message_archive WHERE queue_name = %(queue)s AND result <> 'success'),
           (SELECT count(*) FROM messages.message WHERE queue_name = %(queue)s),
           (SELECT count(DISTINCT id) FROM public.delivery WHERE queue_name = %(queue)s),
           (SELECT count(*) - count(DISTINCT id) FROM public.delivery WHERE queue_name = %(queue)s),
           (SELECT count(DISTINCT run_id) FROM public.delivery WHERE queue_name = %(queue)s)
"""


@dataclass(frozen=True, slots=True)
class Counts:
    """The results of the messages of a queue, and in how many deliveries and runs they were handled."""

    success: int
    dead: int
    waiting: int
    delivered: int
    again: int
    runs: int


class Pair:
    """An Airflow with a second scheduler and a second triggerer, and the server of its metadata and of the queue.

    The second two have a home of their own, by which their processes are known, and the metadata and keys of the first.
    """

    def __init__(self, directory: Path, *, kind: str | None = None) -> None:
        self.directory = directory
        self.cluster = Cluster(directory / "postgres", kind=kind, durable=False, cron_database="queue")
        self.stacks: list[Stack] = []

    def __enter__(self) -> Pair:
        shutil.rmtree(self.directory, ignore_errors=True)
        self.cluster.start()
        self.dsn = self.cluster.create_database("queue")
        self.metadata = self.cluster.create_database("airflow")
        with psycopg.connect(self.dsn, autocommit=True) as conn:
            install(conn)
            conn.execute("CREATE TABLE public.delivery (queue_name text, id bigint, run_id text)")
            for queue in QUEUES:
                # No message may die of the faults alone.
                run(conn, verbs.create_queue(queue, max_attempts=100, backoff_first=1))
        environment = SETTINGS | {"AIRFLOW_CONN_PGQUEUE_DEFAULT": self.dsn, "PYTHONPATH": str(ROOT)}
        for number in (1, 2):
            self.stacks.append(
                Stack(
                    self.directory / str(number),
                    metadata=self.metadata,
                    dags=Path(dags.__file__).parent,
                    parallelism=4,
                    environment=environment,
                )
            )
        first, second = self.stacks
        first.start(timeout=300.0)
        second.logs.mkdir(parents=True)
        for name in ("port", "secrets.env"):
            shutil.copy(first.directory / name, second.directory)
        for component in ("scheduler", "triggerer"):
            second.start_component(component)
        for dag_id in DAGS:
            first.client.wait_for_dag(dag_id)
        wait(lambda: self.alive() == {"SchedulerJob": 2, "TriggererJob": 2}, f"two of each, but {self.alive()}")
        return self

    def __exit__(self, *_: object) -> None:
        for stack in reversed(self.stacks):
            stack.stop(patience=5.0)
        self.cluster.destroy()

    def alive(self) -> dict[str, int]:
        """Return how many schedulers and triggerers had a heartbeat lately."""
        query = (
            "SELECT job_type, count(*) FROM job WHERE job_type IN ('SchedulerJob', 'TriggererJob')"
            " AND state = 'running' AND latest_heartbeat > clock_timestamp() - interval '15 s' GROUP BY job_type"
        )
        with psycopg.connect(self.metadata, autocommit=True) as conn:
            return dict(conn.execute(query).fetchall())

    def publish(self, number: int) -> None:
        """Publish so many messages to each queue, ten at a time."""
        with psycopg.connect(self.dsn, autocommit=True) as conn:
            for first in range(0, number, 10):
                for queue in QUEUES:
                    run(conn, verbs.publish_batch(queue, range(first, min(first + 10, number))))
                time.sleep(0.5)

    def counts(self, queue: str) -> Counts:
        """Return what became of the messages of a queue so far."""
        with psycopg.connect(self.dsn, autocommit=True) as conn:
            row: tuple[Any, ...] | None = conn.execute(_COUNTS, {"queue": queue}).fetchone()
            assert row
            return Counts(*row)

    def wait_until_empty(self) -> dict[str, float]:
        """Wait until all messages have ended, and return after how many seconds each queue was empty."""
        began, took = time.monotonic(), dict[str, float]()

        def poll() -> bool:
            for queue in QUEUES:
                if queue not in took and not self.counts(queue).waiting:
                    took[queue] = time.monotonic() - began
            return len(took) == len(QUEUES)

        wait(poll, "empty queues", describe=lambda: str({queue: self.counts(queue) for queue in QUEUES}))
        return took

    def airflow_counts(self) -> dict[str, int]:
        """Return how many events and runs Airflow made."""
        with psycopg.connect(self.metadata, autocommit=True) as conn:
            rows = conn.execute("SELECT dag_id, count(*) FROM dag_run GROUP BY dag_id").fetchall()
            ((events,),) = conn.execute("SELECT count(*) FROM asset_event").fetchall()
        return {"events": int(events)} | dict(rows)


def wait(enough: Callable[[], bool], what: str, *, describe: Callable[[], str] = lambda: "") -> None:
    """Wait until `enough` returns True; TimeoutError has the description of the current state."""
    give_up_at = time.monotonic() + PATIENCE
    while not enough():
        if time.monotonic() > give_up_at:
            raise TimeoutError(f"no {what} within {PATIENCE:.0f} s {describe()}")
        time.sleep(0.5)


def fail_over(pair: Pair, messages: int) -> list[tuple[str, dict[str, float]]]:
    """Publish so many messages to each queue and kill each of the four meanwhile; return how soon all was handled."""
    found, published = [], 0
    for place, (component, number) in enumerate(FAULTS, 1):
        stack = pair.stacks[number - 1]
        part = messages * place // len(FAULTS) - published
        pair.publish(part // 2)
        stack.kill(component)
        pair.publish(part - part // 2)
        published += part
        found.append((f"{component} {number}", pair.wait_until_empty()))
        stack.start_component(component)
        wait(lambda: pair.alive() == {"SchedulerJob": 2, "TriggererJob": 2}, "two of each again")
    return found


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m tools.failover", description=__doc__)
    parser.add_argument("--messages", type=int, default=1000, help="for each of the two queues")
    parser.add_argument("--directory", type=Path, default=STATE / "failover")
    arguments = parser.parse_args()
    clean = True
    with Pair(arguments.directory) as pair:
        faults = fail_over(pair, arguments.messages)
        print("| killed | watched queue empty after | dispatched queue empty after |\n|---|---|---|")
        for name, took in faults:
            print(f"| {name} | {' | '.join(f'{took[queue]:.0f} s' for queue in QUEUES)} |")
        print("\n| queue | published | handled once | dead | left | deliveries repeated | runs with messages |")
        print("|---|---|---|---|---|---|---|")
        for queue in QUEUES:
            got = pair.counts(queue)
            print(
                f"| {queue} | {arguments.messages} | {got.success} | {got.dead} | {got.waiting} | {got.again}"
                f" | {got.runs} |"
            )
            clean &= got.success == got.delivered == arguments.messages and not got.dead and not got.waiting
            # Each kill may find as many at work as are leased at once.
            clean &= got.again <= len(FAULTS) * 4 * dags.BATCH
        print(f"\nAirflow made: {pair.airflow_counts()}")
    return 0 if clean else 1


if __name__ == "__main__":
    run_main(main)
