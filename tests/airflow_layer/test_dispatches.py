"""Dispatches whose dispatcher died, and dispatchers with very many, where Airflow's supervisor answers."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from airflow_provider_pgqueue.core import run as run_verb
from airflow_provider_pgqueue.core import verbs
from airflow_provider_pgqueue.core.message import Dispatch
from airflow_provider_pgqueue.core.tuning import TUNING
from airflow_provider_pgqueue.dispatch import dispatch, get_messages, listener, runs
from airflow_provider_pgqueue.operators.dispatch import PgQueueDispatchOperator, PgQueueReconcileOperator
from tests.airflow_layer.secrets import Vault
from tests.airflow_layer.supervisor import Supervisor
from tests.waiting import PATIENCE, until_leases_expire

Connection = psycopg.Connection[Any]
Queue = Callable[..., str]
Run = Callable[..., Any]


@pytest.fixture
def supervisor(monkeypatch: pytest.MonkeyPatch) -> Supervisor:
    from airflow.sdk.execution_time import task_runner

    supervisor = Supervisor()
    monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", supervisor, raising=False)
    return supervisor


def open_one(conn: Connection, queue_name: str = "orders", dag_id: str = "pack", **options: Any) -> Dispatch:
    """Open a dispatch, as a dispatcher does that dies before it starts the run."""
    run_verb(conn, verbs.publish(queue_name, 1))
    (one,) = run_verb(conn, verbs.dispatch_messages(queue_name, dag_id, **options))
    return one


def ended(conn: Connection) -> list[str | None]:
    return [result for (result,) in conn.execute("SELECT result FROM messages.dispatch ORDER BY dispatch_id")]


def dispatcher(**options: Any) -> PgQueueDispatchOperator:
    return PgQueueDispatchOperator(
        task_id="dispatch", queue_name="orders", trigger_dag_id="pack", **{"wait_for_messages": False, **options}
    )


def reconciler(**options: Any) -> PgQueueReconcileOperator:
    return PgQueueReconcileOperator(task_id="reconcile", **options)


@pytest.mark.parametrize("state", ["running", "failed", None])
def test_the_states_of_ten_thousand_runs_are_asked_in_lines_that_a_proxy_takes(
    supervisor: Supervisor, state: str | None
) -> None:
    run_ids = [f"pgqueue__orders_of_the_shop__{n}__1" for n in range(10_000)]
    if state:
        supervisor.runs = dict.fromkeys(run_ids, state)
    assert runs.states_of("pack", run_ids) == supervisor.runs
    assert max(supervisor.lines) < 8_000
    assert len(supervisor.lines) < 600


def test_the_states_of_a_hundred_runs_under_way_are_two_questions_at_most(supervisor: Supervisor) -> None:
    supervisor.runs = {f"pgqueue__orders__{n}__1": "running" for n in range(100)}
    assert runs.states_of("pack", list(supervisor.runs)) == supervisor.runs
    assert len(supervisor.lines) <= 2


def test_the_states_of_runs_in_several_states_are_those_of_airflow(supervisor: Supervisor) -> None:
    supervisor.runs = {"a": "running", "b": "queued", "c": "success", "d": "failed"}
    assert runs.states_of("pack", ["a", "gone", "b", "c", "d"]) == supervisor.runs
    supervisor.in_process = True
    assert runs.states_of("pack", ["gone", "d", "a"]) == {"d": "failed", "a": "running"}


def test_a_reconciliation_names_a_mapped_task_once_and_no_run(
    conn_id: str, conn: Connection, queue: Queue, run: Run, supervisor: Supervisor
) -> None:
    """The cause of what dies is then the same that the listener gives it."""
    queue("orders", max_attempts=1)
    one = open_one(conn)
    supervisor.runs[one.run_id] = "failed"
    supervisor.tasks = {("pack", 0): "success", ("pack", 1): "failed", ("pack", 2): "failed", ("load_7", -1): "failed"}
    assert run(reconciler()) == {"failed": 1}
    died = conn.execute("SELECT details, handled_by FROM messages.message_archive").fetchone()
    assert died == ("DAG pack failed: load_7, pack", f"pack/{one.run_id}")


@pytest.mark.airflow_since("3.2")
@pytest.mark.parametrize("in_process", [False, True], ids=["in a worker", "in dag.test()"])
def test_a_dispatcher_of_a_dag_that_is_gone_ends_what_was_not_started(
    conn_id: str, conn: Connection, queue: Queue, run: Run, supervisor: Supervisor, in_process: bool
) -> None:
    supervisor.in_process = in_process
    queue("orders")
    open_one(conn)
    supervisor.no_dags.add("pack")
    with pytest.raises(runs.RunRefused, match=r"there is no DAG 'pack'.*look at the import errors"):
        run(dispatcher())
    assert ended(conn) == ["refused"]
    (message,) = run_verb(conn, verbs.lease("orders"))
    assert message.attempts == 1


@pytest.mark.parametrize(
    ("reason", "text", "fix"),
    [
        ("value_error", "Invalid input for param shop: 'shop' is a required property", "Give the dispatcher a conf"),
        ("denied_run_type", "Dag 'pack' does not allow operator-triggered runs", "allowed_run_types"),
        ("import_errors", "Dag 'pack' has import errors and cannot be triggered", "Fix the import errors"),
    ],
)
def test_a_refused_run_says_the_fix_for_the_reason(
    conn_id: str, conn: Connection, queue: Queue, run: Run, supervisor: Supervisor, reason: str, text: str, fix: str
) -> None:
    queue("orders")
    run_verb(conn, verbs.publish("orders", 1))
    supervisor.refuses = {"reason": reason, "message": text}
    with pytest.raises(runs.RunRefused) as refused:
        run(dispatcher())
    assert text in str(refused.value)
    assert fix in str(refused.value)
    assert "trigger_dag_id" not in str(refused.value)


@pytest.mark.airflow_since("3.2")
def test_a_reconciliation_ends_what_was_not_started_for_a_dag_that_is_gone(
    conn_id: str, conn: Connection, queue: Queue, run: Run, supervisor: Supervisor
) -> None:
    queue("orders")
    open_one(conn, dag_id="gone")
    open_one(conn)
    supervisor.no_dags.add("gone")
    assert run(reconciler()) == {"refused": 1, "unstarted": 1}
    assert ended(conn) == ["refused", None]


def test_a_reconciliation_fixes_what_health_says_of_runs_that_nobody_starts(
    conn_id: str, conn: Connection, queue: Queue, run: Run, supervisor: Supervisor
) -> None:
    def health() -> str:
        return next(one.severity for one in run_verb(conn, verbs.health()) if one.check_name == "dispatches")

    queue("orders")
    open_one(conn, dag_id="renamed")
    assert run(reconciler()) == {"unstarted": 1}
    conn.execute("UPDATE messages.dispatch SET opened_at = clock_timestamp() - interval '7 hours'")
    assert health() == "critical"
    assert run(reconciler()) == {"lost": 1}
    assert health() == "ok"


def test_a_run_that_was_not_started_while_it_had_its_message_is_not_started_later(
    conn_id: str, conn: Connection, queue: Queue, run: Run, supervisor: Supervisor
) -> None:
    queue("orders")
    late = open_one(conn, lease_for=timedelta(milliseconds=1))
    until_leases_expire(conn)
    assert run(dispatcher()) == {"lost": 1, "started": 1}
    assert supervisor.started == [f"pgqueue__orders__{late.ids[0]}__2"]
    assert ended(conn) == ["lost", None]


def test_a_run_that_is_started_later_has_its_whole_lease(
    conn_id: str, conn: Connection, queue: Queue, run: Run, supervisor: Supervisor
) -> None:
    queue("orders")
    one = open_one(conn)
    conn.execute("UPDATE messages.message SET lock_expires_at = clock_timestamp() + interval '1 minute'")
    assert run(dispatcher()) == {"started": 1}
    assert supervisor.started == [one.run_id]
    left = conn.execute("SELECT lock_expires_at - clock_timestamp() > '5 hours' FROM messages.message").fetchone()
    assert left == (True,)


def test_a_dispatcher_with_a_long_backlog_renews_the_leases_of_what_it_started_and_of_what_it_starts_next(
    conn_id: str, conn: Connection, queue: Queue, run: Run, supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TUNING, "poll_started_every", 0.0)
    run_verb(conn, verbs.publish_batch(queue("orders"), [1, 2, 3]))

    def near_the_end(run_id: str) -> None:
        assert shortest() > timedelta(minutes=30)
        conn.execute("UPDATE messages.message SET lock_expires_at = clock_timestamp() + interval '1 minute'")

    def shortest() -> timedelta:
        row = conn.execute("SELECT min(lock_expires_at) - clock_timestamp() FROM messages.message").fetchone()
        assert row is not None
        left: timedelta = row[0]
        return left

    supervisor.on_start = near_the_end
    assert run(dispatcher(lease_for=timedelta(hours=1))) == {"started": 3}
    assert shortest() > timedelta(minutes=30)


def test_a_run_that_exists_is_recorded_as_started_by_a_reconciliation(
    conn_id: str, conn: Connection, queue: Queue, run: Run, supervisor: Supervisor
) -> None:
    queue("orders")
    one = open_one(conn)
    supervisor.runs[one.run_id] = "running"
    assert run(reconciler()) == {}
    (recorded,) = run_verb(conn, verbs.open_dispatches("orders"))
    assert recorded.started_at is not None
    del supervisor.runs[one.run_id]
    assert run(reconciler()) == {"lost": 1}


def dag_run(one: Dispatch, conf: dict[str, Any]) -> Any:
    """A run as Airflow's scheduler has it, of which somebody else wrote the conf."""
    from airflow.models import DagRun

    return DagRun(dag_id=one.dag_id, run_id=one.run_id, conf=conf)


CONFS = [{"pgqueue": {"pgqueue_conn_id": "treasure", "queue_name": "orders", "ids": [1]}}, {"pgqueue": "treasure"}, {}]


@pytest.mark.parametrize("conf", CONFS)
def test_a_conf_chooses_no_connection(
    conn_id: str, conn: Connection, queue: Queue, vault: type[Vault], conf: dict[str, Any]
) -> None:
    """Whoever may trigger a DAG writes the conf of its run, and must not log in with a connection of others."""
    queue("orders")
    one = open_one(conn)
    (message,) = get_messages({"dag_run": dag_run(one, conf)})  # type: ignore[typeddict-item]
    assert message.id == one.ids[0]
    listener.on_dag_run_success(dag_run(one, conf), "")
    assert listener._ended.flush(PATIENCE)
    assert ended(conn) == ["success"]
    assert set(vault.asked) == {"pgqueue_default"}


def test_the_listener_looks_where_the_configuration_says(
    conn_id: str, conn: Connection, queue: Queue, vault: type[Vault], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also behind a connection that does not work."""
    queue("orders")
    monkeypatch.setenv("AIRFLOW__PGQUEUE__DISPATCH_CONN_IDS", f"nowhere, {conn_id},unused")
    listener.on_dag_run_failed(dag_run(open_one(conn), {}), "")
    assert listener._ended.flush(PATIENCE)
    assert ended(conn) == ["failed"]
    assert set(vault.asked) == {"nowhere", conn_id}


def test_what_a_dispatcher_writes_into_a_conf_names_no_connection(conn: Connection, queue: Queue) -> None:
    queue("orders")
    one = open_one(conn)
    assert dispatch.conf_of(one, {"more": 1}) == {"more": 1, "pgqueue": {"queue_name": "orders", "ids": one.ids}}
