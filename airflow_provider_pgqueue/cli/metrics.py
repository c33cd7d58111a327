"""The metrics, printed or served."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from airflow_provider_pgqueue.cli.connection import connected
from airflow_provider_pgqueue.cli.output import Row, to_text
from airflow_provider_pgqueue.cli.settings import Settings, pass_settings, shared_options
from airflow_provider_pgqueue.cli.text import say
from airflow_provider_pgqueue.core import verbs
from airflow_provider_pgqueue.core.client import run


@click.command()
@click.option("--listen", metavar="HOST:PORT", help="Serve the metrics at http://HOST:PORT/metrics until Ctrl-C.")
@click.option(
    "--max-queues",
    type=click.IntRange(0, 10000),
    default=200,
    show_default=True,
    help="How many queues have metrics of their own, the oldest first; the others are summed up as other.",
)
@shared_options
@pass_settings
def metrics(settings: Settings, listen: str | None, max_queues: int) -> None:
    """Print the metrics in the format of OpenMetrics, or serve them to Prometheus.

    Needs prometheus-client, except with --json. Each scrape queries the database once.
    """
    if listen is not None:
        _serve(settings, _address(listen), max_queues)
        return
    with connected(settings) as conn:
        found = run(conn, verbs.metrics(max_queues))
    if settings.as_json:
        say(to_text({"metrics": found}))
        return
    say(_exposition().as_text(found).rstrip("\n"))


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


def _serve(settings: Settings, address: tuple[str, int], max_queues: int) -> None:
    exposition = _exposition()

    def look() -> Sequence[Row]:
        with connected(settings) as conn:
            found = run(conn, verbs.metrics(max_queues))
        return found

    look()  # what is wrong from the beginning is said here, not to each scrape
    try:
        server, thread = exposition.serve(look, *address)
    except (OSError, OverflowError) as error:
        where = f"{address[0]}:{address[1]}"
        raise click.ClickException(f"cannot listen at {where}: {error}. Give another address.") from error
    say(f"serving http://{address[0]}:{server.server_port}/metrics", err=True)
    thread.join()
