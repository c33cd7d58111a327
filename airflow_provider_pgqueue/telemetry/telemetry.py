"""Metrics and traces of messages in Airflow, and the names of tasks in messages and leases.

A metric is about a queue, which is a tag, and never about a message; it goes to statsd or OpenTelemetry. A span is
about the messages of one call of a handler, in the trace that their header `traceparent` names. Where Airflow has
neither switched on, this costs some function calls per batch, and a span that records nothing per call.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from airflow.providers.common.compat.sdk import Stats
from opentelemetry import context as otel
from opentelemetry import trace
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from airflow_provider_pgqueue.core.connection import process_name
from airflow_provider_pgqueue.core.consumer.lease import Lease
from airflow_provider_pgqueue.core.message import Dispatch, Message, QueueStatus

if TYPE_CHECKING:
    from airflow.sdk import Context
    from opentelemetry.util.types import AttributeValue

NAMES: Final = ("dag_id", "run_id", "task_id", "map_index", "try_number")
"""The fields that identify one try of a task instance."""
_PREFIX: Final = "pgqueue"
_IN_NOTIFICATIONS: Final = {"ready": "ready", "waiting": "dead", "oldest_age": "oldest_age"}
_PROPAGATOR: Final = TraceContextTextMapPropagator()
_TRACER: Final = trace.get_tracer("airflow_provider_pgqueue")
_TRACE: Final = ("traceparent", "tracestate")
_MOST_LINKS: Final = 100


@dataclass
class ConsumerTelemetry:
    """Counts what a consumer leases and how its messages end, times how long they waited, and watches its handler.

    The consumer calls `handle` or `handle_batch` in place of the `handler`, which times each call and puts it in a
    span. `record_lease` and `record_batch` are for the hooks of a `Loop`.
    """

    queue_name: str
    handler: Callable[[Any], Any]
    _seen: Counter[str] = field(init=False, default_factory=Counter)

    def record_lease(self, lease: Lease) -> None:
        """Count the messages of a lease, and record the longest wait."""
        oldest = min(message.created_at for message in lease.messages)
        _count("leased", len(lease.messages), self._queue)
        _time("waited", datetime.now(UTC) - oldest, self._queue)

    def record_batch(self, counts: Mapping[str, int]) -> None:
        """Count how the messages of the last batch ended; `counts` are the sums so far."""
        for result, number in (Counter(counts) - self._seen).items():
            # In the name too: plain statsd has no tags.
            _count("lease_lost" if result == "lost" else f"handled.{result}", number, self._queue)
        self._seen = Counter(counts)

    def handle(self, message: Message) -> Any:
        """Call the handler in a span, a child of the span that published the message.

        Not of the task that consumes, which is a link of the span: a batch has messages of many traces.
        """
        published = _published(message)
        links = [trace.Link(task)] if published and (task := _current()).is_valid else []
        with self._call([message], parent=published, links=links):
            return self.handler(message)

    def handle_batch(self, messages: list[Message]) -> Any:
        """Call the handler in a span, which links to those that published the messages."""
        published = filter(None, map(_published, messages[:_MOST_LINKS]))
        spans = [trace.get_current_span(context).get_span_context() for context in published]
        # The messages of one publisher have one span, found by its id because a span has no hash.
        links = [trace.Link(span) for span in {span.span_id: span for span in spans}.values()]
        with self._call(messages, parent=None, links=links):
            return self.handler(messages)

    @property
    def _queue(self) -> dict[str, str]:
        return {"queue": self.queue_name}

    @contextmanager
    def _call(self, messages: list[Message], *, parent: otel.Context | None, links: list[trace.Link]) -> Iterator[None]:
        """Time a call, in a span named after the queue. Of an error it keeps the class: the text may quote a body."""
        queue_name = messages[0].queue_name
        about: dict[str, AttributeValue] = {
            "messaging.system": "pgqueue",
            "messaging.operation.type": "process",
            "messaging.destination.name": queue_name,
        }
        if len(messages) == 1:
            about |= {"messaging.message.id": str(messages[0].id), "pgqueue.attempt": messages[0].attempts}
        else:
            about["messaging.batch.message_count"] = len(messages)
        began_at = time.monotonic()
        try:
            with _TRACER.start_as_current_span(
                f"process {queue_name}",
                context=parent,
                kind=trace.SpanKind.CONSUMER,
                links=links,
                attributes=about,
                record_exception=False,
                set_status_on_exception=False,
            ) as span:
                try:
                    yield
                except BaseException as error:
                    span.set_status(trace.StatusCode.ERROR, type(error).__name__)
                    span.set_attribute("error.type", type(error).__qualname__)
                    raise
        finally:
            _time("handler", timedelta(seconds=time.monotonic() - began_at), self._queue)


def headers_of(context: Context) -> dict[str, Any]:
    """Return the headers of a message that say which task publishes it, with `traceparent` if it is traced."""
    headers: dict[str, Any] = {"airflow": {name: getattr(context["ti"], name) for name in NAMES}}
    _PROPAGATOR.inject(headers)
    return headers


def task_of(context: Context) -> str:
    """Return `dag/run/task/map_index` of the task instance, which is the same for all its tries."""
    ti = context["ti"]
    return f"{ti.dag_id}/{ti.run_id}/{ti.task_id}/{ti.map_index}"


def name_of(context: Context) -> str:
    """Return `dag/run/task/map_index/try` of the task instance and the process that runs it."""
    return f"{task_of(context)}/{context['ti'].try_number}@{process_name()}"


def record_published(queue_name: str, number: int) -> None:
    """Count messages that were published."""
    if number:
        _count("published", number, {"queue": queue_name})


def record_resolutions(queue_name: str | None, summary: Mapping[str, Any]) -> None:
    """Count the dead messages of a repair by outcome."""
    for name in ("requeued", "dismissed"):
        if summary[name] and not summary["dry_run"]:
            _count(name, summary[name], {"queue": queue_name or "all"})


def record_notification(notification: Mapping[str, Any]) -> None:
    """Report the numbers of a notification: the ready or dead messages, and the age of the oldest in seconds."""
    for key, name in _IN_NOTIFICATIONS.items():
        if key in notification:
            name = "dead_oldest_age" if name == "oldest_age" and "waiting" in notification else name
            _show(name, notification[key], {"queue": notification["queue_name"]})


def record_dispatches(queue_name: str, dag_id: str, open_: list[Dispatch]) -> None:
    """Show how many dispatches of a queue to a DAG are open."""
    _show("dispatches_open", len(open_), {"queue": queue_name, "dag_id": dag_id})


def record_status(queues: list[QueueStatus]) -> None:
    """Show the numbers of queues."""
    for queue in queues:
        tags = {"queue": queue.queue_name}
        for name in ("ready", "leased", "delayed", "dead"):
            _show("leased_now" if name == "leased" else name, getattr(queue, name), tags)
        _show("oldest_age", queue.oldest_age.total_seconds() if queue.oldest_age else 0, tags)


def _count(name: str, number: int, tags: dict[str, str]) -> None:
    Stats.incr(f"{_PREFIX}.{name}", number, tags=tags)


def _time(name: str, duration: timedelta, tags: dict[str, str]) -> None:
    Stats.timing(f"{_PREFIX}.{name}", duration, tags=tags)


def _show(name: str, value: float, tags: dict[str, str]) -> None:
    Stats.gauge(f"{_PREFIX}.{name}", value, tags=tags)


def _published(message: Message) -> otel.Context | None:
    """Return the trace that a message comes from, if its headers name one; they are as untrusted as the body."""
    headers = message.headers or {}
    carrier = {name: value for name in _TRACE if isinstance(value := headers.get(name), str)}
    found = _PROPAGATOR.extract(carrier, otel.Context()) if carrier else None
    return found or None  # an empty one is that of a header that names no trace


def _current() -> trace.SpanContext:
    return trace.get_current_span().get_span_context()
