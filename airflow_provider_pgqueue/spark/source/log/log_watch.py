"""Where the archive as a log ends, looked at now and then, and who holds it back."""

from __future__ import annotations

import logging
import time
from typing import Final

from airflow_provider_pgqueue.core import verbs
from airflow_provider_pgqueue.spark.source.log.position import LogEnd
from airflow_provider_pgqueue.spark.source.session import Session

log = logging.getLogger(__name__)

_LOOK_EVERY: Final = 0.1  # seconds: Spark asks an idle stream every 10 ms
_LONGEST_REST: Final = 5.0  # seconds between two looks, however long they take
_WORTH: Final = 50  # times as long as a look takes: at most 2 % of the time
_HELD_FOR: Final = 30.0  # seconds until an end that does not move is worth a warning, and the next one


class LogWatch:
    """Looks at the end of the log now and then, and warns when a transaction keeps it where it is.

    Ten times a second at most, and less often where it takes long: what is archived is seen up to five seconds later.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._rest = min(_LOOK_EVERY, _LONGEST_REST)
        self._end: LogEnd | None = None
        self._looked = self._moved = self._warned = 0.0

    def end(self, *, now: bool = False) -> LogEnd:
        """Return where the log ended a moment ago, or `now`."""
        if self._end is None or now or time.monotonic() - self._looked >= self._rest:
            self._end = self._look(self._end)
        return self._end

    def found_nothing(self, seconds: float) -> None:
        """Rest before the next look by how long the questions of this one took; without a question, as before."""
        if seconds:
            self._rest = min(_LONGEST_REST, max(_LOOK_EVERY, _WORTH * seconds))

    def _look(self, before: LogEnd | None) -> LogEnd:
        end = LogEnd(**self._session.ask(verbs.archive_log_end()))
        self._looked = time.monotonic()
        if before is None or before.horizon != end.horizon:
            self._moved = self._looked
        elif end.holder_age is not None and self._looked - max(self._moved, self._warned) >= _HELD_FOR:
            self._warned = self._looked
            log.warning(
                "the log waits at transaction %s: session %s (application %s) has it open for %s and may yet archive",
                end.horizon,
                end.holder_pid,
                end.holder_application or "without a name",
                end.holder_age,
            )
        return end
