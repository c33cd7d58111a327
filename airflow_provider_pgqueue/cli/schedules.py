"""What publishes by itself."""

from __future__ import annotations

from typing import Any

import click

from airflow_provider_pgqueue.cli.connection import ask
from airflow_provider_pgqueue.cli.json_lines import json_object, parse
from airflow_provider_pgqueue.cli.options import confirm, yes_option
from airflow_provider_pgqueue.cli.output import records, show_done, show_rows
from airflow_provider_pgqueue.cli.settings import Settings, with_settings
from airflow_provider_pgqueue.cli.suggestion import SuggestingGroup
from airflow_provider_pgqueue.core import verbs

_SHOWN = ("schedule_name", "cron", "time_zone", "queue_name", "paused", "last_tick", "next_at", "last_error")


@click.group(cls=SuggestingGroup, invoke_without_command=True)
@with_settings
@click.pass_context
def schedules(context: click.Context, settings: Settings) -> None:
    """List the schedules, which publish at set times; add, pause, resume or remove one."""
    if context.invoked_subcommand is not None:
        return
    found = ask(settings, verbs.schedules())
    show_rows(settings, "schedules", records(found), _SHOWN)


@schedules.command()
@click.argument("name")
@click.argument("cron")
@click.argument("queue")
@click.option("--message", required=True, help="The body, as JSON.")
@click.option("--time-zone", default="UTC", show_default=True, help="The time zone of the expression.")
@click.option("--priority", type=click.IntRange(0, 9), default=4, show_default=True, help="Higher is leased first.")
@click.option("--headers", type=json_object, metavar="JSON", help="Headers, as a JSON object.")
@click.option("--paused/--not-paused", default=None, help="Stop or resume publishing. Default: leave it as it is.")
@with_settings
def add(
    settings: Settings,
    name: str,
    cron: str,
    queue: str,
    message: str,
    time_zone: str,
    priority: int,
    headers: dict[str, Any] | None,
    paused: bool | None,
) -> None:
    """Add a schedule, or replace the one of that name: CRON has five fields, or is @hourly, @daily and so on."""
    body = parse(message, "--message").text
    statement = verbs.schedule(
        name, cron, queue, body, time_zone=time_zone, priority=priority, headers=headers, paused=paused
    )
    added = ask(settings, statement)
    text = f"{'added' if added else 'replaced'} schedule {name}."
    show_done(settings, {"schedule_name": name, "added": added}, text)


@schedules.command()
@click.argument("name")
@with_settings
def pause(settings: Settings, name: str) -> None:
    """Let a schedule publish nothing until it is resumed; what it misses is not made up for."""
    ask(settings, verbs.pause_schedule(name))
    show_done(settings, {"schedule_name": name, "paused": True}, f"paused schedule {name}.")


@schedules.command()
@click.argument("name")
@with_settings
def resume(settings: Settings, name: str) -> None:
    """Let a paused schedule publish again."""
    ask(settings, verbs.resume_schedule(name))
    show_done(settings, {"schedule_name": name, "paused": False}, f"resumed schedule {name}.")


@schedules.command()
@click.argument("name")
@yes_option
@with_settings
def remove(settings: Settings, name: str, yes: bool) -> None:
    """Remove a schedule; what it has published stays."""
    confirm(f"Remove schedule {name}?", yes=yes)
    ask(settings, verbs.unschedule(name))
    show_done(settings, {"schedule_name": name, "removed": True}, f"removed schedule {name}.")
