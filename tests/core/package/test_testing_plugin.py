"""The pytest plugin, as those use it who install the package: fresh databases, drains, passing time, clear errors."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import tomllib
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from airflow_provider_pgqueue.core import Failed, InvalidArgument, LeaseLost, Message, RejectMessage, Retry, verbs
from airflow_provider_pgqueue.testing.databases import new_database, uri
from airflow_provider_pgqueue.testing.fixture import PgQueueFixture
from airflow_provider_pgqueue.testing.ports import free_port, is_free
from tests.test_docs import of_page
from tools import ROOT
from tools.postgres import Cluster

HOUR = timedelta(hours=1)
RunPytest = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def queue_of_the_test(dsn: str) -> Iterator[PgQueueFixture]:
    with PgQueueFixture(dsn) as queue:
        queue.run(verbs.create_queue("orders", max_attempts=2))
        yield queue


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """The environment of a user who has installed the package: pytest finds the plugin by its entry point."""
    metadata = tmp_path / "installed" / "users_copy-1.dist-info"
    metadata.mkdir(parents=True)
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["pytest11"]
    lines = [f"{name} = {module}\n" for name, module in declared.items()]
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: users-copy\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text("[pytest11]\n" + "".join(lines))
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PGQUEUE_", "PYTEST_"))}
    return inherited | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(metadata.parent)])}


@pytest.fixture
def run_pytest(tmp_path: Path, environment: dict[str, str]) -> RunPytest:
    """Run pytest on a test file of a user: `run_pytest(text, "--pgqueue-dsn=…", conftest=…, VARIABLE=…)`."""

    def run(text: str, *options: str, conftest: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
        folder = tmp_path / "users"
        folder.mkdir()
        (folder / "test_users.py").write_text(text)
        (folder / "conftest.py").write_text(conftest)
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error", *options]
        return subprocess.run(command, cwd=folder, env=environment | variables, capture_output=True, text=True)

    return run


@pytest.fixture
def temporary(environment: dict[str, str]) -> Iterator[Path]:
    """A temporary directory for processes with `environment`, which the user of the server can reach."""
    directory = Path(tempfile.mkdtemp())
    directory.chmod(0o755)
    environment["TMPDIR"] = str(directory)
    yield directory
    shutil.rmtree(directory)


@pytest.fixture
def role(cluster: Cluster) -> Iterator[str]:
    """A role without any privilege."""
    with psycopg.connect(cluster.dsn(), autocommit=True) as admin:
        admin.execute("CREATE ROLE tester LOGIN PASSWORD 'secret'")
        yield "tester"
        admin.execute("DROP ROLE tester")


def databases(cluster: Cluster) -> list[Any]:
    with psycopg.connect(cluster.dsn(), autocommit=True) as admin:
        return admin.execute("SELECT datname FROM pg_database ORDER BY datname").fetchall()


TWO_TESTS = """
import pytest

from airflow_provider_pgqueue.core import verbs

@pytest.mark.parametrize("number", [1, 2])
def test_sees_its_own_message_only(pgqueue, number):
    pgqueue.run(verbs.create_queue("orders"))
    pgqueue.run(verbs.publish("orders", number))
    pgqueue.connect(autocommit=False).execute("SELECT 1")
    assert [message.body for message in pgqueue.drain("orders")] == [number]
"""


def test_a_role_that_may_only_create_databases_gets_a_fresh_one_for_each_test_and_leaves_none(
    run_pytest: RunPytest, cluster: Cluster, role: str
) -> None:
    with psycopg.connect(cluster.dsn(), autocommit=True) as admin:
        admin.execute("ALTER ROLE tester CREATEDB")
    before = databases(cluster)
    done = run_pytest(TWO_TESTS, f"--pgqueue-dsn={cluster.dsn(user=role)}")
    assert "2 passed" in done.stdout, done.stdout
    assert databases(cluster) == before


def test_a_database_that_a_superuser_still_visits_is_dropped_by_another_role(cluster: Cluster, role: str) -> None:
    """As autovacuum does, which nobody can order to come."""
    with psycopg.connect(cluster.dsn(), autocommit=True) as admin:
        admin.execute("ALTER ROLE tester CREATEDB")
    before = databases(cluster)
    with new_database(cluster.dsn(user=role)) as dsn:
        visitor = psycopg.connect(cluster.dsn(str(conninfo_to_dict(dsn)["dbname"])))
        leave = threading.Timer(0.5, visitor.close)
        leave.start()
    leave.join()
    assert databases(cluster) == before


@pytest.mark.parametrize("way", ["option", "environment", "ini"])
def test_a_server_is_named_by_option_environment_or_ini(run_pytest: RunPytest, cluster: Cluster, way: str) -> None:
    text = f"def test_it(pgqueue_dsn):\n    assert pgqueue_dsn.startswith({cluster.dsn('pgqueue_test_')!r})\n"
    nowhere = "postgresql://127.0.0.1:1/"
    options = {
        "option": [f"--pgqueue-dsn={cluster.dsn()}", "-o", f"pgqueue_dsn={nowhere}"],
        "environment": ["-o", f"pgqueue_dsn={nowhere}"],
        "ini": ["-o", f"pgqueue_dsn={cluster.dsn()}"],
    }
    variables = {"option": {"PGQUEUE_TEST_DSN": nowhere}, "environment": {"PGQUEUE_TEST_DSN": cluster.dsn()}}
    done = run_pytest(text, *options[way], **variables.get(way, {}))
    assert "1 passed" in done.stdout, done.stdout


def test_without_a_named_server_a_private_one_is_started_and_removed(run_pytest: RunPytest, temporary: Path) -> None:
    done = run_pytest(TWO_TESTS)
    assert "2 passed" in done.stdout, done.stdout
    assert list(temporary.glob("pgqueue-test-*")) == []


SERVE = """
import sys
from airflow_provider_pgqueue.testing.server import private_server

with private_server() as uri:
    print(uri, flush=True)
    sys.stdin.read()
"""


def test_the_server_of_a_killed_run_is_removed_by_the_next_run_and_that_of_a_living_one_is_not(
    environment: dict[str, str], temporary: Path
) -> None:
    command = [sys.executable, "-c", SERVE]

    def serve() -> subprocess.Popen[str]:
        return subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    with serve() as killed, serve() as living:
        left, kept = killed.stdout.readline().strip(), living.stdout.readline().strip()
        killed.send_signal(signal.SIGKILL)
        killed.wait()
        psycopg.connect(left).close()
        subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, check=True, capture_output=True)
        psycopg.connect(kept).close()
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(left)
        living.communicate()
    assert list(temporary.glob("pgqueue-test-*")) == []


WITHOUT_PROGRAMS = """
from airflow_provider_pgqueue.testing import binaries
binaries.embedded = binaries.system = lambda: iter(())
"""


def test_the_port_of_a_server_that_restarts_is_given_to_no_client_meanwhile() -> None:
    assert all(port < 32_768 and is_free(port) for port in (free_port() for _ in range(20)))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", free_port()))
        taken.listen()
        assert free_port(taken.getsockname()[1]) != taken.getsockname()[1]


def test_without_any_server_the_error_names_the_fixes(run_pytest: RunPytest) -> None:
    done = run_pytest(TWO_TESTS, conftest=WITHOUT_PROGRAMS)
    assert "2 errors" in done.stdout
    for part in ("no programs", "airflow-provider-pgqueue[testing]", "--pgqueue-dsn", "PGQUEUE_TEST_DSN"):
        assert part in done.stdout
    assert "Traceback" not in done.stdout


UNREACHABLE = """
import pytest

AWAY = "postgresql://tester:secret@127.0.0.1:1/postgres"

@pytest.fixture(scope="session", params=[AWAY, f"{AWAY}?secret"], ids=["away", "unreadable"])
def pgqueue_server(request):
    return request.param
"""


def test_a_server_that_cannot_be_reached_is_reported_without_the_password(run_pytest: RunPytest) -> None:
    done = run_pytest(TWO_TESTS, conftest=UNREACHABLE)
    assert "4 errors" in done.stdout
    for complaint in ("cannot connect", "cannot be read", "--pgqueue-dsn"):
        assert complaint in done.stdout
    assert "secret" not in done.stdout + done.stderr


def test_a_role_that_may_not_create_databases_is_told_which_privilege_it_lacks(
    run_pytest: RunPytest, cluster: Cluster, role: str
) -> None:
    done = run_pytest(TWO_TESTS, f"--pgqueue-dsn={cluster.dsn(user=role)}")
    assert "ALTER ROLE tester CREATEDB" in done.stdout


def test_a_run_that_does_not_use_the_plugin_imports_neither_the_driver_nor_airflow(run_pytest: RunPytest) -> None:
    text = """
import sys

def test_imports():
    assert "airflow_provider_pgqueue.testing.plugin" in sys.modules
    assert not {"psycopg", "airflow", "airflow_provider_pgqueue.core"} & set(sys.modules)
"""
    done = run_pytest(text)
    assert "1 passed" in done.stdout, done.stdout


def test_the_plugin_can_be_turned_off(run_pytest: RunPytest) -> None:
    done = run_pytest(TWO_TESTS + "\ndef test_without(): pass\n", "-p", "no:pgqueue")
    assert "fixture 'pgqueue' not found" in done.stdout
    assert "1 passed, 2 errors" in done.stdout


def test_the_examples_of_the_documentation_run(run_pytest: RunPytest, cluster: Cluster) -> None:
    page = "docs/how-to/testing.md"
    (tests,), (conftest,) = (of_page(page, "python", file) for file in ("test_orders.py", "conftest.py"))
    tests += "\ndef test_template(pgqueue):\n    assert pgqueue.conn.execute('TABLE shipment').fetchall() == []\n"
    tests += "    pgqueue.run(verbs.publish('invoices', 1))\n"
    # What Airflow warns about is not ours.
    done = run_pytest(tests, f"--pgqueue-dsn={cluster.dsn()}", "-W", "default", conftest=conftest)
    assert "5 passed" in done.stdout, done.stdout


def test_drain_returns_what_is_ready_in_order_and_archives_it_as_success(queue_of_the_test: PgQueueFixture) -> None:
    for body in range(5):
        queue_of_the_test.run(verbs.publish("orders", body))
    queue_of_the_test.run(verbs.publish("orders", "later", delay=HOUR))
    queue_of_the_test.run(verbs.publish("default", "elsewhere"))
    assert [message.body for message in queue_of_the_test.drain("orders", max_messages=2)] == [0, 1]
    assert [message.body for message in queue_of_the_test.drain("orders")] == [2, 3, 4]
    assert queue_of_the_test.drain("orders") == []
    assert queue_of_the_test.results("orders") == queue_of_the_test.results() == {"success": 5}
    assert queue_of_the_test.run(verbs.status("orders"))[0].delayed == 1


def test_drain_does_not_see_what_the_code_under_test_did_not_commit(queue_of_the_test: PgQueueFixture) -> None:
    with queue_of_the_test.conn.transaction():
        queue_of_the_test.run(verbs.publish("orders", 1), conn=queue_of_the_test.conn)
        assert queue_of_the_test.drain("orders") == []
    assert len(queue_of_the_test.drain("orders")) == 1


def test_work_ends_messages_as_the_handler_says_and_dead_only_looks(queue_of_the_test: PgQueueFixture) -> None:
    def handle(message: Message) -> Any:
        if message.body == "invalid":
            raise RejectMessage("not an order")
        return {"broken": Failed("no stock"), "later": Retry(HOUR)}.get(message.body)

    queue_of_the_test.run(verbs.publish_batch("orders", ["good", "invalid", "broken", "later"]))
    queue_of_the_test.run(verbs.publish("default", "good"))
    counts = queue_of_the_test.work("orders", handle)
    assert counts == {"success": 1, "rejected": 1, "failed": 1, "retried": 1}
    assert queue_of_the_test.results("orders") == {"success": 1, "rejected": 1, "failed": 1}
    assert queue_of_the_test.work("default", handle_batch=lambda messages: None) == {"success": 1}
    for _ in range(2):
        dead = queue_of_the_test.dead("orders")
        assert [(one.body, one.result, one.details) for one in dead] == [
            ("invalid", "rejected", "not an order"),
            ("broken", "failed", "no stock"),
        ]
    assert "not an order" not in repr(dead)
    assert queue_of_the_test.dead("default") == []
    (requeued,) = queue_of_the_test.run(verbs.requeue_dead("orders"))
    assert [one.body for one in queue_of_the_test.dead("orders")] == ["invalid"]
    assert [one.id for one in queue_of_the_test.archived("orders") if one.body == "broken"] == [requeued.id]


def test_a_delayed_message_is_ready_when_its_time_has_passed(queue_of_the_test: PgQueueFixture) -> None:
    queue_of_the_test.run(verbs.publish("orders", "later", delay=HOUR))
    queue_of_the_test.run(verbs.publish_batch("orders", list(range(200))))
    assert len(queue_of_the_test.drain("orders")) == 200
    queue_of_the_test.pass_time(HOUR / 2)
    assert queue_of_the_test.drain("orders") == []
    queue_of_the_test.pass_time(HOUR / 2)
    assert [message.body for message in queue_of_the_test.drain("orders")] == ["later"]


def test_a_retried_message_comes_back_and_dies_at_its_last_attempt(queue_of_the_test: PgQueueFixture) -> None:
    def fail(message: Message) -> None:
        raise ValueError("never")

    queue_of_the_test.run(verbs.publish("orders", 1))
    assert queue_of_the_test.work("orders", fail) == {"retried": 1}
    assert queue_of_the_test.work("orders", fail) == {}
    queue_of_the_test.pass_time(HOUR)
    assert queue_of_the_test.work("orders", fail) == {"failed": 1}
    (dead,) = queue_of_the_test.dead("orders")
    assert dead.attempts == 2
    assert dead.failure["error"] == "ValueError"


def test_a_lease_expires_at_once_and_the_next_consumer_gets_the_message(queue_of_the_test: PgQueueFixture) -> None:
    queue_of_the_test.run(verbs.publish_batch("orders", list(range(200))))
    held = queue_of_the_test.run(verbs.lease("orders", lease_for=HOUR, max_messages=1))
    assert len(queue_of_the_test.drain("orders")) == 199
    queue_of_the_test.pass_time(HOUR)
    assert [(message.body, message.attempts) for message in queue_of_the_test.drain("orders")] == [(0, 2)]
    (message,) = held
    with pytest.raises(LeaseLost):
        queue_of_the_test.run(verbs.archive(message.lock_token, [message.id]))


def test_messages_expire_at_the_upkeep_after_their_time(queue_of_the_test: PgQueueFixture) -> None:
    queue_of_the_test.run(verbs.publish("orders", 1, expires_in=HOUR))
    queue_of_the_test.run(verbs.upkeep())
    assert queue_of_the_test.results() == {}
    queue_of_the_test.pass_time(HOUR)
    queue_of_the_test.run(verbs.upkeep())
    assert queue_of_the_test.results() == {"expired": 1}


def test_the_lease_of_a_dead_message_expires_too(queue_of_the_test: PgQueueFixture) -> None:
    queue_of_the_test.run(verbs.publish("orders", 1))
    queue_of_the_test.work("orders", lambda message: Failed("no stock"))
    queue_of_the_test.run(verbs.lease_dead("orders", lease_for=HOUR))
    assert queue_of_the_test.run(verbs.lease_dead("orders")) == []
    queue_of_the_test.pass_time(HOUR)
    assert len(queue_of_the_test.run(verbs.lease_dead("orders"))) == 1


def test_dedup_keys_are_forgotten_and_groups_go_on_when_their_time_has_passed(
    queue_of_the_test: PgQueueFixture,
) -> None:
    first, second = (
        queue_of_the_test.run(verbs.publish("orders", 1, dedup_key="seven", dedup_window=HOUR)) for _ in range(2)
    )
    assert first == second
    queue_of_the_test.pass_time(HOUR)
    assert queue_of_the_test.run(verbs.publish("orders", 2, dedup_key="seven", dedup_window=HOUR)) != first
    queue_of_the_test.run(verbs.publish("orders", "a", group_key="g", delay=HOUR))
    queue_of_the_test.run(verbs.publish("orders", "b", group_key="g"))
    assert [message.body for message in queue_of_the_test.drain("orders")] == [1, 2]
    queue_of_the_test.pass_time(HOUR)
    assert [message.body for message in queue_of_the_test.drain("orders")] == ["a", "b"]


def test_time_goes_forward_only(queue_of_the_test: PgQueueFixture) -> None:
    with pytest.raises(InvalidArgument, match="forward"):
        queue_of_the_test.pass_time(-HOUR)


def test_the_airflow_connection_lasts_until_the_end_of_the_test(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow_provider_pgqueue.hooks.pgqueue import PgQueueHook

    monkeypatch.setenv("AIRFLOW_CONN_ORDERS_DB", "postgresql://before")
    with PgQueueFixture(dsn) as queue:
        hook = PgQueueHook(queue.airflow_connection("orders_db", extra={"application_name": "shop"}))
        hook.run(verbs.create_queue("orders"))
        with hook.connect() as conn:
            assert conn.info.get_parameters()["application_name"] == "shop"
        assert hook.publish("orders", 1) == queue.drain("orders")[0].id
        assert PgQueueHook(queue.airflow_connection()).run(verbs.status("orders"))[0].depth == 0
    assert os.environ["AIRFLOW_CONN_ORDERS_DB"] == "postgresql://before"
    assert "AIRFLOW_CONN_PGQUEUE_DEFAULT" not in os.environ


@pytest.mark.parametrize(
    "conninfo",
    [
        "postgresql://us%40er:p%2Fw@db.example.com:5433/name?sslmode=require&application_name=a%20b",
        "host=::1 user=u dbname='a b/c?d'",
        "host=/var/run/postgresql port=5433 password=p dbname=x",
        "host=a,b port=1,2 dbname=x",
        "dbname=x",
    ],
)
def test_a_connection_string_as_a_uri_means_the_same(conninfo: str) -> None:
    assert uri(conninfo).startswith("postgresql://")
    assert conninfo_to_dict(uri(conninfo)) == conninfo_to_dict(conninfo)
    assert conninfo_to_dict(uri(conninfo, dbname="other"))["dbname"] == "other"
