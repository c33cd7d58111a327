"""Counts the instructions that PostgreSQL executes for a call of the verbs, by callgrind: `make count`.

Counts repeat to 0.3 % on any machine, however busy. Each is compared with the least that PL/pgSQL can do to the same
tables, counted in the same run, because both depend on the version of PostgreSQL and on the processor.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import psycopg

from airflow_provider_pgqueue.core import migrate, pgmq
from tools import STATE, SetupError, run_main, server_user
from tools.binaries import program
from tools.postgres import Cluster

Connection = psycopg.Connection[Any]

# The most that a verb may cost, as a multiple of raw PL/pgSQL. A count may be 3 % above it.
ALLOWED: Final = {
    "publish": 1.9,
    "publish, dedup_key": 2.6,
    "lease + archive, 1": 2.55,
    "lease + archive, 10": 1.65,
    "lease + archive, 100": 1.25,
    "lease + archive, 1 of 20 groups": 4.65,
    "first lease of a session, millions": 18.25,
    # Next to the verbs that they call.
    "pgmq.send": 1.05,
    "pgmq.read + archive, 1": 1.2,
}
ROOM: Final = 1.03
CALLS: Final = 30
SIZES: Final = (1, 10, 100)
BODY: Final = '{"order": 1, "text": "' + "x" * 60 + '"}'
LONGEST: Final = 120.0  # seconds
VERBS: Final = (
    b"SELECT id, lock_token FROM messages.lease(%s, %s)",
    b"SELECT messages.archive(%(lock_token)s, %(ids)s::bigint[])",
)
RAW: Final = (b"SELECT id, lock_token FROM raw.lease(%s, %s)", b"SELECT raw.archive(%(ids)s::bigint[])")
PGMQ: Final = (
    b"SELECT msg_id, vt FROM pgmq.read(%s, 30, %s)",
    b"SELECT pgmq.archive(%(queue_name)s, %(ids)s::bigint[])",
)


class CountedServer(Cluster):
    """A server each of whose processes can run under callgrind, which counts only when it is told to."""

    process: subprocess.Popen[bytes] | None = None

    def settings(self, port: int) -> dict[str, str | int]:
        return super().settings(port) | {"shared_preload_libraries": "", "autovacuum": "off"}

    def restart_counted(self) -> None:
        """Let each process of the server run under callgrind, several times as slow, from now on."""
        self.stop()
        valgrind = program("valgrind", "valgrind")
        if valgrind is None:
            raise SetupError("valgrind is not installed. Install it as root: apt-get install valgrind.")
        self.process = subprocess.Popen(
            [
                *(valgrind, "--tool=callgrind", "--trace-children=yes", "--instr-atstart=no"),
                *(f"--callgrind-out-file={self.directory}/out.%p", "-q"),
                *(self.binaries.folder / "postgres", "-D", self.data),
            ],
            cwd=self.directory,
            stdout=subprocess.DEVNULL,
            stderr=(self.directory / "server.log").open("a"),
            **server_user.arguments(),
        )

    def destroy(self) -> None:
        if self.process:
            self.process.send_signal(signal.SIGQUIT)  # as pg_ctl stop -m immediate, for which callgrind is too slow
            self.process.wait(LONGEST)
            (self.data / "postmaster.pid").unlink(missing_ok=True)
        super().destroy()

    def connect(self, database: str) -> Connection:
        """Open a session, as soon as the server takes one."""
        deadline = time.monotonic() + LONGEST
        while True:
            try:
                return psycopg.connect(self.dsn(database), autocommit=True, prepare_threshold=0)
            except psycopg.OperationalError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)

    def count(self, conn: Connection, call: Callable[[], object], calls: int = CALLS) -> float:
        """Return how many thousand instructions the process of a session executes for one call."""
        pid = str(conn.info.backend_pid)
        for action in (("-i", "on"), ("-z",)):
            self._control(*action, pid)
        for _ in range(calls):
            call()
        for action in (("-d",), ("-i", "off")):
            self._control(*action, pid)
        dumps = list(self.directory.glob(f"out.{pid}*"))
        totals = [
            int(found[1]) for dump in dumps if (found := re.search(r"^summary: (\d+)", dump.read_text(), re.MULTILINE))
        ]
        for dump in dumps:
            dump.unlink()
        return max(totals) / calls / 1000

    def _control(self, *arguments: str) -> None:
        subprocess.run(
            ["callgrind_control", *arguments],
            cwd=self.directory,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=True,
            timeout=LONGEST,
            **server_user.arguments(),
        )


@contextmanager
def counted_server() -> Iterator[CountedServer]:
    """Yield a server with all that is leased and published next to."""
    server = CountedServer(STATE / "count", durable=False)
    server.destroy()
    try:
        server.start()
        server.create_database("counted")
        with psycopg.connect(server.dsn("counted"), autocommit=True) as owner:
            prepare(owner)
        server.restart_counted()
        yield server
    finally:
        server.destroy()


def prepare(conn: Connection) -> None:
    """Install everything and publish what is leased."""
    migrate(conn)
    pgmq.install_names(conn)
    conn.execute(Path(__file__).with_suffix(".sql").read_bytes())
    # Each insert rewrites the first summary of a BRIN index until a megabyte is there.
    conn.execute(
        "INSERT INTO messages.archive_rows (created_at, result, message)"
        " SELECT now(), 'success', to_jsonb(repeat('x', 400)) FROM generate_series(1, 4000)"
    )
    fill(conn, "published", 1)
    for number in SIZES:
        fill(conn, f"raw_{number}", 50 * number)
        fill(conn, f"plain_{number}", 50 * number)
    fill(conn, "pgmq", 50)
    fill(conn, "groups", 200, groups=20)


def fill(conn: Connection, queue: str, number: int, groups: int = 0) -> None:
    conn.execute("SELECT messages.create_queue(%s, notify => 'off')", [queue])
    keys = [f"g{place % groups}" for place in range(number)] if groups else None
    conn.execute(
        "SELECT count(*) FROM messages.publish_batch(%s, (SELECT jsonb_agg(%s::jsonb) FROM generate_series(1, %s)),"
        " group_keys => %s)",
        [queue, BODY, number, keys],
    )
    conn.execute("SELECT messages.scan(ARRAY[%s], %s)", [queue, number])  # lets the first of each group in


def leases(
    server: CountedServer, conn: Connection, queue: str, number: int, verbs: tuple[bytes, bytes] = VERBS
) -> float:
    """Count a lease and its archive, in turns, without the scan of each second, so that no count depends on time."""
    lease, archive = verbs

    def call() -> None:
        rows = conn.execute(lease, [queue, number]).fetchall()
        ids = [row[0] for row in rows]
        conn.execute(archive, {"queue_name": queue, "lock_token": rows[0][1], "ids": ids})

    for _ in range(10):
        call()
    conn.execute("SELECT messages.store_time(scan_due, clock_timestamp() + interval '50 s') FROM messages.queue")
    return server.count(conn, call, CALLS if number < 100 else 10)


def publishes(server: CountedServer, conn: Connection, statement: str) -> float:
    numbers = iter(range(1_000_000))

    def call() -> None:
        conn.execute(statement.encode(), {"body": BODY, "key": f"key {next(numbers)} of {statement}"})

    for _ in range(10):
        call()
    return server.count(conn, call)


def counts(server: CountedServer) -> Iterator[tuple[str, float, float]]:
    """Yield what was counted, the count, and that of raw PL/pgSQL, in thousands of instructions."""
    conn = server.connect("counted")
    raw = publishes(server, conn, "SELECT raw.publish('published', %(body)s)")
    publish = publishes(server, conn, "SELECT messages.publish('published', %(body)s)")
    yield "publish", publish, raw
    keyed = "SELECT messages.publish('published', %(body)s, dedup_key => %(key)s)"
    yield "publish, dedup_key", publishes(server, conn, keyed), raw
    yield "pgmq.send", publishes(server, conn, "SELECT pgmq.send('published', %(body)s)"), publish
    for number in SIZES:
        raw = leases(server, conn, f"raw_{number}", number, RAW)
        plain = leases(server, conn, f"plain_{number}", number)
        yield f"lease + archive, {number}", plain, raw
        if number == 1:
            yield "pgmq.read + archive, 1", leases(server, conn, "pgmq", 1, PGMQ), plain
            yield "lease + archive, 1 of 20 groups", leases(server, conn, "groups", 1), raw
    with server.connect("counted") as new:
        first = server.count(new, lambda: new.execute("SELECT * FROM messages.lease('plain_1')").fetchall(), 1)
    yield "first lease of a session, millions", first / 1000, 1.0


def main() -> int:
    print(f"{'thousands of instructions':40} {'count':>9} {'raw':>9} {'ratio':>7} {'allowed':>8}")
    worse = []
    with counted_server() as server:
        for name, count, raw in counts(server):
            ratio = count / raw
            print(f"{name:40} {count:9,.1f} {raw:9,.1f} {ratio:7.2f} {ALLOWED[name]:8.2f}", flush=True)
            if ratio > ALLOWED[name] * ROOM:
                worse.append(name)
    if worse:
        print(f"costs more than allowed: {', '.join(worse)}", file=sys.stderr)
    return len(worse) > 0


if __name__ == "__main__":
    run_main(main)
