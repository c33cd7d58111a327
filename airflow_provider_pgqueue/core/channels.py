"""The NOTIFY channels of the schema. Notifications have no payload; docs/explanation/concepts.md explains them."""

from typing import Final

NEW_MESSAGE: Final = "new_message"
DEAD_MESSAGE: Final = "dead_message"
