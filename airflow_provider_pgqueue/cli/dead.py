"""Dead messages: why they died, and their remedies."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta

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

_RESULTS = click.Choice(["failed", "rejected", "lock_expired", "expired"])
_CAUSE = ("queue_name", "result", "waiting", "first_at", "last_at", "newest_id", "example")
_LEASE_FOR = timedelta(minutes=5)
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
    show_rows(settings, "causes", records(causes), _CAUSE)


@click.command()
@click.argument("queue")
@click.option(
    "--result",
    "results",
    multiple=True,
    type=_RESULTS,
    help="Requeue only messages with this result; can be repeated. Default: failed and lock_expired.",
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
    queue: str,
    results: tuple[str, ...],
    max_messages: int,
    max_requeues: int | None,
    delay: timedelta,
    dry_run: bool,
) -> None:
    """Publish dead messages again.

    Each message gets a new id. The archive keeps the dead one, with a pointer to the new id.
    """
    wanted = results or ("failed", "lock_expired")
    with connected(settings) as conn:
        waiting = _waiting(conn, queue, wanted)
        if dry_run:
            ids = verbs.dead_ids(queue, results=wanted, max_messages=max_messages, max_requeues=max_requeues)
            would = len(run(conn, ids))
            found = {"queue_name": queue, "would_requeue": would, "waiting": waiting}
            show(settings, found, f"would requeue up to {quantity(would)} of {queue}: {_by_result(waiting)}.")
            return
        statement = verbs.requeue_dead(
            queue,
            max_messages=max_messages,
            results=wanted,
            max_requeues=max_requeues,
            delay=delay,
            remedied_by=f"pgqueue {process_name()}",
        )
        requeued = run(conn, statement)
    done = records(requeued)
    show(
        settings,
        {"queue_name": queue, "requeued": len(done), "messages": done},
        f"requeued {quantity(len(done))} of {queue}.",
    )


@click.command()
@click.argument("queue")
@click.option("--reason", required=True, help="Why; kept in the archive.")
@click.option(
    "--result",
    "results",
    multiple=True,
    type=_RESULTS,
    help="Dismiss only messages with this result; can be repeated. Default: all.",
)
@_max_option
@yes_option
@shared_options
@pass_settings
def dismiss(
    settings: Settings, queue: str, reason: str, results: tuple[str, ...], max_messages: int, yes: bool
) -> None:
    """Dismiss dead messages: nothing more is done about them.

    They stay in the archive with the reason, and are no longer listed as dead.
    """
    wanted = results or tuple(_RESULTS.choices)
    done: list[int] = []
    with connected(settings) as conn:
        waiting = _waiting(conn, queue, wanted)
        number = min(sum(waiting.values()), max_messages)
        confirm(f"Dismiss {quantity(number)} of {queue}: {_by_result(waiting)}?", yes=yes)
        who = f"pgqueue {process_name()}"
        leased = run(
            conn,
            verbs.lease_dead(queue, max_messages=max_messages, lease_for=_LEASE_FOR, locked_by=who, results=wanted),
        )
        if leased:
            ids = [message.id for message in leased]
            done = run(conn, verbs.dismiss(leased[0].lock_token, ids, reason, remedied_by=who))
    show(
        settings,
        {"queue_name": queue, "dismissed": len(done), "ids": done},
        f"dismissed {quantity(len(done))} of {queue}.",
    )


def _waiting(conn: Connection, queue: str, results: tuple[str, ...]) -> Counter[str]:
    run(conn, verbs.status(queue))  # an unknown queue is an error
    found = run(conn, verbs.dead_queues([queue]))
    return Counter({one.result: one.waiting for one in found if one.result in results})


def _by_result(waiting: Counter[str]) -> str:
    return ", ".join(f"{number:,} {result}" for result, number in waiting.items()) or "none are waiting without a lease"
