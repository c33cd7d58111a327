"""The private server of one test run; it does not outlive the run, not even a killed one for long."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from airflow_provider_pgqueue.testing import server_user
from airflow_provider_pgqueue.testing.server import Server

_PREFIX = "pgqueue-test-"


@contextmanager
def private_server() -> Iterator[str]:
    """Start a PostgreSQL server in a temporary directory, give its URI, and remove it at the end.

    Servers that killed runs left behind are removed first. SetupError if there are no programs, or they do not start.
    """
    _remove_abandoned()
    with ExitStack() as at_end:
        directory = Path(tempfile.mkdtemp(prefix=_PREFIX))
        server_user.give(directory)
        # The lock says that this run lives; it gets its name when it is held, so that nobody finds it free.
        unnamed = at_end.enter_context((directory / "lock.new").open("w"))
        fcntl.flock(unnamed, fcntl.LOCK_EX)
        os.rename(unnamed.name, directory / "lock")
        server = Server(directory, durable=False)
        at_end.callback(server.destroy)
        server.start()
        yield server.dsn()


def _remove_abandoned() -> None:
    user = server_user.server_user()
    own = {os.geteuid(), user.pw_uid if user else os.geteuid()}
    for lock in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*/lock"):
        # Locked: that run lives. Not found: another run removed it just now.
        with suppress(BlockingIOError, FileNotFoundError):
            if lock.parent.lstat().st_uid in own:
                with lock.open() as held:
                    fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    Server(lock.parent).destroy()
