"""Dead messages that are held while somebody decides about them."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import psycopg

from airflow_provider_pgqueue.core import verbs
from airflow_provider_pgqueue.core.client import run
from airflow_provider_pgqueue.core.errors import InvalidMessage, LeaseLost, PgQueueError
from airflow_provider_pgqueue.core.message import DeadMessage
from airflow_provider_pgqueue.core.quantity import quantity
from airflow_provider_pgqueue.core.verbs import Statement
from airflow_provider_pgqueue.spark.jobs.dead.remedy import KEEP, Verdict

log = logging.getLogger(__name__)


class DeadLease:
    """The messages of one `lease_dead` call. What is not settled comes round again when the lease expires."""

    def __init__(self, conn: psycopg.Connection[Any], messages: Sequence[DeadMessage], *, lease_for: timedelta) -> None:
        self._conn = conn
        self._ids = [message.id for message in messages]
        self._token = messages[0].lock_token
        self._lease_for = lease_for

    def renew(self) -> None:
        """Extend what is held; say in the log what was lost or went wrong."""
        try:
            run(self._conn, verbs.extend_dead(self._token, self._ids, lease_for=self._lease_for))
        except LeaseLost as error:
            log.warning("%s", error)
        except PgQueueError as error:
            log.warning(
                "could not extend the lease of %s: %s", quantity(len(self._ids), "dead message"), type(error).__name__
            )

    def settle(self, verdicts: Mapping[int, Verdict], *, delay: timedelta, remedied_by: str) -> dict[int, str]:
        """Requeue, dismiss and give back in one transaction; return what became of each.

        `lost` is what somebody else has now: the lease had ended. What PostgreSQL takes for no JSON is `invalid` and
        stays dead, alone.
        """
        bodies = {id_: verdict.body for id_, verdict in verdicts.items() if verdict.outcome == "requeued"}
        reasons: dict[str, list[int]] = {}
        for id_, verdict in verdicts.items():
            if verdict.outcome == "dismissed":
                reasons.setdefault(verdict.reason, []).append(id_)
        outcomes = {id_: verdict.outcome for id_, verdict in verdicts.items()}
        with self._conn.transaction():
            if bodies:
                outcomes |= self._requeue(bodies, delay, remedied_by)
            for reason, ids in reasons.items():
                outcomes |= self._run(verbs.dismiss(self._token, ids, reason, remedied_by=remedied_by))
            if back := [id_ for id_, outcome in outcomes.items() if outcome in ("left", "invalid", "raised")]:
                self._run(verbs.release_dead(self._token, back))
        return outcomes

    def _requeue(self, bodies: Mapping[int, Any], delay: timedelta, remedied_by: str) -> dict[int, str]:
        repaired = {id_: body for id_, body in bodies.items() if body is not KEEP}
        statement = verbs.requeue(self._token, list(bodies), bodies=repaired, delay=delay, remedied_by=remedied_by)
        try:
            with self._conn.transaction():
                return dict.fromkeys(bodies, "requeued") | self._run(statement)
        except InvalidMessage:
            if len(bodies) == 1:
                return dict.fromkeys(bodies, "invalid")
        ids = list(bodies)
        halves = (ids[: len(ids) // 2], ids[len(ids) // 2 :])
        outcomes: dict[int, str] = {}
        for half in halves:
            outcomes |= self._requeue({id_: bodies[id_] for id_ in half}, delay, remedied_by)
        return outcomes

    def _run(self, statement: Statement[Any]) -> dict[int, str]:
        """Run it; return what was lost. Caught here, so that the transaction keeps the rest."""
        try:
            run(self._conn, statement)
        except LeaseLost as error:
            return dict.fromkeys(error.ids, "lost")
        return {}
