"""Bodies that Airflow's object storage keeps: the connection says where, and whoever publishes or consumes obeys."""

from __future__ import annotations

import json
import logging
import re
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from airflow.sdk import DAG, ObjectStoragePath, task
from upath import UPath

from airflow_provider_pgqueue.core import BodyStore, BodyUnavailable, Consumer, InvalidArgument, verbs
from airflow_provider_pgqueue.core import run as run_verb
from airflow_provider_pgqueue.core.errors import MessageTooLarge
from airflow_provider_pgqueue.dispatch import get_messages
from airflow_provider_pgqueue.hooks.pgqueue import PgQueueHook
from airflow_provider_pgqueue.operators.consume import PgQueueConsumeOperator
from airflow_provider_pgqueue.operators.publish import (
    PgQueuePublishOperator,
    PgQueuePublishQueryOperator,
    PgQueueRequestOperator,
)
from airflow_provider_pgqueue.operators.upkeep import PgQueueCleanBodiesOperator
from tests.airflow_layer.airflow_versions import AirflowSkipException, TaskDeferred
from tests.airflow_layer.test_remedies import example

Connection = psycopg.Connection[Any]
Queue = Callable[..., str]
Run = Callable[..., Any]
LARGE = {"report": "x" * 2_000_000}  # more than max_body_bytes
ALL = timedelta(days=-1)


@pytest.fixture(scope="module")
def s3() -> Iterator[Any]:
    """A server that speaks S3, where its packages are: in the environment of `make matrix` for the oldest Airflow."""
    if not all(map(find_spec, ("moto", "s3fs"))):
        yield None
        return
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    yield server
    server.stop()


@pytest.fixture
def bodies_at(s3: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of a folder without files: in a bucket if there is an S3, otherwise a directory."""
    if s3 is None:
        (tmp_path / "bodies").mkdir()
        return f"file://{tmp_path}/bodies"
    host, port = s3.get_host_and_port()
    _connect_to_s3(monkeypatch, f"http://{host}:{port}")
    bucket = f"b{time.time_ns()}"
    ObjectStoragePath("s3://aws_default@any").fs.call_s3("create_bucket", Bucket=bucket)
    return f"s3://aws_default@{bucket}/bodies"


def _connect_to_s3(monkeypatch: pytest.MonkeyPatch, endpoint_url: str) -> None:
    extra = {"endpoint_url": endpoint_url, "region_name": "us-east-1"}
    given = {"conn_type": "aws", "login": "key", "password": "secret", "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_AWS_DEFAULT", json.dumps(given))
    # Airflow reads a connection to a store once in a process.
    monkeypatch.setattr("airflow.sdk.io.store._STORE_CACHE", {})


@pytest.fixture
def folder(bodies_at: str) -> ObjectStoragePath:
    return ObjectStoragePath(bodies_at)


def files(folder: ObjectStoragePath) -> set[str]:
    """Return the names of the files in the folder."""
    return {file.rpartition("/")[2] for file in folder.fs.find(folder.path)}


@pytest.fixture
def hook(dsn: str, airflow_connection: Callable[..., str], bodies_at: str) -> PgQueueHook:
    """A hook whose connection keeps large bodies in the folder."""
    return PgQueueHook(airflow_connection(dsn, extra={"bodies_at": bodies_at}))


@pytest.fixture
def queued(queue: Queue) -> str:
    return queue("orders", backoff_first="1 hour", backoff_max="1 hour")


def bodies(conn: Connection) -> list[Any]:
    return [body for (body,) in conn.execute("SELECT message FROM messages.message ORDER BY id")]


def names(conn: Connection) -> list[str]:
    """Return the names in the pointers of the messages that wait."""
    found = [body for body in bodies(conn) if isinstance(body, dict)]
    return [body["pgqueue_body"]["name"] for body in found if "pgqueue_body" in body]


def got(run: Run, **arguments: Any) -> list[Any]:
    """Return the bodies that a consume operator hands to its function."""
    found: list[Any] = []
    operator = PgQueueConsumeOperator(
        task_id="consume", queue_name="orders", apply_function=lambda message: found.append(message.body), **arguments
    )
    run(operator)
    return found


# The hook -------------------------------------------------------------------------------------------------------------


def test_what_the_hook_publishes_comes_out_of_its_lease(
    hook: PgQueueHook, queued: str, conn: Connection, folder: ObjectStoragePath
) -> None:
    hook.publish("orders", LARGE)
    hook.publish_batch("orders", [1, [LARGE]])
    assert files(folder) == {body["pgqueue_body"]["name"] for body in bodies(conn)[::2]}
    with hook.lease("orders", max_messages=3) as lease:
        assert [message.body for message in lease] == [LARGE, 1, [LARGE]]
        assert len(lease.held) == 3
    assert conn.execute("SELECT result, count(*) FROM messages.message_archive GROUP BY 1").fetchall() == [
        ("success", 3)
    ]


def test_a_publish_in_the_callers_transaction_leaves_a_body_and_no_message(
    hook: PgQueueHook, queued: str, conn: Connection, folder: ObjectStoragePath
) -> None:
    with conn.transaction(force_rollback=True):
        hook.publish("orders", LARGE, conn=conn)
        hook.publish_batch("orders", [LARGE], conn=conn)
    store = hook.body_store()
    assert store is not None
    assert (bodies(conn), len(files(folder))) == ([], 2)
    assert store.clean(conn, older_than=ALL) == 2
    assert files(folder) == set()


def test_without_the_setting_a_large_body_is_refused_and_the_fix_names_it(conn_id: str, queued: str) -> None:
    with pytest.raises(MessageTooLarge, match=r"is too large for queue 'orders'.*bodies_at"):
        PgQueueHook(conn_id).publish("orders", LARGE)
    assert PgQueueHook(conn_id).body_store() is None


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        ({"bodies_at": "bodies"}, "bodies_at of connection 'pgqueue_default' is 'bodies'. Give a URL"),
        ({"bodies_at": 5}, "bodies_at of connection 'pgqueue_default' is 5. Give a URL"),
        ({"bodies_at": "file:///tmp", "bodies_above": "1 MB"}, "bodies_above of connection .* is '1 MB'"),
        ({"bodies_at": "file:///tmp", "bodies_above": -1}, "bodies_above of connection .* is -1"),
        ({"bodies_at": "file:///tmp", "bodies_above": 2**28}, "above is 268435456"),
    ],
)
def test_a_setting_that_cannot_be_is_named(
    dsn: str, airflow_connection: Callable[..., str], queued: str, extra: dict[str, Any], said: str
) -> None:
    with pytest.raises(InvalidArgument, match=said):
        PgQueueHook(airflow_connection(dsn, extra=extra)).publish("orders", 1)


@pytest.mark.parametrize("above", [5, "5"])
def test_the_threshold_is_that_of_the_connection(
    dsn: str,
    airflow_connection: Callable[..., str],
    queued: str,
    conn: Connection,
    folder: ObjectStoragePath,
    above: Any,
) -> None:
    hook = PgQueueHook(airflow_connection(dsn, extra={"bodies_at": str(folder), "bodies_above": above}))
    hook.publish_batch("orders", ["abc", "abcd"])
    assert (bodies(conn)[0], len(names(conn))) == ("abc", 1)
    assert not {"bodies_at", "bodies_above"} & set(hook.connection_arguments())


def test_a_batch_that_is_not_a_list_is_refused_as_without_the_setting(
    hook: PgQueueHook, queued: str, folder: ObjectStoragePath
) -> None:
    given: Any
    for given in ("text", b"bytes", {"a": 1}, 5):
        with pytest.raises(InvalidArgument, match="Give a list of them"):
            hook.publish_batch("orders", given)
    assert files(folder) == set()


def test_in_a_lease_a_body_that_is_missing_fails_its_message_alone(
    hook: PgQueueHook, queued: str, conn: Connection, folder: ObjectStoragePath, caplog: pytest.LogCaptureFixture
) -> None:
    lost, *_ = hook.publish_batch("orders", [LARGE, 2, {"report": "y" * 200_000}])
    (folder / names(conn)[0]).unlink()
    with hook.lease("orders", max_messages=3) as lease:
        assert [type(message.body) for message in lease] == [int, dict]
        assert "report" in lease[1].body
    assert conn.execute("SELECT id, attempts, last_error ~ 'it is missing' FROM messages.message").fetchall() == [
        (lost, 1, True)
    ]
    assert f"message {lost} of queue orders is left out" in caplog.text
    assert "yyy" not in caplog.text
    with hook.lease("orders", max_messages=3) as lease:
        assert len(lease) == 0


def test_the_lease_is_released_if_reading_is_interrupted(
    hook: PgQueueHook, queued: str, conn: Connection, folder: ObjectStoragePath, monkeypatch: pytest.MonkeyPatch
) -> None:
    hook.publish("orders", LARGE)

    class Interrupted:
        """A folder whose reader is told to stop."""

        def __truediv__(self, name: str) -> Any:
            raise KeyboardInterrupt

        def iterdir(self) -> Any:
            raise KeyboardInterrupt

    monkeypatch.setattr(hook, "body_store", lambda: BodyStore(Interrupted()))
    with pytest.raises(KeyboardInterrupt), hook.lease("orders"):
        pass
    assert conn.execute("SELECT lock_token FROM messages.message").fetchall() == [(None,)]


# Operators and decorators ---------------------------------------------------------------------------------------------


def test_the_operators_keep_large_bodies_and_consumers_get_them_as_before(
    hook: PgQueueHook, queued: str, run: Run, conn: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    query = "SELECT repeat('x', 200000) AS report"
    results = [
        run(PgQueuePublishOperator(task_id="one", queue_name="orders", message=LARGE)),
        run(PgQueuePublishOperator(task_id="some", queue_name="orders", messages=[1, [LARGE], [LARGE, 3]])),
        run(PgQueuePublishQueryOperator(task_id="rows", queue_name="orders", sql=query)),
    ]
    assert [result["published"] for result in results] == [1, 3, 1]
    assert len(names(conn)) == 4
    assert got(run) == [LARGE, 1, [LARGE], [LARGE, 3], {"report": "x" * 200_000}]
    assert "xxx" not in caplog.text + json.dumps(results)


def test_a_retry_of_a_publish_publishes_once_though_its_bodies_are_pointers(
    hook: PgQueueHook, queued: str, run: Run, conn: Connection, folder: ObjectStoragePath
) -> None:
    for _ in range(2):
        published = run(PgQueuePublishOperator(task_id="publish", queue_name="orders", messages=[LARGE, [LARGE]]))
    assert published["duplicate_of"]
    assert len(names(conn)) == 2
    assert len(files(folder)) == 3, "the first body was written again; the second was not"
    assert got(run) == [LARGE, [LARGE]]


def test_a_retry_of_a_request_waits_for_the_message_of_the_same_body(
    hook: PgQueueHook, queued: str, run: Run, conn: Connection
) -> None:
    for _ in range(2):
        request = PgQueueRequestOperator(task_id="ask", queue_name="orders", message=LARGE, wait_timeout=0.001)
        with pytest.raises(TaskDeferred):
            run(request)
    assert len(names(conn)) == 1


@pytest.mark.parametrize("batches", [False, True])
def test_decorated_tasks_publish_and_consume_large_bodies(
    hook: PgQueueHook, queued: str, run: Run, conn: Connection, batches: bool
) -> None:
    found: list[Any] = []
    with DAG("decorated", schedule=None):

        @task.pgqueue.publish(queue_name="orders")
        def reports() -> list[Any]:
            return [LARGE, 2]

        @task.pgqueue(queue_name="orders", batches=batches)
        def read(given: Any) -> None:
            found.extend(message.body for message in (given if batches else [given]))

        publish, consume = reports().operator, read().operator
    assert run(publish)["published"] == 2
    assert len(names(conn)) == 1
    assert run(consume) == {"success": 2}
    assert found == [LARGE, 2]


def test_a_model_reads_the_body_and_not_the_pointer(hook: PgQueueHook, queued: str, run: Run, tmp_path: Path) -> None:
    (tmp_path / "report.json").write_text(json.dumps({"type": "object", "required": ["report"]}))
    hook.publish("orders", LARGE)
    assert got(run, model=str(tmp_path / "report.json")) == [LARGE]


def test_the_tasks_of_a_dispatched_run_get_the_bodies(
    hook: PgQueueHook, queued: str, conn: Connection, folder: ObjectStoragePath
) -> None:
    first, second = hook.publish_batch("orders", [LARGE, [LARGE]])
    (dispatch,) = hook.run(verbs.dispatch_messages("orders", "pack", batch_size=2))
    hook.run(verbs.start_dispatch(dispatch.dispatch_id))
    context: Any = {"dag_run": SimpleNamespace(dag_id="pack", run_id=dispatch.run_id)}
    assert [message.body for message in get_messages(context)] == [LARGE, [LARGE]]
    (folder / names(conn)[0]).unlink()
    assert [message.body for message in get_messages(context, ids=[second])] == [[LARGE]]
    with pytest.raises(BodyUnavailable, match=f"message {first} of queue orders in {folder} .* it is missing"):
        get_messages(context)


# Object storage and cleaning ------------------------------------------------------------------------------------------


def test_a_universal_path_to_what_is_not_a_directory_keeps_bodies_too(
    queued: str, conn: Connection, tmp_path: Path
) -> None:
    """In fsspec's own memory no directory has to exist, and only an error tells that a file is missing."""
    root = UPath(f"memory://bodies-{tmp_path.name}/orders")
    store = BodyStore(root)
    assert store.clean(conn, older_than=ALL) == 0
    for body in (LARGE, [LARGE]):
        run_verb(conn, verbs.publish("orders", store.put(conn, body)))
    (root / names(conn)[0]).unlink()
    found: list[Any] = []
    consumer = Consumer(queue_name="orders", handle=lambda message: found.append(message.body), bodies=store)
    assert consumer.drain(conn) == {"retried": 1, "success": 1}
    assert found == [[LARGE]]
    store.put(conn, LARGE)
    assert store.clean(conn, older_than=ALL) == 1
    assert len(list(root.iterdir())) == 1


def test_a_folder_without_files_is_cleaned_too(hook: PgQueueHook, queued: str, run: Run, conn: Connection) -> None:
    """In an object store it does not exist before the first body, nor after the last one."""
    store = hook.body_store()
    assert store is not None
    for _ in range(2):
        assert run(clean()) == {"removed": 0}
        store.put(conn, LARGE)
        assert store.clean(conn, older_than=ALL) == 1


def test_a_store_that_refuses_to_remove_is_an_error(
    hook: PgQueueHook, queued: str, conn: Connection, folder: ObjectStoragePath, tmp_path: Path
) -> None:
    """Of several that it removes in one call, S3 refuses each in an answer that is otherwise a success."""
    store = hook.body_store()
    assert store is not None
    name = json.loads(store.put(conn, LARGE))["pgqueue_body"]["name"]
    if folder.protocol == "s3":
        bucket, _, _ = folder.path.partition("/")
        no = {"Effect": "Deny", "Principal": "*", "Action": "s3:DeleteObject", "Resource": f"arn:aws:s3:::{bucket}/*"}
        policy = json.dumps({"Version": "2012-10-17", "Statement": [no]})
        folder.fs.call_s3("put_bucket_policy", Bucket=bucket, Policy=policy)
    else:
        (tmp_path / "bodies" / name).unlink()
        (tmp_path / "bodies" / name / "a directory").mkdir(parents=True)
    with pytest.raises(OSError, match=r"Forbidden|Is a directory"):
        store.clean(conn, older_than=ALL)


def test_a_body_that_another_process_wrote_is_found_after_a_listing(
    hook: PgQueueHook, queued: str, conn: Connection, folder: ObjectStoragePath, tmp_path: Path
) -> None:
    """A universal path to S3 remembers listings of its own process."""
    store, elsewhere = hook.body_store(), tmp_path / "elsewhere"
    assert store is not None
    elsewhere.mkdir()
    hook.publish("orders", LARGE)
    assert store.clean(conn, older_than=ALL) == 0
    run_verb(conn, verbs.publish("orders", BodyStore(elsewhere).put(conn, [LARGE])))
    (written,) = elsewhere.iterdir()
    _write_as_another_process(folder / written.name, written.read_bytes())
    with hook.lease("orders", max_messages=2) as lease:
        assert [message.body for message in lease] == [LARGE, [LARGE]]
    conn.execute("DELETE FROM messages.message_archive")
    assert store.clean(conn, older_than=ALL) == 2


def _write_as_another_process(file: ObjectStoragePath, data: bytes) -> None:
    if file.protocol == "s3":
        bucket, _, key = file.path.partition("/")
        file.fs.call_s3("put_object", Bucket=bucket, Key=key, Body=data)
    else:
        file.write_bytes(data)


def test_a_store_that_is_away_fails_the_publish_and_one_attempt_of_a_message(
    hook: PgQueueHook, queued: str, conn: Connection, bodies_at: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    hook.publish("orders", LARGE)
    with closing(socket.create_server(("127.0.0.1", 0))) as nobody:
        away = f"http://127.0.0.1:{nobody.getsockname()[1]}"
    if bodies_at.startswith("s3"):
        _connect_to_s3(monkeypatch, away)
    else:
        (tmp_path / "bodies").rename(tmp_path / "away")
        (tmp_path / "bodies").touch()
    with pytest.raises(BodyUnavailable, match=rf"a body of .* cannot be written to {bodies_at}: \w+Error: "):
        hook.publish("orders", LARGE)
    with hook.lease("orders", max_messages=2) as lease:
        assert len(lease) == 0
    ((attempts, error),) = conn.execute("SELECT attempts, last_error FROM messages.message").fetchall()
    assert attempts == 1
    assert re.search(rf"message 1 of queue orders in {bodies_at} cannot be had: \w+Error: ", error)


def clean(**arguments: Any) -> PgQueueCleanBodiesOperator:
    return PgQueueCleanBodiesOperator(task_id="clean", **arguments)


def test_the_task_removes_old_bodies_that_no_message_has(
    hook: PgQueueHook, queued: str, run: Run, conn: Connection, folder: ObjectStoragePath
) -> None:
    hook.publish("orders", LARGE)
    store = hook.body_store()
    assert store is not None
    young = json.loads(store.put(conn, LARGE))["pgqueue_body"]["name"]
    database, number, _, random = young.split("-")
    (folder / f"{database}-{number}-20200101T000000-{random}").write_text("an orphan")
    assert run(clean()) == {"removed": 1}
    assert files(folder) == {*names(conn), young}
    assert run(clean()) == {"removed": 0}


def test_the_task_is_skipped_where_nothing_is_kept_elsewhere(conn_id: str, run: Run) -> None:
    with pytest.raises(AirflowSkipException, match="'pgqueue_default' has no bodies_at"):
        run(clean())


def test_the_example_publishes_reports_reads_them_and_cleans(
    hook: PgQueueHook, queue: Queue, run: Run, conn: Connection
) -> None:
    queue("reports")
    module = example("pgqueue_large_bodies")
    published = run(module.dag.get_task("publish"))
    assert published["published"] == len(names(conn)) == 3
    assert run(module.dag.get_task("read")) == {"success": 3}
    assert run(module.clean.get_task("clean")) == {"removed": 0}
    assert bodies(conn) == []
