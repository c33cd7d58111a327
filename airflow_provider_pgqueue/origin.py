"""Where a message comes from: the task that published it, and its trace, in the headers `airflow` and `traceparent`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from opentelemetry import context as otel
from opentelemetry import trace
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

if TYPE_CHECKING:
    from airflow.sdk import Context
    from opentelemetry.util.types import AttributeValue

    from airflow_provider_pgqueue.core.message import Message

_PROPAGATOR: Final = TraceContextTextMapPropagator()
_TRACER: Final = trace.get_tracer("airflow_provider_pgqueue")
_TRACE: Final = ("traceparent", "tracestate")
_MOST_LINKS: Final = 100


def origin_of(context: Context) -> dict[str, Any]:
    """Return the headers of a message that a task publishes: which task, and `traceparent` if it is traced."""
    ti = context["ti"]
    headers: dict[str, Any] = {
        "airflow": {
            "dag_id": ti.dag_id,
            "run_id": ti.run_id,
            "task_id": ti.task_id,
            "map_index": ti.map_index,
            "try_number": ti.try_number,
        }
    }
    _PROPAGATOR.inject(headers)
    return headers


def in_trace_of_message(handle: Callable[[Message], Any]) -> Callable[[Message], Any]:
    """Return the handler so that each call is a span, a child of the span that published its message.

    Not of the task that consumes, which is a link of the span: a batch has messages of many traces.
    """

    def call(message: Message) -> Any:
        published = _published(message)
        links = [trace.Link(task)] if published and (task := _current()).is_valid else []
        with _span([message], parent=published, links=links):
            return handle(message)

    return call


def in_trace_of_messages(handle: Callable[[list[Message]], Any]) -> Callable[[list[Message]], Any]:
    """Return the handler of batches so that each call is a span, with links to the spans that published."""

    def call(messages: list[Message]) -> Any:
        published = filter(None, map(_published, messages[:_MOST_LINKS]))
        spans = [trace.get_current_span(context).get_span_context() for context in published]
        # Those of one publisher have one span; by its id, because a span has no hash.
        links = [trace.Link(span) for span in {span.span_id: span for span in spans}.values()]
        with _span(messages, parent=None, links=links):
            return handle(messages)

    return call


@contextmanager
def _span(messages: list[Message], *, parent: otel.Context | None, links: list[trace.Link]) -> Iterator[None]:
    """Open a span named after the queue. Of an error it keeps the class: the text may quote a body."""
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


def _published(message: Message) -> otel.Context | None:
    """Return the trace that a message comes from, if its headers name one; they are as untrusted as the body."""
    headers = message.headers or {}
    carrier = {name: value for name in _TRACE if isinstance(value := headers.get(name), str)}
    found = _PROPAGATOR.extract(carrier, otel.Context()) if carrier else None
    return found or None  # an empty one is that of a header that names no trace


def _current() -> trace.SpanContext:
    return trace.get_current_span().get_span_context()
