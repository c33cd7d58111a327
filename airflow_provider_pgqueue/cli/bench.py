"""Measures the queue where it is, on a queue made for it."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import click

from airflow_provider_pgqueue.cli.connection import Connection, connected
from airflow_provider_pgqueue.cli.output import show
from airflow_provider_pgqueue.cli.settings import Settings, pass_settings, shared_options
from airflow_provider_pgqueue.core import verbs
from airflow_provider_pgqueue.core.client import run
from airflow_provider_pgqueue.core.consumer import Consumer
from airflow_provider_pgqueue.core.quantity import quantity, rate
from airflow_provider_pgqueue.core.query import query


@click.command()
@click.option("--messages", type=click.IntRange(1), default=10_000, show_default=True, help="Messages to publish.")
@click.option(
    "--consumers",
    type=click.IntRange(1, 64),
    default=4,
    show_default=True,
    help="Connections that consume at the same time.",
)
@click.option(
    "--batch-size", type=click.IntRange(1, 10_000), default=100, show_default=True, help="Messages in each call."
)
@click.option(
    "--body-bytes",
    type=click.IntRange(2, 1_000_000),
    default=200,
    show_default=True,
    help="Size of each body in bytes.",
)
@shared_options
@pass_settings
def bench(settings: Settings, messages: int, consumers: int, batch_size: int, body_bytes: int) -> None:
    """Measure how fast this database publishes and consumes.

    It creates a queue, publishes to it, consumes the messages with a function that does nothing, and removes the queue
    and its archive again.
    """
    bodies = ["x" * (body_bytes - 2)] * batch_size
    with connected(settings) as conn, _queue(conn) as queue:
        started = time.monotonic()
        for first in range(0, messages, batch_size):
            run(conn, verbs.publish_batch(queue, bodies[: messages - first]))
        published = time.monotonic()
        handled = _drain(settings, queue, consumers, batch_size)
        drained = time.monotonic()
    rates = {
        "messages": messages,
        "handled": handled,
        "consumers": consumers,
        "batch_size": batch_size,
        "published_per_second": round(messages / (published - started), 1),
        "consumed_per_second": round(handled / (drained - published), 1),
    }
    text = (
        f"published {rate(messages, published - started)} on 1 connection, "
        f"consumed {rate(handled, drained - published)} on {quantity(consumers, 'connection')} "
        f"({quantity(messages)}, {batch_size:,} in each call). Compare ratios: other work on the machine counts."
    )
    show(settings, rates, text)


def _drain(settings: Settings, queue: str, consumers: int, batch_size: int) -> int:
    ready = threading.Barrier(consumers)

    def consume() -> int:
        with connected(settings, check=False) as conn:
            ready.wait()
            consumer = Consumer(queue_name=queue, handle=lambda message: None, batch_size=batch_size)
            return consumer.drain(conn)["success"]

    with ThreadPoolExecutor(consumers) as pool:
        return sum(future.result() for future in [pool.submit(consume) for _ in range(consumers)])


@contextmanager
def _queue(conn: Connection) -> Iterator[str]:
    queue = f"bench_{secrets.token_hex(4)}"
    run(conn, verbs.create_queue(queue, notify="off"))
    try:
        yield queue
    finally:
        run(conn, verbs.drop_queue(queue, force=True))
        conn.execute(query("command/forget_queue"), [queue])
