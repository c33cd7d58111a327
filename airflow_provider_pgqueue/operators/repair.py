"""Repairs dead messages with a function."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException

from airflow_provider_pgqueue.core.argument import (
    Rule,
    duration,
    function,
    number,
    optional,
    queue_name,
    results,
    text,
    texts,
    truth,
    whole,
)
from airflow_provider_pgqueue.core.repair import Repair, RepairFunction, Validator
from airflow_provider_pgqueue.hooks.pgqueue import PgQueueHook, task_of
from airflow_provider_pgqueue.task import QueueTask

if TYPE_CHECKING:
    from airflow.sdk import Context

_SAY_EVERY: Final = 5.0  # seconds

_STAY_DEAD: Final = ("left", "invalid", "raised", "lost", "held")


def _outcomes(value: Any) -> str | None:
    good = isinstance(value, list | tuple) and all(isinstance(one, str) and one in _STAY_DEAD for one in value)
    return None if good else f"Give a list of {', '.join(_STAY_DEAD)}."


def _validator(value: Any) -> str | None:
    if isinstance(value, str) and value.endswith(".json"):
        return None if Path(value).is_file() else "There is no such file. Give the whole path of a JSON Schema."
    cure = function(value)
    return cure and f"{cure} The path of a .json file with a JSON Schema will do, too, as a text."


class PgQueueRepairOperator(QueueTask):
    """Leases dead messages, calls a function of yours with each, and requeues, dismisses or leaves it.

    The function gets a `DeadMessage` (`body`, `failure`, `result`, `reference`, `attempts`, …) and returns a new body,
    or `KEEP`, `LEAVE` or `Dismiss(reason)` of `airflow_provider_pgqueue.core`. Whatever it returns or raises concerns
    that message alone. A task that is killed and tried again gives each message one remedy: the run is named after the
    task instance. A task that is told to stop finishes the current message, gives the others back and fails, so that a
    retry continues.

    The result has numbers and at most a hundred ids by how messages ended, and no bodies: `requeued`, `dismissed`,
    and those that stay dead: `left`, `invalid`, `raised`, `lost`, `held`, `remedied` (by somebody else meanwhile);
    `ids`; `stopped`, why the canary ended the run, or None; `dry_run`. The task succeeds when its canary stops it.

    :param queue_name: the queue of the dead messages, to which they return; None takes all queues.
    :param function: called with each dead message; a function, or its name as `package.module:function`.
    :param validator: called with each body that would be published, returns what is wrong or None; a function, its
        name, or the path of a `.json` file with a JSON Schema.
    :param results: only messages with these results: `failed`, `rejected`, `lock_expired`, `expired`; None takes all.
    :param fingerprints: only messages of these causes, as `verbs.dead_causes` names them.
    :param cause: all messages of one cause of the last triage, instead of queue, results and fingerprints.
    :param max_messages: the most messages to repair, oldest first, over all tries of the task.
    :param max_requeues: leave messages that were requeued this many times before.
    :param max_per_second: the most messages to repair per second.
    :param canary: requeue this many first, and the others only if fewer than `stop_when_failing` percent die again.
    :param stop_when_failing: percentage of the canary that must die again for the run to stop.
    :param canary_wait: how long the canary may take; the run stops if it is not finished by then.
    :param delay: make requeued messages ready only after this time.
    :param batch_size: messages per lease.
    :param lease_for: how long a lease lasts without renewal, and so when the messages of a killed task come back.
    :param fail_on: outcomes, such as `["raised", "invalid"]`, that fail the task at its end, without a retry, if any
        message had one.
    :param dry_run: call the function, and change nothing.
    :param pgqueue_conn_id: the Airflow connection of the database that holds the queue.
    """

    template_fields: Sequence[str] = ("queue_name", "results", "fingerprints", "cause", "pgqueue_conn_id")
    ui_color = "#f5ecdc"
    rules: ClassVar[Mapping[str, Rule]] = {
        "function": function,
        "validator": optional(_validator),
        "queue_name": optional(queue_name),
        "results": optional(results),
        "fingerprints": optional(texts),
        "cause": optional(text),
        "max_messages": optional(whole(1, 10**12)),
        "max_requeues": optional(whole(0, 32_767)),
        "max_per_second": optional(number(0.001, 10**9)),
        "canary": whole(0, 10**12),
        "stop_when_failing": number(0, 100, "percent"),
        "canary_wait": duration(timedelta(0), timedelta(days=366)),
        "delay": duration(timedelta(0), timedelta(days=366)),
        "batch_size": whole(1, 10_000),
        "lease_for": duration(timedelta(milliseconds=1), timedelta(hours=12)),
        "fail_on": _outcomes,
        "dry_run": truth,
        "pgqueue_conn_id": text,
    }
    attributes: ClassVar[Mapping[str, str]] = {"dry_run": "is_dry_run"}

    def __init__(
        self,
        *,
        function: RepairFunction | str,
        queue_name: str | None = None,
        validator: Validator | str | None = None,
        results: Sequence[str] | None = None,
        fingerprints: Sequence[str] | None = None,
        cause: str | None = None,
        max_messages: int | None = None,
        max_requeues: int | None = None,
        max_per_second: float | None = None,
        canary: int = 0,
        stop_when_failing: float = 10.0,
        canary_wait: timedelta = timedelta(minutes=10),
        delay: timedelta = timedelta(0),
        batch_size: int = 100,
        lease_for: timedelta = timedelta(minutes=1),
        fail_on: Sequence[str] = (),
        dry_run: bool = False,
        pgqueue_conn_id: str = PgQueueHook.default_conn_name,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.function = function
        self.queue_name = queue_name
        self.validator = validator
        self.results = results
        self.fingerprints = fingerprints
        self.cause = cause
        self.max_messages = max_messages
        self.max_requeues = max_requeues
        self.max_per_second = max_per_second
        self.canary = canary
        self.stop_when_failing = stop_when_failing
        self.canary_wait = canary_wait
        self.delay = delay
        self.batch_size = batch_size
        self.lease_for = lease_for
        self.fail_on = fail_on
        self.is_dry_run = dry_run
        self.pgqueue_conn_id = pgqueue_conn_id
        self._stopping = False
        self.check_written()

    def execute(self, context: Context) -> dict[str, Any]:
        """Repair dead messages, and return how many ended how."""
        self.check_rendered()
        self._said = time.monotonic()
        with PgQueueHook(self.pgqueue_conn_id).connect() as conn:
            summary = self._repair(task_of(context)).run(conn, stop=lambda: self._stopping, on_batch=self._say)
        if self._stopping and summary["stopped"]:
            raise AirflowException(f"stopped while repairing dead messages, after {summary}")
        self.log.info("dead messages of %s: %s", self.queue_name or "all queues", summary)
        if bad := {name: summary[name] for name in self.fail_on if summary[name]}:
            # A retry would call the same function with the same messages.
            raise AirflowFailException(f"dead messages of {self.queue_name or 'all queues'} stay dead: {bad}")
        return summary

    def _say(self, outcomes: Counter[str]) -> None:
        if time.monotonic() - self._said >= _SAY_EVERY:
            self._said = time.monotonic()
            self.log.info("dead messages of %s so far: %s", self.queue_name or "all queues", dict(outcomes))

    def on_kill(self) -> None:
        """Finish the current message and give the others back."""
        self._stopping = True

    def _repair(self, run_id: str) -> Repair:
        return Repair(
            function=self.function,
            run_id=run_id,
            validator=self.validator,
            cause=self.cause,
            queue_name=self.queue_name,
            results=self.results,
            fingerprints=self.fingerprints,
            max_messages=self.max_messages,
            max_requeues=self.max_requeues,
            max_per_second=self.max_per_second,
            canary=self.canary,
            stop_when_failing=self.stop_when_failing,
            canary_wait=self.canary_wait,
            delay=self.delay,
            batch_size=self.batch_size,
            lease_for=self.lease_for,
            dry_run=self.is_dry_run,
        )
