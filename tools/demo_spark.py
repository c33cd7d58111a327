"""Takes the real flights through Spark: publish, drain, repair, compare, export, and publish some again."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import psycopg
from rich.table import Table

from airflow_provider_pgqueue.core import migrate
from tools import QUEUE_DATABASE, ROOT, STATE, SetupError
from tools.demo import ALL_FLIGHTS, console, demonstrate, step
from tools.partitions import make_empty_partition
from tools.postgres import Cluster, demo_cluster

HOME: Final = STATE / "demo-spark"
EXAMPLES: Final = ROOT / "dags_examples"
QUEUE: Final = "spark_flights"
AGAIN: Final = "spark_flights_again"

_ACCOUNT: Final = """
SELECT (SELECT count(*) FROM messages.message) AS left,
       (SELECT count(*) FROM messages.message_archive WHERE requeued_from IS NULL) AS published,
       (SELECT count(*) FROM messages.message_archive WHERE requeued_from IS NOT NULL) AS requeued,
       (SELECT count(*) - count(DISTINCT id) FROM messages.message_archive) AS twice,
       (SELECT jsonb_object_agg(result, n) FROM
            (SELECT result, count(*) AS n FROM messages.message_archive GROUP BY result ORDER BY result) r) AS results
"""

_MOVE: Final = """
UPDATE messages.message_archive SET archived_at = %s + (archived_at - date_trunc('day', archived_at, 'UTC'))
"""


def _run(flights: int | None) -> int:
    """Run the demo; 0 if the accounts balance and the figures are those of the data file."""
    with fresh_database() as cluster:
        return Demo(cluster.dsn(QUEUE_DATABASE), flights).run()


@contextmanager
def fresh_database() -> Iterator[Cluster]:
    """Start PostgreSQL with an empty queue, and stop it at the end, come what may."""
    cluster = demo_cluster()
    shutil.rmtree(HOME, ignore_errors=True)
    HOME.mkdir(parents=True)
    try:
        with step(f"Starting PostgreSQL {cluster.binaries.version} ({cluster.binaries.kind}), installing the queue"):
            cluster.start()
            cluster.drop_database(QUEUE_DATABASE)
            with psycopg.connect(cluster.create_database(QUEUE_DATABASE), autocommit=True) as conn:
                migrate(conn)
                conn.execute("SELECT messages.create_queue(%s), messages.create_queue(%s)", [QUEUE, AGAIN])
        yield cluster
    finally:
        with step("Stopping PostgreSQL"):
            cluster.stop()


class Demo:
    """The pipelines, one at a time, each a command as a user gives it."""

    def __init__(self, dsn: str, flights: int | None) -> None:
        self.dsn = dsn
        self.flights = flights
        self.target = HOME / "export"

    def run(self) -> int:
        """Run all steps and print the summary; 0 if the accounts balance."""
        started = time.monotonic()
        with step("Publishing the flights: a DataFrame, written with format('pgqueue')"):
            published = self._program("publish", *([str(self.flights)] if self.flights else []))
        with step("Draining the queue with a pandas function"):
            drained = self._drain()
        with step("Counting the dead messages by cause"):
            causes = self._causes()
        with step("Repairing the flights without an arrival report, and draining again"):
            repair = ["--results", "failed", "--function", "flights_on_spark:report_arrival"]
            repaired = self._pipeline("repair", "--queue", QUEUE, *repair)
            self._drain()
        with step("Joining the data file with what is archived: what is lost, doubled or dead"):
            joined = self._program("join")
            account = self._account()
        with step("Exporting last month to Parquet, and dropping its partition"):
            self._let_a_month_pass()
            exported = self._pipeline("export", "--target", str(self.target), "--drop")
        with step("Computing the delays of each carrier and month from the export, and from the data file"):
            delays = self._program("compare", str(self.target), *([str(self.flights)] if self.flights else []))
        with step("Publishing the flights of January again, out of the export, for another consumer"):
            again = self._program("publish_again", str(self.target))
        rows = {
            "published": published["published"],
            "drained": f"{drained['archived']:,} at {drained['messages_per_second']:,.0f}/s",
            "drained on": f"{drained['parallelism']} tasks",
            "results": ", ".join(f"{name} {number:,}" for name, number in account["results"].items()),
            "causes of death": ", ".join(f"{cause} {number:,}" for cause, number in causes),
            "requeued after repair": repaired["requeued"],
            "still queued": account["left"],
            "archived twice": account["twice"],
            "joined with the file": json.dumps(joined),
            "exported": json.dumps({name: value for name, value in exported.items() if isinstance(value, int | float)}),
            "delay figures": f"{delays['figures']} (carrier and month), {delays['different']} differ from the file",
            "January again": again["published"],
            "worst month": f"{delays['worst']}: {delays['minutes']:.1f} minutes late on average",
            "all of it took": f"{time.monotonic() - started:.0f} s",
        }
        _print(rows)
        expected = min(self.flights or ALL_FLIGHTS, ALL_FLIGHTS)
        balances = account["published"] == expected == published["published"] and not account["left"] + account["twice"]
        exact = not (delays["different"] or joined["lost"] or joined["doubled"])
        return 0 if balances and exact and again["published"] == again["chosen"] == again["waiting"] else 1

    def _drain(self) -> dict[str, Any]:
        # It ends with status 1 when messages died, which are repaired next.
        return self._pipeline("drain", "--queue", QUEUE, "--function", "flights_on_spark:check", ends_with=(0, 1))

    def _pipeline(self, *arguments: str, ends_with: Sequence[int] = (0,)) -> dict[str, Any]:
        command = [sys.executable, "-m", "airflow_provider_pgqueue.spark", "--master", "local[2]", *arguments]
        return self._last_line(command, ends_with)

    def _program(self, *arguments: str) -> dict[str, Any]:
        return self._last_line([sys.executable, "-m", "tools.demo_spark_programs", str(HOME), *arguments])

    def _last_line(self, command: list[str], ends_with: Sequence[int] = (0,)) -> dict[str, Any]:
        environment = os.environ | {
            "PGQUEUE_DSN": self.dsn,
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(EXAMPLES)]),
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        log = HOME / "spark.log"
        with log.open("ab") as errors:
            done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=errors, text=True, cwd=HOME)
            errors.write(done.stdout.encode())
        if done.returncode not in ends_with or "{" not in done.stdout:
            tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
            raise SetupError(f"{' '.join(command[2:5])} ended with {done.returncode}:\n{tail}")
        summary: dict[str, Any] = json.loads(
            next(line for line in reversed(done.stdout.splitlines()) if line.startswith("{"))
        )
        return summary

    def _causes(self) -> list[Any]:
        with psycopg.connect(self.dsn) as conn:
            return conn.execute("SELECT example, waiting FROM messages.dead_causes(%s)", [QUEUE]).fetchall()

    def _account(self) -> dict[str, Any]:
        with psycopg.connect(self.dsn, row_factory=psycopg.rows.dict_row) as conn:
            row = conn.execute(_ACCOUNT).fetchone()
        return dict(row or {})

    def _let_a_month_pass(self) -> None:
        """Decide about the dead that are left, and move all into last month: only what is closed is exported."""
        with psycopg.connect(self.dsn) as conn:
            conn.execute(
                "SELECT messages.dismiss(d.lock_token, array_agg(d.id), 'the demo ends')"
                " FROM messages.queue q CROSS JOIN messages.lease_dead(q.queue_name, 10000) d GROUP BY d.lock_token"
            )
            end_at = datetime.now(UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
            first_at = (end_at - timedelta(days=1)).replace(day=1)
            make_empty_partition(conn, first_at, end_at)
            conn.execute(_MOVE, [first_at])


def _print(rows: dict[str, Any]) -> None:
    table = Table(show_header=False, box=None)
    for name, value in rows.items():
        table.add_row(name, f"{value:,}" if isinstance(value, int) else str(value))
    console.print(table)


if __name__ == "__main__":
    sys.exit(demonstrate(__doc__, _run))
