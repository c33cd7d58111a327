"""The metrics in the format of OpenMetrics, by the library of Prometheus."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from wsgiref.simple_server import ServerHandler, WSGIRequestHandler, WSGIServer

import psycopg
from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.exposition import generate_latest
from prometheus_client.registry import Collector

from airflow_provider_pgqueue.cli.output import Row
from airflow_provider_pgqueue.cli.text import one_line, print_text
from airflow_provider_pgqueue.core.errors import PgQueueError, translate


def as_text(rows: Sequence[Row]) -> str:
    """Return rows of `verbs.metrics` as OpenMetrics."""
    text: bytes = generate_latest(_registry(lambda: rows))  # type: ignore[no-untyped-call]
    return text.decode()


def serve(measure: Callable[[], Sequence[Row]], host: str, port: int) -> tuple[WSGIServer, threading.Thread]:
    """Serve the rows of `measure` from a thread, one call per request; OSError if the address cannot be used.

    While `measure` fails, the only metric is `pgqueue_up 0`, and stderr has the reason. No response names a version.
    """
    ServerHandler.server_software = WSGIRequestHandler.server_version = "pgqueue"
    WSGIRequestHandler.sys_version = ""
    return start_http_server(port, host, _registry(measure))


def _registry(measure: Callable[[], Sequence[Row]]) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(_Rows(measure))
    return registry


class _Rows(Collector):
    def __init__(self, measure: Callable[[], Sequence[Row]]) -> None:
        self._measure = measure

    def describe(self) -> list[Metric]:
        """Return nothing: registering must not query the database."""
        return []

    def collect(self) -> Iterator[Metric]:
        up = Metric("pgqueue_up", "1 if the database answered.", "gauge")
        try:
            found = _families(self._measure())
        except (psycopg.Error, PgQueueError) as error:
            known = translate(error)
            said = str(known) if isinstance(known, PgQueueError) else type(error).__name__
            print_text(f"no metrics: {one_line(said)}", err=True)
            found = {}
        up.add_sample("pgqueue_up", {}, 1 if found else 0)
        yield up
        yield from found.values()


def _families(rows: Sequence[Row]) -> dict[str, Metric]:
    found: dict[str, Metric] = {}
    for row in rows:
        # OpenMetrics names a family of counters without the ending of its samples.
        name = row["metric"].removesuffix("_total") if row["kind"] == "counter" else row["metric"]
        family = found.setdefault(name, Metric(name, row["help"], row["kind"]))
        family.add_sample(row["metric"], row["labels"], row["value"])
    return found
