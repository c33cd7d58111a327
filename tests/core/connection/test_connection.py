"""The sessions that the package opens."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.rows import dict_row

from airflow_provider_pgqueue.core import InvalidArgument, check_version, connect, connect_async
from airflow_provider_pgqueue.core.listener import Listener

Connection = psycopg.Connection[Any]


async def ask(dsn: str, question: str) -> Any:
    async with await connect_async(dsn) as conn:
        return await (await conn.execute(question.encode())).fetchone()


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_a_default_of_the_database_does_not_blind_the_sessions(conn: Connection, dsn: str, level: str) -> None:
    conn.execute(
        sql.SQL("ALTER DATABASE {} SET default_transaction_isolation = {}").format(
            sql.Identifier(conn.info.dbname), level
        )
    )
    question = "SELECT current_setting('transaction_isolation')"
    with psycopg.connect(dsn, autocommit=True) as other:
        assert other.execute(question.encode()).fetchone() == (level,)
    with connect(dsn) as own:
        assert own.execute(question.encode()).fetchone() == ("read committed",)
        with own.transaction():
            assert own.execute(question.encode()).fetchone() == ("read committed",)
    assert asyncio.run(ask(dsn, question)) == ("read committed",)


def test_a_session_that_sees_enough_is_left_as_it_is(dsn: str) -> None:
    question = "SELECT source FROM pg_settings WHERE name = 'default_transaction_isolation'"
    with connect(dsn) as own:
        assert own.execute(question).fetchone() == ("default",)
    assert asyncio.run(ask(dsn, question)) == ("default",)


def test_what_the_connection_string_says_counts_more_than_the_defaults(dsn: str) -> None:
    named = make_conninfo(dsn, application_name="shop", connect_timeout=3)
    question = "SELECT current_setting('application_name')"
    with connect(named) as own:
        assert own.execute(question).fetchone() == ("shop",)
        assert own.info.get_parameters()["connect_timeout"] == "3"
    assert asyncio.run(ask(named, question)) == ("shop",)
    with connect(named, application_name="mine") as own:
        assert own.execute(question).fetchone() == ("mine",)


def test_the_version_of_the_schema_is_read_whatever_rows_the_connection_gives(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True, row_factory=dict_row) as own:
        check_version(own)


@pytest.fixture
def silent_port() -> Iterator[int]:
    """A port that takes connections and never says a word, as a host does whose server hangs."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        yield listening.getsockname()[1]


def test_a_host_that_is_silent_leaves_time_for_the_next(dsn: str, silent_port: int) -> None:
    given = conninfo_to_dict(dsn)
    hosts = {"host": f"127.0.0.1,{given['host']}", "port": f"{silent_port},{given['port']}"}
    looked = asyncio.Event()

    async def look(conn: psycopg.AsyncConnection[Any]) -> None:
        looked.set()

    async def listen() -> None:
        # With as many seconds for each host as a poll has.
        listener = Listener(lambda: connect_async(**(given | hosts), connect_timeout=2), look, deadline=2)
        listening = asyncio.create_task(listener.run())
        async with asyncio.timeout(30):
            await looked.wait()
        listening.cancel()
        await asyncio.wait([listening])

    asyncio.run(listen())


def test_a_server_that_falls_silent_is_noticed_while_something_sent_has_no_answer(dsn: str) -> None:
    with connect(dsn) as own, socket.socket(fileno=os.dup(own.fileno())) as wire:
        assert wire.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 25_000


@pytest.mark.parametrize(
    "wrong",
    [{"sslmode": "sometimes"}, {"service": "nobody_knows"}, {"connect_timeout": "soon"}, {"target_session_attrs": "x"}],
    ids=str,
)
def test_a_connection_that_can_never_be_opened_is_an_invalid_argument(dsn: str, wrong: dict[str, str]) -> None:
    with pytest.raises(InvalidArgument, match=r"no connection can be opened: .+\. Correct it in"):
        connect(dsn, **wrong)
    with pytest.raises(InvalidArgument, match=r"no connection can be opened: .+\. Correct it in"):
        asyncio.run(connect_async(dsn, **wrong))
