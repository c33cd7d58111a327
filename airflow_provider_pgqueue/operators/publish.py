"""Publishes messages, and publishes the rows of a query."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Unpack

from airflow_provider_pgqueue.core.argument import Rule, optional, text
from airflow_provider_pgqueue.core.argument import parameters as some_parameters
from airflow_provider_pgqueue.tasks.bodies import Messages, PublishesBodies
from airflow_provider_pgqueue.tasks.publish import BATCH_RULES, PublishArguments, PublishTask
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
