"""Dead messages: why they died, and what is decided about them."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta

import click

from airflow_provider_pgqueue.cli.confirmation import confirm, yes_option
from airflow_provider_pgqueue.cli.connection import Connection, connected
from airflow_provider_pgqueue.cli.duration import duration
from airflow_provider_pgqueue.cli.output import count, records, show, show_rows
from airflow_provider_pgqueue.cli.settings import Settings, pass_settings, shared_options
from airflow_provider_pgqueue.core import verbs
from airflow_provider_pgqueue.core.client import run
from airflow_provider_pgqueue.core.connection import process_name

_RESULTS = click.Choice(["failed", "rejected", "lock_expired", "expired"])
_CAUSE = ("queue_name", "result", "waiting", "first_at", "last_at", "newest_id", "example")
_LEASE_FOR = timedelta(minutes=5)


@click.command()
@click.argument("queue", required=False)
@shared_options
@pass_settings
def dead(settings: Settings, queue: str | None) -> None:
    """Count dead messages by cause.

    Those about which nothing was decided yet, with an example of each cause.
    """
    with connected(settings) as conn:
        causes = run(conn, verbs.dead_causes(queue))
    show_rows(settings, "causes", records(causes), _CAUSE)


@click.command()
@click.argument("queue")
@click.option("--result", "results", multiple=True, type=_RESULTS, help="Only these; default: failed, lock_expired.")
@click.option(
    "--max", "max_messages", type=click.IntRange(1), default=1000, show_default=True, help="How many at most."
)
@click.option("--max-requeues", type=click.IntRange(1), help="Leave those that were requeued so often before.")
@click.option("--delay", type=duration, default="0", help="Not leased before: 90s, 10m, 2h, 1d.")
@click.option("--dry-run", is_flag=True, help="Only count.")
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

    Each gets a new id; the archive keeps the old one and names the new one.
    """
    wanted = results or ("failed", "lock_expired")
    with connected(settings) as conn:
        waiting = _waiting(conn, queue, wanted)
        if dry_run:
            would = min(sum(waiting.values()), max_messages)
            found = {"queue_name": queue, "would_requeue": would, "waiting": waiting}
            show(settings, found, f"would requeue up to {count(would)} of {queue}: {_by_result(waiting)}.")
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
        f"requeued {count(len(done))} of {queue}.",
    )


@click.command()
@click.argument("queue")
@click.option("--reason", required=True, help="Kept in the archive.")
@click.option("--result", "results", multiple=True, type=_RESULTS, help="Only these; default: all.")
@click.option(
    "--max", "max_messages", type=click.IntRange(1), default=1000, show_default=True, help="How many at most."
)
@yes_option
@shared_options
@pass_settings
def dismiss(
    settings: Settings, queue: str, reason: str, results: tuple[str, ...], max_messages: int, yes: bool
) -> None:
    """Decide that nothing more is done about dead messages.

    They stay in the archive with the reason.
    """
    wanted = results or tuple(_RESULTS.choices)
    done: list[int] = []
    with connected(settings) as conn:
        waiting = _waiting(conn, queue, wanted)
        number = min(sum(waiting.values()), max_messages)
        confirm(f"Dismiss {count(number)} of {queue}: {_by_result(waiting)}?", yes=yes)
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
        f"dismissed {count(len(done))} of {queue}.",
    )


def _waiting(conn: Connection, queue: str, results: tuple[str, ...]) -> Counter[str]:
    run(conn, verbs.status(queue))  # an unknown queue is an error
    found = run(conn, verbs.dead_queues([queue]))
    return Counter({one.result: one.waiting for one in found if one.result in results})


def _by_result(waiting: Counter[str]) -> str:
    return ", ".join(f"{number:,} {result}" for result, number in waiting.items()) or "none waits"
