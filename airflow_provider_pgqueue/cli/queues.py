"""The queues and their policy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

import click
from psycopg.rows import dict_row

from airflow_provider_pgqueue.cli.confirmation import confirm, yes_option
from airflow_provider_pgqueue.cli.connection import connected, status_for
from airflow_provider_pgqueue.cli.duration import duration
from airflow_provider_pgqueue.cli.lines import json_object
from airflow_provider_pgqueue.cli.output import show_done, show_rows
from airflow_provider_pgqueue.cli.settings import Settings, pass_settings, shared_options
from airflow_provider_pgqueue.cli.suggestion import SuggestingGroup
from airflow_provider_pgqueue.core import verbs
from airflow_provider_pgqueue.core.client import run
from airflow_provider_pgqueue.core.quantity import quantity
from airflow_provider_pgqueue.core.query import query

F = TypeVar("F", bound=Callable[..., Any])
_SHOWN = ("queue_name", "paused", "max_attempts", "lease_for", "notify", "max_depth", "max_leased", "retention")
_POLICY = (
    click.option("--max-attempts", type=int, help="Number of deliveries after which a message is dead."),
    click.option("--lease-for", type=duration, help="Length of a lease if the consumer names none."),
    click.option(
        "--notify",
        type=click.Choice(["always", "gated", "off"]),
        help="Whether a publish notifies consumers. always; gated: of several simultaneous publishes only one does; "
        "off: none does, and they poll.",
    ),
    click.option("--max-body-bytes", type=int, help="Size of the largest body that is accepted."),
    click.option(
        "--fair-by",
        type=click.Choice(["group", "topic", ""]),
        help="Let keys take turns, so that none waits for the backlog of another: the key of a message is its group, "
        "or the first word of its topic. An empty text ends the turns.",
    ),
    click.option(
        "--weights",
        type=json_object,
        metavar="JSON",
        help="How many messages each key gets in a turn: '{\"gold\": 3}'; {} for one of each.",
    ),
    click.option("--paused/--not-paused", default=None, help="Whether leasing is stopped; publishing continues."),
    click.option(
        "--backoff-first", type=duration, help="Pause before the second attempt; it doubles after each further one."
    ),
    click.option("--backoff-max", type=duration, help="Longest pause between two attempts."),
    click.option("--retention", type=duration, help="How long the archive keeps messages; 0 keeps them forever."),
    click.option(
        "--max-depth",
        type=int,
        help="How many unfinished messages the queue takes; publishing more fails. 0 for no limit.",
    ),
    click.option("--max-leased", type=int, help="How many messages may be leased at the same time; 0 for no limit."),
    click.option(
        "--max-leased-per-group",
        type=int,
        help="How many messages of one group may be leased at the same time; only 1 keeps their order.",
    ),
    click.option(
        "--rate-limit",
        type=int,
        help="How many messages may be leased in a --rate-period, evenly spread; 0 for no limit.",
    ),
    click.option("--rate-period", type=duration, help="The period of --rate-limit."),
    click.option("--rate-burst", type=int, help="How many messages may be leased at once after a pause."),
    click.option(
        "--handler-timeout",
        type=duration,
        help="How long a function may take for a message before its lease is no longer renewed; 0 for no limit.",
    ),
    click.option(
        "--on-dead-head",
        type=click.Choice(["block", "skip"]),
        help="Whether a dead message holds back the rest of its group, or is skipped.",
    ),
    click.option(
        "--break-after",
        type=int,
        help="After how many failed attempts in a row with one cause the queue stops itself; 0 for never.",
    ),
    click.option("--dedup-window", type=duration, help="How long a deduplication key is remembered."),
)


# Of `messages.create_queue`, which fills in what is not given.
_DEFAULTS: Final = {
    "max_attempts": "5",
    "lease_for": "5m",
    "notify": "always",
    "max_body_bytes": "1048576",
    "fair_by": "no turns",
    "weights": "1 for each key",
    "paused": "not paused",
    "backoff_first": "1s",
    "backoff_max": "5m",
    "retention": "forever",
    "max_depth": "no limit",
    "max_leased": "no limit",
    "max_leased_per_group": "1",
    "rate_limit": "no limit",
    "rate_period": "1s",
    "rate_burst": "1",
    "handler_timeout": "no limit",
    "on_dead_head": "block",
    "break_after": "no limit",
    "dedup_window": "1d",
}


def _policy_options(command: F) -> F:
    for option in reversed(_POLICY):
        command = option(command)
    return command


def _show_defaults(command: click.Command) -> click.Command:
    for option in command.params:
        if isinstance(option, click.Option) and option.name in _DEFAULTS:
            option.help = f"{option.help} [default: {_DEFAULTS[option.name]}]"
    return command


@click.group(cls=SuggestingGroup, invoke_without_command=True)
@shared_options
@click.pass_context
@pass_settings
def queues(settings: Settings, context: click.Context) -> None:
    """List the queues and their policies; create, alter, drop, pause or resume one."""
    if context.invoked_subcommand is not None:
        return
    with connected(settings) as conn, conn.cursor(row_factory=dict_row, binary=True) as cursor:
        rows = cursor.execute(query("command/queues")).fetchall()
    show_rows(settings, "queues", rows, _SHOWN)


@_show_defaults
@queues.command()
@click.argument("name")
@_policy_options
@shared_options
@pass_settings
def create(settings: Settings, /, name: str, **policy: Any) -> None:
    """Create a queue; a queue that exists is not changed."""
    with connected(settings) as conn:
        created = run(conn, verbs.create_queue(name, **_given(policy)))
    there = f"queue {name} already exists; its policy was not changed. Change it: pgqueue queues alter {name}"
    text = f"created queue {name}." if created else there
    show_done(settings, {"queue_name": name, "created": created}, text)


@queues.command()
@click.argument("name")
@_policy_options
@shared_options
@pass_settings
def alter(settings: Settings, /, name: str, **policy: Any) -> None:
    """Change the policy of a queue, even for the messages already in it."""
    changed = _given(policy)
    if not changed:
        raise click.UsageError("name at least one option to change.")
    with connected(settings) as conn:
        run(conn, verbs.alter_queue(name, **changed))
    show_done(settings, {"queue_name": name, "changed": changed}, f"changed {', '.join(changed)} of queue {name}.")


@queues.command()
@click.argument("name")
@click.option("--force", is_flag=True, help="Drop the queue even if it has unfinished messages, which are deleted.")
@yes_option
@shared_options
@pass_settings
def drop(settings: Settings, name: str, force: bool, yes: bool) -> None:
    """Remove a queue; its finished messages stay in the archive."""
    with connected(settings) as conn:
        found = status_for(conn, name, "drop_queue")
        unfinished = quantity(found.seen("depth"), "unfinished message")
        confirm(f"Drop queue {name}, with {unfinished}?", yes=yes)
        deleted = run(conn, verbs.drop_queue(name, force=force))
    show_done(
        settings,
        {"queue_name": name, "messages_deleted": deleted},
        f"dropped queue {name} and deleted {quantity(deleted)}.",
    )


@queues.command()
@click.argument("name")
@shared_options
@pass_settings
def pause(settings: Settings, name: str) -> None:
    """Stop leasing from a queue; publishing continues."""
    with connected(settings) as conn:
        run(conn, verbs.pause_queue(name))
    show_done(settings, {"queue_name": name, "paused": True}, f"paused queue {name}.")


@queues.command()
@click.argument("name")
@shared_options
@pass_settings
def resume(settings: Settings, name: str) -> None:
    """Allow leasing from a paused queue again."""
    with connected(settings) as conn:
        run(conn, verbs.resume_queue(name))
    show_done(settings, {"queue_name": name, "paused": False}, f"resumed queue {name}.")


def _given(policy: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in policy.items() if value is not None}
