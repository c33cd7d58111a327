"""The queues and their policy."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import Any, Final, TypeVar

import click
from psycopg.rows import dict_row

from airflow_provider_pgqueue.cli.connection import ask, connected, status_for
from airflow_provider_pgqueue.cli.options import confirm, duration, yes_option
from airflow_provider_pgqueue.cli.output import show_done, show_rows
from airflow_provider_pgqueue.cli.settings import Settings, with_settings
from airflow_provider_pgqueue.cli.suggestion import SuggestingGroup
from airflow_provider_pgqueue.core import verbs
from airflow_provider_pgqueue.core.client import run
from airflow_provider_pgqueue.core.migrations import scripts
from airflow_provider_pgqueue.core.quantity import quantity
from airflow_provider_pgqueue.core.query import query

F = TypeVar("F", bound=Callable[..., Any])
_SHOWN = ("queue_name", "paused", "max_attempts", "lease_for", "notify", "max_leased", "retention")
# For each option of the policy, its type and the default of `messages.create_queue`, which applies if it is not given.
_POLICY: Final[dict[str, tuple[Any, str]]] = {
    "--max-attempts": (int, "15"),
    "--lease-for": (duration, "5m"),
    "--notify": (click.Choice(["always", "gated", "off"]), "always"),
    "--max-body-bytes": (int, "1048576"),
    "--fair-by": (click.Choice(["group", "topic", ""]), "no turns"),
    "--paused/--not-paused": (None, "not paused"),
    "--backoff-first": (duration, "1s"),
    "--backoff-max": (duration, "1h"),
    "--retention": (duration, "forever"),
    "--max-leased": (int, "no limit"),
    "--max-leased-per-group": (int, "1"),
    "--rate-limit": (int, "no limit"),
    "--rate-period": (duration, "1s"),
    "--rate-burst": (int, "1"),
    "--handler-timeout": (duration, "no limit"),
    "--on-dead-head": (click.Choice(["block", "skip"]), "block"),
    "--dedup-window": (duration, "1d"),
}
_ABSENT: Final = {"max_leased": _POLICY["--max-leased"][1], "retention": _POLICY["--retention"][1]}
_COMMENT: Final = re.compile(r"^COMMENT ON COLUMN messages\.queue\.(\w+) IS '(.+)';$", re.M)


@cache
def _comments() -> dict[str, str]:
    """Return what the schema says of each column of a policy; an option has 0 or an empty text in place of NULL."""
    found = _COMMENT.findall("\n".join(script.text for script in scripts()))
    return {name: _shortened(said.replace("NULL", "''" if name == "fair_by" else "0")) for name, said in found}


def _shortened(comment: str) -> str:
    """Return what it is, and what stands for nothing: the help of all options has to fit on a screen."""
    if re.match(r"\w+: ", comment):  # one choice after the other
        return comment
    first, *others = comment.partition(". ")[0].rstrip(".").split("; ")
    first, *_ = first.split(", so that ")
    nothing = [one for one in others if one.startswith(("0 ", "'' "))]
    return "; ".join([first, *nothing]) + "."


def _policy_options(*, with_defaults: bool = False) -> Callable[[F], F]:
    """Return what adds the options of the policy to a command; the help has their defaults if they are taken."""

    def add(command: F) -> F:
        for name, (kind, default) in reversed(_POLICY.items()):
            help_ = _comments()[name.removeprefix("--").partition("/")[0].replace("-", "_")]
            help_ = f"{help_} [default: {default}]" if with_defaults else help_
            command = click.option(name, type=kind, default=None, help=help_)(command)
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
        rows = cursor.execute(query("queues")).fetchall()
    show_rows(settings, "queues", rows, _SHOWN, _ABSENT)


@queues.command()
@click.argument("name")
@_policy_options(with_defaults=True)
@with_settings
def create(settings: Settings, /, name: str, **policy: Any) -> None:
    """Create a queue; a queue that exists is not changed.

    "Queues in detail", in the reference, says more about each option.
    """
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
