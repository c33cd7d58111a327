"""Runs a Python function as a worker."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from multiprocessing.connection import wait
from multiprocessing.context import ForkProcess
from multiprocessing.queues import SimpleQueue
from typing import Any, Final, TypeAlias

import click

from airflow_provider_pgqueue.cli.connection import connected, status_for
from airflow_provider_pgqueue.cli.fix import in_commands, log_to_stderr
from airflow_provider_pgqueue.cli.options import duration
from airflow_provider_pgqueue.cli.output import show_done
from airflow_provider_pgqueue.cli.program import report
from airflow_provider_pgqueue.cli.settings import Settings, with_settings
from airflow_provider_pgqueue.cli.text import one_line
from airflow_provider_pgqueue.core import verbs
from airflow_provider_pgqueue.core.client import run
from airflow_provider_pgqueue.core.connection import conninfo_of, parameters, process_name
from airflow_provider_pgqueue.core.consumer.consumer import Consumer
from airflow_provider_pgqueue.core.deadline import end_thread
from airflow_provider_pgqueue.core.errors import InvalidArgument, PermissionDenied, PgQueueError
from airflow_provider_pgqueue.core.function import awaited, check_call, load_function
from airflow_provider_pgqueue.core.quantity import deaths_text
from airflow_provider_pgqueue.core.signals import STOPS
from airflow_provider_pgqueue.core.worker import Worker

log = logging.getLogger(__name__)
_PARENT_EVERY: Final = 1.0  # seconds between two checks that the parent process lives
_Told: TypeAlias = SimpleQueue[Counter[str] | PgQueueError]


@click.command()
@click.argument("queue")
@click.argument("function", metavar="MODULE:FUNCTION")
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
    help="How long a call of the function may take before its message is left to its lease. "
    "By default as the queue's policy says.",
)
@click.option(
    "--give-up-after",
    type=click.IntRange(0),
    default=100,
    show_default=True,
    help="Stop when the function fails on N messages in a row; 0 never stops.",
)
@click.option(
    "--poll-interval",
    type=duration,
    default="30s",
    show_default=True,
    help="How often to look for messages if no notification arrives.",
)
@click.option("--until-empty", is_flag=True, help="End when no message is ready instead of waiting.")
@click.option(
    "--processes",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Number of worker processes. If one dies, a warning says so, and the others continue; it is not started "
    "again, and the exit status at the end is 1. If the process that started them dies, all stop.",
)
@with_settings
def worker(
    settings: Settings,
    /,
    queue: str,
    function: str,
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
    ends. The exit status is 1 if messages died that the function did not reject.
    """
    log_to_stderr()
    handler = awaited(load(function, "a list of messages" if batch else "a message", settings))
    unit = "batch" if batch else "message"
    with connected(settings) as conn:
        status_for(conn, queue, "lease")  # an unknown queue is an error now, not in each process
    log.info("worker of queue %s started: it calls %s for each %s; Ctrl-C stops it", queue, function, unit)

    began = time.monotonic()

    def serve() -> Counter[str]:
        consumer = Consumer(
            queue_name=queue,
            handle=None if batch else handler,
            handle_batch=handler if batch else None,
            handled_by=f"{function} {process_name()}",
            **given,
        )
        made = Worker(conninfo=conninfo_of(parameters(settings.dsn)), consumer=consumer, poll_interval=poll_interval)
        return made.run(until_empty=until_empty)

    try:
        counts, status = (serve(), 0) if processes == 1 else _serve_in(processes, serve, settings, until_empty)
    except PermissionDenied:
        with connected(settings):  # it names the role that is missing
            raise
    text = ", ".join(f"{number:,} {outcome}" for outcome, number in counts.items()) or "nothing"
    died = _deaths(settings, queue, function, time.monotonic() - began + 1, counts)
    said = {"queue_name": queue, "counts": counts, "died": died}
    show_done(settings, said, f"worker of queue {queue} stopped: {text}.")
    if died:
        log.warning("%s. See why: pgqueue dead %s", deaths_text(died), queue)
    return 1 if died else status


def _deaths(settings: Settings, queue: str, function: str, period: float, counts: Counter[str]) -> dict[str, int]:
    """Return how many messages died meanwhile, also of those that a killed worker with this function had leased."""
    try:
        with connected(settings) as conn:
            return run(conn, verbs.deaths(queue, holder=f"{function} ", period=period))
    except PgQueueError as error:
        log.warning("could not look for dead messages (%s)", type(error).__name__)
        return {result: counts[result] for result in ("failed", "lock_expired") if counts[result]}


def load(path: str, gets: str, settings: Settings) -> Callable[..., Any]:
    """Return the function that `module:function` names; a usage error if there is none, or it cannot take that."""
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found = load_function(path)
        check_call(found, gets)
        return found
    except InvalidArgument as error:
        if settings.debug and error.__cause__ is not None:
            raise error.__cause__ from None
        raise click.UsageError(str(error)) from error


def _serve_in(
    number: int, serve: Callable[[], Counter[str]], settings: Settings, until_empty: bool
) -> tuple[Counter[str], int]:
    """Serve in child processes, pass signals on to them, and add up what they did; 1 if one of them died.

    A process that ends early is logged at once, and the others continue. When all have ended, raises the first error of
    a child.
    """
    serving = _start(number, serve, settings)
    stopping, status = False, 0
    counts: Counter[str] = Counter()
    errors: list[PgQueueError] = []

    def pass_on(number: int, frame: object) -> None:
        nonlocal stopping
        stopping = True
        for child in list(serving):
            if child.pid is not None:
                with suppress(ProcessLookupError):  # it has just ended
                    os.kill(child.pid, number)

    # A terminal sends Ctrl-C to the children, too: being asked twice to stop does no harm.
    for wanted in STOPS:
        signal.signal(wanted, pass_on)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)
    while serving:
        # A second at most: a signal right before it does not end the wait, nor does a child that left one of its own.
        wait([child.sentinel for child in serving], timeout=1.0)
        for child in [child for child in serving if child.exitcode is not None]:
            told = serving.pop(child)
            result = None if told.empty() else told.get()
            if isinstance(result, PgQueueError):
                errors.append(result)
            else:
                counts.update(result)
            if child.exitcode:
                status = 1
            if not stopping and (child.exitcode or not until_empty):
                log.warning(
                    "worker process %s ended with %s and is not started again; still at work: %s of %s",
                    child.pid,
                    _end(child.exitcode or 0, errors[-1] if isinstance(result, PgQueueError) else None),
                    len(serving),
                    number,
                )
    if errors:
        raise errors[0]
    return counts, status


def _start(number: int, serve: Callable[[], Counter[str]], settings: Settings) -> dict[ForkProcess, _Told]:
    """Start child processes, and return where each puts its counts or its error. SIGTERM and SIGINT stay blocked.

    A signal that ended this process meanwhile would leave children that nothing stops. In a child the signals wait for
    the worker, and have no effect after it.
    """
    context = multiprocessing.get_context("fork")  # before any thread and any connection
    end_thread()
    parent = os.getpid()

    def stop_without_parent() -> None:
        while os.getppid() == parent:
            time.sleep(_PARENT_EVERY)
        log.warning("the process that started worker process %s is gone: stopping", os.getpid())
        os.kill(os.getpid(), signal.SIGTERM)

    def serve_and_report(told: _Told) -> None:
        owner = os.getpid()

        def ignore(number: int, frame: object) -> None:
            if os.getpid() != owner:  # a process that a handler forked
                signal.signal(number, signal.SIG_DFL)
                os.kill(os.getpid(), number)

        for wanted in STOPS:
            signal.signal(wanted, ignore)
        threading.Thread(target=stop_without_parent, name="pgqueue-parent", daemon=True).start()
        try:
            told.put(serve())
        except PgQueueError as error:
            told.put(error)
            sys.exit(1)
        except BaseException as error:
            # multiprocessing would print its text, which may quote a body.
            sys.exit(report(error, settings))

    signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
    children = {}
    for _ in range(number):
        # A queue for each child: a child killed while it holds the lock of a shared queue would block the others.
        told: _Told = context.SimpleQueue()
        child = context.Process(target=serve_and_report, args=[told])
        child.start()
        children[child] = told
    return children


def _end(exitcode: int, error: PgQueueError | None) -> str:
    """Return how a process ended: `SIGKILL`, or `exit status 1 (HandlerBroken: …)`."""
    if exitcode < 0:
        return next((one.name for one in signal.Signals if one == -exitcode), f"signal {-exitcode}")
    why = "" if error is None else f" ({type(error).__name__}: {one_line(in_commands(str(error)))})"
    return f"exit status {exitcode}{why}"
