"""Shows what waits, without taking it."""

from __future__ import annotations

from typing import Any

import click
import psycopg
from psycopg.rows import dict_row

from airflow_provider_pgqueue.cli.connection import Connection, connected
from airflow_provider_pgqueue.cli.output import number_option, show_rows, to_text
from airflow_provider_pgqueue.cli.privilege import with_role
from airflow_provider_pgqueue.cli.settings import Settings, pass_settings, shared_options
from airflow_provider_pgqueue.cli.text import say
from airflow_provider_pgqueue.core import verbs
from airflow_provider_pgqueue.core.client import run
from airflow_provider_pgqueue.core.errors import PermissionDenied
from airflow_provider_pgqueue.core.query import query

_HEADERS = ("body_bytes", "message_overview")
# As text, because a float would not show a number to its last digit.
_BODIES = ("headers, message::text AS message", "message")
_SHOWN = ("id", "state", "priority", "attempts", "age", "locked_by", "reference", "last_error")


@click.command()
@click.argument("queue")
@number_option("messages", default=10, most=None)
@click.option("--headers-only", is_flag=True, help="Leave out the bodies.")
@shared_options
@pass_settings
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
        show_rows(settings, "messages", rows, (*_SHOWN, "body_bytes" if headers_only else "message"))


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
        told = with_role(conn, error)
        if shown is _HEADERS or not isinstance(told, PermissionDenied):
            raise
        raise PermissionDenied(told.problem, f"{told.fix}; or leave out the bodies with --headers-only") from error
