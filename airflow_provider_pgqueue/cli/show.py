"""What is recorded: the life of a message, messages that wait or are searched for, and what was done by hand."""

from __future__ import annotations

import json
from datetime import datetime
from functools import partial
from textwrap import indent
from typing import Any

import click
import psycopg
from psycopg.rows import dict_row

from airflow_provider_pgqueue.cli.connection import Connection, ask, connected
from airflow_provider_pgqueue.cli.options import fingerprint, number_option, time_options
from airflow_provider_pgqueue.cli.output import Row, cell, show_rows, to_text
from airflow_provider_pgqueue.cli.settings import Settings, with_settings
from airflow_provider_pgqueue.cli.text import one_line, printable, say
from airflow_provider_pgqueue.core import verbs
from airflow_provider_pgqueue.core.client import fetch, run
from airflow_provider_pgqueue.core.errors import PermissionDenied, refused
from airflow_provider_pgqueue.core.frames import own_frames
from airflow_provider_pgqueue.core.message import RESULTS
from airflow_provider_pgqueue.core.query import query

_STATES = click.Choice(["ready", "delayed", "leased", "done", "dead", *RESULTS])
# What fits into a hundred columns: of a message that failed why, of any other who has or had it.
_FOUND = ("id", "queue_name", "state", "at", "reference", "cause", "known")
_HEADERS = ("body_bytes", "message_overview")
# As text, because a float would not show a number to its last digit.
_BODIES = ("headers, message::text AS message", "message")
_WAITING = ("id", "state", "priority", "attempts", "age", "locked_by", "reference", "last_error")
_DONE_BY_HAND = ("at", "user", "login", "action", "queue", "affected", "arguments")


@click.command()
@click.argument("id", type=click.IntRange(0, 2**63 - 1))
@click.option("--body", is_flag=True, help="Show the body and the headers too.")
@click.option("--traceback", "traces", is_flag=True, help="Show the tracebacks too, the frames of your code first.")
@with_settings
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
    given = {"ids": [id], "longest": 2**30, "largest": 2**30}
    rows = fetch(conn, dict_row, query("bodies"), given, fix=partial(refused, wants="reader"))
    return next(iter(rows), None)


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
@with_settings
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
    found = ask(settings, statement)
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


@click.command()
@click.argument("queue")
@number_option("messages", default=10, most=None)
@click.option("--headers-only", is_flag=True, help="Leave out the bodies.")
@with_settings
def peek(settings: Settings, queue: str, number: int, headers_only: bool) -> None:
    """Show unfinished messages without leasing them.

    They appear in the order in which they will be leased. The state is ready, leased, delayed, or behind: an earlier
    message of the group goes first. Of a message that is being retried, the last error is shown.
    """
    with connected(settings) as conn:
        rows = _look(conn, _HEADERS if headers_only else _BODIES, queue, number)
        if not rows:
            run(conn, verbs.status(queue))  # an unknown queue is an error, an empty one is not
    if settings.as_json and not headers_only:
        say(f'{{"messages": [{", ".join(map(_with_its_body, rows))}]}}')
    else:
        show_rows(settings, "messages", rows, (*_WAITING, "body_bytes" if headers_only else "message"))


def _with_its_body(row: dict[str, Any]) -> str:
    # Python can neither read what is nested deep nor keep each digit, and one body must not hide all others.
    body = row.pop("message")
    return f'{to_text(row)[:-1]}, "message": {body}}}'


def _look(conn: Connection, shown: tuple[str, str], queue: str, number: int) -> list[dict[str, Any]]:
    columns, view = shown
    statement = query("command/peek").decode().format(columns, f"messages.{view}")
    try:
        with conn.cursor(row_factory=dict_row, binary=True) as cursor:
            return list(cursor.execute(statement.encode(), [queue, number]).fetchall())
    except psycopg.errors.InsufficientPrivilege as error:
        told = refused(conn, error, wants="observer" if shown is _HEADERS else "reader")
        if shown is _HEADERS or not isinstance(told, PermissionDenied):
            raise
        raise PermissionDenied(told.problem, f"{told.fix}; or leave out the bodies with --headers-only") from error


@click.command()
@click.argument("queue", required=False)
@click.option("--user", help="Only what this user did, or the login of this name.")
@click.option("--action", help="Only this verb, such as purge_queue.")
@time_options("what was done")
@number_option("entries")
@with_settings
def audit(
    settings: Settings,
    queue: str | None,
    user: str | None,
    action: str | None,
    since: datetime | None,
    until: datetime | None,
    number: int,
) -> None:
    """Show what was done to the queues by hand, and by whom, newest first.

    QUEUE may be one that was dropped since. The user is whoever a web page acted for; the login is the one that did it.
    """
    statement = verbs.audit_log(queue, since=since, until=until, max_entries=number, by_user=user, verb=action)
    found = ask(settings, statement)
    show_rows(settings, "entries", [{**row, "user": row["acting_user"]} for row in found], _DONE_BY_HAND)
