"""Settles leased messages: which calls give them their outcomes.

An outcome that cannot be kept ends its own message, and no other of its call.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any, Final
from uuid import UUID

import psycopg
from psycopg.pq import TransactionStatus

from airflow_provider_pgqueue.core import verbs
from airflow_provider_pgqueue.core.client import run, savepoint, to_json
from airflow_provider_pgqueue.core.errors import InvalidArgument, InvalidMessage, LeaseLost
from airflow_provider_pgqueue.core.outcome import PLAIN, Failed, Outcome, Rejected, Retry, Success, is_plain
from airflow_provider_pgqueue.core.verbs import Statement

log = logging.getLogger(__name__)

Outcomes = dict[int, Outcome | None]
"""By the id of the message; None is success."""

NOT_JSON: Final = "its output is not JSON that PostgreSQL can store. Give text such as to_json makes."
_ENDS: Final[Mapping[type, str]] = {
    type(None): "success", Success: "success", Rejected: "rejected", Failed: "failed", Retry: "retry",
}  # fmt: skip


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


def settle(
    conn: psycopg.Connection[Any], lock_token: UUID, outcomes: Outcomes, *, handled_by: str | None = None
) -> tuple[Counter[str], set[int]]:
    """Settle leased messages as `settlement` does; return how many had which end, with `lost`, and the ids of the lost.

    An output that PostgreSQL cannot store, or of more than 64 kB, makes its own message `failed`, with the reason in
    its details and in the log.
    """
    counts, lost = Counter[str](), set[int]()
    for ids, statement in settlement(lock_token, outcomes, handled_by=handled_by):
        try:
            with savepoint(conn):
                gone = _lost(conn, statement)
        except (InvalidArgument, InvalidMessage) as error:
            # Nothing can follow an error of the server in a transaction without a savepoint.
            if conn.info.transaction_status is TransactionStatus.INERROR:
                raise
            for part in _apart({id_: outcomes[id_] for id_ in ids}, error):
                more, gone = settle(conn, lock_token, part, handled_by=handled_by)
                counts += more
                lost |= gone
        else:
            counts.update(_ENDS[type(outcomes[id_])] for id_ in ids if id_ not in gone)
            counts += Counter(lost=len(gone))
            lost |= gone
    return counts, lost


def _lost(conn: psycopg.Connection[Any], statement: Statement[Any]) -> set[int]:
    try:
        run(conn, statement)
    except LeaseLost as error:
        return set(error.ids)
    return set()


def _apart(refused: Outcomes, error: Exception) -> list[Outcomes]:
    """Return the halves of what one call refused, in the end with `Failed` instead of the outcome that was meant."""
    outcomes = list(refused.items())
    middle = len(outcomes) // 2
    if middle:
        return [dict(outcomes[:middle]), dict(outcomes[middle:])]
    ((id_, outcome),) = outcomes
    if getattr(outcome, "output", None) is None:
        raise error  # it was replaced before, or never had one: the refusal is not about the output
    reason = f"its output is too large: {error}" if "bytes" in str(error) else NOT_JSON
    return [{id_: failed_instead(id_, _ENDS[type(outcome)], reason)}]


def failed_instead(id_: int, meant: str, reason: str) -> Failed:
    """Return the outcome of a message whose own cannot be kept, and log the reason."""
    log.warning("message %s ends as failed, not as %s: %s", id_, meant, reason)
    return Failed(reason)
