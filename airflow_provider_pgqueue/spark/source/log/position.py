"""The position of a query in the archive as a log, and where the log ends.

A place in the log is the number of a transaction: everything that transactions before it archived lies before it.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Self

from airflow_provider_pgqueue.core.errors import InvalidArgument


@dataclass(frozen=True, slots=True, kw_only=True)
class Offset:
    """What a checkpoint holds: a place, the database that it belongs to, and the time up to which the query had read.

    `since` is where the batch begins: Spark stores the start of every batch but the first, and asks for that one again.
    """

    system: str
    xid: int
    at: datetime
    since: int | None = None

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Self:
        return cls(**value | {"at": datetime.fromisoformat(value["at"])})

    def to_json(self) -> dict[str, Any]:
        value: dict[str, Any] = {"system": self.system, "xid": self.xid, "at": self.at.isoformat()}
        return value if self.since is None else value | {"since": self.since}


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEnd:
    """Where the log ends now: the row of `messages.archive_log_end()`."""

    system: str
    horizon: int
    moment: datetime
    begins_at: datetime
    gone_before_xid: int
    holder_pid: int | None
    holder_application: str | None
    holder_age: timedelta | None

    def offset(self) -> Offset:
        return Offset(system=self.system, xid=self.horizon, at=self.moment)

    def lost(self, here: int, read_at: datetime) -> bool:
        """Return whether messages are gone that a query at a place had not read, nor known to be gone when it began."""
        return here < self.gone_before_xid and read_at < self.begins_at

    def check(self, start: Offset, *, former_system: str | None = None) -> None:
        """Raise InvalidArgument unless an offset is of this log and not behind its end."""
        if start.system not in (self.system, former_system):
            raise InvalidArgument(
                f"the checkpoint is of the database {start.system}, and this one is {self.system}: its transactions "
                "have other numbers. Start the query with a new checkpoint; only after pg_upgrade, which keeps the "
                f"numbers, go on with option formerSystem = {start.system}."
            )
        if self.horizon < start.xid:
            raise InvalidArgument(
                f"the query has read to transaction {start.xid}, and this server knows those before "
                f"{self.horizon}: it was restored from a backup, or is a replica that is behind. "
                "Start the query with a new checkpoint, or connect to the primary."
            )
