"""The policy of a queue as a form."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Any, Final

import psycopg

from airflow_provider_pgqueue.core import verbs
from airflow_provider_pgqueue.core.client import run
from airflow_provider_pgqueue.core.duration import duration_text
from airflow_provider_pgqueue.core.errors import InvalidArgument
from airflow_provider_pgqueue.core.message import Row
from airflow_provider_pgqueue.web.fields import Form, value
from airflow_provider_pgqueue.web.section import rows_of

Connection = psycopg.Connection[Any]
_CHOICES: Final = {
    "fair_by": ("", "group", "topic"),
    "notify": ("always", "gated", "off"),
    "on_dead_head": ("block", "skip"),
}
EMPTY: Final = {"retention": "forever", "fair_by": "no turns"}
"""The meaning of an empty field by column; in other columns it means no limit."""


def now(conn: Connection, name: str, given: Form) -> dict[str, Any]:
    """Return the policy for the form, and what to show in its fields; QueueNotFound if there is no such queue."""
    policy = _texts(conn, name)
    return {
        "policy": policy,
        # In the other fields a form that comes back with an error would put back what was changed since it was shown.
        "shown": policy | _written(given, policy),
        "columns": _columns(conn),
        "choices": _CHOICES,
        "empty": EMPTY,
    }


def changes(conn: Connection, name: str, form: Form) -> dict[str, Any]:
    """Return what differs from what the form showed; an empty field removes a limit.

    InvalidArgument if nothing differs, or if somebody else changed the same values since the form was shown.
    """
    policy = _texts(conn, name)
    written = _written(form, policy)
    if not written:
        raise InvalidArgument("nothing is changed", "Change a field, or go back.")
    # Name all of them, before any other error, because the form that comes back shows the current values.
    others = [
        f"{key} to {policy[key] or EMPTY.get(key, 'no limit')}"
        for key, text in written.items()
        if policy[key] not in (form.get(f"was_{key}", ""), text)
    ]
    if others:
        raise InvalidArgument(
            f"somebody changed {' and '.join(others)} meanwhile",
            "Nothing of this form was done. Send it again if what you wrote is still right.",
        )
    columns = _columns(conn)
    return {"queue_name": name} | {key: value(key, text, columns[key]["type"]) for key, text in written.items()}


def _written(form: Form, keys: Iterable[str]) -> dict[str, str]:
    """Return the fields in which something else was written than the form had shown."""
    texts = {key: form[key].strip() for key in keys if key in form}
    return {key: text for key, text in texts.items() if text != form.get(f"was_{key}", "")}


def _texts(conn: Connection, name: str) -> dict[str, str]:
    run(conn, verbs.status(name))  # raises for an unknown queue
    (row,) = rows_of(conn, "policy_of_queue", queue_name=name)
    return {key: _as_text(given) for key, given in row.items() if key != "created_at"}


def _columns(conn: Connection) -> dict[str, Row]:
    """Return the type of each column of a policy, and what the database says of it."""
    return {row["name"]: row for row in rows_of(conn, "policy_columns")}


def _as_text(given: Any) -> str:
    """Return a value as the form shows it and takes it back: durations as 1h30m."""
    if given is None:
        return ""
    return duration_text(given) if isinstance(given, timedelta) else str(given)
