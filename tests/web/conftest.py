"""The page, served alone to one person, or by a program; and the forms on it."""

from __future__ import annotations

import html
import json
import os
import re
import signal
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import httpx
import pytest

from airflow_provider_pgqueue.core.connection import connect as connect_to
from airflow_provider_pgqueue.web import Person, make_app
from tools import ROOT
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


@contextmanager
def serving(*command: str, **environment: str) -> Iterator[dict[str, Any]]:
    """Run a server, and give what its first line says."""
    with subprocess.Popen(
        [sys.executable, "-m", *command],
        env=os.environ | environment,
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            yield json.loads(process.stdout.readline())
        finally:
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=60)


def hidden(page: str) -> dict[str, str]:
    """Return the hidden fields on a page; none for whoever gets no form."""
    found = re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', page)
    return {name: html.unescape(value) for name, value in found}
