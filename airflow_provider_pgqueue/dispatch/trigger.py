"""Fires when a dispatcher has something to do."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from typing import ClassVar, Final, Unpack
from weakref import WeakKeyDictionary

from airflow.sdk.exceptions import AirflowRuntimeError
from airflow.triggers.base import TriggerEvent

from airflow_provider_pgqueue.core import verbs
from airflow_provider_pgqueue.core.argument import Rule, text, whole
from airflow_provider_pgqueue.core.client import run
from airflow_provider_pgqueue.core.errors import ConnectionFailed
from airflow_provider_pgqueue.core.thread import in_thread
from airflow_provider_pgqueue.core.tuning import TUNING
from airflow_provider_pgqueue.dispatch.dispatch import reconcile
from airflow_provider_pgqueue.hooks.pgqueue import PgQueueHook
from airflow_provider_pgqueue.telemetry.telemetry import record_dispatches
from airflow_provider_pgqueue.triggers.hub import notification_stream
from airflow_provider_pgqueue.triggers.message import PgQueueMessageTrigger
from airflow_provider_pgqueue.triggers.notification import TriggerArguments

log = logging.getLogger(__name__)
_POLL_EVERY: Final = 30.0  # seconds between two polls of the runs
_AT_ONCE: Final = 6  # dispatchers of a triggerer that poll at the same time, each with a thread and a session
_POLLS: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore]] = WeakKeyDictionary()


class PgQueueDispatchTrigger(PgQueueMessageTrigger):
    """Waits for a deferred `PgQueueDispatchOperator`, and meanwhile reconciles its dispatches with their runs.

    Fires when there are messages and fewer than `max_open` dispatches, or a run that was never started. Every half
    minute it asks Airflow for the states of the runs, renews the leases of those that are alive, and ends the
    dispatches of the others, over a connection that it holds only for that. It never leases.

    :param dag_id: the DAG of the runs.
    :param max_open: how many dispatches may be open.
    """

    rules: ClassVar[Mapping[str, Rule]] = {
        **PgQueueMessageTrigger.rules,
        "dag_id": text,
        "max_open": whole(1, 10_000),
    }

    def __init__(self, *, dag_id: str, max_open: int, **kwargs: Unpack[TriggerArguments]) -> None:
        # Before the checks, which the base class makes.
        self.dag_id = dag_id
        self.max_open = max_open
        super().__init__(**kwargs)

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Fire once."""
        await asyncio.sleep(self.notify_after)
        while True:
            try:
                async with _POLLS.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(_AT_ONCE)):
                    open_, unstarted = await in_thread(self._poll)
            except (ConnectionFailed, AirflowRuntimeError) as error:
                # The database or the api-server is down: the leases last for hours, so there is time.
                log.warning("cannot look at the dispatches of queue %s; next try soon: %s", self.queue_name, error)
                await asyncio.sleep(TUNING.poll_when_full)
                continue
            if unstarted:
                yield TriggerEvent({"queue_name": self.queue_name, "unstarted": unstarted})
                return
            if open_ >= self.max_open:
                await asyncio.sleep(TUNING.poll_when_full)
                continue
            async with aclosing(notification_stream(self.pgqueue_conn_id, self.watch())) as notifications:
                try:
                    notification = await asyncio.wait_for(anext(notifications), _POLL_EVERY)
                except TimeoutError:
                    continue
            yield TriggerEvent(notification)
            return

    def _poll(self) -> tuple[int, int]:
        with PgQueueHook(self.pgqueue_conn_id).connect() as conn:
            _, unstarted = reconcile(conn, self.queue_name, self.dag_id)
            found = run(conn, verbs.open_dispatches(self.queue_name, self.dag_id))
        record_dispatches(self.queue_name, self.dag_id, found)
        return len(found), len(unstarted)
