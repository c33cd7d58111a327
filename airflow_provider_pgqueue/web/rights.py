"""The rights of a user on the page: those of the person in Airflow, and those of the login in PostgreSQL."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import psycopg

from airflow_provider_pgqueue.core.errors import PermissionDenied
from airflow_provider_pgqueue.web.request import Person
from airflow_provider_pgqueue.web.section import Refused, part, rows_of


@dataclass(frozen=True, slots=True)
class Rights:
    """The missing rights of the login of the connection: by verb, the SQL with which an admin grants it."""

    fixes: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, conn: psycopg.Connection[Any], queue_name: str) -> Rights:
        """Ask what the login of a connection may not do with a queue."""
        rows = part(conn, lambda: rows_of(conn, "refused_verbs", queue_name=queue_name))
        return cls() if isinstance(rows, Refused) else cls({row["verb"]: row["fix"] for row in rows})

    def may(self, person: Person, *verbs: str) -> bool:
        """Return whether the person may call any of these verbs."""
        return person.may_act and not all(verb in self.fixes for verb in verbs)

    def lacks(self, person: Person) -> list[str]:
        """Return what is missing to do everything that the page offers, as sentences."""
        if not person.may_act:
            return [person.lacks]
        missing = "; ".join(dict.fromkeys(self.fixes.values()))
        return [f"The login of the connection may not do all of it. What it lacks: {missing}"] if missing else []

    def check(self, verb: str) -> None:
        """Raise PermissionDenied, with the fix, for what the login may not do."""
        if verb in self.fixes:
            raise PermissionDenied(f"the login of the connection may not call {verb}", f"{self.fixes[verb]};")
