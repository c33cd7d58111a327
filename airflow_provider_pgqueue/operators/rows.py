"""The rows of a query as the bodies of messages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import psycopg
from airflow.providers.common.compat.sdk import AirflowNotFoundException
from jinja2 import Environment, TemplateNotFound

from airflow_provider_pgqueue.core.errors import ConnectionFailed, InvalidArgument, translate
from airflow_provider_pgqueue.core.query import query
from airflow_provider_pgqueue.hooks.pgqueue import PgQueueHook

_PLACEHOLDERS: Final = "Give one parameter for each %s, or an object for %(name)s; write %% for a percent sign."


@dataclass(frozen=True, slots=True)
class QueryRows:
    """The rows of a query, each a body as JSON text: its columns by name, or the value of the only column `message`.

    Two columns of one name are an InvalidArgument. So is what is wrong with the query, with the SQLSTATE; it quotes no
    row. What another try may fix is a ConnectionFailed.

    `conn_id` is the Airflow connection of the database that runs the query; errors call the query `name`, and
    the argument that the connection came from `argument`.
    """

    sql: str
    parameters: Sequence[Any] | Mapping[str, Any] | None
    conn_id: str
    name: str
    argument: str

    def batches(self, size: int) -> Iterator[list[str]]:
        """Run the query, and yield its rows, so many at a time."""
        # A cursor of the server, so that the rows need not fit into memory; it lives in a transaction.
        with self._connect() as conn, conn.transaction(), self._checked(), conn.cursor("pgqueue_publish") as cursor:
            self._check_columns(conn)
            cursor.execute(self._inside("rows_as_json"), self.parameters)
            while rows := cursor.fetchmany(size):
                yield [text for (text,) in rows]

    def _connect(self) -> psycopg.Connection[Any]:
        try:
            return PgQueueHook(self.conn_id).connect(check=False)
        except AirflowNotFoundException as error:
            raise AirflowNotFoundException(f"{self.argument}: {error}") from error

    def _inside(self, name: str) -> bytes:
        return query(name).decode().replace("%s", self.sql.strip().rstrip(";")).encode()

    def _check_columns(self, conn: psycopg.Connection[Any]) -> None:
        """Raise if two columns have one name, under which an object has only one of them. Reads no row."""
        with conn.cursor("pgqueue_columns") as cursor:
            cursor.execute(self._inside("columns"), self.parameters)
            times = Counter(column.name for column in cursor.description or ())
        if twice := [name for name, number in times.items() if number > 1]:
            raise InvalidArgument(
                f"{self.name} has more than one column {', '.join(map(repr, twice))}",
                "A body would have one of them: name the columns, and give each a name of its own with AS.",
            )

    @contextmanager
    def _checked(self) -> Iterator[None]:
        try:
            yield
        except TypeError as error:
            raise InvalidArgument(f"parameters do not match sql: {error}", _PLACEHOLDERS) from None
        except psycopg.Error as error:
            if isinstance(error, psycopg.ProgrammingError) and error.sqlstate is None:
                # An error of psycopg itself is about the placeholders, and quotes no value.
                raise InvalidArgument(f"parameters do not match sql: {error}", _PLACEHOLDERS) from None
            if isinstance(known := translate(error), ConnectionFailed):
                raise known from error
            state = f"{type(error).__name__}, SQLSTATE {error.sqlstate}" if error.sqlstate else type(error).__name__
            # The text of other errors may quote a value: invalid input syntax for type integer: "…".
            named = (error.diag.message_primary or "").splitlines() if (error.sqlstate or "").startswith("42") else []
            text = f": {named[0]}" if named else ""
            raise InvalidArgument(
                f"{self.name} failed on connection {self.conn_id!r} ({state}){text}",
                "Run the query by hand to see all that the server says.",
            ) from None


def names_file(sql: str) -> bool:
    """Return whether this is the name of a file with a query, and not the query."""
    return sql.endswith(".sql")


def text_of_file(name: str, environment: Environment) -> str:
    """Return the query in a file that a task's templates are searched for; InvalidArgument if there is none."""
    if environment.loader is None:
        raise InvalidArgument(f"sql is {name!r}, and the task is in no DAG", "Give the query itself.")
    try:
        return environment.loader.get_source(environment, name)[0]
    except TemplateNotFound as error:
        raise InvalidArgument(
            f"sql is {name!r}, and there is no such file",
            "Put it next to the file of the DAG, or in its template_searchpath.",
        ) from error
