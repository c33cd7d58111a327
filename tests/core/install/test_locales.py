"""The queue is the same in a database of every locale."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from airflow_provider_pgqueue.core import migrate

Connection = psycopg.Connection[Any]

pytestmark = pytest.mark.long


@pytest.fixture
def turkish(dsn: str) -> Iterator[Connection]:
    """A session to a database in which the small letter of I is not i."""
    with psycopg.connect(dsn, autocommit=True) as admin:
        admin.execute(
            "CREATE DATABASE turkish TEMPLATE template0 ENCODING 'UTF8' LOCALE 'C' LOCALE_PROVIDER icu ICU_LOCALE 'tr'"
        )
        try:
            with psycopg.connect(make_conninfo(dsn, dbname="turkish"), autocommit=True) as conn:
                yield conn
        finally:
            admin.execute("DROP DATABASE turkish WITH (FORCE)")


def test_a_cause_is_the_same_in_a_turkish_database(conn: Connection, turkish: Connection) -> None:
    assert turkish.execute("SELECT lower('I') <> 'i'").fetchone() == (True,)
    migrate(turkish)
    pattern = "SELECT messages.error_pattern('INVALID 7', NULL), messages.fingerprint('failed', 'INVALID 7', NULL)"
    assert turkish.execute(pattern).fetchone() == conn.execute(pattern).fetchone()


def test_names_and_topics_are_the_same_in_a_turkish_database(turkish: Connection) -> None:
    migrate(turkish)
    turkish.execute("SELECT messages.create_queue('iii'), messages.bind_topic('iii', 'I.i.#')")
    assert turkish.execute("SELECT count(*) FROM messages.publish_topic('I.i.x', '1')").fetchone() == (1,)
    turkish.execute("SELECT messages.maintain()")
    assert turkish.execute("SELECT FROM messages.health() WHERE finding LIKE 'not checked%'").rowcount == 0
