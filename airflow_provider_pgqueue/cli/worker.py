"""Runs a Python function as a worker."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.queues import SimpleQueue
from typing import Any, Final

import click

from airflow_provider_pgqueue.cli.connection import connected, conninfo
from airflow_provider_pgqueue.cli.cure import log_to_stderr
from airflow_provider_pgqueue.cli.duration import duration
from airflow_provider_pgqueue.cli.output import show_done
from airflow_provider_pgqueue.cli.program import report
from airflow_provider_pgqueue.cli.settings import Settings, pass_settings, shared_options
from airflow_provider_pgqueue.core import verbs
from airflow_provider_pgqueue.core.client import run
from airflow_provider_pgqueue.core.connection import process_name
from airflow_provider_pgqueue.core.consumer import Consumer
from airflow_provider_pgqueue.core.errors import InvalidArgument, PermissionDenied, PgQueueError
from airflow_provider_pgqueue.core.function import check_call, load_function
from airflow_provider_pgqueue.core.worker import Worker

log = logging.getLogger(__name__)
_STOPS: Final = (signal.SIGTERM, signal.SIGINT)


@click.command()
@click.argument("function", metavar="MODULE:FUNCTION")
@click.option("--queue", required=True, help="The queue to lease from.")
@click.option(
    "--batch",
    is_flag=True,
    help="Call the function with a list of messages; it returns a dict of outcomes by message id.",
)
@click.option(
    "--batch-size", type=click.IntRange(1, 10_000), default=100, show_default=True, help="Messages per lease."
)
@click.option(
    "--lease-for",
    type=duration,
    help="Length of a lease, which is renewed while the function runs. By default as the queue's policy says.",
)
@click.option(
    "--handler-timeout",
    type=duration,
    help="How long the function may take for a message before its lease is no longer renewed. "
    "By default as the queue's policy says.",
)
@click.option(
    "--give-up-after",
    type=click.IntRange(0),
    default=20,
    show_default=True,
    help="Stop when the function fails with the same error on each of the first N messages, or later on nearly all "
    "of the last 50 x N. 0 never stops.",
)
@click.option(
    "--poll-interval",
    type=duration,
    default="30s",
    show_default=True,
    help="How often to look for messages if no notification arrives.",
)
@click.option("--topic", metavar="PATTERN", help="Handle only messages whose topic matches, such as 'orders.#'.")
@click.option("--until-empty", is_flag=True, help="End when no message is ready instead of waiting.")
@click.option("--processes", type=click.IntRange(1), default=1, show_default=True, help="Number of worker processes.")
@shared_options
@pass_settings
def worker(
    settings: Settings,
    /,
    function: str,
    queue: str,
    batch: bool,
    poll_interval: timedelta,
    until_empty: bool,
    processes: int,
    **given: Any,
) -> int:
    """Handle messages with a Python function.

    MODULE is searched for in the current directory first. The function gets a message (id, body, headers, reference,
    attempts, …). It returns None for success, or Rejected, Failed or Retry from airflow_provider_pgqueue.core. If it
    raises, the message is delivered again later. On SIGTERM and Ctrl-C the worker finishes the current message and
    ends.
    """
    log_to_stderr()
    handler = load(function, "a list of messages" if batch else "a message", settings)
    unit = "batch" if batch else "message"
    with connected(settings) as conn:
        run(conn, verbs.status(queue))  # an unknown queue is an error now, not in each process
    log.info("worker of queue %s started: it calls %s for each %s; Ctrl-C stops it", queue, function, unit)

    def serve() -> Counter[str]:
        consumer = Consumer(
            queue_name=queue,
            handle=None if batch else handler,
            handle_batch=handler if batch else None,
            handled_by=f"{function} {process_name()}",
            **given,
        )
        made = Worker(conninfo=conninfo(settings), consumer=consumer, poll_interval=poll_interval.total_seconds())
        return made.run(until_empty=until_empty)

    try:
        counts, status = (serve(), 0) if processes == 1 else _serve_in(processes, serve, settings)
    except PermissionDenied:
        with connected(settings):  # it names the role that is missing
            raise
    text = ", ".join(f"{number:,} {outcome}" for outcome, number in counts.items()) or "nothing"
    show_done(settings, {"queue_name": queue, "counts": counts}, f"worker of queue {queue} stopped: {text}.")
    return status


def load(path: str, gets: str, settings: Settings | None = None) -> Callable[..., Any]:
    """Return the function that `module:function` names; a usage error if there is none, or it cannot take that."""
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found = load_function(path)
        check_call(found, gets)
        return found
    except InvalidArgument as error:
        if settings is not None and settings.debug and error.__cause__ is not None:
            raise error.__cause__ from None
        raise click.UsageError(str(error)) from error


def _serve_in(number: int, serve: Callable[[], Counter[str]], settings: Settings) -> tuple[Counter[str], int]:
    """Serve in child processes, pass signals on to them, and add up what they did; 1 if one of them died.

    Raises what the first of them raised, when all have ended.
    """
    context = multiprocessing.get_context("fork")  # before any thread and any connection
    results: SimpleQueue[Counter[str] | PgQueueError] = context.SimpleQueue()

    def serve_and_tell() -> None:
        # Until the worker takes them over: it has nothing to finish yet.
        for wanted in _STOPS:
            signal.signal(wanted, lambda *_: sys.exit(0))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOPS)
        try:
            results.put(serve())
        except PgQueueError as error:
            results.put(error)
        except BaseException as error:
            # multiprocessing would print its text, which may quote a body.
            sys.exit(report(error, settings))

    children = [context.Process(target=serve_and_tell) for _ in range(number)]

    def pass_on(number: int, frame: object) -> None:
        for child in children:
            if child.pid is not None and child.is_alive():
                os.kill(child.pid, number)

    # Held back meanwhile: one that ended this process would leave children that nobody tells to stop.
    signal.pthread_sigmask(signal.SIG_BLOCK, _STOPS)
    for child in children:
        child.start()
    # A terminal sends Ctrl-C to the children, too: being asked twice to stop does no harm.
    for wanted in _STOPS:
        signal.signal(wanted, pass_on)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOPS)
    for child in children:
        child.join()
    counts: Counter[str] = Counter()
    errors: list[PgQueueError] = []
    while not results.empty():
        result = results.get()
        if isinstance(result, PgQueueError):
            errors.append(result)
        else:
            counts.update(result)
    if errors:
        raise errors[0]
    return counts, int(any(child.exitcode for child in children))
