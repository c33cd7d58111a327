"""Publishing to whatever queues a topic reaches."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, TypedDict, Unpack

from airflow_provider_pgqueue.core.client import Statement, one, onlys, to_json


class TopicOptions(TypedDict, total=False):
    """What can be said about a message that is published to a topic: as Options."""

    priority: int
    delay: timedelta
    expires_in: timedelta | None
    headers: Mapping[str, Any] | None
    reference: str | None
    visible_at: datetime | None
    group_key: str | None
    dedup_key: str | None


def publish_topic(topic: str, body: Any, **options: Unpack[TopicOptions]) -> Statement[dict[str, int]]:
    """Publish one message to each queue that the topic reaches; the ids by queue. Unroutable if it reaches none."""
    arguments = {**options, "topic": topic, "message": to_json(body)}
    if (headers := options.get("headers")) is not None:
        arguments["headers"] = to_json(headers)
    types = {"message": "jsonb", "headers": "jsonb"}
    return Statement("publish_topic", arguments, lambda rows: {row["queue_name"]: row["id"] for row in rows}, types)


def route_topic(topic: str) -> Statement[list[str]]:
    """Say which queues a topic reaches, without publishing anything."""
    return Statement("route_topic", dict(locals()), onlys)


def bind_topic(queue_name: str, pattern: str) -> Statement[bool]:
    """Let a queue get a copy of what is published under topics that the pattern matches; True if that is new.

    In a pattern `*` is any word and `#` any number of words: `orders.#` matches `orders` and `orders.eu.created`.
    """
    return Statement("bind_topic", dict(locals()), one)


def unbind_topic(queue_name: str, pattern: str) -> Statement[bool]:
    """End a binding; True if there was one."""
    return Statement("unbind_topic", dict(locals()), one)
