"""PGMQ's clients from PyPI and npm, each in a folder of its own below .run: nothing of the project imports them."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fcntl import LOCK_EX, flock
from pathlib import Path
from typing import Any

import psycopg
import pytest

from airflow_provider_pgqueue.core.pgmq import install_names
from tests.wheels import UV, empty_environment
from tools import STATE

Connection = psycopg.Connection[Any]
PYTHON_CLIENT = "pgmq[async,sqlalchemy-async]==1.1.4"
NPM_CLIENT = "pgmq-js@1.3.1"


@contextmanager
def made_once(name: str) -> Iterator[tuple[Path, bool]]:
    """Give a folder below .run, and whether it is still to be filled; one process fills it, the others wait."""
    folder = STATE / "pgmq" / name
    folder.mkdir(parents=True, exist_ok=True)
    done = folder / ".done"
    with (folder.parent / f"{name}.lock").open("w") as lock:
        flock(lock, LOCK_EX)
        yield folder, not done.exists()
        done.touch()


def call(*command: str | Path, cwd: Path | None = None) -> str:
    done = subprocess.run(list(map(str, command)), cwd=cwd, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


@pytest.fixture(scope="session")
def python_client() -> Path:
    """A Python in whose environment PGMQ's own client is."""
    with made_once("python") as (folder, empty):
        python = folder / "bin" / "python"
        if empty:
            empty_environment(folder)
            call(UV, "pip", "install", "--quiet", "--python", python, PYTHON_CLIENT)
    return python


@pytest.fixture(scope="session")
def npm_client() -> Path:
    """A folder in whose node_modules the client for Node.js is."""
    with made_once("npm") as (folder, empty):
        if empty:
            call("npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", folder, NPM_CLIENT)
    return folder


@pytest.fixture
def names(conn: Connection) -> Connection:
    """A session to the test's database, in which the names of PGMQ are installed."""
    install_names(conn)
    return conn


@pytest.fixture
def login(names: Connection) -> Iterator[Callable[..., Connection]]:
    """Connect as a login of this test that is a member of group roles: `login("shop", "publisher")`."""
    with_roles: list[tuple[str, Connection]] = []

    def connect(name: str, *groups: str) -> Connection:
        names.execute(f"CREATE ROLE {name} LOGIN".encode())
        for group in groups:
            names.execute(f"GRANT messages_{group} TO {name}".encode())
        info = names.info
        opened = psycopg.connect(host=info.host, port=info.port, dbname=info.dbname, user=name, autocommit=True)
        with_roles.append((name, opened))
        return opened

    yield connect
    for name, opened in with_roles:
        opened.close()
        names.execute(f"DROP OWNED BY {name}; DROP ROLE {name}".encode())
