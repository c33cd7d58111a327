"""Lets a hundred triggers of each provider wait in one event loop, and prints what that costs and how soon they fire.

Each waits for a queue of its own on a server of this machine: PostgreSQL, Redis, and moto in place of SQS. The loop is
a plain one, so Airflow's own second is in no figure.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import psutil

from airflow_provider_pgqueue.core import connect, install, run, verbs
from tools import ROOT, STATE, SetupError
from tools.ports import free_port
from tools.server import Server

_COUNT: Final = 100
_PLACE: Final = STATE / "brokers"


@dataclass(frozen=True, slots=True)
class Broker:
    """A running server, how its triggers reach it, and how a message gets there."""

    port: int
    classpath: str
    arguments: dict[str, Any]
    connection: tuple[str, str]
    publish: Callable[[int], object]


@contextmanager
def pgqueue() -> Iterator[Broker]:
    """PostgreSQL, with its queues."""
    server = Server(_PLACE / "postgres")
    try:
        server.start()
        with connect(server.dsn()) as conn:
            install(conn, [f"bench_{number}" for number in range(_COUNT)], cron=False)
            yield Broker(
                server.port,
                "airflow_provider_pgqueue.triggers.message.PgQueueMessageTrigger",
                {"queue_name": "bench_{}", "for_task": True},
                ("PGQUEUE_DEFAULT", server.dsn()),
                lambda number: run(conn, verbs.publish(f"bench_{number}", 1)),
            )
    finally:
        server.destroy()


@contextmanager
def redis() -> Iterator[Broker]:
    """Redis, whose trigger waits for PUBLISH on a channel."""
    import redis as client

    program = shutil.which("redis-server")
    if program is None:
        raise SetupError("redis-server is not there; on Debian: apt-get install redis-server")
    port = free_port()
    with _process(program, "--port", str(port), "--bind", "127.0.0.1", "--save", ""), client.Redis(port=port) as conn:
        _wait(conn.ping, client.ConnectionError)
        yield Broker(
            port,
            "airflow.providers.redis.triggers.redis_await_message.AwaitMessageTrigger",
            {"channels": "bench_{}"},
            ("REDIS_DEFAULT", json.dumps({"conn_type": "redis", "host": "127.0.0.1", "port": port})),
            lambda number: conn.publish(f"bench_{number}", "1"),
        )


@contextmanager
def sqs() -> Iterator[Broker]:
    """The SQS of moto, a server for tests."""
    import boto3
    from botocore.exceptions import BotoCoreError

    port = free_port()
    endpoint = f"http://127.0.0.1:{port}"
    with _process(sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)):
        keys = {"aws_access_key_id": "none", "aws_secret_access_key": "none"}
        conn = boto3.client("sqs", endpoint_url=endpoint, region_name="us-east-1", **keys)
        _wait(conn.list_queues, BotoCoreError)
        for number in range(_COUNT):
            conn.create_queue(QueueName=f"bench_{number}")
        extra = {"endpoint_url": endpoint, "region_name": "us-east-1"}
        aws = {"conn_type": "aws", "login": "none", "password": "none", "extra": extra}
        yield Broker(
            port,
            "airflow.providers.amazon.aws.triggers.sqs.SqsSensorTrigger",
            {"sqs_queue": f"{endpoint}/123456789012/bench_{{}}", "region_name": "us-east-1"},
            ("AWS_DEFAULT", json.dumps(aws)),
            lambda number: conn.send_message(
                QueueUrl=f"{endpoint}/123456789012/bench_{number}", MessageBody=str(number)
            ),
        )


# With the default pause of each trigger between two polls, and with a pause of a second.
_CASES: Final[dict[str, tuple[Callable[[], Any], dict[str, Any], str]]] = {
    "pgqueue": (pgqueue, {}, "`PgQueueMessageTrigger`, as by default"),
    "redis": (redis, {}, "Redis, `AwaitMessageTrigger`, as by default (looks every 60 s)"),
    "redis-1": (redis, {"poll_interval": 1}, "the same, `poll_interval=1`"),
    "sqs": (sqs, {}, "SQS, `SqsSensorTrigger`, as by default (looks every 60 s)"),
    "sqs-1": (sqs, {"waiter_delay": 1}, "the same, `waiter_delay=1`"),
}


@contextmanager
def _process(*command: str) -> Iterator[None]:
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            yield
        finally:
            process.kill()


def _wait(ask: Callable[[], object], error: type[Exception]) -> None:
    give_up_at = time.monotonic() + 60
    while True:
        try:
            ask()
            return
        except error:
            if time.monotonic() > give_up_at:
                raise
            time.sleep(0.1)


@contextmanager
def _waiters(broker: Broker, arguments: dict[str, Any], notes: Path) -> Iterator[psutil.Process]:
    name, value = broker.connection
    environment = os.environ | {
        f"AIRFLOW_CONN_{name}": value,
        "AIRFLOW_HOME": str(_PLACE / "airflow-home"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "PYTHONPATH": str(ROOT),
    }
    given = json.dumps(broker.arguments | arguments)
    command = [sys.executable, "-m", "benchmarks.brokers.waiters", broker.classpath, given, str(_COUNT)]
    with notes.open("w") as output, subprocess.Popen(command, stdout=output, cwd=ROOT, env=environment) as process:
        try:
            yield psutil.Process(process.pid)
        finally:
            process.kill()


def _connections(process: psutil.Process, port: int) -> int:
    return sum(bool(one.raddr) and one.raddr.port == port for one in process.net_connections("tcp"))


def _latencies(broker: Broker, notes: Path, pause: float) -> list[float]:
    """Publish to one queue after the other, and return the seconds until each trigger fired."""
    published = {}
    for number in range(_COUNT):
        published[number] = time.time()
        broker.publish(number)
        time.sleep(pause)
    give_up_at = time.monotonic() + 150
    while len(fired := _fired(notes)) < _COUNT:
        if time.monotonic() > give_up_at:
            raise TimeoutError(f"{len(fired)} of {_COUNT} triggers fired")
        time.sleep(0.5)
    return sorted(moment - published[number] for number, moment in fired.items())


def _fired(notes: Path) -> dict[int, float]:
    # Next to what the providers log.
    found = [line.split() for line in notes.read_text().splitlines() if line.startswith("fired ")]
    return {int(number): float(moment) for _, number, moment in found}


def measure(case: str, seconds: float) -> None:
    """Measure one kind of trigger, and print its line."""
    start, arguments, title = _CASES[case]
    notes = _PLACE / "fired"
    with ExitStack() as stack:
        broker = stack.enter_context(start())
        process = stack.enter_context(_waiters(broker, arguments, notes))
        time.sleep(20)
        before, began_at, most = sum(process.cpu_times()[:2]), time.monotonic(), 0
        while time.monotonic() < began_at + seconds:
            most = max(most, _connections(process, broker.port))
            time.sleep(0.1)
        cpu = (sum(process.cpu_times()[:2]) - before) / (time.monotonic() - began_at)
        memory = process.memory_full_info().uss / 2**20
        # By default the triggers poll once a minute, all at the same time, so the messages are spread over a minute.
        ordered = _latencies(broker, notes, 0.6 if case in ("redis", "sqs") else 0.2)
    times = f"{ordered[_COUNT // 2]:.3f}", f"{ordered[-1]:.3f}"
    print("|", " | ".join([title, str(most), f"{100 * cpu:.1f} %", f"{memory:.0f} MB", *times]), "|", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.brokers", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=_CASES, default=list(_CASES), help="some kinds only")
    parser.add_argument("--seconds", type=float, default=60, help="how long to be idle")
    arguments = parser.parse_args()
    _PLACE.mkdir(parents=True, exist_ok=True)
    names = ("apache-airflow", "apache-airflow-providers-redis", "apache-airflow-providers-amazon", "moto")
    print(", ".join(f"{name} {version(name)}" for name in names), f"; load {os.getloadavg()[0]:.1f}\n", sep="")
    print("| 100 triggers | connections | CPU, idle | memory | publish to event, median (s) | longest (s) |")
    print("|---|---|---|---|---|---|", flush=True)
    for case in arguments.only:
        measure(case, arguments.seconds)


if __name__ == "__main__":
    main()
