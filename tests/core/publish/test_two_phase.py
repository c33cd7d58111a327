"""A publish in a transaction that is prepared, as transaction managers do: what PostgreSQL refuses, and what works."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from airflow_provider_pgqueue.core import migrate, run, verbs
from tools.postgres import Cluster

Connection = psycopg.Connection[Any]

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def dsn(another_cluster: Callable[..., Cluster]) -> str:
    cluster = another_cluster("prepared")
    dsn = cluster.create_database("prepared")
    with psycopg.connect(dsn, autocommit=True) as conn:
        migrate(conn)
        conn.execute("ALTER SYSTEM SET max_prepared_transactions = 5")
    cluster.restart()
    return dsn


@pytest.mark.parametrize("notify", ["always", "gated"])
def test_a_transaction_that_notified_is_not_prepared(dsn: str, notify: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as conn:
        run(conn, verbs.create_queue(notify, notify=notify))
        conn.execute("BEGIN")
        run(conn, verbs.publish(notify, 1))
        with pytest.raises(psycopg.errors.FeatureNotSupported, match="cannot PREPARE a transaction that has executed"):
            conn.execute("PREPARE TRANSACTION 'order 7'")


def test_without_notify_a_publish_is_prepared_and_arrives_with_its_commit(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as conn:
        run(conn, verbs.create_queue("orders", notify="off"))
        conn.execute("BEGIN")
        run(conn, verbs.publish("orders", 1))
        conn.execute("PREPARE TRANSACTION 'order 7'")
        assert run(conn, verbs.lease("orders")) == []
        conn.execute("COMMIT PREPARED 'order 7'")
        assert [message.body for message in run(conn, verbs.lease("orders"))] == [1]
