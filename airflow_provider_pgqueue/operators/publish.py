"""Publishes messages, publishes the rows of a query, and publishes requests and waits for their ends."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Unpack

import psycopg

from airflow_provider_pgqueue.core.argument import WAIT_TIMEOUT, Rule, optional, text
from airflow_provider_pgqueue.core.argument import parameters as some_parameters
from airflow_provider_pgqueue.core.client import run
from airflow_provider_pgqueue.core.duration import Duration
from airflow_provider_pgqueue.core.errors import InvalidArgument
from airflow_provider_pgqueue.tasks.bodies import Messages, PublishesBodies
from airflow_provider_pgqueue.tasks.completion import COMPLETION_RULES, AwaitsMessages
from airflow_provider_pgqueue.tasks.publish import BATCH_RULES, FEW, PublishArguments, PublishTask
from airflow_provider_pgqueue.tasks.rows import QueryRows, names_file, text_of_file

if TYPE_CHECKING:
    from airflow.sdk import Context


class PgQueuePublishOperator(PublishesBodies):
    """Publishes exactly one of `message` and `messages`.

    By default everything is published in one transaction, under a dedup key that is the same for all tries of the task:
    a task that fails has published nothing, and a retry after a success that Airflow did not hear of does not publish
    again. A task that is cleared does. The options of the messages are those of `PublishTask`.

    :param batch_size: messages per round trip.
    :param one_transaction: False commits each batch, so that consumers can begin before the end. A retry, or a task
        that is cleared, continues with the first batch that was not published, so the messages must come in the same
        order.
    """

    rules: ClassVar[Mapping[str, Rule]] = {**PublishesBodies.rules, **BATCH_RULES}

    def __init__(
        self,
        *,
        message: Any = None,
        messages: Messages | None = None,
        batch_size: int = 1000,
        one_transaction: bool = True,
        **kwargs: Unpack[PublishArguments],
    ) -> None:
        super().__init__(**kwargs)
        self.message = message
        self.messages = messages
        self.batch_size = batch_size
        self.one_transaction = one_transaction
        self.check_written()


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
        **kwargs: Unpack[PublishArguments],
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


class PgQueueRequestOperator(AwaitsMessages, PublishesBodies):
    """Publishes at most a hundred messages and ends when they are finished: request and reply.

    The result then also has their `outcomes`. A message that ended as anything but success fails the task, without a
    retry, with its id, result and class of error. The task waits five seconds in the worker, then in the triggerer.
    Another try of the task, or a task that is cleared, publishes nothing, and waits for what an earlier try published;
    a message whose body has changed is a new one. A `PgQueuePublishOperator` that is cleared publishes again; this
    operator does not. The login also needs the role `messages_observer`. The options of the messages are
    those of `PublishTask`.

    :param dedup_key: a key under which each message is published once in `dedup_window`. By default it is made of the
        task, the place of the message and its body, and is the same when the task is cleared. With a key of your own, a
        message whose body has changed is not published either. None publishes in every try.
    :param wait_timeout: fail the task when that takes longer in the triggerer.
    """

    rules: ClassVar[Mapping[str, Rule]] = {
        **PublishesBodies.rules,
        **COMPLETION_RULES,
        "wait_timeout": optional(WAIT_TIMEOUT),
    }
    waits_for = "the ends of its messages in"
    _has_one_key = False  # each message has its own, under which another try finds it
    # For this header the database rings when the message is finished.
    _own_headers: ClassVar[Mapping[str, Any]] = {"awaited": True}

    def __init__(
        self,
        *,
        message: Any = None,
        messages: Messages | None = None,
        wait_timeout: Duration | None = None,
        follow_requeues: bool = False,
        with_output: bool = False,
        poll_interval: Duration = 10.0,
        deferrable: bool = True,
        **kwargs: Unpack[PublishArguments],
    ) -> None:
        super().__init__(**kwargs)
        self.message = message
        self.messages = messages
        self.wait_timeout = wait_timeout
        self.follow_requeues = follow_requeues
        self.with_output = with_output
        self.poll_interval = poll_interval
        self.deferrable = deferrable
        self.check_written()

    def execute(self, context: Context) -> dict[str, Any]:
        """Publish, wait, and return what was published and what became of it."""
        published = self._published(context)
        ids, summary = published.all_ids, published.summary()
        return summary | ({"outcomes": self._outcomes(ids, self.wait_timeout, summary=summary)} if ids else {})

    def execute_complete(
        self,
        context: Context,
        event: Any = None,
        ids: Sequence[int] = (),
        summary: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Return what was published, and what became of it."""
        return {**(summary or {}), "outcomes": self._finished(ids)}

    def _publish(self, conn: psycopg.Connection[Any], texts: list[str], number: int) -> list[int]:
        """Publish each message under its own key."""
        if number or len(texts) > FEW:
            raise InvalidArgument(
                f"more than {FEW} messages to wait for",
                "Nothing was published. Map the task, or count the results of a reference instead.",
            )
        if self._dedup_key is None:
            return super()._publish(conn, texts, number)
        keys = [self._key_of(place, text) for place, text in enumerate(texts)]
        return run(conn, self._statement(texts, *keys))

    def _key_of(self, place: int, text: str) -> str:
        if self._key_is_of_task:
            # With the body: another one is another question, which no earlier try has asked.
            return f"{self._dedup_key}/{place}/{hashlib.sha256(text.encode()).hexdigest()[:16]}"
        return f"{self._dedup_key}/{place}" if place else str(self._dedup_key)
