"""Publishes messages, and publishes the rows of a query."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.providers.common.compat.sdk import XComArg

from airflow_provider_pgqueue.core.argument import Rule, a_type, json_value, optional, text
from airflow_provider_pgqueue.core.argument import parameters as some_parameters
from airflow_provider_pgqueue.core.errors import InvalidArgument
from airflow_provider_pgqueue.core.function import check_call_without
from airflow_provider_pgqueue.core.json_text import all_to_json
from airflow_provider_pgqueue.tasks.publish import BATCH_RULES, PublishTask
from airflow_provider_pgqueue.tasks.rows import QueryRows, names_file, text_of_file

if TYPE_CHECKING:
    from airflow.sdk import Context

Messages = Iterable[Any] | Callable[[], Iterable[Any]] | XComArg


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
            # It can be called, and would then return no messages but a task.
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
