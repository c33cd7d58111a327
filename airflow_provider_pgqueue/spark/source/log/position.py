"""A place in the archive as a log, and where the log ends."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Self

from psycopg import sql

from airflow_provider_pgqueue.core.errors import InvalidArgument
from airflow_provider_pgqueue.core.message import Row


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """All that was archived by transactions before `xid` was given.

    0 is the beginning of the log, which knows no transactions: then all messages with ids before `id`.
    """

    xid: int
    id: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Offset:
    """What a checkpoint notes: a place, of which database, and how far in time the query had read.

    `since` is where its batch begins. Spark keeps the start of all batches but the first, and asks for that one anew.
    """

    system: str
    place: Place
    at: datetime
    since: Place | None = None

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Self:
        return cls(
            system=value["system"],
            place=_place(value),
            at=datetime.fromisoformat(value["at"]),
            since=_place(value["since"]) if "since" in value else None,
        )

    def to_json(self) -> dict[str, Any]:
        value: dict[str, Any] = {"system": self.system, **_to_json(self.place), "at": self.at.isoformat()}
        return value | {"since": _to_json(self.since)} if self.since else value


def _place(value: dict[str, Any]) -> Place:
    return Place(value["xid"], value.get("id", 0))


def _to_json(place: Place) -> dict[str, int]:
    return {"xid": place.xid, "id": place.id} if place.id else {"xid": place.xid}


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEnd:
    """Where the log ends now: what `messages.archive_log_end()` says."""

    system: str
    horizon: int
    moment: datetime
    begins_at: datetime
    gone_before: Place
    holder_pid: int | None
    holder_application: str | None
    holder_age: timedelta | None

    @classmethod
    def from_row(cls, row: Row) -> Self:
        gone_before = Place(row.pop("gone_before_xid"), row.pop("gone_before_id"))
        return cls(gone_before=gone_before, **row)

    def offset(self) -> Offset:
        return Offset(system=self.system, place=Place(self.horizon), at=self.moment)

    def lost(self, here: Place, read_at: datetime) -> bool:
        """Return whether messages are gone that a query at a place had not read, nor known to be gone when it began."""
        return here < self.gone_before and read_at < self.begins_at

    def check(self, start: Offset, *, former_system: str | None = None) -> None:
        """Raise InvalidArgument unless an offset is of this log and not behind its end."""
        if start.system not in (self.system, former_system):
            raise InvalidArgument(
                f"the checkpoint is of the database {start.system}, and this one is {self.system}: its transactions "
                "have other numbers. Start the query with a new checkpoint; only after pg_upgrade, which keeps the "
                f"numbers, go on with option formerSystem = {start.system}."
            )
        if self.horizon < start.place.xid:
            raise InvalidArgument(
                f"the query has read to transaction {start.place.xid}, and this server knows those before "
                f"{self.horizon}: it was restored from a backup, or is a replica that is behind. "
                "Start the query with a new checkpoint, or connect to the primary."
            )


def condition(start: Place, end: Place) -> sql.Composable:
    """Return what is true in SQL for the archive rows from one place to before another."""
    parts = []
    if start.xid == 0:
        before = f" AND id < {end.id:d}" if end.xid == 0 else ""
        parts.append(f"(xid IS NULL AND id >= {start.id:d}{before})")
    if end.xid > 0:
        parts.append(f"(xid >= {start.xid:d} AND xid < {end.xid:d})")
    return sql.SQL(f"({' OR '.join(parts)})")
