"""Each way to start on Spark with each thing that can be wrong: one clear line, nothing lost, a re-run completes."""

from __future__ import annotations

import importlib
import json
import logging
import re
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from pyspark.sql import DataFrame, SparkSession

from airflow_provider_pgqueue import spark as pipelines
from airflow_provider_pgqueue.core import errors, run, verbs
from airflow_provider_pgqueue.core.migrations import code_version
from airflow_provider_pgqueue.spark import __main__ as command_line
from airflow_provider_pgqueue.spark import register
from airflow_provider_pgqueue.spark.pipelines.failure import explained, raised_in_spark
from tests.archive import make_partition
from tests.core.roles.test_roles import logins

Connection = psycopg.Connection[Any]
Queue = Callable[..., str]
PASSWORD, CANARY = "geheim-4711", "canary-0815"
FUNCTIONS = "tests.spark.functions"


@dataclass(frozen=True)
class Called:
    """How a command ended: its status, its standard output and standard error, and the class of what was raised."""

    status: int
    output: list[str]
    complaint: list[str]
    error: type[Exception] | None = None


Calls = Callable[..., Called]


@dataclass(frozen=True)
class Wrong:
    """What is wrong, and what has to be said about it."""

    dsn: str
    error: type[errors.PgQueueError]
    says: str


# What can be wrong with the database ----------------------------------------------------------------------------------


@contextmanager
def unreachable(dsn: str, conn: Connection) -> Iterator[Wrong]:
    says = r"port 1 failed: .*Connection refused.*Check the connection and try again\."
    yield Wrong(make_conninfo(dsn, host="127.0.0.1", port=1), errors.ConnectionFailed, says)


@contextmanager
def too_old(dsn: str, conn: Connection) -> Iterator[Wrong]:
    newest = code_version()
    row = conn.execute("DELETE FROM messages.schema_migration WHERE version = %s RETURNING name", [newest]).fetchone()
    says = rf"schema messages has version {newest - 1}, this package needs {newest}\. Run pgqueue install"
    yield Wrong(dsn, errors.SchemaTooOld, says)
    conn.execute("INSERT INTO messages.schema_migration (version, name) VALUES (%s, %s)", [newest, *(row or ())])


@contextmanager
def too_new(dsn: str, conn: Connection) -> Iterator[Wrong]:
    version = (
        "CREATE OR REPLACE FUNCTION messages.schema_version() RETURNS integer LANGUAGE sql IMMUTABLE AS 'SELECT {}'"
    )
    conn.execute(version.format(98).encode())
    says = r"needs packages that know version 98, this one knows \d+\. Upgrade airflow-provider-pgqueue"
    yield Wrong(dsn, errors.SchemaTooNew, says)
    conn.execute(version.format(1).encode())


@contextmanager
def no_schema(dsn: str, conn: Connection) -> Iterator[Wrong]:
    conn.execute("ALTER SCHEMA messages RENAME TO gone")
    yield Wrong(dsn, errors.SchemaMissing, r"schema .*messages.* (is not installed|does not exist).*sql/install\.sql")
    conn.execute("ALTER SCHEMA gone RENAME TO messages")


@contextmanager
def no_privilege(dsn: str, conn: Connection) -> Iterator[Wrong]:
    with role(dsn) as theirs:
        yield Wrong(theirs, errors.PermissionDenied, r"([Aa]sk an admin|GRANT) .*")


@contextmanager
def half_a_privilege(dsn: str, conn: Connection) -> Iterator[Wrong]:
    """Of a role that may begin a run and do nothing else."""
    with role(dsn) as theirs:
        conn.execute("GRANT USAGE ON SCHEMA messages TO stranger")
        conn.execute("GRANT EXECUTE ON FUNCTION messages.begin_run, messages.finish_run TO stranger")
        conn.execute("GRANT EXECUTE ON FUNCTION messages.schema_version, messages.latest_migration TO stranger")
        yield Wrong(theirs, errors.PermissionDenied, r"([Aa]sk an admin|GRANT) .*")


@contextmanager
def role(dsn: str) -> Iterator[str]:
    with logins(dsn) as login:
        login("stranger")
        yield make_conninfo(dsn, user="stranger")


WRONGS = (unreachable, too_old, too_new, no_schema, no_privilege, half_a_privilege)


# The pipelines --------------------------------------------------------------------------------------------------------

COMMANDS = {
    "drain": ("--queue", "orders", "--function", f"{FUNCTIONS}:accept"),
    "export": ("--target", "{folder}"),
    "repair": ("--queue", "orders", "--function", f"{FUNCTIONS}:keep"),
}


@pytest.fixture
def call(
    spark: SparkSession,
    dsn: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> Calls:
    """Run a command; what it says has no password, no connection string and no body."""
    monkeypatch.setattr(SparkSession, "stop", lambda self: None)  # the session of all tests

    raised: list[type[Exception]] = []
    main = command_line.program.main

    def listening(*arguments: Any, **options: Any) -> Any:
        try:
            return main(*arguments, **options)
        except Exception as error:
            raised.append(type(explained(error)))
            raise

    monkeypatch.setattr(command_line.program, "main", listening)

    def run(pipeline: str, *arguments: str, where: str = dsn, run_id: str = "") -> Called:
        monkeypatch.setenv("PGQUEUE_DSN", make_conninfo(where, password=PASSWORD))
        caplog.clear()
        capsys.readouterr()
        given = [argument.format(folder=tmp_path / "export") for argument in (arguments or COMMANDS[pipeline])]
        raised.clear()
        with caplog.at_level(logging.INFO):
            status = command_line.run([pipeline, *given, "--run-id", run_id or f"nightly {pipeline}"])
        said = capsys.readouterr()
        shown = f"{said.out}{said.err}{caplog.text}"
        assert not any(secret in shown for secret in (PASSWORD, CANARY, where))
        return Called(status, said.out.splitlines(), said.err.splitlines(), *raised)

    return run


@pytest.mark.parametrize("pipeline", COMMANDS)
def test_a_pipeline_names_what_is_wrong_with_the_database_and_the_same_run_completes_afterwards_and_once(
    call: Calls,
    dsn: str,
    conn: Connection,
    queue: Queue,
    pipeline: str,
) -> None:
    backlog(conn, queue)
    before = state(conn)
    for wrong in WRONGS:
        with wrong(dsn, conn) as given:
            assert_refused(call(pipeline, where=given.dsn), given.error, given.says)
        assert state(conn) == before
    done = call(pipeline)
    assert (done.status, type(json.loads(*done.output))) == (0, dict)
    leave_two(conn)
    before = state(conn)
    assert (call(pipeline).output, state(conn)) == (done.output, before)


def assert_refused(called: Called, error: type[errors.PgQueueError], says: str) -> None:
    """Check that a command ended with this error, told in one line."""
    assert (called.status, called.error, called.output, len(called.complaint)) == (1, error, [], 1), called
    assert re.match(f"error: .*{says}", called.complaint[0]), called


def backlog(conn: Connection, queue: Queue) -> None:
    """Let a message wait in `orders`, another be dead, and twenty be in a closed partition."""
    queue("orders", max_attempts=1)
    make_partition(conn, 40, 20)
    leave_two(conn)


def leave_two(conn: Connection) -> None:
    """Let one more message wait in `orders`, and one more be dead."""
    conn.execute(
        "SELECT messages.publish_batch('orders', jsonb_build_array(%(body)s::text, %(body)s::text))", {"body": CANARY}
    )
    conn.execute("SELECT messages.archive(lock_token, ARRAY[id], 'failed') FROM messages.lease('orders', 1)")


def state(conn: Connection) -> Any:
    """Return what must not change: what waits, under which lease, and what is archived."""
    waiting = conn.execute("SELECT id, attempts, lock_token FROM messages.message ORDER BY id").fetchall()
    return waiting, conn.execute("SELECT count(*), count(resolution) FROM messages.message_archive").fetchall()


# Bad arguments and bodies ---------------------------------------------------------------------------------------------

NOWHERE = ("--queue", "nowhere")
NO_QUEUE = r"queue 'nowhere' does not exist\. Create it"
NO_MODULE = r"module 'nowhere' cannot be imported .*Start in its directory, or set PYTHONPATH"
NO_FUNCTION = rf"module '{FUNCTIONS}' has no function 'nothing'\. Check its spelling"


NOT_THERE = [
    ("drain", (*NOWHERE, "--function", f"{FUNCTIONS}:accept"), errors.QueueNotFound, NO_QUEUE),
    ("repair", (*NOWHERE, "--function", f"{FUNCTIONS}:keep"), errors.QueueNotFound, NO_QUEUE),
    ("drain", ("--queue", "orders", "--function", "nowhere:f"), errors.InvalidArgument, NO_MODULE),
    ("repair", ("--queue", "orders", "--function", "nowhere:f"), errors.InvalidArgument, NO_MODULE),
    ("repair", ("--queue", "orders", "--function", f"{FUNCTIONS}:keep", "--validator", "nowhere:f"),
     errors.InvalidArgument, NO_MODULE),
    ("repair", ("--function", f"{FUNCTIONS}:keep"), errors.InvalidArgument, "queue_name is None. Name a queue"),
    ("drain", ("--queue", "orders", "--function", f"{FUNCTIONS}:nothing"), errors.InvalidArgument, NO_FUNCTION),
    ("repair", ("--queue", "orders", "--function", f"{FUNCTIONS}:nothing"), errors.InvalidArgument, NO_FUNCTION),
    ("drain", ("--queue", "orders", "--function", f"{FUNCTIONS}:pair"), errors.InvalidArgument,
     "pair cannot be called with a table of messages: missing a required argument: 'shop'"),
    ("repair", ("--queue", "orders", "--function", f"{FUNCTIONS}:pair"), errors.InvalidArgument,
     "pair cannot be called with a dead message: missing a required argument: 'shop'"),
    ("export", ("--target", "{folder}", "--partitions", "nowhere"), errors.InvalidArgument, "'nowhere' does not"),
]  # fmt: skip


def test_what_is_not_there_is_named_before_anything_is_changed(call: Calls, conn: Connection, queue: Queue) -> None:
    backlog(conn, queue)
    before = state(conn)
    for pipeline, arguments, error, says in NOT_THERE:
        assert_refused(call(pipeline, *arguments), error, says)
        assert state(conn) == before
    assert conn.execute("SELECT FROM messages.pipeline_run WHERE finished_at IS NOT NULL").rowcount == 0


LISTS = {
    "repair": ("results", "fingerprints"),
    "export": ("partitions",),
}


def test_a_list_without_a_name_does_not_stand_for_everything(session: SparkSession, conn: Connection) -> None:
    more = {"repair": {"function": f"{FUNCTIONS}:keep"}, "export": {"target": "/nowhere"}}
    none: Any
    for pipeline, names in LISTS.items():
        for name in names:
            for none in ([], "", [""], [None]):
                with pytest.raises(errors.InvalidArgument, match=f"{name} is .*Give names, or leave it out for all"):
                    getattr(pipelines, pipeline)(session, **{name: none}, **more.get(pipeline, {}))
    assert conn.execute("SELECT FROM messages.pipeline_run").rowcount == 0


def test_something_unusable_ends_the_drain_and_the_same_run_completes_with_another_function(
    call: Calls, conn: Connection, queue: Queue
) -> None:
    backlog(conn, queue)
    before = state(conn)
    drain = ("drain", "--queue", "orders", "--function")
    assert_refused(call(*drain, f"{FUNCTIONS}:count"), errors.InvalidArgument, r"the function returned a int\..*Return")
    assert state(conn) == before
    assert json.loads(*call(*drain, f"{FUNCTIONS}:accept").output)["archived"] == 1


def test_a_drain_in_which_messages_died_ends_with_status_1_and_its_summary(
    call: Calls, conn: Connection, queue: Queue
) -> None:
    queue("orders", max_attempts=1)
    run(conn, verbs.publish_batch("orders", [1, 2]))
    called = call("drain", "--queue", "orders", "--function", f"{FUNCTIONS}:refuse")
    assert (called.status, json.loads(*called.output)["died"]) == (1, 2)
    assert called.complaint == ["Error: 2 messages died"]


# What only the driver has, and what ends in the tasks ----------------------------------------------------------------


def test_a_module_that_only_the_driver_has_names_py_files_and_no_message_pays(
    call: Calls, conn: Connection, queue: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backlog(conn, queue)
    before = state(conn)
    (tmp_path / "only_here.py").write_text("def work(messages): return None\n")
    monkeypatch.syspath_prepend(tmp_path)
    says = r"on the executors there is no module 'only_here', which the driver has\. .*--py-files only_here\.py"
    for pipeline in ("drain", "repair"):
        called = call(pipeline, "--queue", "orders", "--function", "only_here:work")
        assert_refused(called, errors.InvalidArgument, says)
        assert state(conn) == before


def test_a_function_of_a_module_that_only_the_driver_has_is_explained(
    spark: SparkSession, queue: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue("orders")
    (tmp_path / "sent_by_name.py").write_text("def work(messages): return None\n")
    monkeypatch.syspath_prepend(tmp_path)
    work = importlib.import_module("sent_by_name").work
    with pytest.raises(Exception, match="sent_by_name") as raised:
        spark.range(1).mapInArrow(work, "id long").collect()
    assert re.search(r"no module 'sent_by_name', .*--py-files sent_by_name\.py", str(explained(raised.value)))


def test_a_function_that_ends_its_process_names_the_fix_and_the_run_that_continues(
    call: Calls, conn: Connection, queue: Queue
) -> None:
    backlog(conn, queue)
    says = r"a process of Spark ended .*--batch-size .*The same --run-id continues"
    called = call("drain", "--queue", "orders", "--function", f"{FUNCTIONS}:end_the_process")
    assert_refused(called, errors.PgQueueError, says)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("x\nModuleNotFoundError: No module named 'airflow_provider_pgqueue'\n", r"--py-files pgqueue\.zip"),
        ("x\nModuleNotFoundError: No module named 'psycopg'\n", "Install it in their Python"),
        ('java.io.IOException: Cannot run program "python9"', "Set PYSPARK_PYTHON"),
        ("java.lang.OutOfMemoryError: Java heap space", "ran out of memory"),
        ("[JAVA_GATEWAY_EXITED] Java gateway process exited", "Install Java 17"),
        ("Could not parse Master URL: 'sprak'", "Check --master"),
        (f"o7.collect\n: org.apache.spark.SparkException: {CANARY}", "RuntimeError of org.apache.spark.SparkException"),
    ],
)
def test_each_error_of_spark_is_one_line_with_a_fix_and_no_data(text: str, says: str) -> None:
    said = str(explained(RuntimeError(text)))
    assert re.search(says, said)
    assert CANARY not in said
    assert "\n" not in said


# The data source ------------------------------------------------------------------------------------------------------


def stream_to(frame: DataFrame, folder: Path, **options: str) -> None:
    """Run a stream to the end of what is there; to nowhere, or to `pgqueue` with these options."""
    writer = frame.writeStream.format("pgqueue" if options else "noop").options(**options)
    query = writer.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True).start()
    try:
        query.awaitTermination(60)
    finally:
        query.stop()


def read(spark: SparkSession, folder: Path) -> None:
    spark.read.format("pgqueue").option("table", "archive").load().collect()


def write(spark: SparkSession, folder: Path) -> None:
    frame = spark.range(2).selectExpr("cast(id AS string) AS message")
    frame.write.format("pgqueue").mode("append").options(queue="orders", runId="nightly").save()


def follow_the_archive(spark: SparkSession, folder: Path) -> None:
    stream_to(spark.readStream.format("pgqueue").option("table", "archive").load(), folder)


def publish_a_stream(spark: SparkSession, folder: Path) -> None:
    if not (folder / "in").exists():
        spark.sql("SELECT '1' AS message").write.parquet(str(folder / "in"))
    arrivals = spark.readStream.schema("message string").parquet(str(folder / "in"))
    stream_to(arrivals, folder, queue="orders")


# What is archived and what waits afterwards, of a dead and a waiting message and twenty old ones.
SOURCES = {
    read: (21, 1),
    write: (21, 3),
    follow_the_archive: (21, 1),
    publish_a_stream: (21, 2),
}


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.__name__)
def test_the_data_source_names_what_is_wrong_with_the_database_and_goes_on_afterwards(
    session: SparkSession, dsn: str, conn: Connection, queue: Queue, tmp_path: Path, source: Any
) -> None:
    backlog(conn, queue)
    before = state(conn)
    for wrong in (unreachable, too_old, no_privilege):
        with wrong(dsn, conn) as given:
            register(session, make_conninfo(given.dsn, password=PASSWORD))
            error = of_source(lambda: source(session, tmp_path))
        assert type(error) is given.error, (wrong.__name__, error)
        assert re.search(given.says, str(error))
        assert state(conn) == before
    register(session, dsn)
    source(session, tmp_path)
    waiting, ((archived, _),) = state(conn)
    assert (archived, len(waiting)) == SOURCES[source]


def of_source(action: Callable[[], None]) -> errors.PgQueueError | None:
    """Return the error of the tree that Spark shows, and check that it shows no secret."""
    with pytest.raises(Exception, match=r"pgqueue|PYTHON") as raised:
        action()
    shown = "".join(traceback.format_exception(raised.value))
    assert not any(secret in shown for secret in (PASSWORD, CANARY))
    return raised_in_spark(raised.value)
