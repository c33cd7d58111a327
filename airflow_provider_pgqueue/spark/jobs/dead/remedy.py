"""What a repair says about a dead message, and how its text on a command line becomes a function."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Final

from airflow_provider_pgqueue.core.body import to_json
from airflow_provider_pgqueue.core.errors import InvalidArgument, InvalidMessage
from airflow_provider_pgqueue.core.function import load_function
from airflow_provider_pgqueue.core.message import DeadMessage

log = logging.getLogger(__name__)


class Decision(Enum):
    """What needs no more words."""

    KEEP = "keep"
    LEAVE = "leave"


KEEP: Final = Decision.KEEP
"""Requeue the message with the body that it has."""
LEAVE: Final = Decision.LEAVE
"""Decide nothing: it stays dead, for others."""


@dataclass(frozen=True, slots=True)
class Dismiss:
    """Nothing more is done about the message; the reason is kept in the archive."""

    reason: str


Repair = Callable[[DeadMessage], Any]  # returns a new body, KEEP, LEAVE or Dismiss
Validator = Callable[[Any], str | None]  # gets a body, returns what is wrong with it


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is to be done: `requeued`, `dismissed`, or why it stays dead: `left`, `invalid`, `raised`."""

    outcome: str
    body: Any = KEEP
    reason: str = ""


def judge(message: DeadMessage, repair: Repair, validator: Validator | None) -> Verdict:
    """Ask the repair about one message and check what it returns. Says in the log which class it raised, no text."""
    try:
        said = repair(message)
        if said is None:
            raise TypeError("the repair returned None: return a body, KEEP, LEAVE or Dismiss(reason)")
        if said is LEAVE:
            return Verdict("left")
        if isinstance(said, Dismiss):
            return Verdict("dismissed", reason=_reason(said))
        body = message.body if said is KEEP else said
        if (validator and validator(body)) or not _is_json(body):
            return Verdict("invalid")
    except Exception as error:
        # The text of the error may quote the body.
        log.warning("the repair of dead message %s raised %s", message.id, type(error).__name__)
        return Verdict("raised")
    return Verdict("requeued", body=said)


def _reason(said: Dismiss) -> str:
    if not isinstance(said.reason, str) or not said.reason.strip():
        raise TypeError("Dismiss has no reason: say why nothing more will be done")
    return said.reason


def _is_json(body: Any) -> bool:
    try:
        to_json(body)
    except InvalidMessage:
        return False
    return True


def load(function: str | Callable[..., Any]) -> Callable[..., Any]:
    """Return the function that `module:function` names; InvalidArgument if there is none."""
    return load_function(function) if isinstance(function, str) else function


def load_validator(given: str | Validator | None) -> Validator | None:
    """Return the validator that `module:function` or a file with a JSON Schema is."""
    if isinstance(given, str) and given.endswith(".json"):
        return MatchesSchema.of(Path(given))
    return None if given is None else load(given)


@dataclass(frozen=True, slots=True)
class MatchesSchema:
    """Validates bodies with a JSON Schema. References to other files or hosts are not followed."""

    schema: str

    @classmethod
    def of(cls, path: Path) -> MatchesSchema:
        """Read and check the schema of a file; InvalidArgument says what is wrong with it."""
        try:
            from jsonschema.exceptions import SchemaError
            from jsonschema.validators import validator_for
        except ModuleNotFoundError as error:
            raise InvalidArgument("a JSON Schema needs the package jsonschema. Install it here and there.") from error
        try:
            text = path.read_text(encoding="utf-8")
            schema = json.loads(text)
            validator_for(schema).check_schema(schema)
        except (OSError, ValueError, SchemaError) as error:
            raise InvalidArgument(f"{path} is no JSON Schema: {type(error).__name__}. Give a readable one.") from error
        return cls(text)

    def __call__(self, body: Any) -> str | None:
        """Say that the body does not match, without quoting it."""
        from jsonschema.validators import validator_for
        from referencing import Registry

        schema = json.loads(self.schema)
        matches = validator_for(schema)(schema, registry=Registry()).is_valid(body)
        return None if matches else "it does not match the schema"
