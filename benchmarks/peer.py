"""The description of a queue for a benchmark: how to install, fill, count and empty it, and its scripts for pgbench."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from benchmarks.server import Connection

SCRIPTS: Final = Path(__file__).with_name("scripts")
BODY: Final = (
    '{"carrier": "UA", "flight": 1545, "origin": "EWR", "dest": "IAH", "dep_delay": 2, "arr_delay": 11, '
    '"distance": 1400, "tailnum": "N14228", "hour": 5, "minute": 15, "time_hour": "2013-01-01T10:00:00Z", "year": 2013}'
)
_CHUNK: Final = 500_000


@dataclass(frozen=True, slots=True, eq=False)
class Peer:
    """A queue, in statements.

    :param empty: removes all messages, finished ones too.
    :param add: publishes `%(count)s` messages with the body `%(body)s` in one plain INSERT.
    :param tables: what autovacuum would care for.
    :param count: counts what is not finished.
    :param delayed: publishes `%(count)s` messages that become ready in an hour.
    :param leased: leases `%(count)s` messages for an hour.
    """

    name: str
    install: Callable[[Connection], None]
    empty: str
    add: str
    tables: Sequence[str]
    count: str
    delayed: str = ""
    leased: str = ""

    def script(self, verb: str, batch: int = 1) -> str:
        """Return a script for pgbench; the batch is a literal, as in the code of most who write such a statement."""
        return (SCRIPTS / self.name / f"{verb}.sql").read_text().replace(":batch", str(batch))

    def with_column(self, column: str, value: str) -> Peer:
        """Return it with a plain INSERT that fills another column, too, by the number `n` of the message."""
        add = self.add.replace("message)", f"message, {column})", 1)
        add = add.replace("%(body)s::jsonb", f"%(body)s::jsonb, {value}").replace("%(count)s)", "%(count)s) n")
        return replace(self, add=add)

    def refill(
        self,
        conn: Connection,
        messages: int,
        before: Callable[[Connection], None] | None = None,
        body: str = BODY,
    ) -> None:
        """Empty the queue, let `before` put in what lies first, publish, and vacuum."""
        conn.execute(self.empty.encode())
        if before:
            before(conn)
        self.publish(conn, messages, body=body)
        self.analyse(conn)

    def publish(self, conn: Connection, messages: int, statement: str = "", *, body: str = BODY) -> None:
        """Put messages in, without any client's work."""
        for start in range(0, messages, _CHUNK):
            arguments = {"body": body, "count": min(_CHUNK, messages - start)}
            conn.execute((statement or self.add).encode(), arguments)

    def analyse(self, conn: Connection) -> None:
        """Vacuum and analyse."""
        for table in self.tables:
            conn.execute(f"VACUUM (ANALYZE) {table}".encode())

    def waiting(self, conn: Connection) -> int:
        """Count what is not finished."""
        return int(scalar(conn, self.count))


def scalar(conn: Connection, statement: str, arguments: Any = None) -> Any:
    """Return the one value of a statement."""
    row = conn.execute(statement.encode(), arguments).fetchone()
    return row[0] if row else None
