"""Repairs dead messages with a Python function."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from airflow_provider_pgqueue.cli.connection import connected
from airflow_provider_pgqueue.cli.fix import log_to_stderr
from airflow_provider_pgqueue.cli.options import duration
from airflow_provider_pgqueue.cli.output import show, show_done
from airflow_provider_pgqueue.cli.settings import Settings, with_settings
from airflow_provider_pgqueue.cli.worker import load
from airflow_provider_pgqueue.core.message import DEAD_RESULTS
from airflow_provider_pgqueue.core.quantity import quantity
from airflow_provider_pgqueue.core.repair import Repair
from airflow_provider_pgqueue.core.signals import stop_on_signals
from airflow_provider_pgqueue.core.verbs import DeadFilter


@click.command()
@click.argument("queue", required=False)
@click.option(
    "--function",
    required=True,
    metavar="MODULE:FUNCTION",
    help="Called with each dead message; returns a new body, KEEP, LEAVE or Dismiss(reason).",
)
@click.option(
    "--validator",
    metavar="MODULE:FUNCTION",
    help="Called with each new body; returns what is wrong with it, or None. Or the .json file of a JSON Schema.",
)
@click.option(
    "--cause",
    help="Repair only messages of this cause, in place of --result: a fingerprint that "
    "`pgqueue causes` prints, or a cause that the last triage on Spark found.",
)
@click.option(
    "--result",
    "results",
    multiple=True,
    type=click.Choice(DEAD_RESULTS),
    help="Repair only messages with this result; can be repeated. Default: all.",
)
@click.option("--max", "max_messages", type=click.IntRange(1), help="Handle at most this many messages. Default: all.")
@click.option("--max-requeues", type=click.IntRange(1), help="Leave out messages that were requeued this many times.")
@click.option(
    "--max-per-second", type=click.FloatRange(0, min_open=True), help="Requeue at most this many messages per second."
)
@click.option(
    "--canary",
    type=click.IntRange(0),
    default=0,
    help="Requeue this many first, and the others only if those do not die again. Something must consume the queue.",
)
@click.option(
    "--stop-when-failing",
    type=click.FloatRange(0, 100, min_open=True),
    default=10.0,
    show_default=True,
    help="Percentage of the canary that must die again for the run to stop.",
)
@click.option(
    "--canary-wait",
    type=duration,
    default="10m",
    show_default=True,
    help="How long the canary may take; the run stops if it is not finished by then.",
)
@click.option(
    "--delay", type=duration, default="0", help="Keep requeued messages from being leased for this long: 90s, 10m, 2h."
)
@click.option("--dry-run", is_flag=True, help="Call the function, print what would be done and change nothing.")
@click.option(
    "--run-id",
    help="Name of the run, kept in the archive. A run that is started again under its name continues. "
    "Default: a new name.",
)
@with_settings
def repair(
    settings: Settings,
    /,
    queue: str | None,
    function: str,
    validator: str | None,
    results: Sequence[str],
    max_requeues: int | None,
    run_id: str | None,
    **given: Any,
) -> int:
    """Repair dead messages with a Python function.

    MODULE is searched for in the current directory first. The function gets a dead message (id, body, failure, result,
    reference, attempts, …) and returns a new body to publish, or KEEP, LEAVE or Dismiss(reason) of
    airflow_provider_pgqueue.core. If it raises, that message stays dead and the run continues with the others. The exit
    status is 1 if the run stopped early. On SIGTERM and Ctrl-C the command finishes the current message and ends.
    """
    log_to_stderr()
    if queue is None and given["cause"] is None:
        raise click.UsageError("name a QUEUE or a --cause.")
    if run_id is not None:
        given["run_id"] = run_id
    wanted = Repair(
        function=load(function, "a dead message", settings),
        validator=load(validator, "a body", settings) if validator and not validator.endswith(".json") else validator,
        which=DeadFilter(queue, results=results or None, max_requeues=max_requeues),
        **given,
    )
    with connected(settings) as conn, stop_on_signals() as told_to_stop:
        summary = wanted.run(conn, stop=told_to_stop)
    say = show if wanted.dry_run else show_done
    say(settings, {"run_id": wanted.run_id, **summary}, _text(wanted, summary))
    return int(summary["stopped"] is not None)


def _text(wanted: Repair, summary: dict[str, Any]) -> str:
    """Return the counts as a sentence: `went through 3 dead messages: 2 requeued, 1 left (run …).`"""
    outcomes = {name: number for name, number in summary.items() if type(number) is int and number}
    verb = "would go through" if wanted.dry_run else "went through"
    counts = ", ".join(f"{number:,} {name}" for name, number in outcomes.items())
    text = f"{verb} {quantity(sum(outcomes.values()), 'dead message')}{': ' if counts else ''}{counts}"
    stopped = f"; stopped: {summary['stopped']}" if summary["stopped"] else ""
    return f"{text}{stopped} (run {wanted.run_id})."
