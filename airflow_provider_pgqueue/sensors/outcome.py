"""Waits for the outcomes of messages."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final

from airflow.providers.common.compat.sdk import AirflowFailException, AirflowSkipException, XComArg

from airflow_provider_pgqueue.core.argument import POLL_INTERVAL, Rule, check, optional, truth
from airflow_provider_pgqueue.core.duration import Duration
from airflow_provider_pgqueue.core.errors import InvalidArgument
from airflow_provider_pgqueue.core.message import DEAD_RESULTS
from airflow_provider_pgqueue.core.quantity import quantity
from airflow_provider_pgqueue.hooks.pgqueue import PgQueueHook
from airflow_provider_pgqueue.sensors.sensor import SENSOR_TIMEOUT, ObjectSensor
from airflow_provider_pgqueue.task import AT_LEAST_ONE, QueueTask
from airflow_provider_pgqueue.triggers.notification import SAFE_TO_RESUME
from airflow_provider_pgqueue.triggers.outcome import OUTCOME_RULES, PgQueueOutcomeTrigger

if TYPE_CHECKING:
    from airflow.sdk import Context

    Ids = int | str | Mapping[str, Any] | Iterable[int | str | Mapping[str, Any]] | XComArg

_NAMED: Final = 10
_NUMBERS: Final = re.compile(r"\s*\[?\s*(\d+(\s*[,\s]\s*\d+)*)?\s*\]?\s*", re.ASCII)


def _ids_in(value: Any) -> list[int]:
    """Return ids in any form that a DAG can give them in, or raise a ValueError."""
    if isinstance(value, str) and _NUMBERS.fullmatch(value):
        value = [int(one) for one in re.findall(r"\d+", value)]
    if type(value) is int and 0 < value < 2**63:
        return [value]
    if isinstance(value, Mapping) and "published" in value:
        # A later try of the publishing task found the messages of the first, and knows the id of one.
        found = [value["duplicate_of"]] if value.get("duplicate_of") else value.get("ids")
        if found is None or value.get("several"):
            raise ValueError("It is the result of a task that does not name all its messages")
        return [int(one) for one in found]
    if isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping):
        return [id_ for one in value for id_ in _ids_in(one)]
    raise ValueError("They are not ids of messages")


def _ids(value: Any) -> str | None:
    try:
        _ids_in(value)
    except ValueError as error:
        return f"{error}: give ids, or results of publish operators that have ids; for others, give a reference."
    return None


def _expected(value: Any) -> str | None:
    # Digits, because a template makes text.
    return OUTCOME_RULES["expected"](int(value) if isinstance(value, str) and value.isdecimal() else value)


def _fail_on(value: Any) -> str | None:
    return None if value == "dead" else OUTCOME_RULES["fail_on"](value)


class PgQueueOutcomeSensor(ObjectSensor):
    """Waits until messages are finished, whoever published them, and counts how they ended.

    The result is `{"success": 1998, "failed": 2, "rejected": 0, …}`, with a number for each result. A message that
    will be delivered again is not finished; a dead one is, and counts. Give `ids`, or `reference` with `expected`.

    The sensor looks once in the worker, then every `poll_interval` in the triggerer, which also ends it. An id of no
    message, or of one that this login may not see, fails it without a retry. The login needs the role
    `messages_observer`. `timeout`, `soft_fail` and the other parameters are those of `BaseSensorOperator`.

    :param ids: ids as a list or as text, or what tasks that published at most a hundred messages each returned, such as
        `publish.output`, also of a mapped task.
    :param reference: the reference with which all of the messages were published. A message that is requeued counts as
        the one that repeats it.
    :param expected: how many messages with the reference there must be at least, all of which are waited for.
    :param queue_name: only messages with the reference in this queue.
    :param fail_on: results that fail the task at its end, without a retry, such as `["failed"]`, or `"dead"` for all of
        those that make a message dead.
    :param follow_requeues: a dead message is not finished until it is dismissed, or requeued and that one is finished.
    :param poll_interval: the time between two polls.
    :param deferrable: False looks in a worker, for installations without a triggerer.
    """

    template_fields: Sequence[str] = ("ids", "reference", "expected", "queue_name", "pgqueue_conn_id")
    rules: ClassVar[Mapping[str, Rule]] = {
        **QueueTask.rules,
        **OUTCOME_RULES,
        "ids": optional(_ids),
        "expected": optional(_expected),
        "fail_on": _fail_on,
        "poll_interval": POLL_INTERVAL,
        "deferrable": truth,
    }

    def __init__(
        self,
        *,
        ids: Ids | None = None,
        reference: str | None = None,
        expected: int | str | XComArg | None = None,
        queue_name: str | None = None,
        fail_on: Sequence[str] | str = (),
        follow_requeues: bool = False,
        poll_interval: Duration = 5.0,
        deferrable: bool = True,
        retries: int | None = AT_LEAST_ONE,
        **kwargs: Any,
    ) -> None:
        # Before the base class uses them.
        check({**kwargs, "poll_interval": poll_interval}, {"timeout": SENSOR_TIMEOUT, "poll_interval": POLL_INTERVAL})
        super().__init__(poke_interval=poll_interval, retries=retries, **kwargs)
        self.ids = ids
        self.reference = reference
        self.expected = expected
        self.queue_name = queue_name
        self.fail_on = fail_on
        self.follow_requeues = follow_requeues
        self.poll_interval = poll_interval
        self.deferrable = deferrable
        self.check_written()

    def check_written(self) -> None:
        """Check the arguments as they were written, also together."""
        super().check_written()
        if (self.ids is None) == (self.reference is None):
            raise InvalidArgument("ids and reference are both given, or neither", "Give one of them.")
        if self.reference is not None and self.expected is None:
            raise InvalidArgument("reference is given, and expected is None", "Say how many messages there must be.")
        if self.reference is None:
            self._check_idle("reference", expected=None, queue_name=None)

    def pre_execute(self, context: Any) -> None:
        """Check what templates and other tasks made; read the results of a mapped task, which come one by one."""
        if isinstance(self.ids, Sequence) and not isinstance(self.ids, str):
            self.ids = list(self.ids)
        for name in ("ids", "expected"):
            if name in self._made_later and getattr(self, name) is None:
                raise InvalidArgument(f"{name} is None: a template or another task made it", "Let it return numbers.")
        super().pre_execute(context)
        if self.ids is not None:
            self.ids = self.message_ids = sorted(set(_ids_in(self.ids)))

    def _trigger(self, **how: Any) -> PgQueueOutcomeTrigger:
        return PgQueueOutcomeTrigger(
            ids=None if self.ids is None else _ids_in(self.ids),
            reference=self.reference,
            expected=None if self.expected is None else int(str(self.expected)),
            queue_name=self.queue_name,
            fail_on=DEAD_RESULTS if self.fail_on == "dead" else self.fail_on,
            follow_requeues=self.follow_requeues,
            pgqueue_conn_id=self.pgqueue_conn_id,
            poll_interval=self.poll_interval,
            **{"notify_after": SAFE_TO_RESUME, **how},
        )

    def _poll(self) -> dict[str, int] | None:
        watch = self._trigger().watch()
        rows = PgQueueHook(self.pgqueue_conn_id).run(watch.ask([watch]))
        counts = watch.receive(rows, 0.0)
        return None if counts is None else self._checked(counts)

    def _checked(self, counts: dict[str, int]) -> dict[str, int]:
        """Return the counts, or raise an error that another try would raise too."""
        if not self._trigger().is_bad(counts):
            return counts
        ended = ", ".join(f"{number:,} {result}" for result, number in counts.items() if number)
        why = "unknown are those that do not exist, or no longer, or that this login may not see. "
        error = f"waited for {self._awaited}; found {ended}. {why if counts.get('unknown') else ''}"
        error += "The rows of messages.message_archive say why."
        if self.soft_fail or self.never_fail:
            raise AirflowSkipException(error)
        raise AirflowFailException(error)

    @property
    def _awaited(self) -> str:
        if self.ids is None:
            return f"the ends of {self.expected} messages with reference {self.reference!r}"
        ids = _ids_in(self.ids)
        few = ", ".join(map(str, ids[:_NAMED])) + (", …" if len(ids) > _NAMED else "")
        return f"the end of {'message' if len(ids) == 1 else quantity(len(ids)) + ':'} {few}"

    def execute_complete(self, context: Context, event: dict[str, int]) -> str:
        """Return the counts as JSON text."""
        return json.dumps(self._checked(event))
