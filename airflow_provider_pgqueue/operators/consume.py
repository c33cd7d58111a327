"""Handles the messages of a queue."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import psycopg
from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException

from airflow_provider_pgqueue.core import verbs
from airflow_provider_pgqueue.core.argument import (
    Rule,
    check,
    function,
    named,
    optional,
    positional,
    share_or_number,
    whole,
)
from airflow_provider_pgqueue.core.client import run
from airflow_provider_pgqueue.core.consumer.breaker import Breaker
from airflow_provider_pgqueue.core.consumer.consumer import RULES, Consumer
from airflow_provider_pgqueue.core.consumer.lease import Lease
from airflow_provider_pgqueue.core.consumer.loop import Loop
from airflow_provider_pgqueue.core.duration import Duration
from airflow_provider_pgqueue.core.errors import InvalidArgument
from airflow_provider_pgqueue.core.function import awaited, check_call, load_function
from airflow_provider_pgqueue.core.message import Message
from airflow_provider_pgqueue.core.model import all_with_model, each_with_model, load_model
from airflow_provider_pgqueue.core.outcome import ErrorRules, Outcome
from airflow_provider_pgqueue.core.quantity import deaths_text, quantity
from airflow_provider_pgqueue.core.tuning import TUNING
from airflow_provider_pgqueue.hooks.pgqueue import PgQueueHook
from airflow_provider_pgqueue.task import WaitingTask
from airflow_provider_pgqueue.telemetry.telemetry import ConsumerTelemetry, name_of, task_of
from airflow_provider_pgqueue.triggers.message import PgQueueConsumerTrigger

if TYPE_CHECKING:
    from airflow.sdk import Context


def _model(value: Any) -> str | None:
    if isinstance(value, str) and value.endswith(".json"):
        return None if Path(value).is_file() else "There is no such file. Give the whole path of a JSON Schema."
    if isinstance(value, str):
        return function(value)
    return None if hasattr(value, "model_validate") else "Give a pydantic model, module:Class, or a .json file."


def _loaded_model(given: Any) -> Any:
    """Return the model that a text names; InvalidArgument if it is none. A file stays a text."""
    if not isinstance(given, str) or given.endswith(".json"):
        return given
    model = load_function(given)
    check({"model": model}, {"model": _model})
    return model


class PgQueueConsumeOperator(WaitingTask):
    """Leases messages batch by batch, calls a function of yours, and archives each message with its outcome.

    It continues until none is ready, or `max_messages` were leased. The function returns None for success, or an
    outcome of `airflow_provider_pgqueue.core`: `Rejected`, `Failed`, `Retry`, `Success`. It may raise
    `RejectMessage`; after any other exception the message is delivered again later, or archived as failed after its
    last attempt. Leases are renewed while the function runs. A killed task loses nothing: what it had handled but not
    archived is delivered again, so the function must tolerate repetition. A task that is told to stop finishes the
    current message, releases the others and fails, so that a retry continues.

    The result is the number of messages by how they ended: `success`, `rejected`, `failed`, `retried`, `lost`,
    `timed_out`, `lock_expired`.

    A task that is told to stop during a long call releases the messages that it has not begun, without an attempt,
    and the current one just before Airflow kills the task. The next try of a killed task first releases the messages
    that the killed one still holds; for these the attempt counts.

    Airflow 3.3 sometimes fails a task that resumes within seconds after it deferred, so a wait takes at least eight
    seconds, and this operator has one retry by default, which comes after five seconds.

    The arguments for queue, choice of messages and waiting are those of `WaitingTask`.

    :param apply_function: called with each Message; a function, also an `async def` one, or its name as
        `package.module:function`.
    :param apply_function_batch: called with each list of messages instead; returns outcomes by message id (what it
        leaves out is a success), or one for each message in order, or None if all succeeded. After an exception it is
        called again with each tenth of the batch, and then with each message alone.
    :param op_args: further arguments of the function, after the message.
    :param op_kwargs: further arguments of the function, by name.
    :param model: a pydantic model, or its name as `module:Class`, or the path of a `.json` file with a JSON Schema. A
        message whose body does not match is rejected before the function is called; with a pydantic model the function
        gets a message whose body is an instance of it.
    :param batch_size: messages per lease.
    :param max_messages: stop after this many messages.
    :param lease_for: how long a lease lasts without renewal, and so how long the messages of a killed task wait; by
        default that of the queue's policy.
    :param handler_timeout: how long a call of the function may take. One for a batch that takes longer is made again in
        tenths; after one for a message the lease is no longer renewed, so that another consumer gets the message, and
        this task continues with the others. With a limit the function runs in a thread of its own. The default is that
        of the queue's policy.
    :param give_up_after: fail with HandlerBroken when the function fails on so many messages in a row. What failed has
        used an attempt, and the rest is given back without one. 0 or None never gives up.
    :param on_error: what becomes of a message whose function raises, by class of the exception; `Rejected`, `Failed` or
        `Retry(…)`, as for `core.Consumer`. Without a rule the message is delivered again after the queue's back-off.
    :param fail_on_failed: fail the task, after all messages are settled and without a retry, if at least this many of
        them died; a float is a share of those that were handled. Those that the function rejected do not count, but
        those of an earlier try that was killed do. A task of which all messages failed fails too, even if they are
        delivered again. None never fails it.
    """

    template_fields: Sequence[str] = ("queue_name", "op_args", "op_kwargs", "pgqueue_conn_id")
    rules: ClassVar[Mapping[str, Rule]] = {
        **WaitingTask.rules,
        **RULES,
        "apply_function": optional(function),
        "apply_function_batch": optional(function),
        "op_args": positional,
        "op_kwargs": optional(named),
        "model": optional(_model),
        "max_messages": optional(whole(1, 10**12)),
        "fail_on_failed": optional(share_or_number),
    }
    # A bool, because a second signal inside `Event.set` would wait for the lock of the Event.
    _stopping: bool = False
    _lease: Lease | None = None

    def __init__(
        self,
        *,
        apply_function: Callable[[Message], Outcome | None] | str | None = None,
        apply_function_batch: Callable[[list[Message]], Any] | str | None = None,
        op_args: Sequence[Any] = (),
        op_kwargs: Mapping[str, Any] | None = None,
        model: Any = None,
        batch_size: int = 100,
        max_messages: int | None = None,
        lease_for: Duration | None = None,
        handler_timeout: Duration | None = None,
        give_up_after: int | None = 100,
        on_error: ErrorRules | None = None,
        fail_on_failed: float | None = 1,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.apply_function = apply_function
        self.apply_function_batch = apply_function_batch
        self.op_args = op_args
        self.op_kwargs = op_kwargs
        self.model = model
        self.batch_size = batch_size
        self.max_messages = max_messages
        self.lease_for = lease_for
        self.handler_timeout = handler_timeout
        self.give_up_after = give_up_after
        self.on_error = on_error
        self.fail_on_failed = fail_on_failed
        self.check_written()
        if (apply_function is None) == (apply_function_batch is None):
            raise InvalidArgument(
                f"{'no function' if apply_function is None else 'two functions'} given",
                "Give exactly one of apply_function and apply_function_batch.",
            )
        self._check_call(apply_function or apply_function_batch)

    def execute(self, context: Context) -> dict[str, int]:
        """Consume ready messages; with `wait_for_messages` wait if there are none."""
        return self.execute_complete(context)

    def execute_complete(self, context: Context, event: Any = None, fruitless: int = 0) -> dict[str, int]:
        """Consume what the trigger saw; if nothing is left to lease, wait again, longer each time."""
        self._stopping = False
        # Created here because Airflow copies operators, and an Event cannot be copied.
        self._finished = threading.Event()
        self._hook = PgQueueHook(self.pgqueue_conn_id)
        consumer = self._consumer(name_of(context), self._further(context))
        breaker = Breaker(self.queue_name, self.give_up_after)
        record = self._telemetry.record_batch
        try:
            with (
                self._hook.connect() as conn,
                Loop(consumer, conn, breaker=breaker, on_lease=self._hold, on_batch=record) as loop,
            ):
                began = time.monotonic()
                self._release_earlier(context, conn)
                counts = loop.drain(max_messages=self.max_messages, stop=lambda: self._stopping)
                period = time.monotonic() - began + 1
                died = run(conn, verbs.deaths(self.queue_name, holder=f"{task_of(context)}/", period=period))
        finally:
            self._finished.set()
        if self._stopping:
            raise AirflowException(f"stopped while consuming queue {self.queue_name}, after {dict(counts)}")
        if not counts and self.wait_for_messages:
            self._wait(fruitless)
        self.log.info("consumed queue %s: %s", self.queue_name, dict(counts))
        self._fail_on_failed(died, breaker)
        return dict(counts)

    def _further(self, context: Context) -> dict[str, Any]:
        """Return what the function gets by name besides `op_kwargs`."""
        return {}

    def _consumer(self, handled_by: str, further: Mapping[str, Any]) -> Consumer:
        each = self.apply_function is not None
        handler = self._handler(self.apply_function if each else self.apply_function_batch, further)
        if self.model is not None:
            read = load_model(_loaded_model(self.model))
            handler = each_with_model(handler, read) if each else all_with_model(handler, read)
        self._telemetry = ConsumerTelemetry(self.queue_name, handler)
        return Consumer(
            queue_name=self.queue_name,
            handle=self._telemetry.handle if each else None,
            handle_batch=None if each else self._telemetry.handle_batch,
            batch_size=self.batch_size,
            lease_for=self.lease_for,
            handler_timeout=self.handler_timeout,
            give_up_after=self.give_up_after,
            on_error=self.on_error,
            handled_by=handled_by,
        )

    def _fail_on_failed(self, died: Mapping[str, int], breaker: Breaker) -> None:
        limit, dead, handled = self.fail_on_failed, sum(died.values()), breaker.handled
        if limit is None:
            return
        if dead and dead >= (limit * handled if isinstance(limit, float) else limit):
            # A retry would find nothing to lease, and succeed.
            raise AirflowFailException(
                f"{deaths_text(died)} of {quantity(handled)} of queue {self.queue_name} that were handled, and "
                f"fail_on_failed is {limit}. The log says why they failed, messages.dead_causes() of what they died."
            )
        if handled and breaker.failed == handled:
            raise AirflowException(
                f"all of {quantity(handled)} of queue {self.queue_name} failed. Those with attempts left are delivered "
                "again; the log says why they failed."
            )

    def on_kill(self) -> None:
        """Finish the current message and release the others, even while the function is inside a long call."""
        if self._stopping:
            return
        self._stopping = True
        if self._lease is not None:
            # In a thread, because the function continues only when this returns.
            threading.Thread(target=self._give_back, args=(self._lease,), name="pgqueue-stop", daemon=True).start()

    def _handler(self, given: Any, further: Mapping[str, Any]) -> Callable[..., Any]:
        """Return the function of the user, or the one of this name, as one that takes nothing but what is handled."""
        found = load_function(given)
        if isinstance(given, str):
            # It is known only now, before a message is leased.
            self._check_call(found)
        found = awaited(found)
        args, kwargs = tuple(self.op_args), {**further, **(self.op_kwargs or {})}
        if not (args or kwargs):
            return found
        return lambda handled: found(handled, *args, **kwargs)

    def _check_call(self, given: Any) -> None:
        check_call(given, "a message" if self.apply_function else "a list of messages", self.op_args, self.op_kwargs)

    def _hold(self, lease: Lease) -> None:
        self._lease = lease
        self._telemetry.record_lease(lease)

    def _release_earlier(self, context: Context, conn: psycopg.Connection[Any]) -> None:
        """Release what an earlier try of this task still holds, for example because it was killed."""
        if context["ti"].try_number > 1:
            released = run(conn, verbs.release_messages(self.queue_name, holder=task_of(context)))
            if released:
                self.log.info("released %s that an earlier try held", quantity(len(released)))

    def _give_back(self, lease: Lease) -> None:
        try:
            with self._hook.connect(check=False) as conn:
                lease.give_back(conn)
                if not self._finished.wait(TUNING.last_moment):
                    lease.give_back(conn, reason="its task was stopped while it was handled")
        except Exception as error:
            self.log.warning(
                "could not release messages of queue %s (%s); their leases end by themselves",
                self.queue_name,
                type(error).__name__,
            )

    def _trigger(self, notify_after: float) -> PgQueueConsumerTrigger:
        return PgQueueConsumerTrigger(
            queue_name=self.queue_name,
            pgqueue_conn_id=self.pgqueue_conn_id,
            poll_interval=self.poll_interval,
            for_task=True,
            notify_after=notify_after,
        )
