"""How the deaths of one cause spread over a window of time, and what that says."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, Literal

_Trend = Literal["new", "growing", "steady", "fading"]

_HOURS_UP_TO: Final = timedelta(days=14)
_FACTOR: Final = 2.0
_DEVIATIONS: Final = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Period:
    """A time from `begin` to before `end`, in steps of an hour, or of a day if it is longer than two weeks."""

    begin: datetime
    end: datetime

    @property
    def step(self) -> timedelta:
        """How long one step is."""
        return timedelta(hours=1) if self.end - self.begin <= _HOURS_UP_TO else timedelta(days=1)

    @property
    def first_step(self) -> datetime:
        """When the first step begins, on the full hour or at midnight UTC."""
        seconds = self.step.total_seconds()
        return datetime.fromtimestamp(self.begin.timestamp() // seconds * seconds, tz=self.begin.tzinfo)

    @property
    def steps(self) -> int:
        """How many steps there are; the first and the last may be cut by the period."""
        return max(1, math.ceil((self.end - self.first_step) / self.step))

    @property
    def last_quarter(self) -> datetime:
        """When the last quarter begins, which the trend compares with what was before."""
        return self.end - (self.end - self.begin) / 4


def trend(period: Period, *, before: int, lately: int, first_at: datetime) -> _Trend:
    """Say how a cause develops, from how many died before the last quarter of the window and in it.

    `new`: none before. `fading`: none lately. Else `growing` or `fading` if the rate at least doubled or halved since
    the first death in the window, and if that is more than two standard deviations off what chance gives.
    """
    if not before:
        return "new"
    if not lately:
        return "fading"
    lately_for = period.end - period.last_quarter
    before_for = max(period.last_quarter - first_at, period.step)
    change = (lately / lately_for.total_seconds()) / (before / before_for.total_seconds())
    expected = lately_for / (lately_for + before_for)
    number = before + lately
    deviations = (lately - number * expected) / math.sqrt(number * expected * (1 - expected))
    if change >= _FACTOR and deviations >= _DEVIATIONS:
        return "growing"
    if change <= 1 / _FACTOR and deviations <= -_DEVIATIONS:
        return "fading"
    return "steady"
