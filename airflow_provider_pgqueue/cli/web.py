"""The Queues page without Airflow."""

from __future__ import annotations

import secrets
import socket
from contextlib import closing
from urllib.parse import urlsplit

import click

from airflow_provider_pgqueue.cli.connection import connected, open_connection
from airflow_provider_pgqueue.cli.output import show_line
from airflow_provider_pgqueue.cli.settings import Settings, with_settings


@click.command()
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Port on 127.0.0.1. [default: a free one]")
@click.option(
    "--base-url",
    metavar="URL",
    default="",
    callback=lambda context, parameter, given: _checked(given),
    help="Where a proxy on this machine serves the page, such as https://host/queues. The proxy strips the path.",
)
@click.option("--read-only", is_flag=True, help="Show the queues, and let nobody change them or see bodies.")
@with_settings
def web(settings: Settings, port: int, base_url: str, read_only: bool) -> None:
    """Serve the Queues page on the loopback address, until Ctrl-C.

    Whoever has the address that this prints may use the page, with the rights of the connection. Needs
    fastapi, jinja2 and uvicorn.
    """
    try:
        import uvicorn

        from airflow_provider_pgqueue.web.standalone import make_alone
    except ModuleNotFoundError as error:
        raise click.ClickException(
            f'{error.name} is not installed. Install what the page needs: pip install "airflow-provider-pgqueue[web]"'
        ) from error
    with connected(settings):
        pass  # before anything is served: the database is there, and has the schema
    token = secrets.token_urlsafe(24)
    app = make_alone(lambda: open_connection(settings), token, may_act=not read_only, base_url=base_url)
    with closing(socket.socket(socket.AF_INET, socket.SOCK_STREAM)) as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(("127.0.0.1", port))
        # Listen before the address is printed, so that it works at once.
        listening.listen()
        address = f"{base_url or f'http://127.0.0.1:{listening.getsockname()[1]}'}/{token}/"
        show_line(settings, {"address": address}, f"The queues are at {address}")
        path = urlsplit(base_url).path
        # No access log: each address in it has the token.
        config = uvicorn.Config(
            app, root_path=path, log_level="warning", access_log=False, server_header=False, lifespan="off"
        )
        uvicorn.Server(config).run(sockets=[listening])


def _checked(base_url: str) -> str:
    """Return the address without a slash at its end."""
    try:
        parts = urlsplit(base_url)
        good = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0 and base_url.isascii()
    except ValueError:
        good = False
    if base_url and not (good and not parts.query and not parts.fragment):
        raise click.BadParameter(f"{base_url!r} is not such an address. Give one like https://host/queues.")
    return base_url.rstrip("/")
