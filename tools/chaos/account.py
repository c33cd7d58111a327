"""The account of each message: the histories of the actors compared with the database at the end."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import psycopg

from tools.chaos.leases import IN_ANY_SECOND, PER_GROUP, most_leased
from tools.chaos.stage import MANY

# By the beginning of `handled_by`.
KINDS = {
    "raw.": "raw SQL",
    "a.effects": "consume",
    "l.worker": "long work",
    "chaos_watched/": "Airflow, watcher",
    "chaos_waited/": "Airflow, sensor",
    "chaos_deferred/": "Airflow, deferred consumer",
    "spark ": "Spark drain",
} | {f"{team}.{kind}": kind for team in "abc" for kind in ("functions", "worker")}
OF_OTHERS = frozenset({"Airflow, watcher", "Airflow, sensor", "Airflow, deferred consumer", "Spark drain"})
OURS = frozenset(KINDS.values()) - OF_OTHERS

# Two clocks of one lease: when the call began, and when the row before it was written.
TOLERANCE = 0.5  # seconds
ROWS = """
SELECT queue_name, coalesce(message ->> 'k', reference), message ->> 'g', (message ->> 'n')::integer,
       result, handled_by, attempts, extract(epoch FROM leased_at)::float, extract(epoch FROM archived_at)::float
  FROM (SELECT queue_name, message, reference, NULL AS result, locked_by AS handled_by, attempts, leased_at,
               NULL AS archived_at
          FROM messages.message
        UNION ALL
        SELECT queue_name, message, reference, result, handled_by, attempts, leased_at, archived_at
          FROM messages.message_archive) both_places
"""


@dataclass
class Row:
    """A message as it is in the database at the end."""

    queue: str
    key: str
    group: str | None
    number: int | None
    result: str | None
    handled_by: str | None
    attempts: int
    leased_at: float | None
    archived_at: float | None


@dataclass
class Account:
    """The figures of a run, and the keys of what went wrong by kind; each kind should be empty."""

    figures: dict[str, int] = field(default_factory=dict)
    wrong: dict[str, list[str]] = field(default_factory=dict)
    results: Counter[tuple[str, str]] = field(default_factory=Counter)
    consumers: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)

    @property
    def is_clean(self) -> bool:
        """Whether nothing went wrong."""
        return not any(self.wrong.values())


def account(
    conn: psycopg.Connection[Any], entries: Iterable[dict[str, Any]], *, kinds: Iterable[str] = (), since: float = 0.0
) -> Account:
    """Account for every message of a run that has come to rest.

    :param kinds: the kinds of consumers that must have archived something.
    :param since: when the faults began, in seconds since 1970; what was archived before that shows no kind at work.
    """
    rows = [Row(*values) for values in conn.execute(ROWS.encode()).fetchall()]
    effects = Counter(key for (key,) in conn.execute("SELECT k FROM public.effect"))
    told = defaultdict[str, list[dict[str, Any]]](list)
    for entry in entries:
        told[entry["kind"]].append(entry)
    by_key = defaultdict[str, list[Row]](list)
    for row in rows:
        by_key[row.key].append(row)
    result = Account()
    _published(result, told, by_key)
    _finished(result, told, by_key)
    _effects(result, rows, effects)
    _limits(result, *most_leased(conn))
    result.wrong["wrong body"] = sorted(_keys(told["wrong body"]))
    _drained(result, told)
    result.consumers = Counter(_kind(row.handled_by) for row in rows if row.result is not None)
    busy = {_kind(row.handled_by) for row in rows if row.archived_at is not None and row.archived_at >= since}
    result.wrong["idle consumer"] = sorted(set(kinds) - busy)
    unsure = _keys(told["invoke"]) - _keys(told["ok"])
    result.wrong["out of order"] = list(_out_of_order(rows, unsure))
    result.wrong["blocked"] = [f"{row.queue}: {row.key}" for row in rows if row.result is None]
    result.wrong["too many attempts"] = [
        row.key for row in rows if row.attempts > (2 if row.queue == "a_short" else MANY)
    ]
    result.wrong["dead of faults"] = [
        row.key for row in rows if row.result == "lock_expired" and row.queue != "a_short"
    ]
    result.wrong["of another team"] = [entry["what"] for entry in told["trespass"]]
    result.figures |= {"faults": len(told["fault"]) - len(told["fault failed"])}
    result.results = Counter((row.queue, row.result or "waits") for row in rows)
    result.faults = Counter(entry["what"] for entry in told["fault"])
    result.faults.subtract(entry["what"] for entry in told["fault failed"])
    result.errors = Counter(f"{entry['type']}: {entry['text'].splitlines()[0][:90]}" for entry in told["error"])
    return result


def _keys(entries: Iterable[dict[str, Any]]) -> set[str]:
    return {key for entry in entries for key in entry["keys"]}


def _published(result: Account, told: Mapping[str, list[dict[str, Any]]], by_key: Mapping[str, list[Row]]) -> None:
    attempted, known = _keys(told["invoke"]), _keys(told["ok"])
    # A drop takes what waits along; that it takes nothing else is seen in the other queues.
    kept = _keys(entry for entry in told["ok"] if entry["q"] != "volatile")
    refused = _keys(told["fail"]) - known - _keys(entry for entry in told["invoke"] if entry["q"] == "b_dedup")
    result.wrong["lost"] = sorted(kept - by_key.keys())
    result.wrong["doubled"] = sorted(key for key, rows in by_key.items() if len(rows) > 1)
    result.wrong["unexpected"] = sorted((by_key.keys() - attempted) | (by_key.keys() & refused))
    result.figures |= {
        "publishes begun": len(attempted),
        "acknowledged": len(known),
        "reply lost": len(attempted - known - refused),
        "reply lost, and published": len((attempted - known) & by_key.keys()),
        "gone with a dropped queue": len(known - kept - by_key.keys()),
    }


def _finished(result: Account, told: Mapping[str, list[dict[str, Any]]], by_key: Mapping[str, list[Row]]) -> None:
    finished: dict[str, dict[str, Any]] = {}
    twice, stale = [], []
    for entry in told["finish"]:
        for key in entry["keys"]:
            if key in finished:
                twice.append(key)
            finished[key] = entry
    for key, entry in finished.items():
        kept = [(row.result, row.handled_by) for row in by_key.get(key, [])]
        if (entry["result"], entry["holder"]) not in kept:
            stale.append(key)
    delivered = Counter(key for entry in told["deliver"] for key in entry["keys"])
    result.wrong["finished twice"] = twice
    result.wrong["stale"] = stale
    result.figures |= {"deliveries recorded": delivered.total(), "of them again": delivered.total() - len(delivered)}


def _effects(result: Account, rows: Iterable[Row], effects: Counter[str]) -> None:
    succeeded = {row.key for row in rows if row.queue == "a_effects" and row.result == "success"}
    wrong = [key for key, number in effects.items() if number != 1 or key not in succeeded]
    result.wrong["effect not once"] = wrong + sorted(succeeded - effects.keys())
    result.figures["effects"] = effects.total()


def _limits(result: Account, of_a_group: int, in_a_second: int) -> None:
    result.figures |= {"most leased of a group at once": of_a_group, "most leased in a second": in_a_second}
    result.wrong["beyond max_leased_per_group"] = [str(of_a_group)] if of_a_group > PER_GROUP else []
    result.wrong["beyond rate_limit"] = [str(in_a_second)] if in_a_second > IN_ANY_SECOND else []


def _out_of_order(rows: Iterable[Row], unsure: set[str]) -> Iterable[str]:
    groups = defaultdict[str, list[Row]](list)
    for row in rows:
        # A message whose reply was lost may have committed after the next one, so its place is unknown.
        if row.group is not None and row.archived_at is not None and row.key not in unsure:
            groups[row.group].append(row)
    for group in groups.values():
        group.sort(key=lambda row: row.number or 0)
        for before, after in pairwise(group):
            if (after.leased_at or 0.0) < (before.archived_at or 0.0) - TOLERANCE:
                yield after.key


def _drained(result: Account, told: Mapping[str, list[dict[str, Any]]]) -> None:
    drains = told["drained"]
    result.wrong["more than a drain was to take"] = [each["run"] for each in drains if each["archived"] > each["most"]]
    if drains or told["drain failed"]:
        result.figures |= {
            "Spark drains that ended": sum(each["archived"] > 0 for each in drains),
            "Spark drains tried again": len(told["drain failed"]),
        }


def consumers(conn: psycopg.Connection[Any]) -> Counter[str]:
    """Return how many messages each kind of consumer has archived."""
    found = Counter[str]()
    for name, number in conn.execute("SELECT handled_by, count(*) FROM messages.message_archive GROUP BY handled_by"):
        found[_kind(name)] += number
    return found


def _kind(handled_by: str | None) -> str:
    """Return the kind of the consumer that calls itself so."""
    name = handled_by or "nobody"
    for beginning, kind in KINDS.items():
        if name.startswith(beginning):
            return kind
    return name.partition("@")[0]
