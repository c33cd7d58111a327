"""The metrics reach a real sink: a UDP socket for statsd, and an HTTP server for OpenTelemetry."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

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


def run_program(conn_id: str, **settings: Any) -> None:
    environment = {f"AIRFLOW__METRICS__{name.upper()}": str(value) for name, value in settings.items()}
    done = subprocess.run([sys.executable, str(PROGRAM)], env=os.environ | environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_statsd_gets_each_metric(conn_id: str, queue: Queue) -> None:
    queue("orders")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sink:
        sink.bind(("127.0.0.1", 0))
        sink.settimeout(10)
        port = sink.getsockname()[1]
        run_program(conn_id, statsd_on=True, statsd_port=port, statsd_influxdb_enabled=True)
        sink.setblocking(False)
        lines = []
        while True:
            try:
                lines.append(sink.recv(65_536).decode())
            except BlockingIOError:
                break
    found: dict[str, list[tuple[str, str]]] = {}
    for line in lines:
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


class _Receiver(BaseHTTPRequestHandler):
    got: list[ExportMetricsServiceRequest]

    def do_POST(self) -> None:
        request = ExportMetricsServiceRequest()
        request.ParseFromString(self.rfile.read(int(self.headers["Content-Length"])))
        self.got.append(request)
        self.send_response(200)
        self.end_headers()

    def log_message(self, *args: Any) -> None:
        pass


def test_an_opentelemetry_collector_gets_each_metric(conn_id: str, queue: Queue) -> None:
    queue("orders")
    receiver = type("Receiver", (_Receiver,), {"got": []})
    with ThreadingHTTPServer(("127.0.0.1", 0), receiver) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            run_program(conn_id, otel_on=True, otel_host="127.0.0.1", otel_port=server.server_port)
        finally:
            server.shutdown()
            thread.join()
    metrics = {
        metric.name.removeprefix("airflow."): metric
        for request in receiver.got
        for resource in request.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }
    for name, number in COUNTERS.items():
        (point,) = metrics[name].sum.data_points
        assert (point.as_int or point.as_double) == number, name
        assert {one.key: one.value.string_value for one in point.attributes} == {"queue": "orders"}
    for name, number in TIMERS.items():
        (histogram,) = metrics[name].exponential_histogram.data_points
        assert histogram.count == number, name
    assert {f"pgqueue.{name}" for name in GAUGES} <= metrics.keys()
