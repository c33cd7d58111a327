"""What every route of the page has: a connection, who is asking, and where links of a run lead."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Final

import psycopg
from fastapi import Request

from airflow_provider_pgqueue.web.shared import Shared

_TASK: Final = re.compile(r"([^/]+)/(.+)/([^/]+)/(-?\d{1,6})/(\d{1,6})@(.*)", re.DOTALL | re.ASCII)
Connect = Callable[[], AbstractContextManager[psycopg.Connection[Any]]]


@dataclass(frozen=True, slots=True)
class Person:
    """Who is asking: everybody reads, and whoever `may_act` changes queues and sees what is in messages."""

    name: str
    may_act: bool = False


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
    """Where names of this page lead outside of it; None leaves them text.

    `run` takes a DAG and a run, `login` the path to return to.
    """

    run: Callable[[str, str], str | None] = lambda dag_id, run_id: None
    task: Callable[[Task], str | None] = lambda task: None
    login: Callable[[str], str | None] = lambda path: None


@dataclass(frozen=True)
class Site:
    """One page of queues: of one database."""

    connect: Connect
    secret: bytes
    links: Links = field(default_factory=Links)
    shared: Shared = field(default_factory=Shared)


def site_of(request: Request) -> Site:
    """Return the site that a request is for."""
    site: Site = request.app.state.site
    return site


def person_of(request: Request) -> Person:
    """Return who is asking; every route has asked before it runs."""
    person: Person = request.state.person
    return person
