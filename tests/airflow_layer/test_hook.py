"""The hook: connections of both types, the caller's transaction, errors that say what to do."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

from airflow_provider_pgqueue.core import (
    ConnectionFailed,
    InvalidArgument,
    LeaseLost,
    PermissionDenied,
    QueueNotFound,
    Rejected,
    connect_async,
    verbs,
)
from airflow_provider_pgqueue.core.errors import CronUnavailable, SchemaMissing, SchemaTooNew
from airflow_provider_pgqueue.hooks.pgqueue import PgQueueHook
from tests.waiting import until

Queue = Callable[..., str]
Connect = Callable[..., Any]
HOSTILE = [
    {"jinja": "{{ 7*7 }}{% raw %}"},
    {"__classname__": "builtins.tuple", "__version__": 1, "__data__": [1]},
    {"__type": "datetime", "__var": 0},
    "{{ ti.xcom_pull() }}",
    None,
    [1.5, True, "\u2028", "🐘"],
]


def queued(conn: psycopg.Connection[Any]) -> list[Any]:
    return [body for (body,) in conn.execute("SELECT message FROM messages.message ORDER BY id")]


@pytest.mark.parametrize("conn_type", ["pgqueue", "postgres"])
def test_a_connection_of_either_type_publishes_and_leases(
    dsn: str, airflow_connection: Any, queue: Queue, conn_type: str
) -> None:
    hook = PgQueueHook(airflow_connection(dsn, "some_db", conn_type))
    id_ = hook.publish(queue("orders"), {"n": 1})
    with hook.lease("orders", max_messages=10) as lease:
        assert [(message.id, message.body) for message in lease] == [(id_, {"n": 1})]
    assert hook.run(verbs.status("orders"))[0].depth == 0


def test_a_connection_of_another_type_is_refused_by_name(dsn: str, airflow_connection: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"'other' is of type 'mysql'.*pgqueue or postgres"):
        PgQueueHook(airflow_connection(dsn, "other", "mysql")).run(verbs.status())


def test_a_server_that_is_down_is_a_connection_failure(dsn: str, airflow_connection: Any) -> None:
    hook = PgQueueHook(airflow_connection(dsn, "shop", port=1))
    with pytest.raises(ConnectionFailed, match=r"^Airflow connection 'shop': .*Check the connection"):
        hook.run(verbs.status())


def test_a_publish_on_the_callers_connection_rolls_back_with_it(conn_id: str, queue: Queue, connect: Connect) -> None:
    queue("orders")
    hook, theirs, other = PgQueueHook(conn_id), connect(autocommit=False), connect()
    hook.publish("orders", 1, conn=theirs)
    hook.publish_batch("orders", [2, 3], conn=theirs)
    assert queued(other) == []
    theirs.rollback()
    assert queued(other) == []
    hook.publish("orders", 4, conn=theirs)
    theirs.commit()
    assert queued(other) == [4]


def test_a_consume_on_the_callers_connection_rolls_back_with_it(conn_id: str, queue: Queue, connect: Connect) -> None:
    hook, theirs = PgQueueHook(conn_id), connect(autocommit=False)
    hook.publish(queue("orders"), "work")
    assert [message.body for message in hook.run(verbs.consume("orders"), conn=theirs)] == ["work"]
    theirs.rollback()
    assert [message.body for message in hook.run(verbs.consume("orders"), conn=theirs)] == ["work"]
    theirs.commit()
    assert hook.run(verbs.status("orders"))[0].depth == 0


def test_the_callers_connection_may_give_rows_of_any_kind(conn_id: str, queue: Queue, connect: Connect) -> None:
    theirs = connect(row_factory=dict_row)
    assert PgQueueHook(conn_id).publish(queue("orders"), 1, conn=theirs) > 0
    assert theirs.row_factory is dict_row


def test_the_extra_cursor_does_not_confuse_the_verbs(dsn: str, airflow_connection: Any, queue: Queue) -> None:
    hook = PgQueueHook(airflow_connection(dsn, extra={"cursor": "dictcursor"}))
    assert hook.publish(queue("orders"), 1) > 0
    assert hook.get_records("SELECT count(*) AS n FROM messages.message") == [{"n": 1}]


def test_bodies_come_out_of_the_queue_as_they_went_in(
    conn_id: str, queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    hook = PgQueueHook(conn_id)
    hook.publish_batch(queue("orders"), HOSTILE)
    with hook.lease("orders", max_messages=10) as lease:
        assert [message.body for message in lease] == HOSTILE
    assert "7*7" not in caplog.text
    assert "xcom_pull" not in caplog.text


def test_a_lease_is_archived_at_the_end_of_its_block_and_released_on_an_error(conn_id: str, queue: Queue) -> None:
    hook = PgQueueHook(conn_id)
    hook.publish_batch(queue("orders"), ["good", "bad"])

    def work() -> None:
        with hook.lease("orders", max_messages=2) as lease:
            lease.settle({lease[1]: Rejected("bad")})
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work()
    status = hook.run(verbs.status("orders"))[0]
    assert (status.ready, status.leased, status.dead) == (1, 0, 1)


def test_a_lease_closes_its_connection(conn_id: str, queue: Queue, conn: psycopg.Connection[Any]) -> None:
    hook = PgQueueHook(conn_id)
    hook.publish(queue("orders"), 1)
    with hook.lease("orders"):
        assert _sessions(conn) == 1
    hook.lease("orders")
    until(lambda: not _sessions(conn), what="the server to notice")


def test_an_archive_with_a_token_that_ended_raises_lease_lost(conn_id: str, queue: Queue) -> None:
    hook = PgQueueHook(conn_id)
    hook.publish(queue("orders"), 1)
    with hook.connect() as conn:
        lease = hook.lease("orders", conn=conn)
        token, ids = lease[0].lock_token, [lease[0].id]
        hook.run(verbs.release(token, ids))
        with pytest.raises(LeaseLost):
            hook.archive(token, ids)


def test_a_database_without_the_schema_says_how_to_install_it(empty_dsn: str, airflow_connection: Any) -> None:
    hook = PgQueueHook(airflow_connection(empty_dsn))
    with pytest.raises(SchemaMissing, match=f"^Airflow connection '{hook.get_conn_id()}': .*the setup DAG"):
        hook.publish("orders", 1)
    works, text = hook.test_connection()
    assert not works
    assert "the setup DAG" in text


def test_a_newer_schema_is_refused_before_anything_is_done(
    conn_id: str, queue: Queue, conn: psycopg.Connection[Any]
) -> None:
    queue("orders")
    conn.execute("CREATE OR REPLACE FUNCTION messages.schema_version() RETURNS integer LANGUAGE sql AS 'SELECT 9999'")
    with pytest.raises(SchemaTooNew, match="Upgrade airflow-provider-pgqueue"):
        PgQueueHook(conn_id).publish("orders", 1)


def test_install_makes_an_empty_database_ready_and_twice_does_no_harm(empty_dsn: str, airflow_connection: Any) -> None:
    hook = PgQueueHook(airflow_connection(empty_dsn))
    first = hook.install(["orders", {"queue_name": "mail", "max_attempts": 3, "lease_for": timedelta(minutes=1)}])
    again = hook.install(["orders", {"queue_name": "mail", "max_attempts": 2}])
    assert first["queues_created"] == ["orders", "mail"]
    assert first["migrations_applied"]
    assert (again["queues_created"], again["migrations_applied"]) == ([], [])
    assert first["maintenance_mode"] == again["maintenance_mode"] == "airflow"
    with hook.connect() as conn:
        assert conn.execute("SELECT max_attempts FROM messages.queue WHERE queue_name = 'mail'").fetchone() == (2,)


def test_install_takes_a_text_for_one_queue_and_does_nothing_if_an_argument_is_bad(
    empty_dsn: str, airflow_connection: Any, conn_id: str
) -> None:
    assert PgQueueHook(conn_id).install("orders")["queues_created"] == ["orders"]
    hook = PgQueueHook(airflow_connection(empty_dsn, "empty"))
    with pytest.raises(InvalidArgument, match="queue_nam"):
        hook.install([{"queue_nam": "x"}])
    with psycopg.connect(empty_dsn) as conn:
        assert conn.execute("SELECT to_regnamespace('messages')").fetchone() == (None,)


def test_install_names_the_queue_whose_policy_it_cannot_read(conn_id: str) -> None:
    with pytest.raises(
        InvalidArgument, match=r"^queue 'mail': lease_for: .*.5 minuts.*Give a duration such as '5 minutes'"
    ):
        PgQueueHook(conn_id).install(["orders", {"queue_name": "mail", "lease_for": "5 minuts"}])


def test_install_grants_group_roles_and_queues_to_users(empty_dsn: str, airflow_connection: Any) -> None:
    hook = PgQueueHook(airflow_connection(empty_dsn))
    with psycopg.connect(empty_dsn, autocommit=True) as conn:
        try:
            conn.execute("CREATE ROLE hook_shop LOGIN; CREATE ROLE hook_packer LOGIN")
            for _ in range(2):
                hook.install(
                    ["orders", "bills"],
                    roles=True,
                    grants={"publisher": ["hook_shop"]},
                    queue_grants={"orders": {"consume": "hook_packer"}},
                )
            with psycopg.connect(empty_dsn, user="hook_shop", autocommit=True) as shop:
                hook.publish("orders", 1, conn=shop)
                with pytest.raises(PermissionDenied, match="lease"):
                    hook.lease("orders", conn=shop)
            with psycopg.connect(empty_dsn, user="hook_packer", autocommit=True) as packer:
                assert [one.queue_name for one in hook.run(verbs.status(), conn=packer)] == ["orders"]
            assert hook.run(verbs.revoke_queue("orders", "hook_packer")) == 1
            with pytest.raises(InvalidArgument, match="Give one of publisher"):
                hook.install(grants={"boss": ["hook_shop"]})
        finally:
            conn.execute("DROP ROLE IF EXISTS hook_shop, hook_packer")


def test_install_without_roles_leaves_the_schema_to_its_user(empty_dsn: str, airflow_connection: Any) -> None:
    hook = PgQueueHook(airflow_connection(empty_dsn))
    hook.install(roles=False)
    with hook.connect() as conn:
        owner = conn.execute("SELECT nspowner::regrole::text FROM pg_namespace WHERE nspname = 'messages'").fetchone()
    assert owner == ("postgres",)


def test_install_that_insists_on_pg_cron_says_what_is_missing(conn_id: str) -> None:
    # With pg_cron it lives in another database, without it is not loaded: either way it is not here.
    with pytest.raises(CronUnavailable, match="pg_cron"):
        PgQueueHook(conn_id).install(cron=True)


@pytest.mark.cron
def test_install_gives_maintenance_to_pg_cron_where_there_is_one(cron_dsn: str, airflow_connection: Any) -> None:
    hook = PgQueueHook(airflow_connection(cron_dsn))
    assert hook.install()["maintenance_mode"] == "pg_cron"
    assert "maintenance by pg_cron" in hook.test_connection()[1]
    assert hook.install(cron=False)["maintenance_mode"] == "airflow"


def test_test_connection_says_the_version_and_who_runs_maintenance(conn_id: str) -> None:
    works, text = PgQueueHook(conn_id).test_connection()
    assert works
    assert text.startswith("Connected. Schema messages has version")
    assert text.endswith("maintenance by airflow.")


def test_an_unknown_queue_is_named_and_the_connection_stays_usable(conn_id: str) -> None:
    hook = PgQueueHook(conn_id)
    with hook.connect() as conn:
        with pytest.raises(QueueNotFound, match="nowhere"):
            hook.publish("nowhere", 1, conn=conn)
        assert hook.run(verbs.maintenance_mode(), conn=conn) == "airflow"


def test_sessions_are_named_after_the_task(
    conn_id: str, conn: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CTX_DAG_ID", "orders")
    monkeypatch.setenv("AIRFLOW_CTX_TASK_ID", "é" * 100)
    with PgQueueHook(conn_id).connect() as own:
        name = own.execute("SHOW application_name").fetchone()
    assert name is not None
    assert name[0].startswith("pgqueue:orders.")


def test_the_arguments_keep_extras_of_postgres_and_drop_ours(dsn: str, airflow_connection: Any) -> None:
    conn_id = airflow_connection(
        dsn, extra={"listen_conn_id": "direct", "sslmode": "prefer", "application_name": "mine", "cursor": "dictcursor"}
    )
    arguments = PgQueueHook(conn_id).connection_arguments()
    assert arguments["sslmode"] == "prefer"
    assert arguments["application_name"] == "mine"
    assert not {"listen_conn_id", "cursor", "row_factory"} & set(arguments)


def test_who_listens_uses_the_direct_connection(dsn: str, airflow_connection: Any) -> None:
    airflow_connection(dsn, "direct")
    conn_id = airflow_connection(dsn, "pooled", port=1, extra={"listen_conn_id": "direct"})

    async def name() -> Any:
        async with await connect_async(**await PgQueueHook(conn_id).alisten_arguments()) as conn:
            return await (await conn.execute("SHOW application_name")).fetchone()

    assert asyncio.run(name()) == ("pgqueue:listener",)


def _sessions(conn: psycopg.Connection[Any]) -> int:
    row = conn.execute(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        " AND application_name LIKE 'pgqueue%'"
    ).fetchone()
    assert row
    return int(row[0])
