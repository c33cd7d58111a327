"""What takes metrics, spans and lineage, as far as tests have to read them, over the real sockets and protocols."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Statsd:
    """A server of statsd: `lines` are what it heard, as `name,tag=value:number|kind`."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        # A datagram that finds no room is lost, and a loaded machine lets many wait.
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
        self._socket.bind(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]
        self._thread = threading.Thread(target=self._listen, name="statsd")
        self._thread.start()

    def _listen(self) -> None:
        with self._socket:
            while datagram := self._socket.recv(65_536):
                self.lines += datagram.decode().splitlines()

    def heard(self, metric: str, **tags: str) -> bool:
        """Return whether it heard of a metric with these tags."""
        wanted = {f"airflow.{metric}", *(f"{name}={value}" for name, value in tags.items())}
        return any(wanted <= set(line.partition(":")[0].split(",")) for line in list(self.lines))

    def close(self) -> None:
        """End the thread, by an empty datagram, which comes after all that was sent before."""
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as last:
            last.sendto(b"", ("127.0.0.1", self.port))
        self._thread.join()


@contextmanager
def statsd() -> Iterator[Statsd]:
    """Run a server of statsd."""
    server = Statsd()
    try:
        yield server
    finally:
        server.close()


@contextmanager
def collector() -> Iterator[tuple[int, list[bytes]]]:
    """Run an HTTP server that takes what OpenTelemetry or OpenLineage sends: its port, and the bodies that it got."""
    got: list[bytes] = []

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Receiver) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_port, got
        finally:
            server.shutdown()
            thread.join()


def metrics_of(bodies: list[bytes]) -> dict[str, list[Any]]:
    """Return the metrics by name that a collector got, without Airflow's prefix; what it got last comes last."""
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

    found: dict[str, list[Any]] = {}
    for body in list(bodies):
        for resource in ExportMetricsServiceRequest.FromString(body).resource_metrics:
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    found.setdefault(metric.name.removeprefix("airflow."), []).append(metric)
    return found


def tags_of(metric: Any) -> list[dict[str, str]]:
    """Return the tags of each point of a gauge or a counter."""
    points = metric.gauge.data_points or metric.sum.data_points
    return [{one.key: one.value.string_value for one in point.attributes} for point in points]
