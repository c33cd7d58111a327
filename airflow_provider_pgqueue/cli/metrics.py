"""The metrics, printed or served."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import click

from airflow_provider_pgqueue.cli.connection import ask
from airflow_provider_pgqueue.cli.output import Row, to_text
from airflow_provider_pgqueue.cli.settings import Settings, with_settings
from airflow_provider_pgqueue.cli.text import print_text
from airflow_provider_pgqueue.core import verbs


@click.command()
@click.option("--listen", metavar="HOST:PORT", help="Serve the metrics at http://HOST:PORT/metrics until Ctrl-C.")
@click.option(
    "--max-queues",
    type=click.IntRange(0, 10000),
    default=200,
    show_default=True,
    help="How many queues have metrics of their own, the oldest first; the others are summed up as other.",
)
@with_settings
def metrics(settings: Settings, listen: str | None, max_queues: int) -> None:
    """Print the metrics in the format of OpenMetrics, or serve them to Prometheus.

    Needs prometheus-client, except with --json. Each scrape queries the database once.
    """

    def measure() -> Sequence[Row]:
        return ask(settings, verbs.metrics(max_queues))

    if listen is not None:
        _serve(measure, *_address(listen))
    elif settings.as_json:
        print_text(to_text({"metrics": measure()}))
    else:
        print_text(_exposition().as_text(measure()).rstrip("\n"))


def _exposition() -> Any:
    try:
        from airflow_provider_pgqueue.cli import exposition
    except ImportError as error:
        raise click.ClickException(
            'prometheus-client is not installed. Install it: pip install "airflow-provider-pgqueue[metrics]"'
        ) from error
    return exposition


def _address(listen: str) -> tuple[str, int]:
    host, colon, port = listen.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or not 0 <= int(port) <= 65535:
        raise click.BadParameter(f"{listen!r} is not HOST:PORT.", param_hint="--listen")
    return host.strip("[]") or "127.0.0.1", int(port)


def _serve(measure: Callable[[], Sequence[Row]], host: str, port: int) -> None:
    exposition = _exposition()
    measure()  # an error at the start ends the command, and is not repeated at each scrape
    try:
        server, thread = exposition.serve(measure, host, port)
    except (OSError, OverflowError) as error:
        raise click.ClickException(f"cannot listen at {host}:{port}: {error}. Give another address.") from error
    print_text(f"serving http://{host}:{server.server_port}/metrics", err=True)
    thread.join()
