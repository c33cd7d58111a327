"""Metrics and spans reach a real sink: a UDP socket for statsd, and an HTTP server for OpenTelemetry."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.sinks import collector, statsd

PROGRAM = Path(__file__).with_name("task_program.py")
Queue = Callable[..., str]
COUNTERS = {
    "pgqueue.published": 3,
    "pgqueue.leased": 3,
    "pgqueue.handled.success": 2,
    "pgqueue.handled.rejected": 1,
    "pgqueue.requeued": 1,
    "pgqueue.lease_lost": 2,
}
TIMERS = {"pgqueue.handler": 3, "pgqueue.waited": 1}
GAUGES = {"ready", "leased_now", "delayed", "dead", "oldest_age", "dispatches_open"}


def run_program(*arguments: str, **settings: Any) -> None:
    environment = {f"AIRFLOW__METRICS__{name.upper()}": str(value) for name, value in settings.items()}
    command = [sys.executable, str(PROGRAM), *arguments]
    done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_statsd_gets_each_metric(conn_id: str, queue: Queue) -> None:
    queue("orders")
    with statsd() as sink:
        run_program(statsd_on=True, statsd_port=sink.port, statsd_influxdb_enabled=True)
    found: dict[str, list[tuple[str, str]]] = {}
    for line in sink.lines:
        named, _, value = line.partition(":")
        name, _, tags = named.removeprefix("airflow.").partition(",")
        found.setdefault(name, []).append((value, tags))
    for name, number in COUNTERS.items():
        assert sum(int(value.partition("|")[0]) for value, _ in found[name]) == number, name
    for name, number in TIMERS.items():
        assert len(found[name]) == number, name
        assert all(value.endswith("|ms") for value, _ in found[name])
    assert {name.removeprefix("pgqueue.") for name, some in found.items() if some[0][0].endswith("|g")} >= GAUGES
    ours = [(name, tags) for name, some in found.items() if name.startswith("pgqueue") for _, tags in some]
    assert all(tags.startswith("queue=") for _, tags in ours), ours


def test_the_span_of_a_handler_is_a_child_of_the_span_that_published(conn_id: str, queue: Queue) -> None:
    queue("orders")
    with collector() as (port, got):
        run_program(f"http://127.0.0.1:{port}")
    spans = [
        span
        for body in got
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]
    by_name = {name: [span for span in spans if span.name == name] for name in ("publisher", "consumer", "inside")}
    (publisher,), (consumer,) = by_name["publisher"], by_name["consumer"]
    *each, batch = [span for span in spans if span.name == "process orders"]
    assert [span.trace_id for span in each] == [publisher.trace_id] * 3
    assert [span.parent_span_id for span in each] == [publisher.span_id] * 3
    assert [[link.span_id for link in span.links] for span in each] == [[consumer.span_id]] * 3
    assert {span.parent_span_id for span in by_name["inside"]} == {span.span_id for span in each}
    about = [{one.key: one.value.string_value or one.value.int_value for one in span.attributes} for span in each]
    assert {one["messaging.destination.name"] for one in about} == {"orders"}
    assert len({one["messaging.message.id"] for one in about}) == 3
    assert [one.get("error.type") for one in about] == ["ValueError", None, None]
    assert "secret" not in str(each)
    assert (batch.trace_id, batch.parent_span_id) == (consumer.trace_id, consumer.span_id)
    assert [(link.trace_id, link.span_id) for link in batch.links] == [(publisher.trace_id, publisher.span_id)]
