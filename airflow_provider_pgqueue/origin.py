"""Where a message comes from: the task that published it, and its trace, in the headers `airflow` and `traceparent`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from opentelemetry import context as otel
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_pgqueue.core.message import Message

_PROPAGATOR: Final = TraceContextTextMapPropagator()
_TRACE: Final = ("traceparent", "tracestate")


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
    """Return the handler so that the spans that it opens are children of the span that published its message."""

    def call(message: Message) -> Any:
        carrier = _carrier(message.headers)
        if not carrier:
            return handle(message)
        # Not the trace of the task that consumes: a batch has messages of many traces.
        token = otel.attach(_PROPAGATOR.extract(carrier))
        try:
            return handle(message)
        finally:
            otel.detach(token)

    return call


def _carrier(headers: Mapping[str, Any] | None) -> dict[str, str]:
    """Return what of the headers names a trace; they are as untrusted as the body."""
    return {name: value for name in _TRACE if isinstance(value := (headers or {}).get(name), str)}
