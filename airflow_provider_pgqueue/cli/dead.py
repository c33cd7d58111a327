"""Dead messages: why they died, and their remedies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

import click

from airflow_provider_pgqueue.cli.confirmation import confirm, yes_option
from airflow_provider_pgqueue.cli.connection import Connection, connected
from airflow_provider_pgqueue.cli.duration import duration
from airflow_provider_pgqueue.cli.output import records, show, show_rows
from airflow_provider_pgqueue.cli.settings import Settings, pass_settings, shared_options
from airflow_provider_pgqueue.core import verbs
from airflow_provider_pgqueue.core.client import run
from airflow_provider_pgqueue.core.connection import process_name
from airflow_provider_pgqueue.core.quantity import quantity

F = TypeVar("F", bound=Callable[..., Any])
_RESULTS = click.Choice(["failed", "rejected", "lock_expired", "expired"])
_CAUSE = ("queue_name", "result", "waiting", "first_at", "last_at", "newest_id", "example")
_max_option = click.option(
    "--max",
    "max_messages",
    type=click.IntRange(1),
    default=1000,
    show_default=True,
    help="Handle at most this many messages; run it again for the rest.",
)


@click.command()
@click.argument("queue", required=False)
@shared_options
@pass_settings
def dead(settings: Settings, queue: str | None) -> None:
    """Count dead messages by cause.

    A message is dead if it was archived with any result but success. Those that were requeued or dismissed are left
    out. Each cause comes with an example.
    """
    with connected(settings) as conn:
        causes = run(conn, verbs.dead_causes(queue))
        if queue is not None and not causes:
            run(conn, verbs.status(queue))  # an unknown queue is an error; one that was dropped may still have dead
    show_rows(settings, "causes", records(causes), _CAUSE)


_which_options = (
    click.option(
        "--id", "ids", multiple=True, type=click.IntRange(1, 2**63 - 1), help="Only this message; can be repeated."
    ),
    click.option("--cause", help="Only messages of this cause: the fingerprint that `pgqueue causes` prints."),
)


def _which(command: F) -> F:
    for option in reversed(_which_options):
        command = option(command)
    return command


@click.command()
@click.argument("queue", required=False)
@_which
@click.option(
    "--result",
    "results",
    multiple=True,
    type=_RESULTS,
    help="Only messages with this result; can be repeated. Default: failed, lock_expired; with --id or --cause, all.",
)
@_max_option
@click.option("--max-requeues", type=click.IntRange(1), help="Leave out messages that were requeued this many times.")
@click.option(
    "--delay", type=duration, default="0", help="Keep the messages from being leased for this long: 90s, 10m, 2h, 1d."
)
@click.option("--dry-run", is_flag=True, help="Count the messages and change nothing.")
@shared_options
@pass_settings
def requeue(
    settings: Settings,
    queue: str | None,
    ids: tuple[int, ...],
    cause: str | None,
    results: tuple[str, ...],
    max_messages: int,
    max_requeues: int | None,
    delay: timedelta,
    dry_run: bool,
) -> None:
    """Publish dead messages again.

    Name a queue, a cause (--cause) or single messages (--id). Each message gets a new id. The archive keeps the dead
    one, with the new id.
    """
    named = _named(queue, ids, cause)
    wanted = results or (() if ids or cause else ("failed", "lock_expired"))
    with connected(settings) as conn:
        waiting = _waiting(conn, queue, ids, cause, wanted)
        if dry_run:
            chosen = verbs.dead_ids(
                queue,
                results=wanted or None,
                fingerprints=None if cause is None else [cause],
                ids=ids or None,
                max_messages=max_messages,
                max_requeues=max_requeues,
            )
            would = len(run(conn, chosen))
            found = {"queue_name": queue, "would_requeue": would, "waiting": waiting}
            show(settings, found, f"would requeue up to {quantity(would)} of {named}: {_by_result(waiting)}.")
            return
        statement = verbs.requeue_dead(
            queue,
            max_messages=max_messages,
            results=wanted or None,
            fingerprint=cause,
            ids=ids or None,
            max_requeues=max_requeues,
            delay=delay,
            remedied_by=f"pgqueue {process_name()}",
        )
        requeued = run(conn, statement)
    done = records(requeued)
    show(
        settings,
        {"queue_name": queue, "requeued": len(done), "messages": done},
        f"requeued {quantity(len(done))} of {named}.",
    )


@click.command()
@click.argument("queue", required=False)
@_which
@click.option("--reason", required=True, help="The reason, which is kept in the archive.")
@click.option(
    "--result",
    "results",
    multiple=True,
    type=_RESULTS,
    help="Dismiss only messages with this result; can be repeated. Default: all.",
)
@_max_option
@click.option("--dry-run", is_flag=True, help="Count the messages and change nothing.")
@yes_option
@shared_options
@pass_settings
def dismiss(
    settings: Settings,
    queue: str | None,
    ids: tuple[int, ...],
    cause: str | None,
    reason: str,
    results: tuple[str, ...],
    max_messages: int,
    dry_run: bool,
    yes: bool,
) -> None:
    """Dismiss dead messages: nothing more is done about them.

    They stay in the archive with the reason, and are no longer listed as dead.
    """
    named = _named(queue, ids, cause)
    with connected(settings) as conn:
        waiting = _waiting(conn, queue, ids, cause, results)
        number = min(sum(waiting.values()), max_messages)
        if dry_run:
            found = {"queue_name": queue, "would_dismiss": number, "waiting": waiting}
            show(settings, found, f"would dismiss up to {quantity(number)} of {named}: {_by_result(waiting)}.")
            return
        confirm(f"Dismiss {quantity(number)} of {named}: {_by_result(waiting)}?", yes=yes)
        statement = verbs.dismiss_dead(
            queue,
            reason,
            max_messages=max_messages,
            results=results or None,
            fingerprint=cause,
            ids=ids or None,
            remedied_by=f"pgqueue {process_name()}",
        )
        done = run(conn, statement)
    show(
        settings,
        {"queue_name": queue, "dismissed": len(done), "ids": done},
        f"dismissed {quantity(len(done))} of {named}.",
    )


def _named(queue: str | None, ids: tuple[int, ...], cause: str | None) -> str:
    """Return what was asked for, as people say it; refuse to take everything because nothing was said."""
    if queue is None and not ids and cause is None:
        raise click.UsageError("name a queue, or messages with --id, or a cause with --cause.")
    return queue or (f"cause {cause}" if cause else "those that were named")


def _waiting(
    conn: Connection, queue: str | None, ids: tuple[int, ...], cause: str | None, results: tuple[str, ...]
) -> Counter[str]:
    """Count the dead messages by result; those of a whole queue without the ones that somebody holds."""
    wanted = results or _RESULTS.choices
    if queue is not None:
        run(conn, verbs.status(queue))  # an unknown queue is an error
        if not ids and cause is None:
            found = run(conn, verbs.dead_queues([queue]))
            return Counter({one.result: one.waiting for one in found if one.result in wanted})
    causes = None if cause is None else [cause]
    numbers = {
        result: len(run(conn, verbs.dead_ids(queue, results=[result], fingerprints=causes, ids=ids or None)))
        for result in wanted
    }
    return Counter({result: number for result, number in numbers.items() if number})


def _by_result(waiting: Counter[str]) -> str:
    return ", ".join(f"{number:,} {result}" for result, number in waiting.items()) or "none are waiting without a lease"
