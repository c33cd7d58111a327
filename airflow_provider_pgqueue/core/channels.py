"""The NOTIFY channels of the schema. The payload is the id of a message; docs/explanation/concepts.md explains them."""

from typing import Final

NEW_MESSAGE: Final = "new_message"
DEAD_MESSAGE: Final = "dead_message"
