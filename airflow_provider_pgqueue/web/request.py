"""The context of every route of the page: a connection, the person, and the targets of links."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import psycopg
from fastapi import Request

from airflow_provider_pgqueue.core.connection import check_version
from airflow_provider_pgqueue.core.errors import ConnectionFailed, PermissionDenied, refused
from airflow_provider_pgqueue.core.query import query
from airflow_provider_pgqueue.web.cached import Shared

_TASK: Final = re.compile(r"([^/]+)/(.+)/([^/]+)/(-?\d{1,6})/(\d{1,6})@(.*)", re.DOTALL | re.ASCII)
Connect = Callable[[], AbstractContextManager[psycopg.Connection[Any]]]


@dataclass(frozen=True, slots=True)
class Person:
    """The person of a request: every person reads, and one who `may_act` changes queues and sees bodies.

    `lacks` is a sentence for other persons on the missing right.
    """

    name: str
    may_act: bool = False
    lacks: str = "You may look at the queues, and not change them."


@dataclass(frozen=True, slots=True)
class Task:
    """The task instance that works on messages, as its hook names it: `dag/run/task/map_index/try@process`."""

    dag_id: str
    run_id: str
    task_id: str
    map_index: int
    try_number: int
    process: str


def task_of(name: str) -> Task | None:
    """Return the task instance that called itself so; None if it was none."""
    found = _TASK.fullmatch(name)
    if found is None:
        return None
    dag_id, run_id, task_id, map_index, try_number, process = found.groups()
    return Task(dag_id, run_id, task_id, int(map_index), int(try_number), process)


@dataclass(frozen=True, slots=True)
class Links:
    """The targets of names outside of the page; None shows a name as text.

    `run` takes a DAG and a run, `login` the path to return to.
    """

    run: Callable[[str, str], str | None] = lambda dag_id, run_id: None
    task: Callable[[Task], str | None] = lambda task: None
    login: Callable[[str], str | None] = lambda path: None


@dataclass(frozen=True)
class Site:
    """One page of queues: of one database.

    `origin` is the host, and the port if it is not the usual one, that browsers see in front of a proxy.
    """

    connect: Connect
    secret: bytes
    links: Links = field(default_factory=Links)
    origin: str = ""
    shared: Shared = field(default_factory=Shared)

    def reading(self, *, bodies: bool = False) -> AbstractContextManager[psycopg.Connection[Any]]:
        """Return a connection, in a transaction whose statements end after five seconds: ConnectionFailed.

        Without `bodies` it sees of errors only the class, as an observer does.
        """
        return self._limited("5s", "2s", bodies)

    def acting(self) -> AbstractContextManager[psycopg.Connection[Any]]:
        """Return a connection, in a transaction that has time for a purge and waits for no lock for long."""
        return self._limited("60s", "5s", bodies=True)

    @contextmanager
    def _limited(self, longest: str, locked: str, bodies: bool) -> Iterator[psycopg.Connection[Any]]:
        with self.connect() as conn:
            check_version(conn)
            try:
                with conn.transaction():
                    limits = {"longest": longest, "locked": locked, "bodies": "on" if bodies else "off"}
                    conn.execute(query("limits_of_page"), limits)
                    yield conn
            except PermissionDenied as error:
                # Asked again, because a failed transaction does not tell which role the login has and does not inherit.
                raise refused(conn, error, wants="observer") from error.__cause__
            except ConnectionFailed as error:
                late = {"57014": longest, "55P03": locked}.get(getattr(error.__cause__, "sqlstate", None) or "")
                if late is None:
                    raise
                raise ConnectionFailed(
                    f"the database did not answer within {late[:-1]} seconds, so the page stopped waiting",
                    "Find who holds it up: SELECT pid, pg_blocking_pids(pid), query FROM pg_stat_activity;",
                ) from error


def site_of(request: Request) -> Site:
    """Return the site that a request is for."""
    site: Site = request.app.state.site
    return site


def root_of(request: Request) -> str:
    """Return the path below which the page is mounted, without a slash at its end."""
    root: str = request.scope.get("root_path", "")
    return root.rstrip("/")


def path_of(request: Request) -> str:
    """Return the path of a request below where the page is mounted."""
    path: str = request.scope["path"]
    return path.removeprefix(root_of(request))


def person_of(request: Request) -> Person:
    """Return who is asking; every route has asked before it runs."""
    person: Person = request.state.person
    return person
