"""Checks the values that a repair function returns for dead messages."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable, Generator
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from airflow_provider_pgqueue.core.argument import a_type
from airflow_provider_pgqueue.core.errors import InvalidMessage, InvalidOutcome
from airflow_provider_pgqueue.core.function import name_of
from airflow_provider_pgqueue.core.json_text import JsonText, to_json
from airflow_provider_pgqueue.core.message import DeadMessage
from airflow_provider_pgqueue.core.outcome import (
    Failed,
    Rejected,
    Retry,
    Success,
    class_name,
    concerns_message,
    loggable,
    storable,
)
from airflow_provider_pgqueue.core.repair.validator import Validator

log = logging.getLogger(__name__)


class _Word(Enum):
    """`KEEP` requeues a dead message with its present body; `LEAVE` leaves it dead."""

    KEEP = "keep"
    LEAVE = "leave"


KEEP: Final = _Word.KEEP
LEAVE: Final = _Word.LEAVE


@dataclass(frozen=True, slots=True)
class Dismiss:
    """The message is closed without publishing it again; the archive keeps the reason."""

    reason: str


RepairFunction = Callable[[DeadMessage], Any]
"""Gets a dead message and returns a new body, `KEEP`, `LEAVE` or `Dismiss(reason)`; it may be an `async def`."""


def keep(message: DeadMessage) -> _Word:
    """Requeue any message as it is: the function of a repair that is given none."""
    return KEEP


@dataclass(frozen=True, slots=True)
class Resolution:
    """The resolution of a dead message: `requeued`, `dismissed`, or why it stays dead: `left`, `invalid`, `raised`."""

    outcome: str
    body: Any = KEEP
    reason: str = ""


def resolve(message: DeadMessage, function: RepairFunction, validator: Validator | None) -> Resolution:
    """Call the function with one message, and return the checked resolution.

    An exception or a None of the function concerns this message alone. The class of an error is logged, but not its
    text. What cannot be meant as a body, such as True, is an InvalidOutcome: another message would get it too.
    """
    try:
        said = function(message)
    except BaseException as error:
        if not concerns_message(error):
            raise
        return _raised(message, error)
    if _is_no_body(said, message):
        raise InvalidOutcome(
            f"the repair function {name_of(function)} returned {said if isinstance(said, bool) else a_type(said)} for "
            f"dead message {message.id}",
            "Return a new body, or KEEP, LEAVE or Dismiss(reason); KEEP requeues the message as it is.",
        )
    try:
        if said is LEAVE:
            return Resolution("left")
        if isinstance(said, Dismiss):
            return Resolution("dismissed", reason=_reason(said))
        if said is None:
            fix = "return a body, KEEP, LEAVE or Dismiss(reason)"
            log.warning("the function returned None for dead message %s: %s", message.id, fix)
            return Resolution("raised")
        body = message.body if said is KEEP else said
        if (validator and validator(body)) or (text := _as_json(body)) is None:
            return Resolution("invalid")
    except Exception as error:
        return _raised(message, error)
    # As text, because the function may change what it returned before the batch is settled.
    return Resolution("requeued", body=said if said is KEEP else text)


def _raised(message: DeadMessage, error: BaseException) -> Resolution:
    # The text of the error may quote the body.
    log.warning("the repair of dead message %s raised %s", message.id, loggable(class_name(error)))
    return Resolution("raised")


def _is_no_body(said: Any, message: DeadMessage) -> bool:
    """Return whether a value cannot be meant as a body: a test result, an outcome of a consumer, a call not made."""
    if isinstance(said, bool):
        return not isinstance(message.body, bool)
    return callable(said) or isinstance(said, Success | Rejected | Failed | Retry | Generator | AsyncGenerator)


def _reason(said: Dismiss) -> str:
    if not isinstance(said.reason, str) or not said.reason.strip():
        raise TypeError("Dismiss has no reason: say why nothing more will be done")
    return storable(said.reason)


def _as_json(body: Any) -> JsonText | None:
    try:
        return JsonText(to_json(body))
    except InvalidMessage:
        return None
