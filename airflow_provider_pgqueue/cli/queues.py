"""The queues and their policy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

import click
from psycopg.rows import dict_row

from airflow_provider_pgqueue.cli.connection import ask, connected, status_for
from airflow_provider_pgqueue.cli.json_lines import json_object
from airflow_provider_pgqueue.cli.options import confirm, duration, yes_option
from airflow_provider_pgqueue.cli.output import show_done, show_rows
from airflow_provider_pgqueue.cli.settings import Settings, with_settings
from airflow_provider_pgqueue.cli.suggestion import SuggestingGroup
from airflow_provider_pgqueue.core import verbs
from airflow_provider_pgqueue.core.client import run
from airflow_provider_pgqueue.core.quantity import quantity
from airflow_provider_pgqueue.core.query import query

F = TypeVar("F", bound=Callable[..., Any])
_SHOWN = ("queue_name", "paused", "max_attempts", "lease_for", "notify", "max_depth", "max_leased", "retention")
# Of each option of the policy: its type, the default of `messages.create_queue`, which fills in what is not given, and
# the help.
_POLICY: Final[dict[str, tuple[Any, str, str]]] = {
    "--max-attempts": (int, "5", "Number of deliveries after which a message is dead."),
    "--lease-for": (duration, "5m", "Length of a lease if the consumer names none."),
    "--notify": (
        click.Choice(["always", "gated", "off"]),
        "always",
        "Whether a publish notifies consumers. always; gated: of several simultaneous publishes only one does; "
        "off: none does, and they poll.",
    ),
    "--max-body-bytes": (int, "1048576", "Size of the largest body that is accepted."),
    "--fair-by": (
        click.Choice(["group", "topic", ""]),
        "no turns",
        "Let keys take turns, so that none waits for the backlog of another: the key of a message is its group, "
        "or the first word of its topic. An empty text ends the turns.",
    ),
    "--weights": (
        json_object,
        "1 for each key",
        "How many messages each key gets in a turn: '{\"gold\": 3}'; {} for one of each.",
    ),
    "--paused/--not-paused": (None, "not paused", "Whether leasing is stopped; publishing continues."),
    "--backoff-first": (duration, "1s", "Pause before the second attempt; it doubles after each further one."),
    "--backoff-max": (duration, "5m", "Longest pause between two attempts."),
    "--retention": (duration, "forever", "How long the archive keeps messages; 0 keeps them forever."),
    "--max-depth": (
        int,
        "no limit",
        "How many unfinished messages the queue takes; publishing more fails. 0 for no limit.",
    ),
    "--max-leased": (int, "no limit", "How many messages may be leased at the same time; 0 for no limit."),
    "--max-leased-per-group": (
        int,
        "1",
        "How many messages of one group may be leased at the same time; only 1 keeps their order.",
    ),
    "--rate-limit": (
        int,
        "no limit",
        "How many messages may be leased in a --rate-period, evenly spread; 0 for no limit.",
    ),
    "--rate-period": (duration, "1s", "The period of --rate-limit."),
    "--rate-burst": (int, "1", "How many messages may be leased at once after a pause."),
    "--handler-timeout": (
        duration,
        "no limit",
        "How long a function may take for a message before its lease is no longer renewed; 0 for no limit.",
    ),
    "--on-dead-head": (
        click.Choice(["block", "skip"]),
        "block",
        "Whether a dead message holds back the rest of its group, or is skipped.",
    ),
    "--break-after": (
        int,
        "no limit",
        "After how many failed attempts in a row with one cause the queue stops itself; 0 for never.",
    ),
    "--dedup-window": (duration, "1d", "How long a deduplication key is remembered."),
}


def _policy_options(*, with_defaults: bool = False) -> Callable[[F], F]:
    """Return what adds the options of the policy to a command; the help has their defaults if they are taken."""

    def add(command: F) -> F:
        for name, (kind, default, help_) in reversed(_POLICY.items()):
            help_ = f"{help_} [default: {default}]" if with_defaults else help_
            metavar = "JSON" if kind is json_object else None
            command = click.option(name, type=kind, default=None, metavar=metavar, help=help_)(command)
        return command

    return add


@click.group(cls=SuggestingGroup, invoke_without_command=True)
@with_settings
@click.pass_context
def queues(context: click.Context, settings: Settings) -> None:
    """List the queues and their policies; create, alter, drop, pause or resume one."""
    if context.invoked_subcommand is not None:
        return
    with connected(settings) as conn, conn.cursor(row_factory=dict_row, binary=True) as cursor:
        rows = cursor.execute(query("command/queues")).fetchall()
    show_rows(settings, "queues", rows, _SHOWN)


@queues.command()
@click.argument("name")
@_policy_options(with_defaults=True)
@with_settings
def create(settings: Settings, /, name: str, **policy: Any) -> None:
    """Create a queue; a queue that exists is not changed."""
    created = ask(settings, verbs.create_queue(name, **_given(policy)))
    there = f"queue {name} already exists; its policy was not changed. Change it: pgqueue queues alter {name}"
    text = f"created queue {name}." if created else there
    show_done(settings, {"queue_name": name, "created": created}, text)


@queues.command()
@click.argument("name")
@_policy_options()
@with_settings
def alter(settings: Settings, /, name: str, **policy: Any) -> None:
    """Change the policy of a queue, even for the messages already in it."""
    changed = _given(policy)
    if not changed:
        raise click.UsageError("name at least one option to change.")
    ask(settings, verbs.alter_queue(name, **changed))
    show_done(settings, {"queue_name": name, "changed": changed}, f"changed {', '.join(changed)} of queue {name}.")


@queues.command()
@click.argument("name")
@click.option("--force", is_flag=True, help="Drop the queue even if it has unfinished messages, which are deleted.")
@yes_option
@with_settings
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
@with_settings
def pause(settings: Settings, name: str) -> None:
    """Stop leasing from a queue; publishing continues."""
    ask(settings, verbs.pause_queue(name))
    show_done(settings, {"queue_name": name, "paused": True}, f"paused queue {name}.")


@queues.command()
@click.argument("name")
@with_settings
def resume(settings: Settings, name: str) -> None:
    """Allow leasing from a paused queue again."""
    ask(settings, verbs.resume_queue(name))
    show_done(settings, {"queue_name": name, "paused": False}, f"resumed queue {name}.")


def _given(policy: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in policy.items() if value is not None}
