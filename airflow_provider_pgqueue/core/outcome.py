"""The outcomes that a handler returns for a message; None is success."""

from __future__ import annotations

import traceback
from asyncio import CancelledError
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final

from airflow_provider_pgqueue.core.duration import Duration, as_timedelta
from airflow_provider_pgqueue.core.errors import InvalidOutcome
from airflow_provider_pgqueue.core.json_text import JsonText, to_json
from airflow_provider_pgqueue.core.message import Message
from airflow_provider_pgqueue.core.quantity import quantity

_LONGEST_TRACEBACK: Final = 8000  # characters


@dataclass(frozen=True, slots=True)
class Success:
    """The message is done. The archive keeps `details` and `output`, JSON of at most 64 kB."""

    details: str | None = None
    output: Any = None

    def __post_init__(self) -> None:
        _check("details", self.details, str, "a text")


@dataclass(frozen=True, slots=True)
class Rejected:
    """The message is invalid. It is archived as `rejected` with the reason, and never retried."""

    reason: str
    output: Any = None

    def __post_init__(self) -> None:
        if self.reason is None:
            raise TypeError("reason is None. Give a text.")
        _check("reason", self.reason, str, "a text")


@dataclass(frozen=True, slots=True)
class Failed:
    """The message cannot be handled: archived as `failed` now, without further attempts.

    `failure` is an object for whoever repairs the message later: `error`, `message`, `traceback`; see `describe`.
    """

    details: str
    failure: Mapping[str, Any] | None = None
    output: Any = None

    def __post_init__(self) -> None:
        _check("details", self.details, str, "a text")
        _check("failure", self.failure, Mapping, "an object")


@dataclass(frozen=True, slots=True)
class Retry:
    """The message is delivered again after `delay`, by default after the back-off of the queue.

    If it was the last attempt, the message is archived as `failed` with the details. With `count_attempt=False` the
    delivery does not count as an attempt: "come back later", any number of times.
    """

    delay: Duration | None = None
    details: str | None = None
    count_attempt: bool = True
    failure: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.count_attempt, bool):
            raise TypeError(f"count_attempt is of type {type(self.count_attempt).__name__}. Give True or False.")
        if self.delay is not None:
            try:
                as_timedelta(self.delay)
            except ValueError as error:
                raise TypeError(f"delay is of type {type(self.delay).__name__}. {error}") from None
        _check("details", self.details, str, "a text")
        _check("failure", self.failure, Mapping, "an object")


def _check(name: str, value: Any, kind: type, wanted: str) -> None:
    """Raise a TypeError where a handler makes the outcome, so that it is an error of that message only."""
    if value is not None and not isinstance(value, kind):
        raise TypeError(f"{name} is of type {type(value).__name__}. Give {wanted}.")


Outcome = Success | Rejected | Failed | Retry
Outcomes = dict[int, Outcome | None]
"""Outcomes by message id; None is success."""


PLAIN: Final = Success()  # what most handlers mean, made once


def is_plain(outcome: Outcome | None) -> bool:
    """Return whether it is a success without details and output."""
    # Compared by identity, because the == of an output may do anything.
    return outcome is None or (isinstance(outcome, Success) and outcome.details is None and outcome.output is None)


def concerns_message(error: BaseException) -> bool:
    """Return whether what a handler raised is a failure of its message, and not the wish to end the process or task.

    asyncio.CancelledError and GeneratorExit are failures: nobody outside of the handler can raise them in it.
    """
    parts: list[BaseException] = [error]
    while parts:  # groups may be nested deeper than calls
        part = parts.pop()
        if isinstance(part, BaseExceptionGroup):
            parts += part.exceptions
        elif not isinstance(part, Exception | CancelledError | GeneratorExit):
            return False
    return True


class RejectMessage(Exception):
    """A handler raises this to reject a message as invalid; the text becomes the reason."""


ErrorRules = Mapping[type[BaseException], "type[Rejected] | type[Failed] | type[Retry] | Retry"]
"""What becomes of a message whose handler raises an error of a class, or of one that inherits from it."""


def outcome_of(error: BaseException, rules: ErrorRules | None = None) -> Rejected | Failed | Retry:
    """Return the outcome of a message whose handler raised, as the rule for the nearest class of the error says.

    Without a rule, RejectMessage becomes Rejected, and all else a Retry after the back-off of the queue.
    """
    rule = next((rules[kind] for kind in type(error).__mro__ if kind in rules), None) if rules else None
    if rule is None and isinstance(error, RejectMessage):
        return Rejected(storable(text_of(error)))
    if rule is Retry:
        rule = None
    text = storable(f"{class_name(error)}: {text_of(error)}"[:4000])
    if rule is Rejected:
        return Rejected(text)
    failure = describe(error)
    if isinstance(rule, Retry):
        return replace(rule, details=rule.details or text, failure=rule.failure or failure)
    return Retry(details=text, failure=failure) if rule is None else Failed(text, failure)


def unfinished(error: BaseException, rules: ErrorRules | None = None) -> Retry:
    """Return the outcome of each of several messages in the hands of a handler that raised, as one of them may be why.

    Its failure is unfinished, so that they are handled in smaller batches next time.
    """
    outcome = outcome_of(error, rules)
    retry = outcome if isinstance(outcome, Retry) else Retry(details=class_name(error), failure=describe(error))
    return replace(retry, failure={**(retry.failure or {}), "unfinished": True})


def checked(message: Message, outcome: Any) -> Outcome:
    """Return what a handler returned for a message, as it is now; InvalidOutcome if it is not an outcome."""
    if not isinstance(outcome, Outcome):
        what = f"the class {outcome.__name__}" if isinstance(outcome, type) else type(outcome).__name__
        raise InvalidOutcome(
            f"the handler of queue {message.queue_name!r} returned {what} for message {message.id}. "
            "Return None for success, or Success(), Rejected(), Failed() or Retry()."
        )
    return outcome if is_plain(outcome) else _fixed(outcome)


def _fixed(outcome: Outcome) -> Outcome:
    """Return an outcome with its output as text, because the handler may change it before the outcome is settled."""
    changes: dict[str, Any] = {}
    with suppress(Exception):  # settling the outcome fails in the same way, and says why it cannot be kept
        if not isinstance(outcome, Retry) and outcome.output is not None:
            changes["output"] = JsonText(to_json(outcome.output))
        if isinstance(outcome, Failed | Retry) and outcome.failure is not None:
            changes["failure"] = dict(outcome.failure.items())
        return replace(outcome, **changes) if changes else outcome
    return outcome


def outcomes_by_id(messages: Sequence[Message], outcomes: Any) -> Outcomes:
    """Return by message id what a batch handler returned; InvalidOutcome if it is nothing of the kind."""
    ids = [message.id for message in messages]
    if outcomes is None:
        return {}
    handler = f"the handler of queue {messages[0].queue_name!r}"
    if isinstance(outcomes, Mapping):
        known = set(ids)
        if unknown := [id_ for id_ in outcomes if id_ not in known]:
            raise InvalidOutcome(f"{handler} gave {quantity(len(unknown), 'outcome')} {_strangers(unknown)}")
        return dict(outcomes)
    if not isinstance(outcomes, Iterable) or isinstance(outcomes, str | bytes):
        raise InvalidOutcome(
            f"{handler} returned {type(outcomes).__name__} for {len(ids)} messages. Return None if all succeeded, "
            "outcomes by message id, or one outcome for each message in order."
        )
    in_order = list(outcomes)
    if len(in_order) != len(ids):
        raise InvalidOutcome(f"{handler} returned {len(in_order)} outcomes for {len(ids)} messages. Return one each.")
    return dict(zip(ids, in_order, strict=True))


def _strangers(keys: Sequence[Any]) -> str:
    """Describe keys that are not ids of the messages, without their values, which may come from a body."""
    if all(type(key) is int and 0 < key < 2**63 for key in keys):
        some = f"{', '.join(map(str, keys[:5]))}{', …' if len(keys) > 5 else ''}"
        return f"for messages that it did not get: {some}. Return outcomes for the ids of its messages."
    kinds = sorted({type(key).__name__ for key in keys if type(key) is not int}) or ["int"]
    return f"under keys of type {', '.join(kinds[:3])}, which are no ids. Return outcomes by message id."


def end_of(outcome: Outcome | None, *, last: bool) -> str:
    """Return how a message ends, as `Consumer.drain` counts it; `last` says whether it has no attempt left."""
    match outcome:
        case None | Success():
            return "success"
        case Rejected():
            return "rejected"
        case Failed():
            return "failed"
        case Retry(count_attempt=counted):
            return "failed" if counted and last else "retried"


def outcomes_as_json(outcomes: Mapping[int, Success | Rejected | Failed]) -> JsonText:
    """Return outcomes by message id as the SQL functions take them."""
    return JsonText(
        "{" + ",".join(f"{to_json(str(id_))}:{_as_result(outcome)}" for id_, outcome in dict(outcomes).items()) + "}"
    )


def _as_result(outcome: Success | Rejected | Failed) -> str:
    failure: Mapping[str, Any] | None = None
    match outcome:
        case Success(details, output):
            result = "success"
        case Rejected(details, output):
            result = "rejected"
        case Failed(details, failure, output):
            result = "failed"
    # Assembled by hand, so that an output that is JSON text already stays unchanged.
    text = f'{{"result":"{result}"'
    if details is not None:
        text += f',"details":{to_json(storable(details))}'
    if failure is not None:
        text += f',"failure":{to_json(failure)}'
    if output is not None:
        text += f',"output":{to_json(output)}'
    return text + "}"


def describe(error: BaseException) -> dict[str, str]:
    """Return an exception as the archive keeps it: `error` (its class), `message` (its text), end of `traceback`.

    The text may quote the body of the message, so do not log it.
    """
    try:
        lines = "".join(traceback.format_exception(error))
    except Exception as failed:
        # That of a SyntaxError with an odd place, for example, or of a thousand groups in each other.
        lines = f"{class_name(failed)} while the traceback was formatted"
    return {
        "error": class_of(error),
        "message": storable(text_of(error)[:2000]),
        "traceback": storable(lines[-_LONGEST_TRACEBACK:]),
    }


def text_of(error: BaseException) -> str:
    """Return the text of an exception, even if its `__str__` raises."""
    try:
        return str(error)
    except (Exception, SystemExit) as failed:
        return f"{class_name(failed)} while the text was read"


def class_name(error: BaseException) -> str:
    """Return the name of the class of an exception, without its module."""
    return class_of(error).rpartition(".")[2]


def class_of(error: BaseException) -> str:
    """Return the name of the class of an exception, with its module unless it is built in; at most 200 characters."""
    kind = type(error)
    try:
        name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
        return storable(name[:200])
    except Exception:  # a metaclass may compute the names
        return "Exception"


def loggable(name: str) -> str:
    """Return the name of a class of errors as it may be logged: a class that is made at run time may have any name."""
    name = name.replace("<locals>.", "")
    return name if len(name) <= 100 and name.replace(".", "_").isidentifier() else "one error"


def storable(text: str) -> str:
    """Return a text with NUL and lone surrogates, which PostgreSQL cannot store, replaced."""
    return text.replace("\0", "\ufffd").encode(errors="replace").decode()
