"""A staging table is written by the login of its job alone, and holds up nobody who leaves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from tests.waiting import until_waiting

Connection = psycopg.Connection[Any]
Connect = Callable[..., Connection]
ROW = "INSERT INTO {} (attempt, ordinal, message) VALUES (1, 0, '1')"


@pytest.fixture(autouse=True)
def logins(conn: Connection) -> Iterator[None]:
    conn.execute("CREATE ROLE bob LOGIN; CREATE ROLE ann LOGIN IN ROLE messages_publisher")
    conn.execute("CREATE ROLE root LOGIN IN ROLE messages_admin")
    conn.execute("SELECT messages.create_queue('orders'), messages.grant_queue('orders', 'bob', 'publish')")
    yield
    conn.execute("DROP ROLE IF EXISTS bob, ann, root")


def stage(session: Connection) -> str:
    ((name,),) = session.execute("SELECT messages.stage_publish('job', 'orders')").fetchall()
    session.execute(ROW.format(name).encode())
    return str(name)


@pytest.mark.parametrize("user", ["bob", "ann", "root"])
def test_a_login_that_staged_a_publish_is_dropped_like_any_other(conn: Connection, connect: Connect, user: str) -> None:
    stage(connect(user=user))
    conn.execute(f"DROP ROLE {user}".encode())
    assert conn.execute("SELECT FROM messages.health() WHERE check_name = 'grants' AND severity = 'ok'").rowcount == 1


def test_no_other_login_writes_to_a_stage(conn: Connection, connect: Connect) -> None:
    ann = connect(user="ann")
    name = stage(ann)
    for other in (connect(user="bob"), connect(user="root")):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            other.execute(ROW.format(name).encode())
    refused = pytest.raises(psycopg.errors.InsufficientPrivilege, match="belongs to another login")
    columns = f"COPY {name} (attempt, ordinal, message) FROM STDIN".encode()
    with refused, connect(user="bob").cursor().copy(columns) as copy:
        copy.write_row((2, 0, "2"))
    ann.execute(ROW.format(name).encode())


def test_a_run_is_not_done_where_its_queue_was_dropped_meanwhile(conn: Connection, connect: Connect) -> None:
    ((table,),) = conn.execute("SELECT messages.stage_publish('a stage', 'orders')")
    keyed = "INSERT INTO {} (attempt, ordinal, message, dedup_key) VALUES (1, 0, '7', 'k')"
    conn.execute(keyed.format(table).encode())
    publisher, dropper = connect(), connect(autocommit=False)
    dropper.execute(
        "LOCK TABLE messages.dedup IN ACCESS EXCLUSIVE MODE"
    )  # the publisher waits after its check of the queue
    with ThreadPoolExecutor(1) as pool:
        winners = '[{"partition": 0, "attempt": 1, "rows": 1}]'
        publish = "SELECT messages.publish_staged('a stage', 'a run', %s, 'orders')"
        waits = pool.submit(publisher.execute, publish, [winners])
        until_waiting(conn)
        dropper.execute("SELECT messages.drop_queue('orders')")
        dropper.commit()
        with pytest.raises(psycopg.Error, match="queue 'orders' does not exist"):
            waits.result(timeout=20)
