"""Shows the life of a message, and messages that wait or have a state or reference."""

from __future__ import annotations

from functools import partial
from textwrap import indent
from typing import Any

import click
import psycopg
from psycopg.rows import dict_row

from airflow_provider_pgqueue.cli.connection import Connection, ask, connected
from airflow_provider_pgqueue.cli.options import number_option
from airflow_provider_pgqueue.cli.output import Row, cell, show_rows, to_text
from airflow_provider_pgqueue.cli.settings import Settings, with_settings
from airflow_provider_pgqueue.cli.text import one_line, print_text, printable
from airflow_provider_pgqueue.core import verbs
from airflow_provider_pgqueue.core.client import fetch, run
from airflow_provider_pgqueue.core.errors import PermissionDenied, refused
from airflow_provider_pgqueue.core.frames import first_seen, own_frames, without_class, without_error
from airflow_provider_pgqueue.core.message import RESULTS, TEXTS
from airflow_provider_pgqueue.core.quantity import size
from airflow_provider_pgqueue.core.query import query

_STATES = click.Choice(["ready", "delayed", "leased", "done", "dead", *RESULTS])
# What fits into a hundred columns: of a message that failed why, of any other who has or had it.
_FOUND = ("id", "state", "at", "reference", "cause", "known")
_WAITING = ("id", "state", "priority", "attempts", "age", "locked_by", "reference", "last_error")


@click.command()
@click.argument("id", type=click.IntRange(0, 2**63 - 1))
@click.option("--message", "body", is_flag=True, help="Show the body and the headers too.")
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
        print_text(
            to_text({"entries": entries} | ({"body": inside["body"], "headers": inside["headers"]} if inside else {}))
        )
        return
    print_text(f"message {id} of queue {life[0]['queue_name']}" + _named(life[0], "reference", ", reference "))
    for row, first in zip(life, first_seen(life), strict=True):
        trace = row["traceback"] if traces and not first else None
        print_text(_line(row, trace))
        if traces and first:
            print_text(f"    The traceback is that of attempt {first}.")
        elif trace:
            own, whole = own_frames(trace), without_error(trace)
            print_text(indent(f"{own}\n\nThe whole traceback:\n{whole}" if own else trace, "    "))
    if traces and not any(row["traceback"] for row in life):
        print_text("no traceback that this login may read")
    if inside:
        print_text(f"body, {size(inside['bytes'])}:\n{inside['body']}")
        if inside["headers"]:
            print_text(f"headers:\n{inside['headers']}")


def _inside(conn: Connection, id: int) -> Row | None:
    given = {"ids": [id], "longest": 2**30, "largest": 2**30}
    rows = fetch(conn, dict_row, query("bodies"), given, fix=partial(refused, wants="reader"))
    return next(iter(rows), None)


def _line(row: Row, trace: str | None) -> str:
    """Return an entry of a life: when, what, by whom, and what is known of it that its traceback does not say."""
    said = f"{cell(row['at'])}  {row['entry']}" + _named(row, "result", " as ") + _named(row, "attempt", ", attempt ")
    said += _named(row, "other_id", " as " if row["entry"] == "requeued" else " for ") + _named(row, "actor", ", by ")
    said += _named(row, "run_id", f", run of {row['dag_id']}: ") + _named(row, "until", ", until ")
    text = without_class(row["details"], row["error"])
    why = ": ".join(filter(None, (row["error"], text)))
    if trace and text in trace:
        why = ""
    return said + (f"\n    {one_line(why)}" if why else "")


def _named(row: Row, name: str, before: str) -> str:
    return "" if row[name] is None else before + printable(cell(row[name]))


@click.command()
@click.argument("queue")
@number_option("messages", default=10, most=None)
@click.option("--reference", help="Only messages with this reference, the key of the publisher.")
@click.option("--state", type=_STATES, help="Only messages in this state, or that ended so.")
@click.option("--headers-only", is_flag=True, help="Leave out the bodies.")
@with_settings
def peek(
    settings: Settings, queue: str, number: int, reference: str | None, state: str | None, headers_only: bool
) -> None:
    """Show messages without leasing them.

    Unfinished messages appear in the order in which they will be leased. The state is ready, leased, delayed, or
    behind: an earlier message of the group goes first. Of a message that is being retried, the last error is shown.

    With --reference or --state, finished messages are shown too, the newest first and without bodies.
    """
    if reference is not None or state is not None:
        found = ask(settings, verbs.search_messages(queue, reference=reference, state=state, max_messages=number))
        rows = found if settings.as_json else [{**row, "known": row["error"] or row["worker"]} for row in found]
        show_rows(settings, "messages", rows, _FOUND)
        return
    with connected(settings) as conn:
        rows = _rows(conn, queue, number, headers_only=headers_only)
        if not rows:
            run(conn, verbs.status(queue))  # an unknown queue is an error, an empty one is not
    if settings.as_json and not headers_only:
        print_text(f'{{"messages": [{", ".join(map(_with_its_body, rows))}]}}')
    else:
        show_rows(settings, "messages", rows, (*_WAITING, "body_bytes" if headers_only else "message"))


def _with_its_body(row: dict[str, Any]) -> str:
    # Python can neither read what is nested deep nor keep each digit, and one body must not hide all others.
    body = row.pop("message")
    return f'{to_text(row)[:-1]}, "message": {body}}}'


def peeking(name: str) -> bytes:
    """Return a query of sql/queries/ that shows the texts which a message keeps."""
    return query(name).replace(b"{texts}", ", ".join(TEXTS).encode())


def _rows(conn: Connection, queue: str, number: int, *, headers_only: bool) -> list[dict[str, Any]]:
    statement = peeking("peek_headers" if headers_only else "peek")
    try:
        with conn.cursor(row_factory=dict_row, binary=True) as cursor:
            return list(cursor.execute(statement, [queue, number]).fetchall())
    except psycopg.errors.InsufficientPrivilege as error:
        told = refused(conn, error, wants="observer" if headers_only else "reader")
        if headers_only or not isinstance(told, PermissionDenied):
            raise
        raise PermissionDenied(told.problem, f"{told.fix}; or leave out the bodies with --headers-only") from error
