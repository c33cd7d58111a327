"""The NOTIFY channels of the schema, whose notifications carry nothing: docs/explanation/concepts.md says when."""

from typing import Final

NEW_MESSAGE: Final = "new_message"
DEAD_MESSAGE: Final = "dead_message"
