"""What the operators that repair or requeue dead messages have in common."""

from __future__ import annotations

import json
import time
from abc import abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import fields
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Final, Unpack

from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException

from airflow_provider_pgqueue.core import argument
from airflow_provider_pgqueue.core.argument import (
    Rule,
    duration,
    number,
    optional,
    text,
    texts,
    topic_pattern,
    truth,
    whole,
)
from airflow_provider_pgqueue.core.duration import Duration
from airflow_provider_pgqueue.core.errors import InvalidArgument
from airflow_provider_pgqueue.core.repair import Repair, RepairFunction, Validator
from airflow_provider_pgqueue.core.repair.repair import check_chosen
from airflow_provider_pgqueue.core.verbs import DeadFilter
from airflow_provider_pgqueue.hooks.pgqueue import PgQueueHook
from airflow_provider_pgqueue.tasks.task import QueueTask, TaskArguments
from airflow_provider_pgqueue.tasks.telemetry import note_remedies, task_of

if TYPE_CHECKING:
    from airflow.sdk import Context

_SAY_EVERY: Final = 5.0  # seconds
_SAID: Final = 10  # ids
_STAY_DEAD: Final = ("left", "invalid", "raised", "lost", "held")
_NOT_DONE: Final = ("stopped", "unknown", *_STAY_DEAD)
_COUNTED: Final = ("requeued", "dismissed", *_STAY_DEAD)  # towards max_messages
_OF_FILTER: Final = frozenset(field.name for field in fields(DeadFilter))
_OF_REPAIR: Final = frozenset(field.name for field in fields(Repair)) - {"function", "validator"}


def _outcomes(value: Any) -> str | None:
    good = isinstance(value, list | tuple) and all(isinstance(one, str) and one in _NOT_DONE for one in value)
    return None if good else f"Give a list of {', '.join(_NOT_DONE)}."


class RemedyArguments(TaskArguments, total=False):
    """The arguments of a `RemedyTask`, but for those that a class after it has with another default."""

    cause: str | None
    fingerprints: Sequence[str] | None
    ids: Sequence[int] | str | None
    reference: str | None
    topic: str | None
    headers: Mapping[str, Any] | None
    since: datetime | str | None
    until: datetime | str | None
    max_requeues: int | None
    max_per_second: float | None
    canary: int
    stop_when_failing: float
    canary_wait: Duration
    delay: Duration
    lease_for: Duration
    fail_on: Sequence[str]
    dry_run: bool


class ChosenArguments(RemedyArguments, total=False):
    """All arguments of a `RemedyTask`."""

    queue_name: str | None
    results: Sequence[str] | None
    max_messages: int | None
    batch_size: int


class RemedyTask(QueueTask):
    """Chooses dead messages, requeues or dismisses them, and returns what became of how many.

    A task that is killed and tried again gives each message one remedy: the run is named after the task instance. A
    task that is told to stop finishes the current message, gives the others back and fails, so that a retry continues.

    The result has numbers and at most a hundred ids by how messages ended, and no bodies: `requeued`, `dismissed`,
    and those that stay dead: `left`, `invalid`, `raised`, `lost`, `held`, `remedied` (by somebody else meanwhile);
    `unknown`, the ids of `ids` that no dead message has; `ids`; `stopped`, why the canary ended the run, or None;
    `dry_run`. A warning in the log says what stays dead, that `max_messages` is reached, and that `ids` is empty.

    :param queue_name: the queue of the dead messages, to which they return; None only with `ids`, `cause`,
        `fingerprints` or `reference`, for messages of any queue.
    :param results: only messages with these results: `failed`, `rejected`, `lock_expired`, `expired`; None takes all.
    :param cause: only messages of one cause: a fingerprint, as the sensor and `verbs.dead_causes` name it, or a cause
        of the last triage, which has results and fingerprints of its own.
    :param fingerprints: only messages of these causes.
    :param ids: only these messages, for example those of a run that `PgQueueDispatchDeadOperator` started:
        `"{{ dag_run.conf['pgqueue']['ids'] }}"`.
    :param reference: only messages with this reference.
    :param topic: only messages whose topic this pattern matches; `*` is a word, `#` any number of words.
    :param headers: only messages whose headers contain these.
    :param since: only messages that died at this time or later.
    :param until: only messages that died before this time.
    :param max_messages: at most this many messages, oldest first, in all tries of the task together.
    :param max_requeues: leave out messages that were requeued this many times before.
    :param max_per_second: at most this many messages per second.
    :param canary: requeue this many first, and the others only if fewer than `stop_when_failing` percent die again.
    :param stop_when_failing: percentage of the canary that must die again for the run to stop.
    :param canary_wait: how long the canary may take; the run stops if it is not finished by then.
    :param delay: make requeued messages ready only after this time.
    :param batch_size: messages per lease.
    :param lease_for: how long a lease lasts without renewal, and so how long the messages of a killed task wait.
    :param fail_on: what fails the task at its end, without a retry: outcomes, such as `["raised", "invalid"]`, if any
        message had one, `stopped`, if the canary ended the run, and `unknown`, if no dead message
        has one of the `ids`. By default the last two.
    :param dry_run: say what would be done, and change nothing.
    """

    template_fields: Sequence[str] = (
        "queue_name",
        "results",
        "cause",
        "fingerprints",
        "ids",
        "reference",
        "topic",
        "headers",
        "since",
        "until",
        "pgqueue_conn_id",
    )
    reads_queue = True
    writes_queue = True
    ui_color = "#f5ecdc"
    rules: ClassVar[Mapping[str, Rule]] = {
        **QueueTask.rules,
        "queue_name": optional(argument.queue_name),
        "results": optional(argument.results),
        "cause": optional(text),
        "fingerprints": optional(texts),
        "ids": optional(argument.ids),
        "reference": optional(text),
        "topic": optional(topic_pattern),
        "headers": optional(argument.json_object),
        "since": optional(argument.moment_or_text),
        "until": optional(argument.moment_or_text),
        "max_messages": optional(whole(1, 10_000_000)),
        "max_requeues": optional(whole(1, 32_767)),
        "max_per_second": optional(number(0.001, 10**9)),
        "canary": whole(0, 10**12),
        "stop_when_failing": number(0.001, 100, "percent"),
        "canary_wait": duration(timedelta(0), timedelta(days=366)),
        "delay": duration(timedelta(0), timedelta(days=366)),
        "batch_size": whole(1, 10_000),
        "lease_for": duration(timedelta(milliseconds=1), timedelta(hours=12)),
        "fail_on": _outcomes,
        "dry_run": truth,
    }
    attributes: ClassVar[Mapping[str, str]] = {"dry_run": "is_dry_run"}

    idle_without: ClassVar[Mapping[str, str]] = {"stop_when_failing": "canary", "canary_wait": "canary"}

    def __init__(
        self,
        *,
        queue_name: str | None = None,
        results: Sequence[str] | None = None,
        cause: str | None = None,
        fingerprints: Sequence[str] | None = None,
        ids: Sequence[int] | str | None = None,
        reference: str | None = None,
        topic: str | None = None,
        headers: Mapping[str, Any] | None = None,
        since: datetime | str | None = None,
        until: datetime | str | None = None,
        max_messages: int | None = None,
        max_requeues: int | None = None,
        max_per_second: float | None = None,
        canary: int = 0,
        stop_when_failing: float = 10.0,
        canary_wait: Duration = timedelta(minutes=10),
        delay: Duration = timedelta(0),
        batch_size: int = 100,
        lease_for: Duration = timedelta(minutes=1),
        fail_on: Sequence[str] = ("stopped", "unknown"),
        dry_run: bool = False,
        **kwargs: Unpack[TaskArguments],
    ) -> None:
        super().__init__(**kwargs)
        self.queue_name = queue_name
        self.results = results
        self.cause = cause
        self.fingerprints = fingerprints
        self.ids = ids
        self.reference = reference
        self.topic = topic
        self.headers = headers
        self.since = since
        self.until = until
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
        self._stopping = False

    @abstractmethod
    def _function(self) -> tuple[RepairFunction | str, Validator | str | None]:
        """Return the function that decides on each message, and the one that checks the new bodies."""

    def pre_execute(self, context: Any) -> None:
        """Check what templates made, and that there is a time between `since` and `until`."""
        super().pre_execute(context)
        self._check_times()

    def check_written(self) -> None:
        """Check the arguments as they were written."""
        super().check_written()
        check_chosen(self.queue_name, self.ids, self.cause, self.fingerprints, self.reference, self.results)
        if not {"since", "until"} & self._made_later:
            self._check_times()

    def _check_times(self) -> None:
        since, until = _moment(self.since), _moment(self.until)
        if since is not None and until is not None and since >= until:
            raise InvalidArgument(f"since is {since.isoformat()}, and until {until.isoformat()}", "Give since first.")

    def execute(self, context: Context) -> dict[str, Any]:
        """Repair dead messages, and return what became of how many."""
        self._said = time.monotonic()
        with PgQueueHook(self.pgqueue_conn_id).connect() as conn:
            summary = self._repair(task_of(context)).run(conn, stop=lambda: self._stopping, on_batch=self._say)
        if self._stopping and summary["stopped"]:
            raise AirflowException(f"stopped while repairing dead messages, after {summary}")
        self.log.info("dead messages of %s: %s", self.queue_name or "all queues", summary)
        note_remedies(self.queue_name, summary)
        self.lineage_rows = 0 if self.is_dry_run else summary["requeued"]
        if any(summary[name] for name in self.fail_on):
            # A retry would call the same function with the same messages.
            raise AirflowFailException(self._not_done(summary, self.fail_on))
        self._warn_of_dead(summary)
        return summary

    def _not_done(self, summary: Mapping[str, Any], names: Sequence[str]) -> str:
        """Say what was not done, of these outcomes, and why."""
        where = self.queue_name or "all queues"
        said = []
        if "unknown" in names and (ids := summary["ids"].get("unknown")):
            more = ", …" if summary["unknown"] > _SAID else ""
            said.append(
                f"No dead message of {where} has the id {', '.join(map(str, ids[:_SAID]))}{more}: check the ids, and "
                "the name of the queue."
            )
        if dead := {name: summary[name] for name in names if name != "unknown" and summary[name]}:
            said.append(f"Dead messages of {where} stay dead: {dead}. The log above says why.")
        return " ".join(said)

    def _warn_of_dead(self, summary: Mapping[str, Any]) -> None:
        """Warn of the messages that a successful run leaves dead."""
        where = self.queue_name or "all queues"
        if not_done := self._not_done(summary, _NOT_DONE):
            self.log.warning("%s To fail the task for this, name the outcome in fail_on.", not_done)
        if empty := [name for name in ("ids", "fingerprints") if self._given_list(name) == []]:
            self.log.warning("%s is empty, so no message was chosen. Leave it out to choose all.", empty[0])
        if self.max_messages is not None and sum(summary[name] for name in _COUNTED) >= self.max_messages:
            self.log.warning(
                "stopped at max_messages, %s: more dead messages of %s may be left", f"{self.max_messages:,}", where
            )

    def _say(self, outcomes: Counter[str]) -> None:
        if time.monotonic() - self._said >= _SAY_EVERY:
            self._said = time.monotonic()
            self.log.info("dead messages of %s so far: %s", self.queue_name or "all queues", dict(outcomes))

    def on_kill(self) -> None:
        """Finish the current message and give the others back."""
        self._stopping = True

    def _repair(self, run_id: str) -> Repair:
        function, validator = self._function()
        given = self._given()
        given |= {"since": _moment(self.since), "until": _moment(self.until)}
        given["ids"] = self._given_list("ids")
        which = DeadFilter(**{name: given[name] for name in _OF_FILTER})
        rest = {name: value for name, value in given.items() if name in _OF_REPAIR}
        return Repair(function=function, validator=validator, run_id=run_id, which=which, **rest)

    def _given_list(self, name: str) -> list[Any] | None:
        """Return an argument that may be the JSON text of a list, as a template makes it."""
        value = getattr(self, name)
        return json.loads(value) if isinstance(value, str) else value if value is None else list(value)


def _moment(value: datetime | str | None) -> datetime | None:
    return datetime.fromisoformat(value) if isinstance(value, str) else value
