"""What a search of the site finds first: for words that users bring from elsewhere, the page to read."""

from __future__ import annotations

from typing import Any, Final

WORDS: Final = {
    "tutorial/quickstart.md": ["install airflow", "install", "getting started"],
    "how-to/reprocess.md": ["reprocess", "nightly"],
    "how-to/broken-handlers.md": ["retry", "retries", "back-off"],
    "how-to/dead-messages.md": ["DLQ", "dead letter queue", "poison"],
    "how-to/consume.md": ["ack", "acknowledge", "consume", "sensor"],
    "how-to/publish.md": ["enqueue", "send"],
}
"""The words of each page; the index weighs them more than any title."""


def describe(page: str, meta: dict[str, Any]) -> None:
    """Set what the search knows of a page. It does not find decisions: they explain, and never say what to do."""
    if page in WORDS:
        meta["tags"] = WORDS[page]
    if page.startswith("decisions/"):
        meta["search"] = {"exclude": True}
