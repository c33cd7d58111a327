"""What is known of messages: the life of one, and finding them."""

from __future__ import annotations

import json
from datetime import datetime
from textwrap import indent
from typing import Any

import click
import psycopg
from psycopg.rows import dict_row

from airflow_provider_pgqueue.cli.causes import fingerprint
from airflow_provider_pgqueue.cli.connection import Connection, connected
from airflow_provider_pgqueue.cli.duration import time_options
from airflow_provider_pgqueue.cli.output import Row, cell, number_option, show_rows, to_text
from airflow_provider_pgqueue.cli.settings import Settings, pass_settings, shared_options
from airflow_provider_pgqueue.cli.text import one_line, printable, say
from airflow_provider_pgqueue.core import verbs
from airflow_provider_pgqueue.core.client import run
from airflow_provider_pgqueue.core.errors import refused
from airflow_provider_pgqueue.core.frames import own_frames
from airflow_provider_pgqueue.core.message import RESULTS
from airflow_provider_pgqueue.core.query import query

_STATES = click.Choice(["ready", "delayed", "leased", "done", "dead", *RESULTS])
# What fits into a hundred columns: of a message that failed why, of any other who has or had it.
_FOUND = ("id", "queue_name", "state", "at", "reference", "cause", "known")


@click.command()
@click.argument("id", type=click.IntRange(0, 2**63 - 1))
@click.option("--body", is_flag=True, help="Show the body and the headers too.")
@click.option("--traceback", "traces", is_flag=True, help="Show the tracebacks too, the frames of your code first.")
@shared_options
@pass_settings
def show(settings: Settings, id: int, body: bool, traces: bool) -> None:
    """Show everything recorded about one message, in the order of time.

    When it was published, delayed, handed to a DAG run, archived with which result, and requeued as which message; each
    attempt, by whom and how it failed. Texts of errors, tracebacks and bodies are for those who may read the bodies.
    """
    with connected(settings) as conn:
        life = run(conn, verbs.message_life(id))
        inside = _inside(conn, id) if body and life else None
    if not life:
        raise click.ClickException(
            f"message {id} is not known: it was never published, was purged, or its archive is gone."
        )
    if settings.as_json:
        entries = life if traces else [{**row, "traceback": None} for row in life]
        say(to_text({"entries": entries} | ({"body": inside["body"], "headers": inside["headers"]} if inside else {})))
        return
    say(f"message {id} of queue {life[0]['queue_name']}" + _named(life[0], "reference", ", reference "))
    for row in life:
        say(_line(row))
        if traces and row["traceback"]:
            own = own_frames(row["traceback"])
            say(indent(f"{own}\n\nThe whole traceback:\n{row['traceback']}" if own else row["traceback"], "    "))
    if traces and not any(row["traceback"] for row in life):
        say("no traceback that this login may read")
    if inside:
        say(f"body:\n{inside['body']}" + (f"\nheaders:\n{inside['headers']}" if inside["headers"] else ""))


def _inside(conn: Connection, id: int) -> Row | None:
    try:
        with conn.cursor(row_factory=dict_row) as cursor:
            given = {"ids": [id], "longest": 2**30, "largest": 2**30}
            return cursor.execute(query("bodies"), given).fetchone()
    except psycopg.errors.InsufficientPrivilege as error:
        raise refused(conn, error, wants="reader") from error


def _line(row: Row) -> str:
    """Return an entry of a life: when, what, by whom, and what is known of it."""
    said = f"{cell(row['at'])}  {row['entry']}" + _named(row, "result", " as ") + _named(row, "attempt", ", attempt ")
    said += _named(row, "other_id", " as " if row["entry"] == "requeued" else " for ") + _named(row, "actor", ", by ")
    said += _named(row, "run_id", f", run of {row['dag_id']}: ") + _named(row, "until", ", until ")
    why = ": ".join(dict.fromkeys(filter(None, (row["error"], row["details"]))))
    return said + (f"\n    {one_line(why)}" if why else "")


def _named(row: Row, name: str, before: str) -> str:
    return "" if row[name] is None else before + printable(cell(row[name]))


@click.command()
@click.argument("queue", required=False)
@click.option("--reference", help="Only messages with this reference, the key of the publisher.")
@click.option(
    "--header", "headers", multiple=True, metavar="NAME=VALUE", help="A header, as JSON or text; can be repeated."
)
@click.option("--state", type=_STATES, help="Only messages in this state, or that ended so.")
@click.option(
    "--cause", type=fingerprint, help="Only messages of this cause: a fingerprint that `pgqueue causes` prints."
)
@click.option("--topic", metavar="PATTERN", help="Only messages whose topic matches, such as 'orders.#'.")
@time_options("messages published, or archived,")
@number_option("messages")
@shared_options
@pass_settings
def search(
    settings: Settings,
    queue: str | None,
    reference: str | None,
    headers: tuple[str, ...],
    state: str | None,
    cause: str | None,
    topic: str | None,
    since: datetime | None,
    until: datetime | None,
    number: int,
) -> None:
    """Find messages by state, reference, topic, headers, cause and time, newest first.

    Finds unfinished messages and archived ones. Bodies are not shown.
    """
    with connected(settings) as conn:
        statement = verbs.search_messages(
            queue,
            reference=reference,
            headers=dict(map(_header, headers)) if headers else None,
            state=state,
            fingerprint=cause,
            topic=topic,
            since=since,
            until=until,
            max_messages=number,
        )
        found = run(conn, statement)
    shown = [name for name in _FOUND if name != "queue_name" or queue is None]
    rows = found if settings.as_json else [{**row, "known": row["error"] or row["worker"]} for row in found]
    show_rows(settings, "messages", rows, shown)


def _header(given: str) -> tuple[str, Any]:
    name, equals, value = given.partition("=")
    if not equals or not name:
        raise click.BadParameter(f"{given!r} is not NAME=VALUE.", param_hint="--header")
    try:
        return name, json.loads(value)
    except (ValueError, RecursionError):
        return name, value
