"""Publishes messages, and publishes the rows of a query."""

from __future__ import annotations

import dataclasses
import hashlib
import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from datetime import datetime, timedelta
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar, Final

import psycopg
from airflow.providers.common.compat.sdk import XComArg

from airflow_provider_pgqueue.core import argument, verbs
from airflow_provider_pgqueue.core.argument import (
    Rule,
    a_type,
    duration,
    json_object,
    json_value,
    key,
    moment,
    one_of,
    optional,
    text,
    topic,
    truth,
    whole,
)
from airflow_provider_pgqueue.core.argument import parameters as some_parameters
from airflow_provider_pgqueue.core.client import run
from airflow_provider_pgqueue.core.duration import Duration, seconds
from airflow_provider_pgqueue.core.errors import InvalidArgument
from airflow_provider_pgqueue.core.function import check_call_without
from airflow_provider_pgqueue.core.json_text import all_to_json
from airflow_provider_pgqueue.core.message import PLURALS, TEXTS, BatchOptions, Duplicate
from airflow_provider_pgqueue.core.quantity import quantity
from airflow_provider_pgqueue.core.tuning import TUNING
from airflow_provider_pgqueue.core.verbs import Statement
from airflow_provider_pgqueue.hooks.pgqueue import PgQueueHook
from airflow_provider_pgqueue.operators.rows import QueryRows, names_file, text_of_file
from airflow_provider_pgqueue.task import QueueTask
from airflow_provider_pgqueue.telemetry.telemetry import headers_of, record_published, task_of

if TYPE_CHECKING:
    from airflow.sdk import Context

Messages = Iterable[Any] | Callable[[], Iterable[Any]] | XComArg
FEW: Final = 100
_LONGEST_KEY: Final = 255  # characters
# A text, because None means no key and the default has to survive the serialization of the DAG.
_OF_THE_TASK: Final = "<the task's identity>"
BATCH_RULES: Final[Mapping[str, Rule]] = {"batch_size": whole(1, 100_000), "one_transaction": truth}


class PublishTask(QueueTask):
    """Publishes messages with the same options, one round trip per batch.

    A warning counts the messages that are not published because their dedup key is remembered.
    The result is `{"queue_name", "published", "first_id", "last_id"}`, with `ids` if there are at most a
    hundred. If an earlier try published, it has `duplicate_of`, the first of those messages, and `several`, if there
    are more. Bodies are neither logged nor put into XCom. A datetime, date or time in a body becomes its ISO
    text, and a UUID or Decimal its text.

    :param queue_name: the queue to publish to.
    :param priority: from 0 to 9; higher is leased first.
    :param delay: make the messages ready only after this time.
    :param visible_at: make the messages ready only from this time on, which has a time zone.
    :param expires_in: archive the messages as `expired` if nobody handled them by then.
    :param headers: an object kept next to each body.
    :param origin: add the headers `airflow`, which names the task, and `traceparent`, if the task is traced.
    :param reference: a text to find the messages by; by default DAG, run, task and map index.
    :param topic: words with dots between them that name the kind of message.
    :param group_key: messages of a group are leased one at a time and in order.
    :param dedup_key: a key under which all messages of the task are published once in `dedup_window`. By default all
        tries of the task have the same key, and a task that is cleared has another, so that it publishes again. With a
        key of your own, a cleared task publishes nothing within the window. None publishes in every try.
    :param dedup_window: how long the key is remembered; by default the window of the queue.
    :param on_conflict: what happens to a single message whose key is remembered: `skip` it, or let it `replace` the
        one that was published before, unless that has been leased.
    """

    # Not `messages`: what came out of a queue or a file must not be rendered, and Airflow calls templated functions.
    template_fields: Sequence[str] = ("queue_name", "headers", *PLURALS, "pgqueue_conn_id")
    template_fields_renderers = {"headers": "json"}  # noqa: RUF012 as Airflow has it
    writes_queue = True
    rules: ClassVar[Mapping[str, Rule]] = {
        **QueueTask.rules,
        "queue_name": argument.queue_name,
        "priority": whole(0, 9),
        "delay": duration(timedelta(0), timedelta(days=366)),
        "visible_at": optional(moment),
        "expires_in": optional(duration(timedelta(0), timedelta(days=3660))),
        "headers": optional(json_object),
        "origin": truth,
        "reference": optional(text),
        "topic": optional(topic),
        "group_key": optional(key),
        "dedup_key": optional(text),
        "dedup_window": optional(duration(timedelta(seconds=1), timedelta(days=366))),
        "on_conflict": one_of("skip", "replace"),
    }
    batch_size: int = 1000
    one_transaction: bool = True

    def __init__(
        self,
        *,
        queue_name: str,
        priority: int = 4,
        delay: Duration = timedelta(0),
        visible_at: datetime | None = None,
        expires_in: Duration | None = None,
        headers: Mapping[str, Any] | None = None,
        origin: bool = True,
        reference: str | None = _OF_THE_TASK,
        topic: str | None = None,
        group_key: str | None = None,
        dedup_key: str | None = _OF_THE_TASK,
        dedup_window: Duration | None = None,
        on_conflict: str = "skip",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.queue_name = queue_name
        self.priority = priority
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

    @abstractmethod
    def _batches(self) -> Iterator[list[str]]:
        """Yield bodies as JSON texts, a batch at a time."""

    def execute(self, context: Context) -> dict[str, Any]:
        """Publish, and return how many and their ids."""
        return self._published(context).summary()

    def check_written(self) -> None:
        """Check the arguments as they were written, also together."""
        super().check_written()
        self._check_together()

    def _check_together(self) -> None:
        """Raise for arguments that contradict each other, or of which one would do nothing."""
        if self.dedup_window is not None and self.dedup_key is None:
            raise InvalidArgument("dedup_window is given, and dedup_key is None", "Give both, or no dedup_window.")
        if self.on_conflict == "replace" and self.dedup_key is None:
            raise InvalidArgument("on_conflict is 'replace', and dedup_key is None", "Give both, or no on_conflict.")
        if self.expires_in is not None and seconds(self.delay) >= seconds(self.expires_in):
            raise InvalidArgument(
                f"expires_in is {self.expires_in}, and delay {self.delay}: the messages would expire before they are "
                "ready",
                "Give a longer expires_in; both begin with the publish.",
            )
        if self.visible_at is not None and self.delay:
            raise InvalidArgument("delay and visible_at are given", "Give one of them.")

    def _published(self, context: Context) -> Published:
        self._take_arguments(context)
        published = self._publish_all()
        self._log_progress(published, "in all")
        self.message_ids = published.all_ids
        self.lineage_rows = published.count
        record_published(self.queue_name, published.count)
        if published.duplicate_of is not None and self.on_conflict == "skip":
            self._warn_of_duplicates(published)
        return published

    def _take_arguments(self, context: Context) -> None:
        """Complete the arguments with what is known only now, and check that."""
        self._check_together()
        task = task_of(context)
        self.reference = task if self.reference == _OF_THE_TASK else self.reference
        # Without the number of the try: a retry after a lost success finds the key, and publishes nothing. Clearing a
        # task raises its max_tries, and should publish again; a task that continues finds the batches that it began.
        of_task = f"{task}/{context['ti'].max_tries}" if self.one_transaction else task
        self._dedup_key = of_task if self._key_is_of_task else self.dedup_key
        self._headers = {**(headers_of(context) if self.origin else {}), **(self.headers or {})}

    @property
    def _key_is_of_task(self) -> bool:
        """Whether the dedup key is made of the identity of the task, and is not one of the user."""
        return self.dedup_key == _OF_THE_TASK

    def _publish_all(self) -> Published:
        """Publish all batches under the dedup key, each in a transaction of its own or all in one."""
        published = Published(self.queue_name)
        logged_at = published.began_at
        hook = PgQueueHook(self.pgqueue_conn_id)
        with hook.connect() as conn, conn.transaction() if self.one_transaction else nullcontext():
            for number, batch in enumerate(self._batches()):
                self._check_replaces_one(number + len(batch))
                published.several |= number + len(batch) > 1
                # The key is that of the first message; it commits together with the others of its batch.
                with conn.transaction():
                    published.add(self._publish(conn, batch, number))
                if self.one_transaction and published.duplicate_of and self.on_conflict == "skip":
                    published.duplicates = len(batch)
                    break
                if time.monotonic() - logged_at >= TUNING.log_every:
                    logged_at = time.monotonic()
                    self._log_progress(published, "so far")
        return published

    def _publish(self, conn: psycopg.Connection[Any], texts: list[str], number: int) -> list[int]:
        """Publish a batch, or nothing if its key is remembered: the key is that of the first message."""
        if (key := self._key(number)) is None:
            return run(conn, self._statement(texts))
        first = run(conn, self._statement(texts[:1], key))
        if isinstance(first[0], Duplicate) or not texts[1:]:
            return first
        return first + run(conn, self._statement(texts[1:]))

    def _key(self, number: int) -> str | None:
        """Return the dedup key of a batch: of the first one only, if all are one transaction."""
        if self._dedup_key is None:
            return None
        if self.one_transaction:
            return self._dedup_key if number == 0 else None
        return f"{self._dedup_key}#{number}"

    def _statement(self, texts: list[str], *keys: str) -> Statement[list[int]]:
        options: BatchOptions = {
            "priority": self.priority,
            "delay": self.delay,
            "visible_at": self.visible_at,
            "expires_in": self.expires_in,
            "headers": self._headers or None,
        }
        for name in TEXTS:
            if (value := getattr(self, name)) is not None:
                options[PLURALS[name]] = [value] * len(texts)  # type: ignore[literal-required]
        if keys:
            dedup_keys = [_short(key) for key in keys]
            options |= {"dedup_keys": dedup_keys, "dedup_window": self.dedup_window, "on_conflict": self.on_conflict}
        return verbs.publish_texts(self.queue_name, texts, **options)

    def _check_replaces_one(self, number: int) -> None:
        if self.on_conflict == "replace" and number > 1:
            raise InvalidArgument("on_conflict is 'replace', and there are several messages", "Give a single message.")

    def _log_progress(self, published: Published, when: str) -> None:
        took = time.monotonic() - published.began_at
        self.log.info("published to queue %s %s: %d in %.1f s", self.queue_name, when, published.count, took)

    def _warn_of_duplicates(self, published: Published) -> None:
        number, more, given = published.duplicates, "", getattr(self, "messages", None)
        if self.one_transaction and isinstance(given, list | tuple):
            number = len(given)
        elif self.one_transaction and number == self.batch_size:
            more = " and all that follow"
        self.log.warning(
            "queue %s: not published: %s%s, because an earlier publish, which began with message %s, had the same "
            "dedup_key. %s",
            self.queue_name,
            quantity(number, "message"),
            more,
            published.duplicate_of,
            "This is a retry, or the task was cleared and continues. dedup_key=None publishes in every try."
            if self._key_is_of_task
            else "Give another dedup_key to publish them.",
        )


class PgQueuePublishOperator(PublishTask):
    """Publishes exactly one of `message` and `messages`.

    By default everything is published in one transaction, under a dedup key that is the same for all tries of the task:
    a task that fails has published nothing, and a retry after a success that Airflow did not hear of does not publish
    again. A task that is cleared does. The options of the messages are those of `PublishTask`.

    :param message: one body, any JSON value; the texts in it are templates. What they render to is not stored by
        Airflow, nor shown under Rendered Template. To publish JSON null, give `messages=[None]`.
    :param messages: bodies as a list, or the result of another task that is a list, or a function without parameters
        that returns any iterable, which is read as a stream. They are not templates.
    :param batch_size: messages per round trip.
    :param one_transaction: False commits each batch, so that consumers can begin before the end. A retry, or a task
        that is cleared, continues with the first batch that was not published, so the messages must come in the same
        order.
    """

    template_fields: Sequence[str] = ("message", *PublishTask.template_fields)
    rules: ClassVar[Mapping[str, Rule]] = {**PublishTask.rules, **BATCH_RULES, "message": json_value}
    _takes_arguments: ClassVar[bool] = False

    def __init__(
        self,
        *,
        message: Any = None,
        messages: Messages | None = None,
        batch_size: int = 1000,
        one_transaction: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.message = message
        self.messages = messages
        self.batch_size = batch_size
        self.one_transaction = one_transaction
        self.check_written()

    def check_written(self) -> None:
        """Check the arguments as they were written, and let the task that returns the messages run first."""
        super().check_written()
        if isinstance(self.messages, XComArg) and not getattr(self, "_BaseOperator__from_mapped", False):
            # Airflow sees dependencies in templated fields only, and shows those.
            XComArg.apply_upstream_relationship(self, self.messages)

    def _check_together(self) -> None:
        if (self.message is None) == (self.messages is None):
            raise InvalidArgument(
                f"{'nothing' if self.message is None else 'message and messages'} given",
                "Give one of message and messages; to publish JSON null, messages=[None].",
            )
        if hasattr(self.messages, "operator_class"):
            # A decorated task can be called too, but returns a task instead of messages.
            raise InvalidArgument("messages is a task that is not called. Call it: messages=task().")
        _check_several(self.messages, "messages is")
        if not (self.messages is None or callable(self.messages) or isinstance(self.messages, Iterable | XComArg)):
            raise InvalidArgument(f"messages is {a_type(self.messages)}. Give a list, or use message.")
        if callable(self.messages) and not self._takes_arguments:
            check_call_without(self.messages)
        if isinstance(self.messages, list | tuple):
            self._check_replaces_one(len(self.messages))
        super()._check_together()

    def _take_arguments(self, context: Context) -> None:
        if isinstance(self.messages, XComArg):
            self._check_upstream(self.messages)
            if (found := self.messages.resolve(context)) is None:
                raise InvalidArgument(
                    "messages is None: the other task returned nothing", "Let it return a list, which may be empty."
                )
            self.messages = found
        super()._take_arguments(context)

    def _check_upstream(self, messages: XComArg) -> None:
        """Raise if this task does not wait for the one that returns the messages: Airflow sees no `partial`."""
        if missing := {task.task_id for task, _ in messages.iter_references()} - self.upstream_task_ids:
            raise InvalidArgument(
                f"messages come from {', '.join(sorted(missing))}, and this task does not wait for it",
                "Give messages to expand, or set the dependency with >>.",
            )

    def _batches(self) -> Iterator[list[str]]:
        bodies: Any = [self.message] if self.messages is None else self.messages
        if callable(bodies):
            bodies = bodies()
            _check_several(bodies, "the function of messages returned")
            if not isinstance(bodies, Iterable):
                raise InvalidArgument(f"the function of messages returned {a_type(bodies)}", "Let it return a list.")
        texts = all_to_json(bodies)
        while batch := list(islice(texts, self.batch_size)):
            yield batch


def _check_several(messages: object, what: str) -> None:
    """Raise for one body in the place of several, whose characters or keys would be published."""
    if isinstance(messages, str | bytes | Mapping):
        raise InvalidArgument(f"{what} one {type(messages).__name__}. Give a list, or use message.")


class PgQueuePublishQueryOperator(PublishTask):
    """Publishes the rows of a query, which it reads as a stream.

    It publishes once, and again when it is cleared, as `PgQueuePublishOperator` does. The options of the messages are
    those of `PublishTask`.

    :param sql: a query, or the name of a file with one, which ends in `.sql` and is a template. Each row becomes a
        body: an object with the columns as keys, or if `message` is the only column, its value.
    :param parameters: the parameters of `sql`.
    :param sql_conn_id: the connection on which `sql` runs, to a PostgreSQL; by default that of the queue.
    :param batch_size: messages per round trip.
    :param one_transaction: False commits each batch, so that consumers can begin before the end. A retry, or a task
        that is cleared, continues with the first batch that was not published, so the rows must come in the same
        order.
    """

    template_fields: Sequence[str] = ("sql", "parameters", "sql_conn_id", *PublishTask.template_fields)
    template_fields_renderers = {"sql": "sql", **PublishTask.template_fields_renderers}  # noqa: RUF012 as Airflow has it
    rules: ClassVar[Mapping[str, Rule]] = {
        **PublishTask.rules,
        **BATCH_RULES,
        "sql": text,
        "parameters": optional(some_parameters),
        "sql_conn_id": optional(text),
    }
    _sql_name = "sql"

    def __init__(
        self,
        *,
        sql: str,
        parameters: Sequence[Any] | Mapping[str, Any] | None = None,
        sql_conn_id: str | None = None,
        batch_size: int = 1000,
        one_transaction: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.sql = sql
        self.parameters = parameters
        self.sql_conn_id = sql_conn_id
        self.batch_size = batch_size
        self.one_transaction = one_transaction
        self.check_written()

    def prepare_template(self) -> None:
        """Load the query while the DAG is parsed, if `sql` names a file: a missing file is an error of the DAG."""
        if isinstance(self.sql, str) and names_file(self.sql):
            self._sql_name, self.sql = f"sql {self.sql!r}", text_of_file(self.sql, self.get_template_env())

    def _take_arguments(self, context: Context) -> None:
        if names_file(self.sql):
            # In a mapped task.
            self._sql_name = f"sql {self.sql!r}"
            self.sql = self.render_template(text_of_file(self.sql, self.get_template_env()), context)
        super()._take_arguments(context)

    def _batches(self) -> Iterator[list[str]]:
        conn_id = self.sql_conn_id or self.pgqueue_conn_id
        argument = "sql_conn_id" if self.sql_conn_id else "pgqueue_conn_id"
        return QueryRows(self.sql, self.parameters, conn_id, self._sql_name, argument).batches(self.batch_size)


def _short(key: str) -> str:
    return key if len(key) <= _LONGEST_KEY else hashlib.sha256(key.encode()).hexdigest()


@dataclasses.dataclass(slots=True)
class Published:
    """The messages that a task has published so far."""

    queue_name: str
    count: int = 0
    first_id: int | None = None
    last_id: int | None = None
    ids: list[int] = dataclasses.field(default_factory=list)
    duplicate_of: int | None = None
    duplicates: int = 0
    several: bool = False
    all_ids: list[int] = dataclasses.field(default_factory=list)
    """The first ids, including those of an earlier try, whose messages were not published again."""
    began_at: float = dataclasses.field(default_factory=time.monotonic)

    def add(self, found: list[int]) -> None:
        new = [id_ for id_ in found if not isinstance(id_, Duplicate)]
        old = [int(id_) for id_ in found if isinstance(id_, Duplicate)]
        self.all_ids = [*self.all_ids, *map(int, found)][:FEW]
        self.duplicates += len(old)
        if old and self.duplicate_of is None:
            self.duplicate_of = old[0]
        if new:
            self.count += len(new)
            self.first_id = self.first_id or new[0]
            self.last_id = new[-1]
            self.ids = [*self.ids, *new][:FEW]

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
        return summary | ({"ids": self.ids} if self.count <= FEW else {})
