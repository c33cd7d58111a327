"""Numbers that suit every user, so that nothing takes them as an argument. Only tests change them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(slots=True, kw_only=True)
class Tuning:
    """Times in seconds, and how much is done at once. Read them when they are needed: a test may have changed them."""

    log_every: float = 5.0
    """The time between two log lines about one long piece of work."""
    connection_patience: float = 60.0
    """How long an export or a task of Spark waits for a free connection."""
    drain_rounds: int = 20
    """How many jobs of Spark one drain starts at most."""
    resolutions_at_once: int = 5_000
    """Dead messages per transaction, which takes about a second: a command that is told to stop ends after it."""
    last_moment: float = 3.5
    """How long a task that is stopped may finish its message before that is released, too: Airflow kills it after 5."""
    longest_call: float = 3.0
    """How long a consumer waits for a call of its handler that has the connection, before it closes the connection."""
    silent_after: float = 5.0
    """How long a statement runs before its session is checked, and how long an abandoned session must be idle."""
    longest_wait: float = 60.0
    """How long a consumer waits for an answer where a pooler hides what became of its statement."""
    poll_started_every: float = 20.0
    """The time between two polls of the runs while a dispatcher starts runs; the shortest lease is a minute."""
    poll_when_full: float = 5.0
    """The time between two polls of a dispatcher while `max_open` runs are open: the next starts when a run ends."""
    adopt_tries: int = 5
    """How often a queue of PGMQ is locked for its last messages before the command says that it is in use."""


TUNING: Final = Tuning()
