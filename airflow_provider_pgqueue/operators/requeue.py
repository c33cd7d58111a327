"""Requeues dead messages: each as it is, or as a function decides."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import fields
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException

from airflow_provider_pgqueue.core import argument
from airflow_provider_pgqueue.core.argument import (
    Rule,
    optional,
    text,
    texts,
    topic_pattern,
)
from airflow_provider_pgqueue.core.duration import Duration
from airflow_provider_pgqueue.core.errors import InvalidArgument
from airflow_provider_pgqueue.core.function import check_call
from airflow_provider_pgqueue.core.repair import Repair, RepairFunction, Validator, keep
from airflow_provider_pgqueue.core.repair.repair import RULES, check_chosen
from airflow_provider_pgqueue.core.tuning import TUNING
from airflow_provider_pgqueue.core.verbs import DeadFilter
from airflow_provider_pgqueue.hooks.pgqueue import PgQueueHook
from airflow_provider_pgqueue.task import QueueTask
from airflow_provider_pgqueue.telemetry.telemetry import record_resolutions, task_of

if TYPE_CHECKING:
    from airflow.sdk import Context

_SAID: Final = 10  # ids
_MAY_SUCCEED: Final = ("failed", "lock_expired")  # a rejected message would only be rejected again
_STAY_DEAD: Final = ("left", "invalid", "raised", "lost", "held")
_NOT_DONE: Final = ("stopped", "unknown", *_STAY_DEAD)
_COUNTED: Final = ("requeued", "dismissed", *_STAY_DEAD)  # towards max_messages
_OF_FILTER: Final = frozenset(field.name for field in fields(DeadFilter))
_OF_REPAIR: Final = frozenset(field.name for field in fields(Repair))


def _outcomes(value: Any) -> str | None:
    good = isinstance(value, list | tuple) and all(isinstance(one, str) and one in _NOT_DONE for one in value)
    return None if good else f"Give a list of {', '.join(_NOT_DONE)}."


def _validator(value: Any) -> str | None:
    if isinstance(value, str) and value.endswith(".json"):
        return None if Path(value).is_file() else "There is no such file. Give the whole path of a JSON Schema."
    fix = argument.function(value)
    return fix and f"{fix} Or give the path of a .json file with a JSON Schema, as a text."


class PgQueueRequeueOperator(QueueTask):
    """Publishes dead messages again under new ids: each as it is, or as a function of yours decides.

    The function gets a `DeadMessage` (`body`, `failure`, `result`, `reference`, `attempts`, …) and returns a new body,
    or `KEEP`, `LEAVE` or `Dismiss(reason)` of `airflow_provider_pgqueue.core`. Whatever it returns or raises concerns
    that message alone. A dry run calls it, too.

    A task that is killed and tried again gives each message one resolution: the run is named after the task instance. A
    task that is told to stop finishes the current message, gives the others back and fails, so that a retry continues.

    The result has the numbers of messages by how they ended, and no bodies: `requeued`, `dismissed`, `resolved` (by
    somebody else meanwhile), and those that stay dead: `left`, `invalid`, `raised`, `lost`, `held`; `unknown`, how many
    of `ids` no dead message has; `ids`, up to a hundred ids of each kind; `stopped`, why the canary ended the run, or
    None; `dry_run`. A warning in the log says what stays dead, that `max_messages` is reached, and that `ids` is empty.

    Schedule its DAG by time, or by an asset watcher with a `PgQueueDeadMessageTrigger`; or start a run of it for each
    cause that a `PgQueueDeadMessageSensor` returns.

    :param queue_name: the queue of the dead messages, to which they return; None only with `ids`, `cause`,
        `fingerprints` or `reference`, for messages of any queue.
    :param function: called with each dead message; a function, or its name as `package.module:function`. Without one
        each is requeued as it is.
    :param validator: called with each body that would be published, returns what is wrong or None; a function, its
        name, or the path of a `.json` file with a JSON Schema.
    :param results: only messages with these results: `failed`, `rejected`, `lock_expired`, `expired`. By default all
        with a `function`, `cause`, `fingerprints` or `ids`, and else `failed` and `lock_expired`, because rejected
        messages would only be rejected again.
    :param cause: only messages of one cause: a fingerprint, as `PgQueueDeadMessageSensor` and `verbs.dead_causes` name
        it.
    :param fingerprints: only messages of these causes.
    :param ids: only these messages.
    :param reference: only messages with this reference.
    :param topic: only messages whose topic this pattern matches; `*` is a word, `#` any number of words.
    :param headers: only messages whose headers contain these.
    :param since: only messages that died at this time or later.
    :param until: only messages that died before this time.
    :param max_messages: at most this many messages, oldest first, in all tries of the task together; None for all.
    :param max_requeues: leave out messages that were requeued this many times before.
    :param max_per_second: at most this many messages per second.
    :param canary: requeue this many first, and the others only if fewer than `stop_when_failing` percent die again.
    :param stop_when_failing: percentage of the canary that must die again for the run to stop.
    :param canary_wait: how long the canary may take; the run stops if it is not finished by then.
    :param delay: make requeued messages ready only after this time.
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
    rules: ClassVar[Mapping[str, Rule]] = {
        **QueueTask.rules,
        **RULES,
        "queue_name": optional(argument.queue_name),
        "function": optional(argument.function),
        "validator": optional(_validator),
        "results": optional(argument.results),
        "cause": optional(text),
        "fingerprints": optional(texts),
        "ids": optional(argument.ids),
        "reference": optional(text),
        "topic": optional(topic_pattern),
        "headers": optional(argument.json_object),
        "since": optional(argument.moment_or_text),
        "until": optional(argument.moment_or_text),
        "fail_on": _outcomes,
    }

    def __init__(
        self,
        *,
        queue_name: str | None,
        function: RepairFunction | str | None = None,
        validator: Validator | str | None = None,
        results: Sequence[str] | None = None,
        cause: str | None = None,
        fingerprints: Sequence[str] | None = None,
        ids: Sequence[int] | str | None = None,
        reference: str | None = None,
        topic: str | None = None,
        headers: Mapping[str, Any] | None = None,
        since: datetime | str | None = None,
        until: datetime | str | None = None,
        max_messages: int | None = 1000,
        max_requeues: int | None = None,
        max_per_second: float | None = None,
        canary: int = 0,
        stop_when_failing: float = 10.0,
        canary_wait: Duration = timedelta(minutes=10),
        delay: Duration = timedelta(0),
        fail_on: Sequence[str] = ("stopped", "unknown"),
        dry_run: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.queue_name = queue_name
        self.function = function
        self.validator = validator
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
        self.fail_on = fail_on
        self.is_dry_run = dry_run
        self._stopping = False
        self.check_written()
        check_call(function, "a dead message")
        check_call(validator, "a body")

    def pre_execute(self, context: Any) -> None:
        """Check what templates made, and that there is a time between `since` and `until`."""
        super().pre_execute(context)
        self._check_times()

    def check_written(self) -> None:
        """Check the arguments as they were written."""
        super().check_written()
        if self.canary == 0:
            self._check_idle("canary", stop_when_failing=10.0, canary_wait=timedelta(minutes=10))
        check_chosen(self.queue_name, self.ids, self.cause, self.fingerprints, self.reference)
        if not {"since", "until"} & self._made_later:
            self._check_times()

    def _check_times(self) -> None:
        since, until = _moment(self.since), _moment(self.until)
        if since is not None and until is not None and since >= until:
            raise InvalidArgument(f"since is {since.isoformat()}, and until {until.isoformat()}", "Give since first.")

    def execute(self, context: Context) -> dict[str, Any]:
        """Repair dead messages, and return what became of how many."""
        self._logged_at = time.monotonic()
        with PgQueueHook(self.pgqueue_conn_id).connect() as conn:
            summary = self._repair(task_of(context)).run(conn, stop=lambda: self._stopping, on_batch=self._log_progress)
        if self._stopping and summary["stopped"]:
            raise AirflowException(f"stopped while repairing dead messages, after: {_text(summary)}")
        self.log.info("dead messages of %s: %s", self._where, _text(summary))
        record_resolutions(self.queue_name, summary)
        self.lineage_rows = 0 if self.is_dry_run else summary["requeued"]
        if any(summary[name] for name in self.fail_on):
            # A retry would call the same function with the same messages.
            raise AirflowFailException(self._not_done(summary, self.fail_on))
        self._warn_of_dead(summary)
        return summary

    @property
    def _where(self) -> str:
        return self.queue_name or "all queues"

    def _not_done(self, summary: Mapping[str, Any], names: Sequence[str]) -> str:
        """Return sentences on the messages with one of these outcomes, for an error; empty if there are none."""
        said = []
        if "unknown" in names and (ids := summary["ids"].get("unknown")):
            more = ", …" if summary["unknown"] > _SAID else ""
            said.append(
                f"No dead message of {self._where} has the id {', '.join(map(str, ids[:_SAID]))}{more}: check the ids, "
                "and the name of the queue."
            )
        if dead := {name: summary[name] for name in names if name != "unknown" and summary[name]}:
            said.append(f"Dead messages of {self._where} stay dead: {dead}. The log above says why.")
        return " ".join(said)

    def _warn_of_dead(self, summary: Mapping[str, Any]) -> None:
        """Warn of the messages that a successful run leaves dead."""
        if not_done := self._not_done(summary, _NOT_DONE):
            self.log.warning("%s To fail the task for this, name the outcome in fail_on.", not_done)
        for name, chosen in (("ids", self._ids()), ("fingerprints", self.fingerprints)):
            if chosen is not None and not chosen:
                self.log.warning("%s is empty, so no message was chosen. Leave it out to choose all.", name)
        if self.max_messages is not None and sum(summary[name] for name in _COUNTED) >= self.max_messages:
            limit = f"{self.max_messages:,}"
            self.log.warning("stopped at max_messages, %s: more dead messages of %s may be left", limit, self._where)

    def _log_progress(self, outcomes: Counter[str]) -> None:
        if time.monotonic() - self._logged_at >= TUNING.log_every:
            self._logged_at = time.monotonic()
            self.log.info("dead messages of %s so far: %s", self._where, dict(outcomes))

    def on_kill(self) -> None:
        """Finish the current message and give the others back."""
        self._stopping = True

    def _repair(self, run_id: str) -> Repair:
        """Return the repair that the arguments describe; its fields and those of its filter have the same names."""
        given = self._given() | {"since": _moment(self.since), "until": _moment(self.until), "ids": self._ids()}
        given["function"] = self.function or keep
        chosen = (self.function, self.results, self.cause, self.fingerprints, self.ids)
        if all(one is None for one in chosen):
            given["results"] = _MAY_SUCCEED
        which = DeadFilter(**{name: given[name] for name in _OF_FILTER})
        return Repair(run_id=run_id, which=which, **{name: given[name] for name in _OF_REPAIR & given.keys()})

    def _ids(self) -> list[int] | None:
        """Return the ids, of which a template makes the JSON text of a list."""
        found = json.loads(self.ids) if isinstance(self.ids, str) else self.ids
        return None if found is None else list(found)


def _text(summary: Mapping[str, Any]) -> str:
    """Return what became of how many, without zeros: `requeued 1 (595), raised 2 (596, 597)`."""
    said = ["dry run"] if summary["dry_run"] else []
    for name in (*_COUNTED, "resolved", "unknown"):
        if number := summary[name]:
            ids = summary["ids"].get(name, ())
            more = ", …" if number > _SAID else ""
            said.append(f"{name} {number:,}" + (f" ({', '.join(map(str, ids[:_SAID]))}{more})" if ids else ""))
    said += [f"stopped: {summary['stopped']}"] if summary["stopped"] else []
    return ", ".join(said) or "none"


def _moment(value: datetime | str | None) -> datetime | None:
    return datetime.fromisoformat(value) if isinstance(value, str) else value
