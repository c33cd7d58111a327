"""Settles leased messages: which calls give them their outcomes, one by one or by columns.

An outcome that cannot be kept ends its own message, and no other of its call.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from uuid import UUID

import psycopg
from psycopg.pq import TransactionStatus

from airflow_provider_pgqueue.core import verbs
from airflow_provider_pgqueue.core.client import run, savepoint, to_json
from airflow_provider_pgqueue.core.errors import InvalidArgument, InvalidMessage, LeaseLost
from airflow_provider_pgqueue.core.outcome import PLAIN, Failed, Outcome, Rejected, Retry, Success, is_plain
from airflow_provider_pgqueue.core.verbs import Statement

log = logging.getLogger(__name__)


def settlement(
    lock_token: UUID, outcomes: Mapping[int, Outcome | None], *, handled_by: str | None = None
) -> Iterator[tuple[list[int], Statement[list[int]]]]:
    """Yield the calls that settle leased messages, each with the ids that it settles; an outcome of None is success.

    One call archives, and one call per kind of retry releases. A call that raises LeaseLost has settled the ids that
    were not lost.
    """
    retries: dict[tuple[object, ...], tuple[Retry, list[int]]] = {}
    finals: dict[int, Success | Rejected | Failed] = {}
    for id_, outcome in outcomes.items():
        if isinstance(outcome, Retry):
            # As the text that is sent, because the failure is a dict, which has no hash.
            failure = None if outcome.failure is None else to_json(outcome.failure)
            kind = (outcome.delay, outcome.details, outcome.count_attempt, failure)
            retries.setdefault(kind, (outcome, []))[1].append(id_)
        else:
            finals[id_] = outcome or PLAIN
    if finals:
        special = {id_: outcome for id_, outcome in finals.items() if not is_plain(outcome)}
        yield list(finals), verbs.archive(lock_token, list(finals), outcomes=special, handled_by=handled_by)
    for retry, ids in retries.values():
        yield (
            ids,
            verbs.release(
                lock_token,
                ids,
                delay=retry.delay or timedelta(0),
                count_attempt=retry.count_attempt,
                details=retry.details,
                failure=retry.failure,
                back_off=retry.delay is None,
            ),
        )


@dataclass(slots=True)
class Outcomes:
    """How messages end, by columns: those that are archived, each with its result, and those that are delivered again.

    `outputs` are JSON texts that nobody has checked: PostgreSQL does, when they are settled.
    """

    ids: list[int] = field(default_factory=list)
    results: list[str] = field(default_factory=list)
    details: list[str | None] = field(default_factory=list)
    outputs: list[str | None] = field(default_factory=list)
    retries: dict[int, Retry] = field(default_factory=dict)

    def add(self, other: Outcomes) -> None:
        """Take over the outcomes of other messages."""
        self.ids += other.ids
        self.results += other.results
        self.details += other.details
        self.outputs += other.outputs
        self.retries |= other.retries


def settle(
    conn: psycopg.Connection[Any], lock_token: UUID, outcomes: Outcomes, *, handled_by: str | None = None
) -> tuple[Counter[str], set[int]]:
    """Settle messages of a lease; return how many had which end, with `lost`, and the ids of the lost.

    One call archives, and one call per kind of retry releases. An output that PostgreSQL cannot store, or of more than
    64 kB, makes its own message `failed`, with the reason in its details and in the log.
    """
    counts, lost = _archive(conn, lock_token, outcomes, handled_by) if outcomes.ids else (Counter[str](), set[int]())
    for ids, statement in settlement(lock_token, outcomes.retries):
        gone: set[int] = set()
        try:
            run(conn, statement)
        except LeaseLost as error:
            gone = set(error.ids)
        counts["retry"] += len(ids) - len(gone)
        lost |= gone
    return counts + Counter(lost=len(lost)), lost


def _archive(
    conn: psycopg.Connection[Any], lock_token: UUID, outcomes: Outcomes, handled_by: str | None
) -> tuple[Counter[str], set[int]]:
    counts, lost = Counter[str](), set[int]()
    # What is plain nobody refuses: no two round trips for it.
    plain = _unless_empty(outcomes.outputs) is None and _unless_empty(outcomes.details) is None
    try:
        with nullcontext() if plain else savepoint(conn):
            lost = set(archive(conn, lock_token, outcomes, handled_by))
    except (InvalidArgument, InvalidMessage) as error:
        # Nothing can follow an error of the server in a transaction without a savepoint.
        if conn.info.transaction_status is TransactionStatus.INERROR:
            raise
        for part in _apart(outcomes, error):
            more, gone = _archive(conn, lock_token, part, handled_by)
            counts += more
            lost |= gone
        return counts, lost
    if not lost:
        return Counter(outcomes.results), lost
    ended = zip(outcomes.ids, outcomes.results, strict=True)
    return Counter(result for id_, result in ended if id_ not in lost), lost


def _apart(refused: Outcomes, error: Exception) -> list[Outcomes]:
    """Return the halves of what one call refused, in the end with `failed` instead of the outcome that was meant."""
    columns = (refused.ids, refused.results, refused.details, refused.outputs)
    middle = len(refused.ids) // 2
    if middle:
        return [Outcomes(*(column[half] for column in columns)) for half in (slice(middle), slice(middle, None))]  # type: ignore[arg-type]
    if refused.outputs == [None]:
        raise error  # it was replaced before: the refusal is not about the output
    reason = "its output is not JSON that PostgreSQL can store. Give text such as to_json makes."
    if "bytes" in str(error):
        reason = f"its output is too large: {error}"
    log.warning("message %s ends as failed, not as %s: %s", refused.ids[0], refused.results[0], reason)
    return [Outcomes(refused.ids, ["failed"], [reason], [None])]


def archive(conn: psycopg.Connection[Any], lock_token: UUID, outcomes: Outcomes, handled_by: str | None) -> list[int]:
    """Archive messages in one call, and return the ids of the lost; InvalidMessage or InvalidArgument for an output."""
    return run(
        conn,
        verbs.archive_rows(
            lock_token,
            outcomes.ids,
            results=None if outcomes.results.count("success") == len(outcomes.ids) else outcomes.results,
            details=_unless_empty(outcomes.details),
            outputs=_unless_empty(outcomes.outputs),
            handled_by=handled_by,
        ),
    )


def _unless_empty(column: list[str | None]) -> list[str | None] | None:
    return None if column.count(None) == len(column) else column
