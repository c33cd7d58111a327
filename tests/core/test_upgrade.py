"""From the version before: online, with the workers of both versions side by side."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

from airflow_provider_pgqueue.core import migrations, verbs
from airflow_provider_pgqueue.core.client import run
from airflow_provider_pgqueue.core.consumer import Consumer
from tools.golden import GOLDEN, describe

Connection = psycopg.Connection[Any]
Counts = defaultdict[str, list[int]]
OLD = Path(__file__).with_name("schema_of_version_1.sql")
# The fields of version 1's Message, which takes no others.
FIELDS = {
    "id",
    "queue_name",
    "message",
    "headers",
    "reference",
    "priority",
    "attempts",
    "max_attempts",
    "requeues",
    "created_at",
    "lock_token",
    "lock_expires_at",
}


@pytest.fixture
def old_dsn(empty_dsn: str) -> str:
    """A database with the schema of version 1 and a queue."""
    with psycopg.connect(empty_dsn, autocommit=True) as conn:
        conn.execute(OLD.read_bytes())
        conn.execute("SELECT messages.create_queue('orders')")
    return empty_dsn


@pytest.fixture
def old(old_dsn: str) -> Iterator[Connection]:
    with psycopg.connect(old_dsn, autocommit=True) as conn:
        yield conn


def old_worker(dsn: str, until: Callable[[], bool], counts: Counts) -> None:
    """Lease and archive as version 1 does, statement for statement, prepared ones too."""
    with psycopg.connect(dsn, autocommit=True, row_factory=dict_row) as conn:
        row = conn.execute("SELECT messages.schema_version() AS version").fetchone()
        assert row is not None
        assert row["version"] <= 1
        while not until():
            leased = conn.execute(
                'SELECT * FROM messages.lease("queue_name" => %s, "max_messages" => %s, "lease_for" => %s)',
                ["orders", 5, "1 minute"],
            ).fetchall()
            if not leased:
                time.sleep(0.01)
                continue
            assert set(leased[0]) == FIELDS
            ids = [message["id"] for message in leased]
            done = conn.execute(
                'SELECT * FROM messages.archive("lock_token" => %s, "ids" => %s::bigint[], "result" => %s)',
                [leased[0]["lock_token"], ids, "success"],
            ).fetchall()
            assert len(done) == len(ids)
            counts["old"].extend(ids)


def new_worker(dsn: str, until: Callable[[], bool], counts: Counts) -> None:
    with psycopg.connect(dsn, autocommit=True) as conn:
        while not until():
            done = Consumer(queue_name="orders", batch_size=5, handle=lambda message: None).drain(conn)
            counts["new"].extend(range(done.total()))


def test_an_upgrade_under_load_loses_nothing_and_workers_of_both_versions_go_on(old_dsn: str, old: Connection) -> None:
    counts: Counts = defaultdict(list)  # several threads may lengthen a list at once, but not add to a number
    failures: list[BaseException] = []
    finished = threading.Event()

    def guarded(work: Callable[..., None]) -> None:
        try:
            work(old_dsn, finished.is_set, counts)
        except BaseException as error:
            failures.append(error)

    def publish(dsn: str, until: Callable[[], bool], counts: Counts) -> None:
        with psycopg.connect(dsn, autocommit=True) as conn:
            while not until():
                conn.execute(
                    'SELECT * FROM messages.publish("queue_name" => %s, "message" => %s::jsonb)', ["orders", "1"]
                )
                counts["published"].append(1)

    def start(*works: Callable[..., None]) -> list[threading.Thread]:
        threads = [threading.Thread(target=guarded, args=[work]) for work in works]
        for thread in threads:
            thread.start()
        return threads

    def wait_for(name: str, more: int) -> None:
        enough, deadline = len(counts[name]) + more, time.monotonic() + 60
        while len(counts[name]) < enough and not failures:
            assert time.monotonic() < deadline
            time.sleep(0.01)

    threads = start(publish, old_worker, old_worker)
    wait_for("old", 100)
    with psycopg.connect(old_dsn, autocommit=True) as conn:
        assert migrations.migrate(conn) == list(range(2, migrations.code_version() + 1))
    threads += start(new_worker, publish)
    wait_for("new", 200)
    wait_for("old", 200)
    finished.set()
    for thread in threads:
        thread.join()
    assert failures == []
    published, deadline = len(counts["published"]), time.monotonic() + 60
    # What came behind the low-water mark waits for a sweep: docs/decisions/0002-low-water-in-sequences.md
    while len(counts["old"]) + len(counts["new"]) < published and time.monotonic() < deadline:
        new_worker(old_dsn, iter([False, True]).__next__, counts)
    assert len(counts["old"]) + len(counts["new"]) == published
    row = old.execute(
        "SELECT count(*), count(DISTINCT id), min(result), max(result) FROM messages.message_archive"
    ).fetchone()
    assert row == (published, published, "success", "success")


def test_what_was_leased_before_the_upgrade_is_archived_after_it(old: Connection) -> None:
    old.execute("SELECT messages.publish('orders', '1')")
    row = old.execute("SELECT id, lock_token FROM messages.lease('orders')").fetchone()
    assert row is not None
    migrations.migrate(old)
    assert run(old, verbs.archive(row[1], [row[0]])) == [row[0]]


def test_an_upgraded_schema_is_the_same_as_a_fresh_one_and_as_the_one_under_review(
    old: Connection, conn: Connection
) -> None:
    migrations.migrate(old)
    # What calls under way may still need goes an hour later.
    assert "superseded_lease" in describe(old)
    old.execute("UPDATE messages.schema_migration SET applied_at = applied_at - interval '61 minutes'")
    migrations.migrate(old)
    upgraded = describe(old)
    assert upgraded == describe(conn)
    assert upgraded == GOLDEN.read_text(), "the schema changed: look at it with `make golden`"


def test_a_grant_by_hand_outlives_the_upgrade(old: Connection) -> None:
    old.execute(
        "DO $$ BEGIN CREATE ROLE test_shop NOLOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$;"
        "GRANT EXECUTE ON FUNCTION messages.publish TO test_shop"
    )
    try:
        migrations.migrate(old)
        row = old.execute(
            "SELECT has_function_privilege('test_shop', oid, 'EXECUTE') FROM pg_proc WHERE proname = 'publish'"
        ).fetchone()
        assert row == (True,)
    finally:
        old.execute("DROP OWNED BY test_shop; DROP ROLE test_shop")
