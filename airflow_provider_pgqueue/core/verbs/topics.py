"""Publishing to the queues that a topic reaches."""

from __future__ import annotations

from typing import Any, Unpack

from airflow_provider_pgqueue.core import argument
from airflow_provider_pgqueue.core.json_text import to_json
from airflow_provider_pgqueue.core.message import TopicOptions
from airflow_provider_pgqueue.core.statement import Statement, column, one


def publish_topic(topic: str, body: Any, **options: Unpack[TopicOptions]) -> Statement[dict[str, int]]:
    """Publish one message to each queue that the topic reaches, and return the ids by queue name.

    Raises Unroutable if it reaches none.
    """
    argument.check_names("publish_topic", options, TopicOptions.__annotations__)
    arguments = {**options, "topic": topic, "message": to_json(body)}
    return Statement("publish_topic", arguments, lambda rows: {row["queue_name"]: row["id"] for row in rows})


def route_topic(topic: str) -> Statement[list[str]]:
    """Return the names of the queues that a topic reaches, without publishing anything."""
    return Statement("route_topic", locals(), column)


def bind_topic(queue_name: str, pattern: str) -> Statement[bool]:
    """Send a queue a copy of what is published to topics that the pattern matches; return whether that is new.

    In a pattern `*` is any word and `#` any number of words: `orders.#` matches `orders` and `orders.eu.created`.
    """
    return Statement("bind_topic", locals(), one)


def unbind_topic(queue_name: str, pattern: str) -> Statement[bool]:
    """Remove a binding, and return whether there was one."""
    return Statement("unbind_topic", locals(), one)
