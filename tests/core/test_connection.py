"""The sessions that the package opens."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from airflow_provider_pgqueue.core import connect, connect_async

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
