"""No test finds what another one wrote."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from tests.clones import Clones
from tests.conftest import LEFT_BEHIND
from tools.postgres import Cluster

WRITES = [
    "SELECT messages.create_queue('orders')",
    "BEGIN; SELECT messages.publish('default', '1'); ROLLBACK",
    "CREATE TABLE mine ()",
    "ALTER DATABASE {name} SET timezone = 'Asia/Tokyo'",
    "SELECT nextval('messages.message_id_seq') FROM generate_series(1, 40)",
]


def use(cluster: Cluster, clones: Clones, statement: str) -> str:
    with clones.one() as name, psycopg.connect(cluster.dsn(name), autocommit=True) as conn:
        conn.execute(statement.format(name=name).encode())
    return name


@pytest.mark.parametrize("statement", ["SELECT messages.maintenance_mode()", "SELECT count(*) FROM messages.message"])
def test_a_database_that_was_only_read_serves_again(cluster: Cluster, clones: Clones, statement: str) -> None:
    assert use(cluster, clones, statement) == use(cluster, clones, statement)


@pytest.mark.parametrize("statement", WRITES)
def test_a_database_that_somebody_wrote_to_is_dropped(cluster: Cluster, clones: Clones, statement: str) -> None:
    used = use(cluster, clones, statement)
    assert use(cluster, clones, "SELECT 1") != used
    assert not cluster.has_database(used)


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT messages.publish('orders', '1')",
        "SELECT messages.publish('orders', '1'); SELECT messages.consume('orders')",
        "SELECT messages.create_queue('others')",
        "SELECT messages.alter_queue('orders', paused => true)",
    ],
)
def test_what_a_test_leaves_in_a_shared_database_is_found(shared: psycopg.Connection[Any], statement: str) -> None:
    with shared.transaction(force_rollback=True):
        shared.execute(statement.encode())
        assert shared.execute(LEFT_BEHIND).rowcount > 0
    assert shared.execute(LEFT_BEHIND).rowcount == 0


def test_a_session_that_a_test_left_behind_is_ended(cluster: Cluster, clones: Clones) -> None:
    with clones.one() as name:
        left: psycopg.Connection[Any] = psycopg.connect(cluster.dsn(name))
    with pytest.raises(psycopg.OperationalError), left:
        left.execute("SELECT 1")
