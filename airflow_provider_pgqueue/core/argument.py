"""Rules for arguments: an error names a bad argument, its value and the fix where the argument was written."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from airflow_provider_pgqueue.core.duration import as_timedelta
from airflow_provider_pgqueue.core.errors import InvalidArgument, InvalidMessage
from airflow_provider_pgqueue.core.function import why_missing
from airflow_provider_pgqueue.core.json_text import has_nul, to_json
from airflow_provider_pgqueue.core.message import DEAD_RESULTS
from airflow_provider_pgqueue.core.outcome import Failed, Rejected, Retry

Rule = Callable[[Any], str | None]
"""Returns how to fix a bad value, and None for a good one."""

_QUEUE_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,47}")
_TOPIC: Final = re.compile(r"([A-Za-z0-9_-]+|[*#])(\.([A-Za-z0-9_-]+|[*#]))*")
_LONGEST_KEY: Final = 255
_LONGEST_SHOWN: Final = 100
# These may hold what only the consumer of a message may read.
_SECRET: Final = frozenset({"arguments", "headers", "message", "messages", "op_args", "op_kwargs", "parameters"})


def check(
    arguments: Mapping[str, Any], rules: Mapping[str, Rule], error: type[InvalidArgument] = InvalidArgument
) -> None:
    """Raise an InvalidArgument with name, value and fix for the first argument that breaks its rule.

    A value that may hold secrets, such as headers, is named by its type only.
    """
    for name, rule in rules.items():
        if name in arguments and (fix := rule(arguments[name])) is not None:
            value = arguments[name]
            raise error(f"{name} is {a_type(value) if name in _SECRET else _shown(value)}", fix)


def check_names(
    verb: str, given: Iterable[str], known: Iterable[str], error: type[InvalidArgument] = InvalidArgument
) -> None:
    """Raise an InvalidArgument that lists the arguments of a verb if one is given that it does not have."""
    known = list(known)
    for name in given:
        if name not in known:
            raise error(f"{verb} has no argument {name!r}", f"It takes {', '.join(known)}.")


def several(name: str, given: str | Sequence[str]) -> tuple[str, ...]:
    """Return names as a tuple; a text is one name. () stands for all, another empty list is an InvalidArgument."""
    names = (given,) if isinstance(given, str) else tuple(given or ())
    if given != () and (not names or any(map(text, names))):
        raise InvalidArgument(f"{name} is {given!r}", "Give names, or leave it out for all.")
    return names


def a_type(value: Any) -> str:
    """Return the name of the type of a value, with its article."""
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"


def _shown(value: Any) -> str:
    # A log cannot write a lone surrogate.
    text = repr(value).encode(errors="backslashreplace").decode()
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}…"


def _rule(is_good: Callable[[Any], object], fix: str) -> Rule:
    return lambda value: None if is_good(value) else fix


def optional(rule: Rule) -> Rule:
    """Return a rule that also takes None."""
    return lambda value: None if value is None else rule(value)


queue_name: Final = _rule(
    lambda value: isinstance(value, str) and _QUEUE_NAME.fullmatch(value),
    "Give a lower-case letter, then letters, digits and underscores; at most 48 characters.",
)
"""Checks the name of a queue, as `messages.check_queue_name` does."""
topic_pattern: Final = _rule(
    lambda value: isinstance(value, str) and len(value) <= _LONGEST_KEY and _TOPIC.fullmatch(value),
    "Use words, * for any word and # for any number of words, with single dots between; at most 255 characters.",
)
"""Checks a pattern of topics, as `messages.topic_regex` does."""
topic: Final = _rule(
    lambda value: topic_pattern(value) is None and not {"*", "#"}.intersection(value),
    "Use words of letters, digits, _ and -, with single dots between; at most 255 characters.",
)
"""Checks a topic, as `messages.check_topic` does."""


def key(value: Any) -> str | None:
    """Check a key of a message, as `messages.check_length` does."""
    if not isinstance(value, str) or not 1 <= len(value) <= _LONGEST_KEY:
        return f"Give a text of 1 to {_LONGEST_KEY} characters."
    return _unstorable(value)


def text(value: Any) -> str | None:
    """Check a text that the database can store."""
    return _unstorable(value) if isinstance(value, str) and value else "Give a text that is not empty."


def any_text(value: Any) -> str | None:
    """Check a text that the database can store; the text may be empty."""
    return _unstorable(value) if isinstance(value, str) else "Give a text."


def _unstorable(value: str) -> str | None:
    if "\0" in value:
        return "PostgreSQL stores no NUL character (\\0): leave it out."
    try:
        value.encode()
    except UnicodeEncodeError:
        return "It is not valid Unicode, because it has half of a surrogate pair (\\ud800 to \\udfff): leave that out."
    return None


def any_texts(value: Any) -> str | None:
    """Check a list of texts, each of which may be empty or None."""
    if not isinstance(value, list):
        return "Give a list with a text or None for each message."
    return next((fix for one in value if one is not None and (fix := any_text(one))), None)


def timed(value: Any) -> str | None:
    """Check that a value is a duration; the database checks its range."""
    try:
        as_timedelta(value)
    except ValueError as error:
        return str(error)
    return None


def _is_zoned(value: Any) -> bool:
    return isinstance(value, datetime) and value.utcoffset() is not None


moment: Final = _rule(_is_zoned, "Give a datetime with a time zone, such as datetime(2027, 1, 1, tzinfo=UTC).")
"""Checks a time, which needs a time zone: otherwise each session would read it in its own."""
texts: Final = _rule(
    lambda value: isinstance(value, list | tuple) and all(text(one) is None for one in value), "Give a list of texts."
)


def ids(value: Any) -> str | None:
    """Check a list of message ids; a template may render it as JSON text."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            value = None
    good = isinstance(value, list | tuple) and all(type(one) is int and 0 < one < 2**63 for one in value)
    return None if good else "Give a list of ids."


def moment_or_text(value: Any) -> str | None:
    """Check a time with a time zone; a template may render it as ISO text."""
    try:
        found = datetime.fromisoformat(value) if isinstance(value, str) else value
    except ValueError:
        found = None
    return None if _is_zoned(found) else "Give a datetime with a time zone, or its ISO text."


results: Final = _rule(
    lambda value: isinstance(value, list | tuple) and value and all(one in DEAD_RESULTS for one in value),
    f"Give a list of {', '.join(DEAD_RESULTS)}.",
)
"""Checks a list of results that make a message dead."""


def json_value(value: Any) -> str | None:
    """Check a value that the database can store as JSON."""
    try:
        return "PostgreSQL stores no NUL character (\\u0000): leave it out." if has_nul(to_json(value)) else None
    except InvalidMessage as error:
        return f"{str(error)[0].upper()}{str(error)[1:]}"


def json_object(value: Any) -> str | None:
    """Check an object that the database can store as JSON."""
    return json_value(value) if isinstance(value, Mapping) else "Give an object: a dict with texts as keys."


def only_texts(value: Any) -> str | None:
    """Check only the texts in a value, at any depth: the database must be able to store them."""
    if isinstance(value, str):
        return _unstorable(value)
    parts = [one for pair in value.items() for one in pair] if isinstance(value, Mapping) else value
    return next(filter(None, map(only_texts, parts)), None) if isinstance(parts, list | tuple) else None


def parameters(value: Any) -> str | None:
    """Check the parameters of a query."""
    if isinstance(value, Mapping | Sequence) and not isinstance(value, str | bytes):
        return only_texts(value)
    return "Give a list, or an object with the parameters by name."


positional: Final = _rule(lambda value: isinstance(value, list | tuple), "Give a list.")
"""Checks the positional arguments of a function."""
named: Final = _rule(
    lambda value: isinstance(value, Mapping) and all(isinstance(name, str) for name in value),
    "Give a dict from names to values.",
)
"""Checks the keyword arguments of a function."""
truth: Final = _rule(lambda value: isinstance(value, bool), "Give True or False.")
"""Checks a boolean: the text 'false' would be true."""


def error_rules(value: Any) -> str | None:
    """Check the outcomes that messages get by the class of the exception that their handler raised."""
    if not isinstance(value, Mapping):
        return "Give a dict from classes of exceptions to Rejected, Failed, Retry or Retry(…)."
    for kind, rule in value.items():
        if not isinstance(kind, type) or not issubclass(kind, BaseException):
            return f"Its key {kind!r} is not a class of exceptions."[:_LONGEST_SHOWN]
        if rule not in (Rejected, Failed, Retry) and not isinstance(rule, Retry):
            return f"For {kind.__name__} give the class Rejected, Failed or Retry, or a Retry(…)."
    return None


share_or_number: Final = _rule(
    lambda value: 0 < value <= 1 if isinstance(value, float) else _is_number(value, int) and value >= 1,
    "Give a share such as 0.1, up to 1.0, or a whole number of messages from 1, or None for never.",
)
"""Checks a share of messages (a float) or a number of messages (an int)."""


def one_of(*allowed: str) -> Rule:
    """Return a rule for one of a few words."""
    return _rule(lambda value: value in allowed, f"Give {' or '.join(allowed)}.")


def whole(lowest: int, highest: int) -> Rule:
    """Return a rule for whole numbers."""
    fix = f"Give a whole number from {lowest} to {highest}."
    return _rule(lambda value: _is_number(value, int) and lowest <= value <= highest, fix)


def number(lowest: float, highest: float, unit: str = "") -> Rule:
    """Return a rule for finite numbers."""
    fix = f"Give a number{unit and ' of '}{unit} from {lowest:.12g} to {highest:.12g}."
    return _rule(lambda value: _is_number(value, int | float) and lowest <= value <= highest, fix)


def _is_number(value: Any, kind: Any) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


def duration(lowest: timedelta, highest: timedelta) -> Rule:
    """Return a rule for durations."""
    fix = f"Give a timedelta or a number of seconds, from {lowest} to {highest}."
    return _rule(lambda value: timed(value) is None and lowest <= as_timedelta(value) <= highest, fix)


LEASE_FOR: Final = duration(timedelta(milliseconds=1), timedelta(hours=12))
POLL_INTERVAL: Final = duration(timedelta(milliseconds=10), timedelta(days=1))
WAIT_TIMEOUT: Final = duration(timedelta(milliseconds=1), timedelta(days=3660))


def function(value: Any) -> str | None:
    """Check a function, or its name as `module:function`, without importing the module."""
    if callable(value):
        return None
    module, _, name = value.partition(":") if isinstance(value, str) else ("", "", "")
    if not module or not name:
        return "Give a function, or its name as module:function, such as handlers:pack."
    return why_missing(module, name)
