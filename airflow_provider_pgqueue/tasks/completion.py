"""Waiting for what becomes of messages: a few seconds in the worker, for quick replies, then in the triggerer."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException

from airflow_provider_pgqueue.core import verbs
from airflow_provider_pgqueue.core.argument import POLL_INTERVAL, Rule, truth
from airflow_provider_pgqueue.core.client import run
from airflow_provider_pgqueue.core.duration import Duration, as_timedelta, seconds
from airflow_provider_pgqueue.core.message import MessageOutcome
from airflow_provider_pgqueue.hooks.pgqueue import PgQueueHook
from airflow_provider_pgqueue.tasks.task import QueueTask
from airflow_provider_pgqueue.triggers.doorbell import SAFE_TO_RESUME
from airflow_provider_pgqueue.triggers.outcome import PgQueueOutcomeTrigger
from airflow_provider_pgqueue.triggers.watch import summary_of

_SAID: Final = 10
# Seconds. A task that has deferred cannot resume safely before eight have passed, and many replies are quicker.
_HERE_FIRST: Final = 5.0
COMPLETION_RULES: Final[Mapping[str, Rule]] = {
    **QueueTask.rules,
    "follow_requeues": truth,
    "with_output": truth,
    "deferrable": truth,
    "poll_interval": POLL_INTERVAL,
}


class AwaitsMessages(QueueTask):
    """A task that ends when messages are finished.

    :param follow_requeues: when a message dies, wait until it is dismissed, or requeued and the new one is finished.
    :param with_output: add the `output` that the handler returned to each outcome, and so to XCom.
    :param poll_interval: the time between two looks while waiting when no notification arrives.
    :param deferrable: False waits in a worker, for installations without a triggerer.
    """

    follow_requeues: bool
    with_output: bool
    deferrable: bool
    poll_interval: Duration
    _too_late: ClassVar[type[AirflowException]] = AirflowException
    """What a wait that ends in a worker raises."""

    def _outcomes(
        self, ids: Sequence[int], timeout: Duration | None, *, end_task: bool = False, **kept: Any
    ) -> list[dict[str, Any]]:
        """Return the outcome of each message, all of which are a success, or defer until they are finished.

        Raises AirflowFailException, which names those that ended otherwise: a retry would find the same.

        :param end_task: let the triggerer end the task, if all are a success.
        :param kept: further arguments of `execute_complete`.
        """
        self.message_ids = ids
        timeout = None if timeout is None else as_timedelta(timeout)
        patience = None if timeout is None else timeout.total_seconds()
        if self.deferrable:
            patience = _HERE_FIRST if patience is None else min(_HERE_FIRST, patience)
        if (found := self._wait_here(ids, patience)) is not None:
            return self._judged(found)
        if not self.deferrable:
            raise self._too_late(f"after {timeout} not all of these messages are finished: {_few(ids)}")
        self.log.info("waiting in the triggerer for the end of messages %s", _few(ids))
        trigger = PgQueueOutcomeTrigger(
            ids=list(ids),
            pgqueue_conn_id=self.pgqueue_conn_id,
            poll_interval=self.poll_interval,
            follow_requeues=self.follow_requeues,
            end_task=end_task,
            with_result=bool(self.do_xcom_push),
            ring_after=SAFE_TO_RESUME,
        )
        kwargs = {"ids": list(ids), **kept}
        self.defer(trigger=trigger, method_name="execute_complete", kwargs=kwargs, timeout=timeout)

    def _finished(self, ids: Sequence[int]) -> list[dict[str, Any]]:
        """Return the outcome of each message, all of which are finished."""
        self.message_ids = ids
        found = PgQueueHook(self.pgqueue_conn_id).run(self._statement_of_outcomes(ids))
        return self._judged(found)

    def _judged(self, found: Sequence[MessageOutcome]) -> list[dict[str, Any]]:
        if bad := [one for one in found if one.result != "success"]:
            more = f"; and {len(bad) - _SAID:,} more" if len(bad) > _SAID else ""
            fix = "" if self.follow_requeues else " follow_requeues=True waits for what a requeued message becomes."
            raise AirflowFailException(f"{'; '.join(map(str, bad[:_SAID]))}{more}.{fix}")
        return [summary_of(one) | ({"output": one.output} if self.with_output else {}) for one in found]

    def _statement_of_outcomes(self, ids: Sequence[int]) -> verbs.Statement[list[MessageOutcome]]:
        return verbs.message_outcomes(ids, follow_requeues=self.follow_requeues, with_output=self.with_output)

    def _wait_here(self, ids: Sequence[int], patience: float | None) -> list[MessageOutcome] | None:
        """Return what became of the messages, or None if they are not finished within so many seconds."""
        end = None if patience is None else time.monotonic() + patience
        pause = seconds(self.poll_interval)
        with PgQueueHook(self.pgqueue_conn_id).connect_to_listen() as conn:
            while True:
                found = run(conn, self._statement_of_outcomes(ids))
                if all(one.result is not None for one in found):
                    return found
                left = pause if end is None else min(pause, end - time.monotonic())
                if left <= 0:
                    return None
                list(conn.notifies(timeout=left, stop_after=1))  # until one rings, or the time is over


def _few(ids: Sequence[int]) -> str:
    return ", ".join(map(str, ids[:_SAID])) + (", …" if len(ids) > _SAID else "")
