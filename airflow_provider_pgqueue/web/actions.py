"""The actions of the page: each is confirmed on a page that describes it, and recorded in the audit with a name."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Final, NoReturn
from urllib.parse import urlencode
from uuid import UUID

import psycopg
from fastapi import APIRouter, Depends, HTTPException, Path, Request
from starlette.responses import RedirectResponse, Response

from airflow_provider_pgqueue.core import verbs
from airflow_provider_pgqueue.core.client import run
from airflow_provider_pgqueue.core.errors import InvalidArgument, InvalidMessage, QueueError
from airflow_provider_pgqueue.core.json_text import JsonText
from airflow_provider_pgqueue.core.message import Row
from airflow_provider_pgqueue.core.quantity import quantity
from airflow_provider_pgqueue.core.statement import Statement, one
from airflow_provider_pgqueue.web import dead, fields, policy
from airflow_provider_pgqueue.web.fields import Form
from airflow_provider_pgqueue.web.guard import checked_form, is_vouched, vouched
from airflow_provider_pgqueue.web.html import page
from airflow_provider_pgqueue.web.request import path_of, person_of, root_of, site_of
from airflow_provider_pgqueue.web.rights import Rights
from airflow_provider_pgqueue.web.section import Refused, part, rows_of

router = APIRouter()
Connection = psycopg.Connection[Any]
Id = Annotated[int, Path(ge=1, le=2**63 - 1)]
_LONGEST: Final = 200_000  # letters of a body that a form shows
_HELD: Final = "Nothing was done: it is resolved by now, or somebody holds it."
_PART: Final = InvalidArgument(
    "a part was sent twice; it was done once, and the action stopped here", "What is left was counted again."
)


@dataclass(frozen=True, slots=True)
class Action:
    """One action on a queue or a message.

    `about` finds out what will happen, without doing it; `arguments` reads the form. `nothing` is the text for the case
    that no message was left.
    """

    title: str
    button: str
    description: str
    verb: str
    arguments: Callable[[Connection, str, Form], dict[str, Any]]
    done: str
    about: Callable[[Connection, str, Form], dict[str, Any]] = lambda conn, name, given: {}
    danger: bool = False
    nothing: str | None = None

    @property
    def of_many(self) -> bool:
        """Whether the action takes the dead messages that a filter finds, and so counts them first."""
        return self.about is dead.count


def _only_name(conn: Connection, name: str, form: Form) -> dict[str, Any]:
    return {"queue_name": name}


def _status(conn: Connection, name: str, given: Form) -> dict[str, Any]:
    (found,) = run(conn, verbs.status(name))
    return {"status": found}


def _requeue(conn: Connection, name: str, form: Form) -> dict[str, Any]:
    return {"queue_name": name, **dead.chosen(form)}


def _dismiss(conn: Connection, name: str, form: Form) -> dict[str, Any]:
    return _requeue(conn, name, form) | {"reason": dead.reason(form)}


def _one(conn: Connection, name: str, form: Form) -> dict[str, Any]:
    return {"queue_name": name, "ids": [int(form["id"])]}


def _requeue_one(conn: Connection, name: str, form: Form) -> dict[str, Any]:
    """Read the form of one message: an empty body, and one that was not changed, leave it as it is."""
    if not (body := form.get("body", "").strip()) or body.split() == (_body_of(conn, form) or "").split():
        return _one(conn, name, form)
    return _one(conn, name, form) | {"messages": JsonText(f'{{"{int(form["id"])}": {_body(form)}}}')}


def _dead(conn: Connection, name: str, given: Form) -> dict[str, Any]:
    """Raise 409 unless the message is an open dead message."""
    if not run(conn, verbs.dead_ids(verbs.DeadFilter(name, ids=[int(given["id"])]))):
        raise HTTPException(409, f"Message {given['id']} is not dead, or is resolved already: there is nothing to do.")
    return {}


def _dead_body(conn: Connection, name: str, given: Form) -> dict[str, Any]:
    return _dead(conn, name, given) | {"body": _body_of(conn, given)}


def _body_of(conn: Connection, given: Form) -> str | None:
    """Return the body of a message; None if it is too large for a form, or the login may not read it."""
    found = part(conn, lambda: rows_of(conn, "bodies", ids=[int(given["id"])], longest=_LONGEST, largest=_LONGEST))
    body = None if isinstance(found, Refused) or not found else found[0]["body"]
    return None if body is None or len(body) > _LONGEST else str(body)


def _unfinished(
    otherwise: str, fits: Callable[[Row], bool] = lambda message: True
) -> Callable[[Connection, str, Form], dict[str, Any]]:
    """Return what raises 409 unless the message is unfinished and `fits`: it is `otherwise`."""

    def about(conn: Connection, name: str, given: Form) -> dict[str, Any]:
        if not any(map(fits, rows_of(conn, "unfinished_message", id=int(given["id"])))):
            raise HTTPException(409, f"Message {given['id']} is {otherwise}.")
        return {}

    return about


def _publish(conn: Connection, name: str, form: Form) -> dict[str, Any]:
    return {"queue_name": name, "message": _body(form), "reference": fields.text(form, "reference")}


def _body(form: Form) -> JsonText:
    try:
        json.loads(form.get("body", ""), parse_constant=_refuse)
    except RecursionError:
        pass  # too deep for Python, and not for PostgreSQL
    except ValueError as error:
        where = f" (line {error.lineno}, column {error.colno})" if isinstance(error, json.JSONDecodeError) else ""
        fix = 'Write for example {"order": 7}, or "a text" in quotes.'
        raise InvalidMessage(f"The body is not JSON{where}", fix) from None
    # The body stays as it was written: a number of Python would lose digits.
    return JsonText(form["body"])


def _refuse(constant: str) -> NoReturn:
    raise ValueError(constant)


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
        "Its messages can be leased again, and its consumers are notified.",
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
        "publish_test",
        _publish,
        "Published message {id}.",
    ),
    "policy": Action(
        "Change the policy",
        "Change it",
        "It holds at once, also for the messages that wait already. Durations are written as 90s, 10m, 2h or 1d.",
        "alter_queue",
        policy.changes,
        "The policy is changed.",
        about=policy.now,
    ),
    "requeue": Action(
        "Requeue dead messages?",
        "Requeue them",
        "Each is published again under a new id, oldest first. Fix the cause first, or they die again.",
        "requeue_dead",
        _requeue,
        "Requeued {n}.",
        about=dead.count,
        nothing="Nothing was done: no such message is left that nobody holds.",
    ),
    "dismiss": Action(
        "Dismiss dead messages?",
        "Dismiss them",
        "Nothing more is done about them, oldest first. They stay in the archive as long as its retention says.",
        "dismiss_dead",
        _dismiss,
        "Dismissed {n}.",
        about=dead.count,
        danger=True,
        nothing="Nothing was done: no such message is left that nobody holds.",
    ),
}
OF_MESSAGES: Final[dict[str, Action]] = {
    "requeue": Action(
        "Requeue this message?",
        "Requeue it",
        "It is published again under a new id. Fix the cause or the body first, or it dies again.",
        "requeue_dead",
        _requeue_one,
        "Requeued {n}.",
        about=_dead_body,
        nothing=_HELD,
    ),
    "dismiss": Action(
        "Dismiss this message?",
        "Dismiss it",
        "Nothing more is done about it. It stays in the archive as long as its retention says.",
        "dismiss_dead",
        lambda conn, name, form: _one(conn, name, form) | {"reason": dead.reason(form)},
        "Dismissed {n}.",
        about=_dead,
        danger=True,
        nothing=_HELD,
    ),
    "release": Action(
        "End the lease of this message?",
        "End the lease",
        "Somebody else may lease it at once; the attempt counts. Whoever still works on it has lost it.",
        "release_messages",
        _one,
        "Ended the lease of {n}.",
        about=_unfinished(
            "held by nobody: there is nothing to do",
            lambda message: bool((ends := message["lock_expires_at"]) and ends > datetime.now(UTC)),
        ),
        danger=True,
        nothing="Nothing was done: nobody holds it any more.",
    ),
    "cancel": Action(
        "Cancel this message?",
        "Cancel it",
        "It is archived as cancelled, and is not dead. Whoever works on it has lost it.",
        "cancel",
        _one,
        "Cancelled {n}.",
        about=_unfinished("finished: there is nothing to cancel"),
        danger=True,
        nothing="Nothing was done: it is finished by now.",
    ),
}


@dataclass(frozen=True, slots=True)
class Said:
    """The result of an action, in one sentence."""

    text: str
    good: bool = True


def said_of(request: Request) -> Said | None:
    """Return the result of the action that led to this address, or None if no action did."""
    given = request.query_params
    if "done" not in given or not is_vouched(request):
        return None
    if given["done"] == "again":
        return Said("The form was sent twice, and only the first time counted.")
    action = (OF_MESSAGES if "id" in request.path_params else OF_QUEUES)[given["done"]]
    number, asked = (fields.whole_number(given.get(name, "")) or 0 for name in ("n", "of"))
    if not number and action.nothing:
        return Said(action.nothing, False)
    rest = f" That is fewer than the {asked:,} asked for; count again to see what is left." if asked > number else ""
    return Said(action.done.format(n=quantity(number), id=number) + rest, not rest)


@router.get("/queues/{name}/{action}")
def ask_of_queue(request: Request, name: str, action: str) -> Response:
    """Show the confirmation of an action on a queue, which says what will happen.

    The form takes only a filter from the address, which anybody can make: the page counts and shows what it finds.
    """
    known, given = _known(OF_QUEUES, action), request.query_params
    filtered = dead.FILTER if known.of_many else ()
    return _ask(request, known, name, {key: given[key] for key in filtered if key in given})


@router.post("/queues/{name}/{action}")
def act_on_queue(request: Request, name: str, action: str, form: dict[str, str] = Depends(checked_form)) -> Response:
    """Carry out the action, and return to the page of the queue."""
    return _act(request, _known(OF_QUEUES, action), name, form)


@router.get("/messages/{id}/{action}")
def ask_of_message(request: Request, id: Id, action: str) -> Response:
    """Show the confirmation of an action on a message, which says what will happen."""
    known = _known(OF_MESSAGES, action)
    return _ask(request, known, _queue_of(request, id), {"id": str(id)})


@router.post("/messages/{id}/{action}")
def act_on_message(request: Request, id: Id, action: str, form: dict[str, str] = Depends(checked_form)) -> Response:
    """Carry out the action, and return to the page of the message."""
    known = _known(OF_MESSAGES, action)
    return _act(request, known, _queue_of(request, id), form | {"id": str(id)})


def _known(actions: Mapping[str, Action], name: str) -> Action:
    if name not in actions:
        raise HTTPException(404, "There is no such page.")
    return actions[name]


def _queue_of(request: Request, id: int) -> str:
    with site_of(request).reading() as conn:
        return str(life_of(conn, id)[0]["queue_name"])


def life_of(conn: Connection, id: int) -> list[Row]:
    """Return what is recorded of a message; raise 404 if nothing is."""
    if life := run(conn, verbs.message_life(id)):
        return life
    raise HTTPException(404, f"There is no message {id}. Retention may have removed it, or it was purged.")


def _ask(request: Request, action: Action, name: str, given: Form, wrong: Exception | None = None) -> Response:
    if not person_of(request).may_act:
        raise HTTPException(403, person_of(request).lacks)
    with site_of(request).reading() as conn:
        run(conn, verbs.status(name))  # raises for an unknown queue
        Rights.of(conn, name).check(action.verb)
        about = action.about(conn, name, given)
    status = 400 if wrong else 200
    return page(request, "confirm.html", status, action=action, queue_name=name, given=given, about=about, wrong=wrong)


def _act(request: Request, action: Action, name: str, form: dict[str, str]) -> Response:
    """Carry out the action in one transaction; for many messages it continues from a page that shows the progress."""
    site, person = site_of(request), person_of(request)
    try:
        with site.acting() as conn:
            arguments = action.arguments(conn, name, form)
            many = dead.Progress.of(form) if action.of_many else None
            if many is not None:
                arguments["max_messages"] = many.next
            if action.verb in ("requeue_dead", "dismiss_dead"):
                arguments["resolved_by"] = person.name
            first = run(conn, verbs.act_for(person.name, UUID(form["request"])))
            rows = run(conn, Statement(action.verb, arguments, list)) if first else None
    except QueueError:
        raise
    except (InvalidArgument, InvalidMessage) as error:
        return _ask(request, action, name, form, error)
    finally:
        site.shared.forget()
    if rows is None and many and many.later:
        # Do not continue with the next part: if the first response arrived too, both would continue and take too many.
        return _ask(request, action, name, form | {"max_messages": str(many.later)}, _PART)
    done = request.path_params["action"]
    if rows is None:
        return _redirect(request, done="again")
    if many is None:
        return _redirect(request, done=done, n=_many(action, rows))
    so_far = dead.Progress(many.asked, many.done + len(rows))
    if many.later and len(rows) == many.next:
        given = {key: form[key] for key in (*dead.FILTER, "reason") if form.get(key)}
        return page(request, "progress.html", action=action, queue_name=name, given=given, many=so_far)
    return _redirect(request, done=done, n=so_far.done, of=so_far.asked)


def _redirect(request: Request, **said: Any) -> Response:
    """Redirect to the page of the queue or message, which shows the result of the action."""
    path = path_of(request).rpartition("/")[0]
    return RedirectResponse(f"{root_of(request)}{path}?{urlencode(vouched(request, path, **said))}", 303)


def _many(action: Action, rows: list[Row]) -> int:
    """Return the number of messages, or the id of the message that was published."""
    if action.verb in ("purge_queue", "publish_test"):
        return int(one(rows))
    return len(rows)
