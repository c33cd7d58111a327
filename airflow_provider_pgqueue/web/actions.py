"""What may be done: each is asked for once on a page that says what will happen, and recorded with a name."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Any, Final

import psycopg
from fastapi import APIRouter, Depends, HTTPException, Path, Request
from starlette.responses import RedirectResponse, Response

from airflow_provider_pgqueue.core import verbs
from airflow_provider_pgqueue.core.client import run
from airflow_provider_pgqueue.core.duration import parse_duration
from airflow_provider_pgqueue.core.errors import InvalidArgument, InvalidMessage, QueueError
from airflow_provider_pgqueue.core.message import Row
from airflow_provider_pgqueue.core.quantity import quantity
from airflow_provider_pgqueue.web.guard import checked_form
from airflow_provider_pgqueue.web.html import back_to, page
from airflow_provider_pgqueue.web.parts import rows_of
from airflow_provider_pgqueue.web.site import person_of, site_of

router = APIRouter()
Form = Mapping[str, str]
Connection = psycopg.Connection[Any]
Id = Annotated[int, Path(ge=1, le=2**63 - 1)]
_DEAD: Final = ("failed", "rejected", "lock_expired", "expired")
_MOST: Final = 10_000  # messages of one action


@dataclass(frozen=True, slots=True)
class Action:
    """One thing that may be done to a queue or a message.

    `about` finds out what will happen, without doing it; `arguments` reads the form.
    """

    title: str
    button: str
    says: str
    verb: str
    arguments: Callable[[str, Form], dict[str, Any]]
    done: str
    about: Callable[[Connection, str, Form], dict[str, Any]] = lambda conn, name, given: {}
    danger: bool = False


def _only_name(name: str, form: Form) -> dict[str, Any]:
    return {"queue_name": name}


def _status(conn: Connection, name: str, given: Form) -> dict[str, Any]:
    (found,) = run(conn, verbs.status(name))
    return {"status": found}


# What died -----------------------------------------------------------------------------------------------------------


def _chosen(form: Form) -> dict[str, Any]:
    """Return which dead messages a form means: of one cause, of one result, or all."""
    result, fingerprint = form.get("result") or None, form.get("fingerprint") or None
    return {"results": [result] if result else list(_DEAD), "fingerprint": fingerprint}


def _count(conn: Connection, name: str, given: Form) -> dict[str, Any]:
    """Count what would be requeued or dismissed, as far as one action goes."""
    chosen = _chosen(given)
    fingerprints = [chosen["fingerprint"]] if chosen["fingerprint"] else None
    ids = run(conn, verbs.dead_ids(name, results=chosen["results"], fingerprints=fingerprints, max_messages=_MOST))
    return {"count": len(ids), "ids": ids[:5], "newest": ids[-1] if ids else None, "most": _MOST}


def _requeue(name: str, form: Form) -> dict[str, Any]:
    return {"queue_name": name, "max_messages": _number(form, "max_messages", 1000), **_chosen(form)}


def _dismiss(name: str, form: Form) -> dict[str, Any]:
    return _requeue(name, form) | {"reason": _reason(form)}


def _reason(form: Form) -> str:
    reason = form.get("reason", "").strip()
    if not reason:
        raise InvalidArgument("no reason is given", "Say why nothing more is to be done about it.")
    return reason[:500]


def _number(form: Form, name: str, default: int) -> int:
    text = form.get(name, "").strip() or str(default)
    if not text.isascii() or not text.isdecimal() or not 1 <= int(text[:9]) <= _MOST:
        raise InvalidArgument(f"{name} is {text[:20]!r}", f"Give a number from 1 to {_MOST}.")
    return int(text)


# A message for a test, and the policy --------------------------------------------------------------------------------


def _publish(name: str, form: Form) -> dict[str, Any]:
    try:
        body = json.loads(form.get("body", ""))
    except (ValueError, RecursionError) as error:
        where = f", at line {error.lineno}, column {error.colno}" if isinstance(error, json.JSONDecodeError) else ""
        cure = 'Write for example {"order": 7}, or "a text" in quotes.'
        raise InvalidMessage(f"the body is not JSON{where}", cure) from None
    return {"queue_name": name, "message": body, "reference": form.get("reference", "").strip() or None}


_DURATIONS: Final = ("lease_for", "backoff_first", "backoff_max", "handler_timeout", "retention", "dedup_window")
_NUMBERS: Final = ("max_attempts", "max_leased", "max_depth", "max_body_bytes")
_CHOICES: Final = {"notify": ("always", "gated", "off"), "on_dead_head": ("block", "skip")}


def _policy_now(conn: Connection, name: str, given: Form) -> dict[str, Any]:
    run(conn, verbs.lease_policy(name))  # raises for an unknown queue
    (row,) = rows_of(conn, "policy_of_queue", queue_name=name)
    return {
        "policy": {key: _as_text(row[key]) for key in (*_NUMBERS, *_DURATIONS, *_CHOICES)},
        "numbers": _NUMBERS,
        "durations": _DURATIONS,
        "choices": _CHOICES,
    }


def _as_text(value: Any) -> str:
    """Return a value as the form shows it and takes it back: durations as 1h30m."""
    if value is None:
        return ""
    if not isinstance(value, timedelta):
        return str(value)
    seconds = value.total_seconds()
    parts = []
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        whole, seconds = divmod(seconds, length)
        parts += [f"{whole:.0f}{unit}"] if whole else []
    return "".join(parts + ([f"{seconds:g}s"] if seconds or not parts else []))


def _alter(name: str, form: Form) -> dict[str, Any]:
    """Return what differs from what the form showed; an empty field removes a limit."""
    arguments: dict[str, Any] = {"queue_name": name}
    for key in (*_NUMBERS, *_DURATIONS, *_CHOICES):
        text = form.get(key, "").strip()
        if key in form and text != form.get(f"was_{key}", ""):
            arguments[key] = _policy_value(key, text)
    if len(arguments) == 1:
        raise InvalidArgument("nothing is changed", "Change a field, or go back.")
    return arguments


def _policy_value(key: str, text: str) -> Any:
    if key in _CHOICES:
        return text
    if key in _DURATIONS:
        try:
            return f"{parse_duration(text or '0').total_seconds()} seconds"
        except ValueError as error:
            raise InvalidArgument(f"{key}: {error}") from None
    if not (text or "0").isascii() or not (text or "0").isdecimal() or len(text) > 18:
        raise InvalidArgument(f"{key} is {text[:20]!r}", "Give a whole number; leave it empty for no limit.")
    return int(text or "0")


OF_QUEUES: Final[dict[str, Action]] = {
    "pause": Action(
        "Pause this queue?",
        "Pause",
        "Nothing is leased until it is resumed. Publishing continues, and whoever holds a message finishes it.",
        "pause_queue",
        _only_name,
        "The queue is paused.",
        about=_status,
    ),
    "resume": Action(
        "Resume this queue?",
        "Resume",
        "Its messages can be leased again, and its consumers are rung.",
        "resume_queue",
        _only_name,
        "The queue is resumed.",
        about=_status,
    ),
    "purge": Action(
        "Delete the waiting messages of this queue?",
        "Delete them",
        "Messages that nobody holds are deleted, without a trace in the archive. This cannot be undone.",
        "purge_queue",
        _only_name,
        "Deleted {n}.",
        about=_status,
        danger=True,
    ),
    "publish": Action(
        "Publish a test message",
        "Publish",
        "The next consumer handles it like any other.",
        "publish",
        _publish,
        "Published message {id}.",
    ),
    "policy": Action(
        "Change the policy",
        "Change it",
        "It holds at once, also for the messages that wait already. Durations are written as 90s, 10m, 2h or 1d.",
        "alter_queue",
        _alter,
        "The policy is changed.",
        about=_policy_now,
    ),
    "requeue": Action(
        "Requeue dead messages?",
        "Requeue them",
        "Each is published again under a new id, oldest first. Cure the cause first, or they die again.",
        "requeue_dead",
        _requeue,
        "Requeued {n}.",
        about=_count,
    ),
    "dismiss": Action(
        "Dismiss dead messages?",
        "Dismiss them",
        "Nothing more is done about them, oldest first. They stay in the archive as long as its retention says.",
        "dismiss_dead",
        _dismiss,
        "Dismissed {n}.",
        about=_count,
        danger=True,
    ),
}
OF_MESSAGES: Final[dict[str, Action]] = {
    "requeue": Action(
        "Requeue this message?",
        "Requeue it",
        "It is published again under a new id. Cure the cause first, or it dies again.",
        "requeue_dead",
        lambda name, form: {"queue_name": name, "ids": [int(form["id"])], "results": list(_DEAD)},
        "Requeued {n}.",
    ),
    "dismiss": Action(
        "Dismiss this message?",
        "Dismiss it",
        "Nothing more is done about it. It stays in the archive as long as its retention says.",
        "dismiss_dead",
        lambda name, form: {"queue_name": name, "ids": [int(form["id"])], "reason": _reason(form)},
        "Dismissed {n}.",
        danger=True,
    ),
    "release": Action(
        "End the lease of this message?",
        "End the lease",
        "Somebody else may lease it at once; the attempt counts. Whoever still works on it has lost it.",
        "release_messages",
        lambda name, form: {"queue_name": name, "ids": [int(form["id"])]},
        "Ended the lease of {n}.",
        danger=True,
    ),
}


def said_of(request: Request) -> str | None:
    """Return what was just done, as the address tells: only sentences of ours, and a number."""
    action = (OF_QUEUES | OF_MESSAGES).get(request.query_params.get("done", ""))
    text = request.query_params.get("n", "")[:19]
    number = int(text) if text.isascii() and text.isdecimal() else 0
    return None if action is None else action.done.format(n=quantity(number), id=number)


@router.get("/queues/{name}/{action}")
def ask_of_queue(request: Request, name: str, action: str) -> Response:
    """Ask whether to do this to a queue, and say what will happen."""
    return _ask(request, _known(OF_QUEUES, action), name, request.query_params)


@router.post("/queues/{name}/{action}")
def act_on_queue(request: Request, name: str, action: str, form: dict[str, str] = Depends(checked_form)) -> Response:
    """Do it, and return to the page of the queue."""
    return _act(request, _known(OF_QUEUES, action), name, form, f"/queues/{name}", action)


@router.get("/messages/{id}/{action}")
def ask_of_message(request: Request, id: Id, action: str) -> Response:
    """Ask whether to do this to a message, and say what will happen."""
    known = _known(OF_MESSAGES, action)
    return _ask(request, known, _queue_of(request, id), {"id": str(id)})


@router.post("/messages/{id}/{action}")
def act_on_message(request: Request, id: Id, action: str, form: dict[str, str] = Depends(checked_form)) -> Response:
    """Do it, and return to the page of the message."""
    known = _known(OF_MESSAGES, action)
    return _act(request, known, _queue_of(request, id), form | {"id": str(id)}, f"/messages/{id}", action)


def _known(actions: Mapping[str, Action], name: str) -> Action:
    if name not in actions:
        raise HTTPException(404, "There is no such page.")
    return actions[name]


def _queue_of(request: Request, id: int) -> str:
    with site_of(request).reading() as conn:
        life = run(conn, verbs.message_life(id))
    if not life:
        raise HTTPException(404, f"There is no message {id}. Retention may have removed it, or it was purged.")
    return str(life[0]["queue_name"])


def _ask(request: Request, action: Action, name: str, given: Form, wrong: Exception | None = None) -> Response:
    if not person_of(request).may_act:
        raise HTTPException(403, "You may look at the queues. Changing them needs the right to edit the connection.")
    with site_of(request).reading() as conn:
        run(conn, verbs.lease_policy(name))  # raises for an unknown queue
        about = action.about(conn, name, given)
    status = 400 if wrong else 200
    return page(request, "confirm.html", status, action=action, queue_name=name, given=given, about=about, wrong=wrong)


def _act(request: Request, action: Action, name: str, form: dict[str, str], path: str, done: str) -> Response:
    site, person = site_of(request), person_of(request)
    try:
        arguments = action.arguments(name, form)
        with site.acting() as conn:
            rows = run(conn, verbs.audited(person.name, action.verb, arguments))
    except QueueError:
        raise
    except (InvalidArgument, InvalidMessage) as error:
        return _ask(request, action, name, form, error)
    finally:
        site.shared.forget()
    return RedirectResponse(back_to(request, path, done=done, n=_many(action, rows)), 303)


def _many(action: Action, rows: list[Any]) -> int:
    """Return how many messages it was, or the id of the one that was published."""
    if action.verb in ("purge_queue", "publish"):
        first: Row | int = rows[0]
        return first if isinstance(first, int) else int(next(iter(first.values())))
    return len(rows)
