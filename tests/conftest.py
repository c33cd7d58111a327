"""One private PostgreSQL per process, one fresh database per test."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psycopg
import pytest
from packaging.version import Version
from psycopg import sql

from tests.clones import Clones
from tests.scheduling import FileScheduling, rank
from tests.spark.fault_table import Fault, lines
from tests.waiting import LONGEST_STATEMENT, until
from tools import STATE, SetupError, chromium, java, mutants, pgbouncer, plpgsql_check, prometheus
from tools.binaries import KINDS, find
from tools.postgres import Cluster, fleeting_clusters, fleeting_place

# Before anything imports Airflow, which writes its configuration and logs there. Workers of xdist must not share it.
os.environ["AIRFLOW_HOME"] = str(STATE / "tests" / f"airflow-home-{os.environ.get('PYTEST_XDIST_WORKER', 'alone')}")
os.environ["AIRFLOW__CORE__LOAD_EXAMPLES"] = "False"

# An image may set it. Without bytecode, each run rewrites 170 files of tests again, and each program compiles Airflow.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# A shell ignores Ctrl-C for what it starts in the background, and so would each program that a test interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# For every Spark that a test starts, without the page that nobody looks at.
os.environ["SPARK_SUBMIT_OPTS"] = f"{java.options()} -Dspark.ui.enabled=false"
os.environ["SPARK_HOME"] = str(java.home())

TEMPLATE = "template_messages"
CRON_DATABASE = "messages_cron"
CATALOGS = """
    SELECT oid::regclass::text FROM pg_class
     WHERE relnamespace = 'pg_catalog'::regnamespace AND relkind = 'r' AND NOT relisshared
"""
LEFT_BEHIND = """
    SELECT 'message', id::text FROM messages.message UNION ALL
    SELECT 'archived', id::text FROM messages.message_archive UNION ALL
    SELECT 'queue', queue_name FROM messages.queue WHERE queue_name NOT IN ('default', 'orders') UNION ALL
    SELECT 'policy', action FROM messages.audit WHERE action <> 'create_queue'
"""

Connection = psycopg.Connection[tuple[Any, ...]]


def pytest_addoption(parser: pytest.Parser) -> None:
    default = os.environ.get("PG") or "auto"
    parser.addoption("--pg", choices=KINDS, default=default, help="which PostgreSQL the tests start")


def pytest_report_header(config: pytest.Config) -> str:
    binaries = _binaries(config)
    left_out = ", ".join(_left_out(config)) or "none"
    return f"postgresql: {binaries.kind} {binaries.version}; tests left out, because it cannot run them: {left_out}"


def _left_out(config: pytest.Config) -> list[str]:
    """Return the markers of what this PostgreSQL does not have."""
    binaries = _binaries(config)
    without_cron = [] if binaries.has_cron else ["cron"] if binaries.kind == "debian" else ["cron", "contrib"]
    without_cron += [] if pgbouncer.find() else ["pooler"]
    without_cron += [] if plpgsql_check.find(binaries) else ["plpgsql_check"]
    without_cron += [] if prometheus.find() else ["prometheus"]
    without_cron += [] if shutil.which("npm") else ["npm"]
    without_cron += [] if shutil.which("apt-get") else ["debian"]
    return without_cron if chromium.find() else [*without_cron, "browser"]


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect without the garbage collector: it would go through all that stays, which is all, a quarter of the CPU."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    airflow = Version(version("apache-airflow-core")).release
    since = {item: item.get_closest_marker("airflow_since") for item in items}
    left_out = _left_out(config)
    deselected = [item for item, mark in since.items() if mark and Version(mark.args[0]).release > airflow]
    deselected += [item for item in items if any(map(item.get_closest_marker, left_out))]
    if deselected:
        config.hook.pytest_deselected(items=deselected)
        items[:] = [item for item in items if item not in deselected]
    items.sort(key=lambda item: rank(item.nodeid))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> FileScheduling:
    return FileScheduling(config, log)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what the faults that tests caused did, also those that happened in processes of xdist."""
    reports = [report for reports in terminalreporter.stats.values() for report in reports]
    called = [report for report in reports if getattr(report, "when", "") == "call"]
    if faults := [Fault(**given) for report in called for name, given in report.user_properties if name == "fault"]:
        terminalreporter.section("faults that the tests caused")
        for line in lines(faults):
            terminalreporter.line(line)


def _binaries(config: pytest.Config) -> Any:
    try:
        return find(config.getoption("--pg"))
    except SetupError as error:
        raise pytest.UsageError(str(error)) from error


def pytest_sessionstart(session: pytest.Session) -> None:
    """Remove the clusters that killed sessions left behind; workers of xdist leave that to the session they serve."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        return
    for left in fleeting_clusters():
        if not _is_alive(int(left.name.rpartition("-")[2])):
            with suppress(SetupError):  # another session, which begins now too, was faster
                Cluster(left, kind=session.config.getoption("--pg")).destroy()


@pytest.fixture(scope="session")
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A running cluster of this process."""
    cluster = Cluster(
        fleeting_place(),
        kind=request.config.getoption("--pg"),
        durable=False,
        cron_database=CRON_DATABASE,
        statement_timeout=LONGEST_STATEMENT,
    )
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.destroy()


@pytest.fixture(scope="module")
def another_cluster(request: pytest.FixtureRequest) -> Iterator[Callable[..., Cluster]]:
    """Start one more server: `another_cluster("wide", durable=True)`; gone after the tests of the file."""
    with ExitStack() as stack:

        def start(name: str, **given: Any) -> Cluster:
            options = {"kind": request.config.getoption("--pg"), "durable": False} | given
            cluster = Cluster(fleeting_place() / name, **{"statement_timeout": LONGEST_STATEMENT} | options)
            stack.callback(cluster.destroy)
            cluster.start()
            return cluster

        yield start


def _is_alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


@pytest.fixture(scope="session")
def template_database(cluster: Cluster) -> str:
    """The name of a database with the schema and no queues, to be cloned."""
    from airflow_provider_pgqueue.core import migrate

    with psycopg.connect(cluster.create_database(TEMPLATE), autocommit=True) as conn:
        migrate(conn)
        if name := os.environ.get(mutants.VARIABLE):
            mutants.mutant(name).apply(conn)
        # A fifth fewer bytes for each clone; and the file of the relation cache is written for all.
        catalogs = [name for (name,) in conn.execute(CATALOGS)]
        conn.execute(sql.SQL("VACUUM (FULL, FREEZE) {}").format(sql.SQL(", ").join(map(sql.SQL, catalogs))))
    with psycopg.connect(cluster.dsn(TEMPLATE)) as conn:
        conn.execute("SELECT")
    return TEMPLATE


@pytest.fixture(scope="session")
def clones(cluster: Cluster, template_database: str) -> Iterator[Clones]:
    """The databases of the tests of this process, with the schema and no queues."""
    with Clones(cluster, template_database) as clones:
        yield clones


@pytest.fixture
def dsn(cluster: Cluster, clones: Clones) -> Iterator[str]:
    """The URI of a database of this test alone, with the schema installed."""
    with clones.one() as name:
        yield cluster.dsn(name)


@pytest.fixture(scope="session")
def pooler(cluster: Cluster) -> Iterator[pgbouncer.Pooler]:
    """A PgBouncer in transaction mode in front of the cluster."""
    pooler = pgbouncer.Pooler(cluster.directory / "pgbouncer", cluster.port)
    try:
        pooler.start()
        yield pooler
    finally:
        pooler.stop()


@pytest.fixture
def pooled_dsn(dsn: str, pooler: pgbouncer.Pooler) -> str:
    """The connection string of the test's database that leads through PgBouncer."""
    return pooler.dsn(dsn)


@pytest.fixture(scope="session")
def empty_databases(cluster: Cluster) -> Iterator[Clones]:
    """The databases of the tests of this process without the schema."""
    with Clones(cluster, "template1") as clones:
        yield clones


@pytest.fixture
def empty_dsn(cluster: Cluster, empty_databases: Clones) -> Iterator[str]:
    """The URI of a database of this test alone, without the schema."""
    with empty_databases.one() as name:
        yield cluster.dsn(name)


@pytest.fixture
def cron_database(cluster: Cluster, template_database: str) -> str:
    """The URI of the one database that pg_cron serves, with the schema installed and no job yet.

    The database stays from test to test: the process of pg_cron ends with it and does not always come back.
    """
    from airflow_provider_pgqueue.core import migrate

    dsn = cluster.create_database(CRON_DATABASE, template=template_database)
    with psycopg.connect(dsn, autocommit=True) as conn:
        if conn.execute("SELECT to_regnamespace('messages')").fetchone() == (None,):
            migrate(conn)
        # Until the database is there, it ends and is started again every second.
        launcher = "SELECT FROM pg_stat_activity WHERE backend_type = 'pg_cron launcher'"
        until(lambda: conn.execute(launcher).rowcount, what="the launcher of pg_cron runs")
    return dsn


@pytest.fixture
def cron_dsn(cron_database: str) -> Iterator[str]:
    """The URI of the database of pg_cron, for what sees only what is committed; the schema goes after the test."""
    yield cron_database
    with psycopg.connect(cron_database, autocommit=True) as conn:
        # pg_cron remembers its tables by their number: with an extension made anew it misses what changes.
        if conn.execute("SELECT to_regclass('cron.job')").fetchone() != (None,):
            conn.execute("DELETE FROM cron.job; DELETE FROM cron.job_run_details")
            conn.execute("REVOKE ALL ON SCHEMA cron FROM messages_owner")
            for table in ("job", "job_run_details"):
                conn.execute(f"DROP POLICY IF EXISTS messages_owner ON cron.{table}".encode())
        conn.execute(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
        )
        conn.execute("DROP SCHEMA IF EXISTS messages CASCADE")


@pytest.fixture
def cron_session(cron_dsn: str) -> Iterator[Connection]:
    """An autocommit session to the database of pg_cron, named as no maintenance is, for a test of what pg_cron does."""
    with psycopg.connect(cron_dsn, autocommit=True, application_name="by hand") as conn:
        yield conn


@pytest.fixture
def cron_conn(cron_database: str) -> Iterator[Connection]:
    """A session to the database of pg_cron in a transaction that is rolled back: pg_cron learns nothing from it.

    To install the schema anew for each test would take longer than most of them.
    """
    with psycopg.connect(cron_database, autocommit=True, application_name="by hand") as conn:
        # To roll this back would make the extension anew.
        conn.execute("CREATE EXTENSION IF NOT EXISTS pg_cron")
        with conn.transaction(force_rollback=True):
            yield conn


@pytest.fixture
def connect(dsn: str) -> Iterator[Callable[..., Connection]]:
    """Open one more autocommit session to the test's database: `connect(user="…")`; closed at the end."""
    opened: list[Connection] = []

    def open_one(**arguments: Any) -> Connection:
        opened.append(psycopg.connect(dsn, **({"autocommit": True} | arguments)))
        return opened[-1]

    yield open_one
    for connection in opened:
        connection.close()


@pytest.fixture
def conn(request: pytest.FixtureRequest) -> Iterator[Connection]:
    """An autocommit session to the test's database.

    In a file with the mark `rolled_back` it is one transaction, which is rolled back, unless the test asks for `dsn`
    or another session too.
    """
    if not request.node.get_closest_marker("rolled_back") or "dsn" in request.fixturenames:
        yield request.getfixturevalue("connect")()
        return
    session = request.getfixturevalue("session_of_file")
    with session.transaction(force_rollback=True):
        yield session


@pytest.fixture(scope="module")
def session_of_file(cluster: Cluster, clones: Clones) -> Iterator[Connection]:
    with clones.one() as name, psycopg.connect(cluster.dsn(name), autocommit=True) as conn:
        yield conn


@pytest.fixture(scope="module")
def shared_session(cluster: Cluster, clones: Clones) -> Iterator[Connection]:
    with clones.one() as name, psycopg.connect(cluster.dsn(name), autocommit=True) as conn:
        conn.execute("SELECT messages.create_queue('orders')")
        yield conn


@pytest.fixture
def shared(shared_session: Connection) -> Iterator[Connection]:
    """An autocommit session, shared by the tests of a file, to a database with the queue orders.

    For what expects a refusal, or rolls back: a test that leaves something behind fails.
    """
    yield shared_session
    shared_session.execute("RESET ALL")
    assert shared_session.execute(LEFT_BEHIND).fetchall() == []


@pytest.fixture
def queue(conn: Connection) -> Callable[..., str]:
    """Create a queue and return its name: `queue("orders", max_attempts=1)`."""

    def create(queue_name: str = "orders", **policy: Any) -> str:
        arguments = [sql.SQL("{} => {}").format(sql.Identifier(key), value) for key, value in policy.items()]
        conn.execute(
            sql.SQL("SELECT messages.create_queue({})").format(
                sql.SQL(", ").join([sql.Literal(queue_name), *arguments])
            )
        )
        return queue_name

    return create
