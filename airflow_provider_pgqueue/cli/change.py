"""Changes messages that wait."""

from __future__ import annotations

from datetime import timedelta

import click

from airflow_provider_pgqueue.cli.connection import connected
from airflow_provider_pgqueue.cli.duration import duration
from airflow_provider_pgqueue.cli.lines import parse, refuse_huge_numbers
from airflow_provider_pgqueue.cli.output import show_done
from airflow_provider_pgqueue.cli.settings import Settings, pass_settings, shared_options
from airflow_provider_pgqueue.core import verbs
from airflow_provider_pgqueue.core.client import JsonText, run
from airflow_provider_pgqueue.core.quantity import quantity


@click.command()
@click.argument("queue")
@click.argument("ids", metavar="ID...", type=click.IntRange(1), nargs=-1, required=True)
@click.option("--priority", type=click.IntRange(0, 9), help="Messages of a higher priority are leased first.")
@click.option("--delay", type=duration, help="Keep them from being leased for this long: 90s, 10m, 2h; 0 ends a delay.")
@click.option("--body", help="The new body of each, as JSON.")
@shared_options
@pass_settings
def change(
    settings: Settings,
    queue: str,
    ids: tuple[int, ...],
    priority: int | None,
    delay: timedelta | None,
    body: str | None,
) -> None:
    """Change priority, time or body of messages while they wait.

    What is not given stays as it is. What somebody works on, and what is finished, is left alone.
    """
    to: verbs.Change = {"priority": priority, "delay": delay}
    if body is not None:
        line = parse(body, "--body")
        refuse_huge_numbers([line])
        to["body"] = JsonText(line.text)
    if all(value is None for value in to.values()):
        raise click.UsageError("give --priority, --delay or --body.")
    with connected(settings) as conn:
        done = run(conn, verbs.change(queue, ids, **to))
    left = [id for id in ids if id not in done]
    say = f"changed {quantity(len(done))} of {queue}."
    if left:
        say += f" Leased or finished: {', '.join(map(str, left))}."
    show_done(settings, {"queue_name": queue, "changed": done, "left_out": left}, say)
