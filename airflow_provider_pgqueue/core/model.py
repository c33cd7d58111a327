"""Bodies as values of a model: what does not match is rejected before a handler sees it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from airflow_provider_pgqueue.core.message import Message
from airflow_provider_pgqueue.core.outcome import Rejected, RejectMessage, outcomes_by_id
from airflow_provider_pgqueue.core.repair.validator import MatchesSchema

Reader = Callable[[Any], Any]
"""Makes a value of a body, or raises RejectMessage with what is wrong with it, which never quotes the body."""
_MOST_ERRORS = 10


def load_model(given: Any) -> Reader:
    """Return what reads bodies with a model.

    :param given: a pydantic model, which makes a body an instance of it; or the path of a `.json` file with a JSON
        Schema, which leaves the body as it is.
    """
    return _with_schema(MatchesSchema.of(Path(given))) if isinstance(given, str) else _with_pydantic(given)


def each_with_model(handle: Callable[[Message], Any], read: Reader) -> Callable[[Message], Any]:
    """Return a handler that is called with what the model makes of the body."""
    return lambda message: handle(replace(message, body=read(message.body)))


def all_with_model(handle_batch: Callable[[list[Message]], Any], read: Reader) -> Callable[[list[Message]], Any]:
    """Return a batch handler that gets only the messages whose body matches; the others are rejected."""

    def handle(messages: list[Message]) -> Mapping[int, Any]:
        fit: list[Message] = []
        outcomes: dict[int, Any] = {}
        for message in messages:
            try:
                fit.append(replace(message, body=read(message.body)))
            except RejectMessage as error:
                outcomes[message.id] = Rejected(str(error))
        return outcomes | dict(outcomes_by_id(fit, handle_batch(fit))) if fit else outcomes

    return handle


def _with_schema(schema: MatchesSchema) -> Reader:
    def read(body: Any) -> Any:
        if problem := schema(body):
            raise RejectMessage(problem)
        return body

    return read


def _with_pydantic(model: Any) -> Reader:
    fields = getattr(model, "model_fields", {})
    names = {*fields, *(field.alias for field in fields.values())}

    def read(body: Any) -> Any:
        from pydantic import ValidationError

        try:
            return model.model_validate(body)
        except ValidationError as error:
            # Without the input, which is the body; of the place only a field of the model, because what is below it, or
            # what the model does not know, may be a key of the body.
            found = error.errors(include_input=False, include_url=False, include_context=False)[:_MOST_ERRORS]
            places = [next((at for at in one["loc"][:1] if at in names), "the body") for one in found]
            told = [f"{place}: {one['type']}" for place, one in zip(places, found, strict=True)]
            raise RejectMessage(f"the body is not a valid {model.__name__}: {'; '.join(told)}") from None

    return read
