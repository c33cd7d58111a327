"""The link of a task to its message, or to its queue, on the Queues page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from airflow.providers.common.compat.sdk import BaseOperatorLink, conf

if TYPE_CHECKING:
    from airflow.sdk.types import TaskInstanceKey


class PgQueueLink(BaseOperatorLink):
    """Leads from a task to its message if it has exactly one, else to its queue; Airflow asks when the task ends."""

    name = "Messages"

    def get_link(self, operator: Any, *, ti_key: TaskInstanceKey) -> str:
        """Return the address, or an empty one for a task that names no queue."""
        base_url: str = conf.get("api", "base_url", fallback="")
        root = f"{base_url.rstrip('/')}/pgqueue"
        ids: Sequence[int] = getattr(operator, "message_ids", ())
        queue_name: str | None = getattr(operator, "queue_name", None)
        if len(ids) == 1:
            return f"{root}/messages/{ids[0]}"
        return f"{root}/queues/{quote(queue_name, safe='')}" if queue_name else ""
