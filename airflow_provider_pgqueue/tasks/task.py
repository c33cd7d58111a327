"""What all our tasks have in common: arguments that are checked where they are written, and retries that come soon."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Final

from airflow.providers.common.compat.sdk import AirflowException, AirflowSkipException, BaseOperator

from airflow_provider_pgqueue.core import verbs
from airflow_provider_pgqueue.core.argument import Rule, check, only_texts, text
from airflow_provider_pgqueue.core.duration import as_timedelta
from airflow_provider_pgqueue.core.errors import InvalidArgument, PgQueueError
from airflow_provider_pgqueue.hooks.connection_id import check_connection_ids
from airflow_provider_pgqueue.hooks.pgqueue import PgQueueHook
from airflow_provider_pgqueue.tasks.lineage import QueueLineage
from airflow_provider_pgqueue.tasks.links import PgQueueLink

if TYPE_CHECKING:
    from airflow.sdk import Context

_SOON = timedelta(seconds=5)
_LATEST = timedelta(minutes=5)
_TRIGGER_FAILED: Final = "__fail__"  # what Airflow calls the method of a task whose trigger failed
# Airflow 3.1 takes only True here, which doubles the pause each time, and refuses a number.
DOUBLED: Final[float] = True if BaseOperator.retry_exponential_backoff is False else 2
AT_LEAST_ONE: Final[int] = max(1, BaseOperator.retries or 0)
"""Retries of tasks that lease or wait: `[core] default_task_retries` of Airflow's configuration, but not none."""


class QueueTask(QueueLineage, BaseOperator):
    """A task that uses the queue.

    A retry comes after five seconds, and each further one after twice as long, up to five minutes: during Airflow's
    default of five minutes nobody would handle the queue. A bad argument is an InvalidArgument when the DAG is parsed,
    and one that a template made when the task begins. A task whose trigger failed fails with the reason.

    :param pgqueue_conn_id: the Airflow connection of the database that holds the queue.
    """

    rules: ClassVar[Mapping[str, Rule]] = {"pgqueue_conn_id": text}
    """By the names of the arguments."""
    waits_for: str = "messages of"
    """What of a queue the task waits for."""
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
        """Say what the task waited for, and how long."""
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
        """Say what is wrong with the queue that the task waited for, or what to do if nothing is."""
        # Nobody may be told, for example where the database is down: the time-out matters more.
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

    def _given(self) -> dict[str, Any]:
        """Return the arguments that have rules."""
        # BaseOperator has a method of the name dry_run.
        return {name: getattr(self, "is_dry_run" if name == "dry_run" else name) for name in self.rules}


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
    """Raise for an argument that breaks its rule; return those of `templates` that are made later, and are judged then.

    Of these only the texts are judged: Airflow stores the template itself, and a NUL in one DAG would end the processor
    of all.
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
