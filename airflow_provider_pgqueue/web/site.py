"""What every route of the page has: a connection, who is asking, and where links of a run lead."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import psycopg
from fastapi import Request

from airflow_provider_pgqueue.web.shared import Shared

Connect = Callable[[], AbstractContextManager[psycopg.Connection[Any]]]


@dataclass(frozen=True, slots=True)
class Person:
    """Who is asking: everybody reads, and whoever `may_act` changes queues and sees what is in messages."""

    name: str
    may_act: bool = False


@dataclass(frozen=True, slots=True)
class Links:
    """Where names of this page lead outside of it; None leaves them text.

    `run` takes a DAG and a run, `task` what `locked_by` and `handled_by` hold.
    """

    run: Callable[[str, str], str | None] = lambda dag_id, run_id: None
    task: Callable[[str], str | None] = lambda name: None
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
