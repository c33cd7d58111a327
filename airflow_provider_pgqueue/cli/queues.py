"""The queues and their policy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click
from psycopg.rows import dict_row

from airflow_provider_pgqueue.cli.confirmation import confirm, yes_option
from airflow_provider_pgqueue.cli.connection import connected
from airflow_provider_pgqueue.cli.duration import duration
from airflow_provider_pgqueue.cli.output import count, show, show_rows
from airflow_provider_pgqueue.cli.settings import Settings, pass_settings, shared_options
from airflow_provider_pgqueue.core import verbs
from airflow_provider_pgqueue.core.client import run

F = TypeVar("F", bound=Callable[..., Any])
_SHOWN = ("queue_name", "paused", "max_attempts", "lease_for", "notify", "max_depth", "max_leased", "retention")
_POLICY = (
    click.option("--max-attempts", type=int, help="Deliveries before a message is dead."),
    click.option("--lease-for", type=duration, help="How long a lease lasts when the consumer does not say."),
    click.option("--notify", type=click.Choice(["always", "gated", "off"]), help="Who rings."),
    click.option("--max-body-bytes", type=int, help="Largest body."),
    click.option("--paused/--not-paused", default=None, help="Let nothing be leased."),
    click.option("--backoff-first", type=duration, help="Pause before the second attempt; it doubles from there."),
    click.option("--backoff-max", type=duration, help="Longest pause between attempts."),
    click.option("--retention", type=duration, help="How long the archive keeps them; 0 for ever."),
    click.option("--max-depth", type=int, help="Unfinished messages; more are refused; 0 for any."),
    click.option("--max-leased", type=int, help="Messages leased at once; 0 for any."),
    click.option("--on-dead-head", type=click.Choice(["block", "skip"]), help="What a dead message does to its group."),
    click.option("--dedup-window", type=duration, help="How long a dedup key is remembered."),
)


def _policy_options(command: F) -> F:
    for option in reversed(_POLICY):
        command = option(command)
    return command


@click.group(invoke_without_command=True)
@shared_options
@click.pass_context
@pass_settings
def queues(settings: Settings, context: click.Context) -> None:
    """List the queues and their policy; create, alter, drop, pause, resume."""
    if context.invoked_subcommand is not None:
        return
    with connected(settings) as conn, conn.cursor(row_factory=dict_row) as cursor:
        rows = cursor.execute("SELECT * FROM messages.queue ORDER BY queue_name").fetchall()
    show_rows(settings, "queues", rows, _SHOWN)


@queues.command()
@click.argument("name")
@_policy_options
@shared_options
@pass_settings
def create(settings: Settings, /, name: str, **policy: Any) -> None:
    """Create a queue; change nothing if it exists."""
    with connected(settings) as conn:
        created = run(conn, verbs.create_queue(name, **_given(policy)))
    text = f"created queue {name}." if created else f"queue {name} exists; its policy was not changed (queues alter)."
    show(settings, {"queue_name": name, "created": created}, text)


@queues.command()
@click.argument("name")
@_policy_options
@shared_options
@pass_settings
def alter(settings: Settings, /, name: str, **policy: Any) -> None:
    """Change the policy of a queue, for waiting messages too."""
    changed = _given(policy)
    if not changed:
        raise click.UsageError("name at least one option to change.")
    with connected(settings) as conn:
        run(conn, verbs.alter_queue(name, **changed))
    show(settings, {"queue_name": name, "changed": changed}, f"changed {', '.join(changed)} of queue {name}.")


@queues.command()
@click.argument("name")
@click.option("--force", is_flag=True, help="Also if it has messages that are not finished; they are deleted.")
@yes_option
@shared_options
@pass_settings
def drop(settings: Settings, name: str, force: bool, yes: bool) -> None:
    """Remove a queue; the archive keeps what was finished."""
    with connected(settings) as conn:
        (found,) = run(conn, verbs.status(name))
        confirm(f"Drop queue {name}, with {count(found.depth)} that are not finished?", yes=yes)
        deleted = run(conn, verbs.drop_queue(name, force=force))
    show(
        settings,
        {"queue_name": name, "messages_deleted": deleted},
        f"dropped queue {name} and deleted {count(deleted)}.",
    )


@queues.command()
@click.argument("name")
@shared_options
@pass_settings
def pause(settings: Settings, name: str) -> None:
    """Let nothing be leased from a queue; publishing goes on."""
    with connected(settings) as conn:
        run(conn, verbs.pause_queue(name))
    show(settings, {"queue_name": name, "paused": True}, f"paused queue {name}.")


@queues.command()
@click.argument("name")
@shared_options
@pass_settings
def resume(settings: Settings, name: str) -> None:
    """Let messages be leased again from a paused queue."""
    with connected(settings) as conn:
        run(conn, verbs.resume_queue(name))
    show(settings, {"queue_name": name, "paused": False}, f"resumed queue {name}.")


def _given(policy: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in policy.items() if value is not None}
