"""The bases of our tasks: arguments that are checked where they are written, retries that come soon, and waiting."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Final
from urllib.parse import quote

from airflow.providers.common.compat.sdk import (
    AirflowException,
    AirflowSkipException,
    BaseOperator,
    BaseOperatorLink,
    conf,
)
from airflow.triggers.base import BaseTrigger

from airflow_provider_pgqueue.core import argument, verbs
from airflow_provider_pgqueue.core.argument import (
    POLL_INTERVAL,
    WAIT_TIMEOUT,
    Rule,
    check,
    only_texts,
    optional,
    text,
    truth,
)
from airflow_provider_pgqueue.core.duration import Duration, as_timedelta, seconds
from airflow_provider_pgqueue.core.errors import InvalidArgument, PgQueueError
from airflow_provider_pgqueue.hooks.connection_id import check_connection_ids
from airflow_provider_pgqueue.hooks.pgqueue import PgQueueHook
from airflow_provider_pgqueue.telemetry.lineage import lineage_of
from airflow_provider_pgqueue.triggers.notification import SAFE_TO_RESUME

if TYPE_CHECKING:
    from airflow.providers.openlineage.extractors import OperatorLineage
    from airflow.sdk import Context
    from airflow.sdk.types import TaskInstanceKey

_SOON = timedelta(seconds=5)
_LATEST = timedelta(minutes=5)
_TRIGGER_FAILED: Final = "__fail__"  # what Airflow calls the method of a task whose trigger failed
# Airflow 3.1 takes only True here, which doubles the pause each time, and refuses a number.
DOUBLED: Final[float] = True if BaseOperator.retry_exponential_backoff is False else 2
AT_LEAST_ONE: Final[int] = max(1, BaseOperator.retries or 0)
"""Retries of tasks that lease or wait: `[core] default_task_retries` of Airflow's configuration, but not none."""


class PgQueueLink(BaseOperatorLink):
    """Leads from a task to its message if it has exactly one, else to its queue; Airflow asks when the task ends."""

    name = "Messages"

    def get_link(self, operator: Any, *, ti_key: TaskInstanceKey) -> str:
        """Return the address, or an empty one for a task that names no queue."""
        base_url: str = conf.get("api", "base_url", fallback="")
        root = f"{base_url.rstrip('/')}/pgqueue"
        ids: Sequence[int] = getattr(operator, "message_ids", ())
        queue_name: str | None = getattr(operator, "queue_name", None)
        if len(ids) == 1:
            return f"{root}/messages/{ids[0]}"
        return f"{root}/queues/{quote(queue_name, safe='')}" if queue_name else ""


class QueueTask(BaseOperator):
    """A task that uses the queue.

    A retry comes after five seconds, and each further one after twice as long, up to five minutes: during Airflow's
    default of five minutes nobody would handle the queue. A bad argument is an InvalidArgument when the DAG is parsed,
    and one that a template made when the task begins. A task whose trigger failed fails with the reason.

    :param pgqueue_conn_id: the Airflow connection of the database that holds the queue.
    """

    rules: ClassVar[Mapping[str, Rule]] = {"pgqueue_conn_id": text}
    """The rules, by the names of the arguments."""
    waits_for: str = "messages of"
    """The words before the queue in an error of a wait."""
    reads_queue: ClassVar[bool] = False
    writes_queue: ClassVar[bool] = False
    lineage_rows: int | None = None
    """The number of messages that the task wrote; None before that."""
    operator_extra_links = (PgQueueLink(),)
    message_ids: Sequence[int] = ()
    """The messages that the link of the task is about, once it knows them."""
    _made_later: frozenset[str] = frozenset()

    def __init__(
        self,
        *,
        pgqueue_conn_id: str = PgQueueHook.default_conn_name,
        retry_delay: timedelta | float = _SOON,
        retry_exponential_backoff: float = DOUBLED,
        max_retry_delay: timedelta | float | None = _LATEST,
        default_args: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            retry_delay=retry_delay,
            retry_exponential_backoff=retry_exponential_backoff,
            max_retry_delay=max_retry_delay,
            default_args=default_args,
            **kwargs,
        )
        self.pgqueue_conn_id = pgqueue_conn_id
        self._defaults = frozenset(default_args or ())

    def _do_render_template_fields(self, *args: Any, **kwargs: Any) -> None:
        super()._do_render_template_fields(*args, **kwargs)
        # Airflow stores the template fields of the task that it rendered, and shows them: never a body.
        self.template_fields = [name for name in self.template_fields if name != "message"]

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context) -> Any:
        """Resume as Airflow does; an error also says why the trigger failed, or what the task waited for."""
        if next_method == _TRIGGER_FAILED and next_kwargs and (lines := next_kwargs.get("traceback")):
            # Airflow's own says "Trigger failure", and leaves the reason to the log.
            reason = str(lines[-1]).strip()
            next_kwargs = next_kwargs | {"error": f"{next_kwargs.get('error', 'Trigger failure')}: {reason}"}
        try:
            return super().resume_execution(next_method, next_kwargs, context)
        except AirflowException as error:
            if not _timed_out(next_method, next_kwargs) or isinstance(error, AirflowSkipException):
                raise
            raise type(error)(self._waited_for()) from error.__cause__ or error

    def _waited_for(self) -> str:
        """Return what the task waited for, and how long, for an error."""
        given = {name: getattr(self, name, None) for name in ("results", "min_messages")}
        chosen = ", ".join(f"{name}={value!r}" for name, value in given.items() if value not in (None, 1))
        queue_name, name = getattr(self, "queue_name", None), "timeout" if hasattr(self, "timeout") else "wait_timeout"
        limit = getattr(self, name)
        return (
            f"waited for {self._awaited}{f' ({chosen})' if chosen else ''} until the {name} of {as_timedelta(limit)} "
            f"was over. {self._why_nothing_came(queue_name)}"
        )

    @property
    def _awaited(self) -> str:
        return f"{self.waits_for} queue {getattr(self, 'queue_name', None)!r}"

    def _why_nothing_came(self, queue_name: str | None) -> str:
        """Return what is wrong with the queue that the task waited for, or a fix if nothing is wrong."""
        # The check may fail, for example if the database is down: the time-out matters more.
        with suppress(PgQueueError, AirflowException):
            names = [] if queue_name is None else [queue_name]
            for closed in PgQueueHook(self.pgqueue_conn_id).run(verbs.closed_queues(names)):
                fix = "Resume it" if closed.paused else "Check the name, create the queue, or grant it to the login"
                return f"The {closed.problem}. {fix}."
        return "Give it more time, or look in the queue for what is missing."

    def pre_execute(self, context: Any) -> None:
        """Check what templates and other tasks made; all else was checked when it was written.

        Airflow calls this before the task begins, and before it continues after a wait.
        """
        super().pre_execute(context)
        if self._made_later:
            given = self._given()
            made = {name: given[name] for name in self._made_later}
            # A dedup key that is missing would be the same for all that miss it, and ids that are missing all messages.
            check(made, dict.fromkeys(made, _is_chosen if self.reads_queue else _is_there))
            check_connection_ids(made)
            check(made, self.rules)

    def check_written(self) -> None:
        """Check the arguments as they were written; where a template or another task makes one, only its texts."""
        self._made_later = check_arguments(self._given(), self.rules, self.template_fields)

    def _check_idle(self, other: str, **defaults: Any) -> None:
        """Raise for an argument without its default, which does nothing because `other` is as it is."""
        for name, default in defaults.items():
            # In default_args of the DAG it is for other tasks too.
            if getattr(self, name) != default and name not in self._defaults:
                raise InvalidArgument(
                    f"{name} is given, and does nothing while {other} is {getattr(self, other)!r}",
                    f"Give {other} too, or leave {name} out.",
                )

    def get_openlineage_facets_on_start(self) -> OperatorLineage[Any, Any]:
        """Return the datasets of the task; at its end, when OpenLineage asks again, also how many messages it wrote."""
        return lineage_of(
            self.pgqueue_conn_id,
            getattr(self, "queue_name", None),
            reads=self.reads_queue,
            writes=self.writes_queue,
            rows=self.lineage_rows,
            sql=getattr(self, "sql", None),
        )

    def _given(self) -> dict[str, Any]:
        """Return the arguments that have rules."""
        # BaseOperator has a method of the name dry_run.
        return {name: getattr(self, "is_dry_run" if name == "dry_run" else name) for name in self.rules}


class WaitingTask(QueueTask):
    """Handles the ready messages of a queue; if there are none, it may wait in the triggerer, without a worker slot.

    :param queue_name: the queue.
    :param wait_for_messages: when there is nothing to do, wait in the triggerer.
    :param wait_timeout: fail the task when a wait takes longer. Airflow's `execution_timeout` does not: it ends only
        what runs in a worker, and a deferred task does not.
    :param poll_interval: the time between two polls while waiting when no notification arrives.
    """

    reads_queue = True
    rules: ClassVar[Mapping[str, Rule]] = {
        **QueueTask.rules,
        "queue_name": argument.queue_name,
        "wait_for_messages": truth,
        "wait_timeout": optional(WAIT_TIMEOUT),
        "poll_interval": POLL_INTERVAL,
    }

    def __init__(
        self,
        *,
        queue_name: str,
        wait_for_messages: bool = False,
        wait_timeout: Duration | None = None,
        poll_interval: Duration = 30.0,
        retries: int | None = AT_LEAST_ONE,
        **kwargs: Any,
    ) -> None:
        super().__init__(retries=retries, **kwargs)
        self.queue_name = queue_name
        self.wait_for_messages = wait_for_messages
        self.wait_timeout = wait_timeout
        self.poll_interval = poll_interval

    def check_written(self) -> None:
        """Check the arguments as they were written, also those that only a wait needs."""
        super().check_written()
        if not self.wait_for_messages:
            self._check_idle("wait_for_messages", wait_timeout=None, poll_interval=30.0)

    @abstractmethod
    def _trigger(self, notify_after: float) -> BaseTrigger:
        """Return the trigger that waits; the task resumes after so many seconds at the earliest."""

    def _wait(self, fruitless: int) -> None:
        """Defer; `fruitless` waits before this one ended with nothing to do."""
        # Other sessions may hold the ready messages, which no query shows: each fruitless wait lengthens the next.
        longest = max(seconds(self.poll_interval), SAFE_TO_RESUME)
        self.defer(
            trigger=self._trigger(min(SAFE_TO_RESUME * 2 ** min(fruitless, 10), longest)),
            method_name="execute_complete",
            kwargs={"fruitless": fruitless + 1},
            timeout=None if self.wait_timeout is None else as_timedelta(self.wait_timeout),
        )


def _timed_out(next_method: str, next_kwargs: Mapping[str, Any] | None) -> bool:
    return next_method == _TRIGGER_FAILED and (next_kwargs or {}).get("error") == "Trigger timeout"


def _is_there(value: Any) -> str | None:
    missing = isinstance(value, str) and value == "None"
    return "A template made it from None: give a default, as in {{ x or 'nothing' }}." if missing else None


def _is_chosen(value: Any) -> str | None:
    return "A template or task made it, and None would take all messages." if value is None else _is_there(value)


def check_arguments(
    given: Mapping[str, Any], rules: Mapping[str, Rule], templates: Collection[str] = ()
) -> frozenset[str]:
    """Raise for an argument that breaks its rule; return the names of the templates, which are checked later.

    Only the texts of a template are checked now: Airflow stores the template itself, and a NUL in one DAG would end the
    processor of all DAGs.
    """
    check_connection_ids(given)
    later = frozenset(name for name, value in given.items() if name in templates and is_template(value))
    check(given, dict.fromkeys(later, only_texts))
    check({name: value for name, value in given.items() if name not in later}, rules)
    return later


def is_template(value: Any) -> bool:
    """Return whether a value is made when the task runs: a template, or the result of another task."""
    if isinstance(value, str):
        return "{{" in value or "{%" in value or "{#" in value
    if isinstance(value, Mapping):
        return any(is_template(one) for one in value.values())
    if isinstance(value, list | tuple):
        return any(is_template(one) for one in value)
    # The result of another task, or a parameter of the DAG.
    return hasattr(value, "resolve")
