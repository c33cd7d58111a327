"""The page, served alone to one person."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import httpx
import pytest

from airflow_provider_pgqueue.core.connection import connect as connect_to
from airflow_provider_pgqueue.web import Person, make_app
from tools.screenshots.served import served

Browse = Callable[..., httpx.Client]
# Nothing here is encrypted, and a client that makes a context of its own reads all certificates for it.
_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


@pytest.fixture
def browse(dsn: str) -> Iterator[Browse]:
    """Serve the page to a person and return a client: `browse(may_act=True)`, or a function that says it each time."""
    with ExitStack() as stack:

        def client(name: str = "ann", *, may_act: bool | Callable[[], bool] = False, to: str = dsn) -> httpx.Client:
            def person() -> Person:
                return Person(name, may_act if isinstance(may_act, bool) else may_act())

            app = make_app(lambda: connect_to(to), person, secret=b"a secret of the tests")
            address = stack.enter_context(served(app))
            return stack.enter_context(httpx.Client(base_url=address, verify=_TLS, trust_env=False, timeout=60))

        yield client
