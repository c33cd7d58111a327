"""Publishes messages: one, many, or the rows of a query."""

from __future__ import annotations

import dataclasses
import hashlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from datetime import datetime, timedelta
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar, Final, Unpack

import psycopg
from airflow.providers.common.compat.sdk import XComArg

from airflow_provider_pgqueue.core import verbs
from airflow_provider_pgqueue.core.argument import (
    Rule,
    a_type,
    duration,
    json_object,
    json_value,
    moment,
    one_of,
    optional,
    queue_name,
    text,
    truth,
    whole,
)
from airflow_provider_pgqueue.core.argument import parameters as some_parameters
from airflow_provider_pgqueue.core.client import run, to_json
from airflow_provider_pgqueue.core.errors import InvalidArgument
from airflow_provider_pgqueue.core.function import check_call_without
from airflow_provider_pgqueue.core.message import Duplicate
from airflow_provider_pgqueue.core.quantity import quantity
from airflow_provider_pgqueue.core.verbs import BatchOptions, Statement
from airflow_provider_pgqueue.hooks.pgqueue import PgQueueHook
from airflow_provider_pgqueue.tasks.completion import COMPLETION_RULES, WAIT_TIMEOUT, AwaitsMessages
from airflow_provider_pgqueue.tasks.rows import QueryRows, names_file, text_of_file
from airflow_provider_pgqueue.tasks.task import TaskArguments
from airflow_provider_pgqueue.tasks.telemetry import note_published, origin_of

if TYPE_CHECKING:
    from airflow.sdk import Context

_FEW: Final = 100
_SAY_EVERY: Final = 5.0  # seconds
_LONGEST_KEY: Final = 255  # characters
# A text, because None means no key and the default has to survive the serialization of the DAG.
_OF_THE_TASK: Final = "<the task's identity>"


class PgQueuePublishOperator(AwaitsMessages):
    """Publishes exactly one of `message`, `messages` and the rows of `sql`, one round trip per batch.

    By default everything is published in one transaction, under a dedup key that is the same for all tries of the task:
    a task that fails has published nothing, and a retry after a success that Airflow did not hear of does not publish
    again, whatever its bodies are by then. A task that is cleared does. What is not published is counted in a warning.
    The result is `{"queue_name", "published", "first_id", "last_id"}`, with `ids` if there are at most a
    hundred, and with `duplicate_of`, the first message of an earlier try, if there was one, and `several`, if it was
    not the only one. Bodies are neither logged nor put into XCom. A datetime, date or time in a body becomes its ISO
    text, and a UUID or Decimal its text.

    With `wait_for_completion` the task ends when its messages, at most a hundred, are finished (request and reply). The
    result then has their `outcomes`. A message that ended as anything but success fails the task, without a retry, with
    its id, result and class of error. The task waits five seconds in the worker, then in the triggerer. Another try of
    the task publishes nothing, and waits for what an earlier try published, also when it is cleared; a message with
    another body than then is a new one. The login also needs the role
    `messages_observer`.

    :param queue_name: the queue to publish to.
    :param message: one body, any JSON value; the texts in it are templates. What they render to is not stored by
        Airflow, nor shown under Rendered Template. To publish JSON null, give `messages=[None]`.
    :param messages: bodies as a list, or the result of another task that is a list, or a function without parameters
        that returns any iterable, which is read as a stream. They are not templates.
    :param sql: a query, or the name of a file with one, which ends in `.sql` and is a template. Each row becomes a
        body: an object with the columns as keys, or if `message` is the only column, its value.
    :param parameters: the parameters of `sql`.
    :param sql_conn_id: the connection on which `sql` runs, to a PostgreSQL; by default that of the queue.
    :param batch_size: messages per round trip.
    :param one_transaction: False commits each batch, so that consumers can begin before the end; a retry continues with
        the first batch that was not published, so the messages must come in the same order again; so does a task that
        is cleared.
    :param priority: from 0 to 9; higher is leased first.
    :param delay: make the messages ready only after this time.
    :param visible_at: make the messages ready only from this time on, which has a time zone.
    :param expires_in: archive the messages as `expired` if nobody handled them by then.
    :param headers: an object kept next to each body.
    :param origin: add the headers `airflow`, which names the task, and `traceparent`, if the task is traced.
    :param reference: a text to find the messages by; by default DAG, run, task and map index.
    :param topic: words with dots between them, by which consumers can choose messages.
    :param group_key: messages of a group are leased one at a time and in order.
    :param dedup_key: a key under which all messages of the task are published once in `dedup_window`. By default the
        identity of the task without the number of the try, but with that of the clearing: who clears the task wants it
        to publish again. With a key of your own, a cleared task publishes nothing within the window. None publishes in
        every try, also in a retry after a success that Airflow did not hear of.
    :param dedup_window: how long the key is remembered; by default the window of the queue.
    :param on_conflict: what happens to a single `message` whose key is remembered: `skip` it, or let it `replace` the
        one that was published before, unless that has been leased.
    :param wait_for_completion: end when the messages are finished.
    :param wait_timeout: fail the task when that takes longer in the triggerer.
    :param follow_requeues: when a message dies, wait until it is dismissed, or requeued and the new one is finished.
    :param with_output: add the `output` that the handler returned to each outcome, and so to XCom.
    :param poll_interval: seconds between looks while waiting when no notification arrives.
    :param deferrable: False waits in a worker, for installations without a triggerer.
    :param pgqueue_conn_id: the Airflow connection of the database that holds the queue.
    """

    # Not `messages`: what came out of a queue or a file must not be rendered, and Airflow calls templated functions.
    template_fields: Sequence[str] = (
        "queue_name",
        "message",
        "sql",
        "parameters",
        "headers",
        "reference",
        "topic",
        "group_key",
        "dedup_key",
        "pgqueue_conn_id",
        "sql_conn_id",
    )
    template_fields_renderers = {"sql": "sql", "headers": "json"}  # noqa: RUF012 as Airflow has it
    writes_queue = True
    ui_color = "#e4f0e4"
    rules: ClassVar[Mapping[str, Rule]] = {
        "queue_name": queue_name,
        "sql": optional(text),
        "sql_conn_id": optional(text),
        "batch_size": whole(1, 100_000),
        "one_transaction": truth,
        "priority": whole(0, 9),
        "delay": duration(timedelta(0), timedelta(days=366)),
        "visible_at": optional(moment),
        "expires_in": optional(duration(timedelta(0), timedelta(days=3660))),
        "headers": optional(json_object),
        "message": json_value,
        "parameters": optional(some_parameters),
        "reference": optional(text),
        "topic": optional(text),
        "group_key": optional(text),
        "dedup_key": optional(text),
        "origin": truth,
        "wait_for_completion": truth,
        "wait_timeout": WAIT_TIMEOUT,
        **COMPLETION_RULES,
        "dedup_window": optional(duration(timedelta(seconds=1), timedelta(days=366))),
        "on_conflict": one_of("skip", "replace"),
        "pgqueue_conn_id": text,
    }
    attributes: ClassVar[Mapping[str, str]] = {"priority": "message_priority"}
    _sql_name = "sql"
    _takes_arguments = False

    def __init__(
        self,
        *,
        queue_name: str,
        message: Any = None,
        messages: Iterable[Any] | Callable[[], Iterable[Any]] | XComArg | None = None,
        sql: str | None = None,
        parameters: Sequence[Any] | Mapping[str, Any] | None = None,
        sql_conn_id: str | None = None,
        batch_size: int = 1000,
        one_transaction: bool = True,
        priority: int = 4,
        delay: timedelta = timedelta(0),
        visible_at: datetime | None = None,
        expires_in: timedelta | None = None,
        headers: Mapping[str, Any] | None = None,
        origin: bool = True,
        reference: str | None = _OF_THE_TASK,
        topic: str | None = None,
        group_key: str | None = None,
        dedup_key: str | None = _OF_THE_TASK,
        dedup_window: timedelta | None = None,
        on_conflict: str = "skip",
        wait_for_completion: bool = False,
        wait_timeout: timedelta | None = None,
        follow_requeues: bool = False,
        with_output: bool = False,
        poll_interval: float = 10.0,
        deferrable: bool = True,
        pgqueue_conn_id: str = PgQueueHook.default_conn_name,
        **kwargs: Unpack[TaskArguments],
    ) -> None:
        super().__init__(**kwargs)
        self.queue_name = queue_name
        self.message = message
        self.messages = messages
        self.sql = sql
        self.parameters = parameters
        self.sql_conn_id = sql_conn_id
        self.batch_size = batch_size
        self.one_transaction = one_transaction
        self.message_priority = priority
        self.delay = delay
        self.visible_at = visible_at
        self.expires_in = expires_in
        self.headers = headers
        self.origin = origin
        self.reference = reference
        self.topic = topic
        self.group_key = group_key
        self.dedup_key = dedup_key
        self.dedup_window = dedup_window
        self.on_conflict = on_conflict
        self.wait_for_completion = wait_for_completion
        self.wait_timeout = wait_timeout
        self.follow_requeues = follow_requeues
        self.with_output = with_output
        self.poll_interval = poll_interval
        self.deferrable = deferrable
        self.pgqueue_conn_id = pgqueue_conn_id
        self.check_written()
        self._check_source()
        if isinstance(messages, XComArg) and not getattr(self, "_BaseOperator__from_mapped", False):
            # Airflow sees dependencies in templated fields only, and shows those.
            XComArg.apply_upstream_relationship(self, messages)

    def prepare_template(self) -> None:
        """Load the query while the DAG is parsed, if `sql` names a file: a missing file is an error of the DAG."""
        if isinstance(self.sql, str) and names_file(self.sql):
            self._sql_name, self.sql = f"sql {self.sql!r}", text_of_file(self.sql, self.get_template_env())

    def execute(self, context: Context) -> dict[str, Any]:
        """Publish, and return how many and their ids."""
        self._take_arguments(context)
        began_at = time.monotonic()
        published = self._publish_all()
        self._say(published.count, "in all", began_at)
        self.message_ids = published.awaited
        self.lineage_rows = published.count
        note_published(self.queue_name, published.count)
        if published.duplicate_of is not None and self.on_conflict == "skip":
            self._warn_of_duplicates(published)
        if self.wait_for_completion and published.awaited:
            ids, summary = published.awaited, published.summary()
            return summary | {"outcomes": self._outcomes(ids, self.wait_timeout, summary=summary)}
        return published.summary()

    def execute_complete(
        self,
        context: Context,
        event: Any = None,
        ids: Sequence[int] = (),
        summary: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Return what was published, and what became of it."""
        return {**(summary or {}), "outcomes": self._finished(ids)}

    def _warn_of_duplicates(self, published: _Published) -> None:
        number, more = published.duplicates, ""
        if self._begins_with_key and isinstance(self.messages, list | tuple):
            number = len(self.messages)
        elif self._begins_with_key and number == self.batch_size:
            more = " and all that follow"
        self.log.warning(
            "queue %s: not published: %s%s, because an earlier publish, which began with message %s, had the same "
            "dedup_key. %s",
            self.queue_name,
            quantity(number, "message"),
            more,
            published.duplicate_of,
            "This is a retry, or the task was cleared and continues. dedup_key=None publishes in every try."
            if self.dedup_key == _OF_THE_TASK
            else "Give another dedup_key to publish them.",
        )

    @property
    def _begins_with_key(self) -> bool:
        """Whether only the first message has a key, for all."""
        return self.one_transaction and not self.wait_for_completion

    def _take_arguments(self, context: Context) -> None:
        """Complete the arguments with what is known only now, and check that."""
        self._check_source()
        if self.sql is not None and names_file(self.sql):
            # In a mapped task.
            self._sql_name = f"sql {self.sql!r}"
            self.sql = self.render_template(text_of_file(self.sql, self.get_template_env()), context)
        if isinstance(self.messages, XComArg):
            self._check_upstream(self.messages)
            if (found := self.messages.resolve(context)) is None:
                raise InvalidArgument(
                    "messages is None: the other task returned nothing", "Let it return a list, which may be empty."
                )
            self.messages = found
            self._check_source()
        task, headers = origin_of(context)
        self.reference = task if self.reference == _OF_THE_TASK else self.reference
        # Without the number of the try: a retry after a lost success finds the key, and publishes nothing. Whoever
        # clears a task raises its max_tries, and wants it to publish; one that continues or waits finds what it began.
        key = f"{task}/{context['ti'].max_tries}" if self._begins_with_key else task
        self._dedup_key = key if self.dedup_key == _OF_THE_TASK else self.dedup_key
        headers = {**(headers if self.origin else {}), **(self.headers or {})}
        # For this header the database rings when the message is finished.
        self._headers = headers | ({"awaited": True} if self.wait_for_completion else {})

    def _publish_all(self) -> _Published:
        """Publish all batches under the dedup key, each in a transaction of its own or all in one."""
        published = _Published(self.queue_name)
        began_at = said_at = time.monotonic()
        in_one = self.one_transaction
        with PgQueueHook(self.pgqueue_conn_id).connect() as conn, conn.transaction() if in_one else nullcontext():
            for number, batch in enumerate(self._batches()):
                self._check_replaces_one(number + len(batch))
                published.several |= number + len(batch) > 1
                # The key is that of the first message; it commits together with the others of its batch.
                with conn.transaction():
                    published.add(self._publish(conn, batch, self._key(number)))
                if self.wait_for_completion and len(published.awaited) > _FEW:
                    raise InvalidArgument(
                        f"more than {_FEW} messages, and wait_for_completion is True",
                        "Nothing was published. Map the task, or count the results of a reference instead.",
                    )
                if self._begins_with_key and published.duplicate_of and self.on_conflict == "skip":
                    published.duplicates = len(batch)
                    break
                if time.monotonic() - said_at >= _SAY_EVERY:
                    said_at = time.monotonic()
                    self._say(published.count, "so far", began_at)
        return published

    def _say(self, count: int, when: str, began_at: float) -> None:
        seconds = time.monotonic() - began_at
        self.log.info("published to queue %s %s: %d in %.1f s", self.queue_name, when, count, seconds)

    def _check_source(self) -> None:
        given = [name for name in ("message", "messages", "sql") if getattr(self, name) is not None]
        if len(given) != 1:
            raise InvalidArgument(
                f"{' and '.join(given) or 'nothing'} given",
                "Give one of message, messages and sql; to publish JSON null, messages=[None].",
            )
        if hasattr(self.messages, "operator_class"):
            # It can be called, and would then return no messages but a task.
            raise InvalidArgument("messages is a task that is not called. Call it: messages=task().")
        if isinstance(self.messages, str | bytes | Mapping):
            raise InvalidArgument(f"messages is one {type(self.messages).__name__}. Give a list, or use message.")
        if not (self.messages is None or callable(self.messages) or isinstance(self.messages, Iterable | XComArg)):
            raise InvalidArgument(f"messages is {a_type(self.messages)}. Give a list, or use message.")
        if callable(self.messages) and not self._takes_arguments:
            check_call_without(self.messages)
        if self.wait_for_completion and not self.one_transaction:
            raise InvalidArgument(
                "wait_for_completion is True and one_transaction is False", "Wait for what is one transaction."
            )
        self._check_together()

    def _check_together(self) -> None:
        """Raise for arguments that contradict each other, or of which one would do nothing."""
        if isinstance(self.messages, list | tuple):
            self._check_replaces_one(len(self.messages))
        if self.dedup_window is not None and self.dedup_key is None:
            raise InvalidArgument("dedup_window is given, and dedup_key is None", "Give both, or no dedup_window.")
        if self.parameters is not None and self.sql is None:
            raise InvalidArgument("parameters are given, and no sql", "Give both, or no parameters.")
        if self.visible_at is not None and self.delay:
            raise InvalidArgument("delay and visible_at are given", "Give one of them.")
        if self.with_output and not self.wait_for_completion:
            raise InvalidArgument(
                "with_output is True, and wait_for_completion is False", "An output comes with the end of a message."
            )

    def _check_replaces_one(self, number: int) -> None:
        if self.on_conflict == "replace" and number > 1:
            raise InvalidArgument("on_conflict is 'replace', and there are several messages", "Give a single message.")

    def _check_upstream(self, messages: XComArg) -> None:
        """Raise if this task does not wait for the one that returns the messages: Airflow sees no `partial`."""
        if missing := {task.task_id for task, _ in messages.iter_references()} - self.upstream_task_ids:
            raise InvalidArgument(
                f"messages come from {', '.join(sorted(missing))}, and this task does not wait for it",
                "Give messages to expand, or set the dependency with >>.",
            )

    def _batches(self) -> Iterator[list[str]]:
        """Yield bodies as JSON texts, a batch at a time."""
        if self.sql is not None:
            conn_id = self.sql_conn_id or self.pgqueue_conn_id
            argument = "sql_conn_id" if self.sql_conn_id else "pgqueue_conn_id"
            rows = QueryRows(self.sql, self.parameters, conn_id=conn_id, name=self._sql_name, argument=argument)
            yield from rows.batches(self.batch_size)
            return
        bodies: Any = [self.message] if self.messages is None else self.messages
        if callable(bodies) and not isinstance(bodies := bodies(), Iterable):
            raise InvalidArgument(f"the function of messages returned {a_type(bodies)}", "Let it return a list.")
        texts = map(to_json, bodies)
        while batch := list(islice(texts, self.batch_size)):
            yield batch

    def _key(self, number: int) -> str | None:
        """Return the dedup key of a batch: of the first one only, if all are one transaction."""
        key = self._dedup_key
        if key is None or (self._begins_with_key and number > 0):
            return None
        return _short(key if self.one_transaction and number == 0 else f"{key}#{number}")

    def _publish(self, conn: psycopg.Connection[Any], texts: list[str], key: str | None) -> list[int]:
        """Publish a batch, or nothing if its key is remembered: the key is that of the first message."""
        if key is None:
            return run(conn, self._statement(texts))
        if self.wait_for_completion:
            # Each has a key, under which a further try finds it, unless its body is another: that is another question.
            own = self.dedup_key == _OF_THE_TASK
            bodies = [f"/{hashlib.sha256(text.encode()).hexdigest()[:16]}" if own else "" for text in texts]
            keys = [f"{key}/{place}{body}" if place or own else key for place, body in enumerate(bodies)]
            return run(conn, self._statement(texts, *map(_short, keys)))
        first = run(conn, self._statement(texts[:1], key))
        if isinstance(first[0], Duplicate) or not texts[1:]:
            return first
        return first + run(conn, self._statement(texts[1:]))

    def _statement(self, texts: list[str], *keys: str) -> Statement[list[int]]:
        options: BatchOptions = {
            "priority": self.message_priority,
            "delay": self.delay,
            "visible_at": self.visible_at,
            "expires_in": self.expires_in,
            "headers": self._headers or None,
        }
        for name, value in (("references", self.reference), ("topics", self.topic), ("group_keys", self.group_key)):
            if value is not None:
                options[name] = [value] * len(texts)  # type: ignore[literal-required]
        if keys:
            options |= {"dedup_keys": list(keys), "dedup_window": self.dedup_window, "on_conflict": self.on_conflict}
        return verbs.publish_texts(self.queue_name, texts, **options)


def _short(key: str) -> str:
    return key if len(key) <= _LONGEST_KEY else hashlib.sha256(key.encode()).hexdigest()


@dataclasses.dataclass(slots=True)
class _Published:
    queue_name: str
    count: int = 0
    first_id: int | None = None
    last_id: int | None = None
    ids: list[int] = dataclasses.field(default_factory=list)
    duplicate_of: int | None = None
    duplicates: int = 0
    several: bool = False
    awaited: list[int] = dataclasses.field(default_factory=list)

    def add(self, found: list[int]) -> None:
        self.awaited += [int(id_) for id_ in found[: max(0, _FEW + 1 - len(self.awaited))]]
        ids = [id_ for id_ in found if not isinstance(id_, Duplicate)]
        self.duplicates += len(found) - len(ids)
        if len(ids) < len(found) and self.duplicate_of is None:
            self.duplicate_of = next(int(id_) for id_ in found if isinstance(id_, Duplicate))
        if not ids:
            return
        self.count += len(ids)
        self.first_id = self.first_id or ids[0]
        self.last_id = ids[-1]
        self.ids += ids[: max(0, _FEW + 1 - len(self.ids))]

    def summary(self) -> dict[str, Any]:
        summary: dict[str, Any] = {
            "queue_name": self.queue_name,
            "published": self.count,
            "first_id": self.first_id,
            "last_id": self.last_id,
        }
        if self.duplicate_of is not None:
            summary["duplicate_of"] = self.duplicate_of
            summary |= {"several": True} if self.several else {}
        return summary | ({"ids": self.ids} if self.count <= _FEW else {})
