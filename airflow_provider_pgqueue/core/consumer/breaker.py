"""Stops a consumer whose handler is broken before it has spent an attempt of every message in the queue."""

from __future__ import annotations

import logging
import re
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from threading import Lock
from typing import Any, Final

from airflow_provider_pgqueue.core.consumer.calls import TimeIsUp
from airflow_provider_pgqueue.core.errors import HandlerBroken
from airflow_provider_pgqueue.core.outcome import PLAIN, Failed, Outcome, Retry

log = logging.getLogger(__name__)

_Fingerprint = tuple[str, str]
_TIMES_BACK: Final = 10  # the window is this many times `give_up_after` messages
_NEARLY_ALL: Final = 0.95
_MOST_HANGING: Final = 10  # messages whose calls may hang in this process before it stops
_UNSTORED: Final = "outcomes that cannot be stored"
_LONGEST: Final = 500  # characters that are compared: the time of the search grows with their square
_EVERY: Final = 60.0  # seconds between two warnings of one kind
_QUOTED: Final = re.compile(r"'[^']*'|\"[^\"]*\"")
_NUMBER: Final = re.compile(r"(?<!\w)[0-9a-fA-F-]*[0-9][0-9a-fA-F-]*(?!\w)")
_PLACE: Final = re.compile(r'File "(?:[^"]*[/\\])?([^"]*)", line (\d+), in (\S+)')


def _fingerprint(failure: Mapping[str, Any]) -> _Fingerprint:
    """Return what the failures of two messages with one cause have in common: the class of the error, and its text.

    In the text `?` stands for quotations and `#` for numbers and ids, as in `messages.fingerprint`.
    """
    text = _NUMBER.sub("#", _QUOTED.sub("?", _text(failure, "message")[:_LONGEST]))
    return _text(failure, "error"), " ".join(text.lower().split())


class Breaker:
    """Raises HandlerBroken when the first `give_up_after` messages all fail with one fingerprint, or nearly all later.

    Nearly all is 95 % of the last messages, 10 times `give_up_after`. Only the first attempt of a message can speak
    against the handler: what fails again may be what is left of messages that are bad. As the failed attempts count, a
    message can stop one consumer only, so bad messages cannot stop the queue for the good ones.
    What a handler returns without a `failure` is a decision, not a failure. A handler that is `proven`, because it
    succeeded before, is stopped by nearly all alone.

    `handled` and `failed` count all messages that were recorded, also with a `give_up_after` of 0; a message for which
    the handler returned `Failed` counts here too.

    A failure is logged at once, and others with its fingerprint once a minute with their number.
    """

    def __init__(self, queue_name: str, give_up_after: int | None, *, proven: bool = False) -> None:
        self._queue_name = queue_name
        self._warnings = _Warnings(log.warning)
        self._first = give_up_after or 0
        self._seen: dict[int, _Fingerprint | None] = {}
        self._numbers: Counter[_Fingerprint] = Counter()
        self._begins = self._first > 0 and not proven
        self.handled = 0
        self.failed = 0

    def record(self, id_: int, outcome: Outcome, *, attempts: int) -> None:
        """Count the outcome of an attempt, and log a failure; HandlerBroken if it is one too many."""
        self.handled += 1
        # Compared by identity first, because most outcomes are plain.
        failure = None if outcome is PLAIN else failure_of(outcome)
        self.failed += failure is not None or isinstance(outcome, Failed)
        mark = None if failure is None else _fingerprint(failure)
        if failure is not None:
            # Without its text, which may quote the body.
            text = "message %s of queue %s failed with %s; its text: pgqueue show %s --traceback"
            self._warnings.add(mark, text, id_, self._queue_name, _name(failure), id_)
        if not self._first or (failure is not None and attempts > 1):
            return
        self._replace(id_, mark)
        if failure is None or mark is None:
            self._begins = False
            return
        failed, seen = self._numbers[mark], len(self._seen)
        self._begins = self._begins and failed == seen
        if (self._begins and seen >= self._first) or (
            seen == self._first * _TIMES_BACK and failed >= seen * _NEARLY_ALL
        ):
            raise HandlerBroken(
                f"the handler of queue {self._queue_name!r} failed with {_name(failure)} on {failed:,} of the "
                f"{'first' if self._begins else 'last'} {seen:,} messages",
                "Fix it and start again: for these an attempt was counted, and the rest was given back without one. If "
                "the messages are wrong, start it again as it is: none stops it twice. give_up_after says after how "
                "many it stops; 0 never stops.",
            )

    def record_fine(self, ids: Sequence[int]) -> None:
        """Count messages that succeeded, in one cheap call for all of them."""
        if not self._first:
            return
        self._begins = self._begins and not ids
        window = self._first * _TIMES_BACK
        if self._numbers:
            for id_ in ids[-window:]:
                self._replace(id_, None)
            return
        # No failure is remembered, so nothing has to be subtracted.
        self._seen.update(dict.fromkeys(ids[-window:]))
        self._seen = dict(islice(self._seen.items(), max(0, len(self._seen) - window), None))

    def record_unstored(self, attempts: Mapping[int, int]) -> None:
        """Count messages, by id with their attempts, whose outcomes could not be stored; HandlerBroken if too many."""
        for id_, attempt in attempts.items():
            self.handled -= 1  # the outcome that the handler returned was counted before
            self.record(id_, Failed("", failure={"error": _UNSTORED}), attempts=attempt)

    def record_hanging(self, id_: int, why: TimeIsUp) -> None:
        """Count a message whose call exceeded its time, and log it; HandlerBroken if the calls of too many hang."""
        self.handled += 1
        self.failed += 1
        log.warning(
            "the handler of queue %s exceeded its time of %s on message %s: the lease is no longer renewed, and the "
            "call continues in a thread that nobody waits for",
            self._queue_name,
            why.limit,
            id_,
        )
        if why.hanging >= _MOST_HANGING:
            raise HandlerBroken(
                f"the calls of the handler of queue {self._queue_name!r} hang on {why.hanging} messages",
                "Start the process again, which ends them, and give what the handler waits for a time-out.",
            )

    def _replace(self, id_: int, mark: _Fingerprint | None) -> None:
        if id_ in self._seen:
            self._forget(id_)
        elif len(self._seen) == self._first * _TIMES_BACK:
            self._forget(next(iter(self._seen)))
        self._seen[id_] = mark
        if mark is not None:
            self._numbers[mark] += 1

    def _forget(self, id_: int) -> None:
        mark = self._seen.pop(id_)
        if mark is not None:
            self._numbers[mark] -= 1
            if not self._numbers[mark]:
                del self._numbers[mark]


def failure_of(outcome: Outcome) -> Mapping[str, Any] | None:
    """Return the failure that an outcome describes, or None."""
    return outcome.failure if isinstance(outcome, Retry | Failed) else None


def _text(failure: Mapping[str, Any], name: str) -> str:
    """Return the text of a member of a failure; handlers may return any value there, or an odd mapping."""
    try:
        return str(failure.get(name, ""))
    except Exception as error:
        return type(error).__name__


def _name(failure: Mapping[str, Any]) -> str:
    """Return the class of the error and its place, without its text, which may quote a body."""
    name = _text(failure, "error")
    places = _PLACE.findall(_text(failure, "traceback"))
    where = f" ({places[-1][0]}:{places[-1][1]} in {places[-1][2]})" if places else ""
    known = name == _UNSTORED or name.replace(".", "_").isidentifier()
    return (name if known else "one error") + where


class _Warnings:
    """Logs a warning at once, and the same warning at most once a minute, with the number in between."""

    def __init__(self, warn: Callable[..., None]) -> None:
        self._warn = warn
        self._lock = Lock()
        self._logged: dict[Any, tuple[float, int]] = {}

    def add(self, key: Any, text: str, *arguments: Any) -> None:
        """Log `text % arguments`, or count it if `key` was logged within the last minute."""
        now = time.monotonic()
        with self._lock:
            at, more = self._logged.get(key, (-_EVERY, 0))
            if now < at + _EVERY:
                self._logged[key] = at, more + 1
                return
            if len(self._logged) >= 1000:
                self._logged.clear()
            self._logged[key] = now, 0
        if more:
            self._warn(f"{text}, and {more:,} more since the last such warning", *arguments)
        else:
            self._warn(text, *arguments)
