"""Dead messages that are held while a function finds a remedy for them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from typing import Any

import psycopg

from airflow_provider_pgqueue.core import verbs
from airflow_provider_pgqueue.core.client import run
from airflow_provider_pgqueue.core.consumer.settle import Held
from airflow_provider_pgqueue.core.errors import InvalidMessage, LeaseLost
from airflow_provider_pgqueue.core.message import DeadMessage
from airflow_provider_pgqueue.core.repair.answer import KEEP, Remedy
from airflow_provider_pgqueue.core.verbs import Statement

Outcomes = dict[int, str]


class DeadLease(Held):
    """The messages of one `lease_dead` call. What is not settled can be leased again when the lease expires."""

    _extension = staticmethod(verbs.extend_dead)

    def __init__(self, conn: psycopg.Connection[Any], messages: Sequence[DeadMessage], *, lease_for: timedelta) -> None:
        super().__init__(conn, messages[0].lock_token, [message.id for message in messages], lease_for=lease_for)

    def holds(self, message: DeadMessage) -> bool:
        """Return whether the message is still leased, as of the last renewal."""
        return message.id in self._held

    def settle(self, remedies: Mapping[int, Remedy], *, delay: timedelta, remedied_by: str) -> Outcomes:
        """Apply all remedies in one transaction, and return what became of each message.

        A message is `lost` if its lease had ended. A body that PostgreSQL refuses is `invalid`: that message alone
        stays dead. Messages that are held and have no remedy are given back.
        """
        outcomes = {id_: remedy.outcome for id_, remedy in remedies.items()}
        bodies = {id_: remedy.body for id_, remedy in remedies.items() if remedy.outcome == "requeued"}
        reasons: dict[str, list[int]] = {}
        for id_, remedy in remedies.items():
            if remedy.outcome == "dismissed":
                reasons.setdefault(remedy.reason, []).append(id_)
        with self._conn.transaction():
            if bodies:
                outcomes |= self._requeue(bodies, delay, remedied_by)
            for reason, ids in reasons.items():
                outcomes |= self._ask(verbs.dismiss(self._require_token(), ids, reason, remedied_by=remedied_by))
            self._release({id_ for id_ in self._held if outcomes.get(id_) in (None, "left", "invalid", "raised")})
        return outcomes

    def _requeue(self, bodies: Mapping[int, Any], delay: timedelta, remedied_by: str) -> Outcomes:
        """Requeue them. If the call is refused, try each half, until the body that is refused is alone."""
        new = {id_: body for id_, body in bodies.items() if body is not KEEP}
        statement = verbs.requeue(self._require_token(), list(bodies), bodies=new, delay=delay, remedied_by=remedied_by)
        try:
            with self._conn.transaction():
                return dict.fromkeys(bodies, "requeued") | self._ask(statement)
        except InvalidMessage:
            if len(bodies) == 1:
                return dict.fromkeys(bodies, "invalid")
        ids = list(bodies)
        outcomes: Outcomes = {}
        for half in (ids[: len(ids) // 2], ids[len(ids) // 2 :]):
            outcomes |= self._requeue({id_: bodies[id_] for id_ in half}, delay, remedied_by)
        return outcomes

    def give_back(self) -> None:
        """Give all that are held back without a remedy."""
        with self._calling:
            self._release(self._held)

    def _release(self, ids: Collection[int]) -> None:
        if ids:
            self._ask(verbs.release_dead(self._require_token(), ids))

    def _ask(self, statement: Statement[Any]) -> Outcomes:
        """Run the verb and return the lost ids; LeaseLost is caught here, so that the transaction keeps the rest."""
        try:
            run(self._conn, statement)
        except LeaseLost as error:
            return dict.fromkeys(error.ids, "lost")
        return {}
