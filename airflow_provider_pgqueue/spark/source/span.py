"""A time from before which, to before which: what `from`, `to` and filters on the time of a table say."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar

from psycopg import sql

from airflow_provider_pgqueue.core.errors import InvalidArgument


@dataclass(frozen=True, slots=True)
class Span:
    """The moments from `begin` to before `end`; None leaves that side open."""

    begin: datetime | None = None
    end: datetime | None = None
    ALWAYS: ClassVar[Span]

    @classmethod
    def of_texts(cls, begin: str | None, end: str | None) -> Span:
        """Return the span between two ISO 8601 moments with time zone; InvalidArgument for anything else."""
        span = cls(_moment("from", begin), _moment("to", end))
        if span.begin and span.end and span.begin > span.end:
            raise InvalidArgument(f"option from ({begin}) is after option to ({end}). Swap them.")
        return span

    @property
    def is_empty(self) -> bool:
        """Whether no moment is in it."""
        return self.begin is not None and self.end is not None and self.begin >= self.end

    def __and__(self, other: Span) -> Span:
        """Return the moments that are in both."""
        begins = [begin for begin in (self.begin, other.begin) if begin]
        ends = [end for end in (self.end, other.end) if end]
        return Span(max(begins, default=None), min(ends, default=None))

    def conditions(self, column: sql.Composable) -> list[sql.Composable]:
        """Return the SQL conditions that a column lies in it."""
        sides = [(">=", self.begin), ("<", self.end)]
        return [
            sql.SQL("{} {} {}").format(column, sql.SQL(sign), sql.Literal(moment)) for sign, moment in sides if moment
        ]


Span.ALWAYS = Span()


def _moment(option: str, text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise InvalidArgument(
            f"option {option} is {text!r}, not a moment with time zone. Give ISO 8601, such as 2026-11-01T00:00:00Z."
        )
    return moment
