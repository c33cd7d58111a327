"""The policy of a queue as a form."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any, Final

import psycopg

from airflow_provider_pgqueue.core import verbs
from airflow_provider_pgqueue.core.client import run
from airflow_provider_pgqueue.core.duration import parse_duration
from airflow_provider_pgqueue.core.errors import InvalidArgument
from airflow_provider_pgqueue.web.section import rows_of

Form = Mapping[str, str]
Connection = psycopg.Connection[Any]
_DURATIONS: Final = (
    "lease_for",
    "rate_period",
    "backoff_first",
    "backoff_max",
    "handler_timeout",
    "retention",
    "dedup_window",
)
_NUMBERS: Final = (
    "max_attempts",
    "max_leased",
    "max_leased_per_group",
    "rate_limit",
    "rate_burst",
    "max_depth",
    "max_body_bytes",
    "break_after",
)
_CHOICES: Final = {
    "fair_by": ("", "group", "topic"),
    "notify": ("always", "gated", "off"),
    "on_dead_head": ("block", "skip"),
}
_TEXTS: Final = ("weights",)
_EMPTY: Final = {"fair_by": "no turns", "weights": "1 for each key"}
"""What an empty field means; no limit where it is not here."""


def now(conn: Connection, name: str, given: Form) -> dict[str, Any]:
    """Return the policy for the form, and what to show in its fields; QueueNotFound if there is no such queue."""
    policy = _texts(conn, name)
    return {
        "policy": policy,
        # In the other fields a form that comes back with an error would put back what was changed since it was shown.
        "shown": policy | _written(given, policy),
        "numbers": _NUMBERS,
        "durations": _DURATIONS,
        "choices": _CHOICES,
        "empty": _EMPTY,
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
        f"{key} to {policy[key] or _EMPTY.get(key, 'no limit')}"
        for key, text in written.items()
        if policy[key] not in (form.get(f"was_{key}", ""), text)
    ]
    if others:
        raise InvalidArgument(
            f"somebody changed {' and '.join(others)} meanwhile",
            "Nothing of this form was done. Send it again if what you wrote is still right.",
        )
    return {"queue_name": name} | {key: value(key, text) for key, text in written.items()}


def _written(form: Form, keys: Iterable[str]) -> dict[str, str]:
    """Return the fields in which something else was written than the form had shown."""
    texts = {key: form[key].strip() for key in keys if key in form}
    return {key: text for key, text in texts.items() if text != form.get(f"was_{key}", "")}


def _texts(conn: Connection, name: str) -> dict[str, str]:
    run(conn, verbs.status(name))  # raises for an unknown queue
    (row,) = rows_of(conn, "policy_of_queue", queue_name=name)
    return {key: _as_text(row[key]) for key in (*_NUMBERS, *_DURATIONS, *_TEXTS, *_CHOICES)}


def _as_text(value: Any) -> str:
    """Return a value as the form shows it and takes it back: durations as 1h30m."""
    if value is None:
        return ""
    if isinstance(value, dict):
        return json.dumps(value, ensure_ascii=False)
    if not isinstance(value, timedelta):
        return str(value)
    seconds = value.total_seconds()
    parts = []
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        whole, seconds = divmod(seconds, length)
        parts += [f"{whole:.0f}{unit}"] if whole else []
    return "".join(parts + ([f"{seconds:g}s"] if seconds or not parts else []))


def value(key: str, text: str) -> Any:
    """Return what was written in a field as a verb takes it; InvalidArgument if it cannot be that."""
    if key in _CHOICES:
        return text
    if key in _TEXTS:
        try:
            return json.loads(text or "{}")
        except (ValueError, RecursionError):
            raise InvalidArgument(f"{key} is not JSON", 'Give {"key": weight}; leave it empty for 1 each.') from None
    if key in (*_DURATIONS, "delay"):
        try:
            return f"{parse_duration(text or '0').total_seconds()} seconds"
        except ValueError as error:
            raise InvalidArgument(f"{key}: {error}") from None
    digits = text.lstrip("0") or "0"
    # No number of a policy is larger, and an integer of PostgreSQL takes no more.
    if not digits.isascii() or not digits.isdecimal() or len(digits) > (13 if key == "max_depth" else 9):
        raise InvalidArgument(f"{key} is {text[:20]!r}", "Give a whole number; leave it empty for no limit.")
    return int(digits)
