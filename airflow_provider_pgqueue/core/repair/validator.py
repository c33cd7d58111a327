"""Checks the bodies that a repair would publish: a function of the user, or a JSON Schema."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airflow_provider_pgqueue.core.errors import InvalidArgument
from airflow_provider_pgqueue.core.function import load_function

Validator = Callable[[Any], str | None]
"""A function that gets a body and returns what is wrong with it, or None."""


def load_validator(given: str | Validator | None) -> Validator | None:
    """Return the validator that a text names: `module:function`, or a `.json` file with a JSON Schema."""
    if isinstance(given, str) and given.endswith(".json"):
        return MatchesSchema.of(Path(given))
    return None if given is None else load_function(given)


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
            raise InvalidArgument(
                "a JSON Schema needs jsonschema", "Install it where the repair runs: pip install jsonschema"
            ) from error
        try:
            text = path.read_text(encoding="utf-8")
            schema = json.loads(text)
            validator_for(schema).check_schema(schema)
        except (OSError, ValueError, SchemaError) as error:
            raise InvalidArgument(f"{path} is not a JSON Schema: {type(error).__name__}. Give a valid one.") from error
        return cls(text)

    def __call__(self, body: Any) -> str | None:
        """Return None if the body matches, else a text that does not quote it."""
        from jsonschema.validators import validator_for
        from referencing import Registry

        schema = json.loads(self.schema)
        matches = validator_for(schema)(schema, registry=Registry()).is_valid(body)
        return None if matches else "it does not match the schema"
