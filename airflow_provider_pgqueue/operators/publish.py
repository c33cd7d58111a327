"""Publishes messages: one, many, or the rows of a query."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from datetime import timedelta
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from airflow.providers.common.compat.sdk import BaseOperator

from airflow_provider_pgqueue.core import statements
from airflow_provider_pgqueue.core.body import to_json
from airflow_provider_pgqueue.core.client import run
from airflow_provider_pgqueue.core.errors import InvalidArgument
from airflow_provider_pgqueue.core.statements import Statement
from airflow_provider_pgqueue.hooks.pgqueue import PgQueueHook
from airflow_provider_pgqueue.operators.progress import Progress

if TYPE_CHECKING:
    from airflow.sdk import Context

_FEW: Final = 100
# The database makes the JSON, so that dates, numbers of any precision and UUIDs need no conversion here.
_ROWS_AS_JSON: Final = """
SELECT (CASE WHEN body ? 'message' AND body - 'message' = '{}' THEN body -> 'message' ELSE body END)::text
  FROM (SELECT to_jsonb(source) AS body FROM (
%s
) AS source) AS bodies
"""


class PgQueuePublishOperator(BaseOperator):
    """Publishes exactly one of `message`, `messages` and the rows of `sql`, one round trip per batch.

    By default all of it is one transaction: a task that fails has published nothing, so that its retry publishes
    nothing twice. The result is `{"queue_name", "published", "first_id", "last_id"}`, and with at most a hundred
    messages their `ids` too. Bodies are neither logged nor put into XCom.

    :param queue_name: the queue to publish to.
    :param message: one body: what JSON can say; its texts are templates. To publish JSON null, give `messages=[None]`.
    :param messages: bodies as a list, or a function without parameters that returns any iterable, which is read as a
        stream. They are not templates: they pass as they are.
    :param sql: a query; each row is a body, as an object with the columns as keys. If `message` is its only column, the
        value of that is the body.
    :param parameters: the parameters of `sql`.
    :param sql_conn_id: where `sql` runs, a PostgreSQL; by default on the database of the queue.
    :param batch_size: messages per round trip.
    :param one_transaction: False commits each batch, so that consumers can begin before the end; then a retry
        publishes again what the failed attempt had published.
    :param priority: from -100 to 100; higher is leased first.
    :param delay: make the messages ready only after this time.
    :param expires_in: archive the messages as `expired` if nobody handled them by then.
    :param headers: an object that is kept beside each body.
    :param reference: a text of yours to find the messages by.
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
        "pgqueue_conn_id",
        "sql_conn_id",
    )
    template_fields_renderers = {"sql": "sql", "message": "json", "headers": "json"}  # noqa: RUF012 as Airflow has it
    ui_color = "#e4f0e4"

    def __init__(
        self,
        *,
        queue_name: str,
        message: Any = None,
        messages: Iterable[Any] | Callable[[], Iterable[Any]] | None = None,
        sql: str | None = None,
        parameters: Sequence[Any] | Mapping[str, Any] | None = None,
        sql_conn_id: str | None = None,
        batch_size: int = 1000,
        one_transaction: bool = True,
        priority: int = 0,
        delay: timedelta = timedelta(0),
        expires_in: timedelta | None = None,
        headers: Mapping[str, Any] | None = None,
        reference: str | None = None,
        pgqueue_conn_id: str = PgQueueHook.default_conn_name,
        **kwargs: Any,
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
        self.expires_in = expires_in
        self.headers = headers
        self.reference = reference
        self.pgqueue_conn_id = pgqueue_conn_id

    def execute(self, context: Context) -> dict[str, Any]:
        """Publish, and return how many and their ids."""
        self._check()
        published = _Published(self.queue_name)
        progress = Progress(self.log.info, f"published to queue {self.queue_name}")
        in_one = self.one_transaction
        with PgQueueHook(self.pgqueue_conn_id).connect() as conn, conn.transaction() if in_one else nullcontext():
            for batch in self._batches():
                published.add(run(conn, self._statement(batch)))
                progress.at(published.count)
        progress.end(published.count)
        return published.summary()

    def _check(self) -> None:
        given = [name for name in ("message", "messages", "sql") if getattr(self, name) is not None]
        if len(given) != 1:
            raise InvalidArgument(f"{' and '.join(given) or 'nothing'} given. Give one of message, messages and sql.")
        if isinstance(self.messages, str | bytes | Mapping):
            raise InvalidArgument(f"messages is one {type(self.messages).__name__}. Give a list, or use message.")
        if self.batch_size < 1:
            raise InvalidArgument(f"batch_size is {self.batch_size}. Give at least 1.")

    def _batches(self) -> Iterator[list[str]]:
        """Yield bodies as JSON texts, a batch at a time."""
        if self.sql is not None:
            yield from self._rows(self.sql)
            return
        bodies = [self.message] if self.messages is None else self.messages
        texts = map(to_json, bodies() if callable(bodies) else bodies)
        while batch := list(islice(texts, self.batch_size)):
            yield batch

    def _rows(self, sql: str) -> Iterator[list[str]]:
        source = PgQueueHook(self.sql_conn_id or self.pgqueue_conn_id)
        query = _ROWS_AS_JSON % sql.strip().rstrip(";")
        with source.connect(check=False) as conn, conn.transaction(), conn.cursor("pgqueue_publish") as cursor:
            cursor.execute(query.encode(), self.parameters)
            while rows := cursor.fetchmany(self.batch_size):
                yield [text for (text,) in rows]

    def _statement(self, texts: list[str]) -> Statement[list[int]]:
        statement = statements.publish_batch(
            self.queue_name,
            [None],
            priority=self.message_priority,
            delay=self.delay,
            expires_in=self.expires_in,
            headers=self.headers,
            references=None if self.reference is None else [self.reference] * len(texts),
        )
        # The bodies are JSON already.
        return dataclasses.replace(statement, arguments={**statement.arguments, "messages": f"[{','.join(texts)}]"})


@dataclasses.dataclass(slots=True)
class _Published:
    queue_name: str
    count: int = 0
    first_id: int | None = None
    last_id: int | None = None
    ids: list[int] = dataclasses.field(default_factory=list)

    def add(self, ids: list[int]) -> None:
        self.count += len(ids)
        self.first_id = self.first_id or ids[0]
        self.last_id = ids[-1]
        self.ids += ids[: max(0, _FEW + 1 - len(self.ids))]

    def summary(self) -> dict[str, Any]:
        summary = {
            "queue_name": self.queue_name,
            "published": self.count,
            "first_id": self.first_id,
            "last_id": self.last_id,
        }
        return summary | ({"ids": self.ids} if self.count <= _FEW else {})
