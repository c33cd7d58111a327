"""What a publisher gives a message stays with it: `TRAVELS` names it, and each place that a message reaches has it."""

from __future__ import annotations

import html
import json
import re
import ssl
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import psycopg
import psycopg.rows
import pyarrow.dataset as ds
import pytest
from psycopg import sql
from psycopg.types.json import Jsonb

from airflow_provider_pgqueue.cli.program import run_program
from airflow_provider_pgqueue.cli.publish import publish as command
from airflow_provider_pgqueue.core import Consumer, Outcome, Rejected, connect, run, verbs
from airflow_provider_pgqueue.core.message import (
    PLURALS,
    TRAVELS,
    BatchOptions,
    DeadMessage,
    Duplicate,
    Message,
    Options,
)
from airflow_provider_pgqueue.core.statement import Statement, one
from airflow_provider_pgqueue.export import export_archive, export_files
from airflow_provider_pgqueue.web import Person, make_app
from tests.archive import make_partition
from tests.options import KEPT, lost
from tests.waiting import until
from tools import ROOT
from tools.screenshots.served import served

Connection = psycopg.Connection[Any]

UNTIL_IT_ENDS: dict[str, Any] = {
    "delay": timedelta(milliseconds=1),
    "expires_in": timedelta(days=3),
    "dedup_key": "order-7",
    "dedup_window": timedelta(days=2),
    "on_conflict": "skip",
}
NOT_WITH_A_DELAY = {"visible_at"}
OF_THE_DELIVERY = {
    "id", "queue_name", "created_at", "leased_at", "attempts", "requeues", "requeued_from", "message",
}  # fmt: skip
"""What the table of messages and the archive both have, and no publisher gives."""


def columns(conn: Connection, relation: str) -> dict[str, str]:
    found = conn.execute(
        "SELECT attname::text, atttypid::regtype::text FROM pg_attribute"
        " WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped",
        [f"messages.{relation}"],
    )
    return dict(found.fetchall())


def test_the_list_has_all_that_the_table_and_the_archive_keep(shared: Connection) -> None:
    waiting, archived = columns(shared, "message"), columns(shared, "message_archive")
    assert set(TRAVELS) == (waiting.keys() & archived.keys()) - OF_THE_DELIVERY
    for kind in ("message", "message_archive", "leased_message"):
        assert {name: columns(shared, kind).get(name) for name in TRAVELS} == dict(TRAVELS)
    # What is requeued keeps its priority; whoever repairs a message does not see it.
    assert dict(TRAVELS).items() - columns(shared, "leased_dead_message").items() == {("priority", "smallint")}


def test_every_option_of_a_publish_is_followed_here() -> None:
    assert KEPT.keys() == TRAVELS.keys()
    assert KEPT.keys() | UNTIL_IT_ENDS.keys() | NOT_WITH_A_DELAY == Options.__annotations__.keys()
    assert {PLURALS.get(name, name) for name in Options.__annotations__} == BatchOptions.__annotations__.keys()
    assert PLURALS.keys() <= {option.name for option in command.params}


def test_the_values_of_python_and_of_spark_have_what_travels() -> None:
    tables = pytest.importorskip("airflow_provider_pgqueue.spark.source.tables")
    writer = pytest.importorskip("airflow_provider_pgqueue.spark.source.writer")
    task = pytest.importorskip("airflow_provider_pgqueue.spark.pipelines.drain.task")
    assert TRAVELS.keys() <= set(Message.__slots__)
    assert TRAVELS.keys() - {"priority"} <= set(DeadMessage.__slots__)
    for table in (tables.ARCHIVE, tables._QUEUE):
        assert {name: table.columns.get(name) for name in TRAVELS} == dict(TRAVELS)
    assert TRAVELS.keys() | {"expires_at", "visible_at", "dedup_key"} <= writer._COLUMNS.keys()
    assert TRAVELS.keys() - {"priority"} <= set(task._MESSAGES.names)


def test_an_option_that_is_given_alone_is_kept(conn: Connection) -> None:
    """The usual publish takes a short way, which must leave to the long way what it does not keep."""
    run(conn, verbs.create_queue("orders"))
    for name, value in KEPT.items():
        run(conn, verbs.publish("orders", name, **{name: value}))
    found = [row for (row,) in conn.execute("SELECT to_jsonb(m) FROM messages.message m")]
    assert {row["message"]: row[row["message"]] for row in found} == KEPT


def page(dsn: str, id_: int) -> str:
    """Return the page of a message from a server of its own, which remembers nothing."""
    app = make_app(lambda: connect(dsn), lambda: Person("ann", True), secret=b"a secret of the tests")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    with served(app) as address, httpx.Client(base_url=address, verify=tls, trust_env=False, timeout=60) as browser:
        return browser.get(f"/messages/{id_}").text


def shown(text: str) -> dict[str, Any]:
    """Return what the page of a message shows of what travels."""
    facts = {name: html.unescape(value) for name, value in re.findall(r"<dt>(\w+)</dt><dd[^>]*>(.*?)</dd>", text)}
    (headers,) = re.findall(r"<h3>Headers</h3>\s*<pre[^>]*>(.*?)</pre>", text, re.S)
    return facts | {"priority": int(facts["priority"]), "headers": json.loads(html.unescape(headers))}


def test_what_a_publisher_gives_reaches_every_place_of_the_life_of_a_message(
    conn: Connection, dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tables = pytest.importorskip("airflow_provider_pgqueue.spark.source.tables")
    monkeypatch.setenv("PGQUEUE_DSN", dsn)
    conn.row_factory = psycopg.rows.dict_row
    run(conn, verbs.create_queue("orders", fair_by="group"))
    id_ = run(conn, verbs.publish("orders", {"order": 7}, **KEPT, **UNTIL_IT_ENDS))
    again = run(conn, verbs.publish("orders", {"order": 7}, **KEPT, **UNTIL_IT_ENDS))
    assert (again, type(again)) == (id_, Duplicate)

    def row(table: Any) -> Any:
        (found,) = conn.execute(table.statement(table.columns, [tables.compare("queue_name", "=", "orders")]).encode())
        return found

    # It waits.
    first = row(tables._QUEUE)
    assert lost(first) == {}
    # In a group it waits for its turn, which may be infinite, until its time.
    assert (first["visible_at"] or first["due_at"]) > first["created_at"]
    assert first["expires_at"] - first["created_at"] > timedelta(days=2)
    assert run_program(["peek", "orders", "--json"]) == 0
    assert lost(json.loads(capsys.readouterr().out)["messages"][0]) == {}
    assert lost(shown(page(dsn, id_))) == {}

    # A consumer gets it, and it dies.
    handled: list[Message] = []

    def handle(message: Message) -> Outcome:
        handled.append(message)
        return Rejected("no such customer")

    with connect(dsn) as own:
        until(lambda: Consumer(queue_name="orders", handle=handle).drain(own), what="the message is ready")
    assert lost(handled[0]) == {}
    assert lost(row(tables.ARCHIVE)) == {}
    assert lost(shown(page(dsn, id_))) == {}

    # It is requeued.
    (dead,) = run(conn, verbs.lease_dead("orders"))
    assert lost(dead) == {"priority": None}
    ((new_id,),) = [(one.new_id,) for one in run(conn, verbs.requeue(dead.lock_token, [dead.id]))]
    assert lost(row(tables._QUEUE)) == {}
    fair = "SELECT fair_key FROM messages.message WHERE id = %s"
    assert conn.execute(fair, [new_id]).fetchone() == {"fair_key": "acme"}
    (leased,) = run(conn, verbs.lease("orders"))
    assert lost(leased) == {}
    run(conn, verbs.release(leased.lock_token, [leased.id]))

    # A DAG run finishes it.
    (dispatch,) = run(conn, verbs.dispatch_messages("orders", "pack"))
    (message,) = run(conn, verbs.dispatched_messages("pack", dispatch.run_id))
    assert lost(message) == {}
    run(conn, verbs.end_dispatch("pack", dispatch.run_id, "success"))
    (message,) = run(conn, verbs.dispatched_messages("pack", dispatch.run_id))
    assert lost(message) == {}

    # It is exported.
    make_partition(conn, 60)
    conn.execute("DELETE FROM messages.message_archive WHERE id = %s", [id_])
    conn.execute(
        "UPDATE messages.message_archive"
        " SET archived_at = (SELECT first_at FROM messages.archive_partitions() ORDER BY 1 LIMIT 1)"
    )
    export_archive(dsn, target=str(tmp_path), older_than=timedelta(days=50))
    (exported,) = ds.dataset(export_files(str(tmp_path))).to_table().to_pylist()
    assert (exported["id"], lost(exported)) == (new_id, {})


def in_a_batch(conn: Connection) -> None:
    options: Any = {PLURALS.get(name, name): [value] if name in PLURALS else value for name, value in KEPT.items()}
    run(conn, verbs.publish_batch("orders", [1], **options))


def with_a_key_in_sql(conn: Connection) -> None:
    """Python calls publish_deduplicated, to which publish leads in SQL."""
    run(conn, Statement("publish", {"queue_name": "orders", "message": "1", "dedup_key": "order-7", **KEPT}, one))


def to_a_topic(conn: Connection) -> None:
    run(conn, verbs.bind_topic("orders", "#"))
    options: Any = {name: value for name, value in KEPT.items() if name != "topic"}
    run(conn, verbs.publish_topic(KEPT["topic"], 1, **options))


def in_place_of_another(conn: Connection) -> None:
    stay: Any = {name: KEPT[name] for name in ("priority", "group_key")}
    first = run(conn, verbs.publish("orders", 1, **stay, dedup_key="k"))
    assert run(conn, verbs.publish("orders", 2, **KEPT, dedup_key="k", on_conflict="replace")) == first


def in_place_of_another_of_its_batch(conn: Connection) -> None:
    options: Any = {
        PLURALS.get(name, name): [None, value] if name in PLURALS else value for name, value in KEPT.items()
    }
    group_keys = [KEPT["group_key"]] * 2  # the first body of a key has the place in the group
    run(
        conn,
        verbs.publish_batch(
            "orders", [1, 2], **options | {"group_keys": group_keys}, dedup_keys=["k", "k"], on_conflict="replace"
        ),
    )


def insert(conn: Connection, table: str, **more: Any) -> None:
    row = {name: Jsonb(value) if isinstance(value, dict) else value for name, value in {**KEPT, **more}.items()}
    columns, values = sql.SQL(", ").join(map(sql.Identifier, row)), sql.SQL(", ").join(map(sql.Literal, row.values()))
    conn.execute(sql.SQL("INSERT INTO {} ({}) VALUES ({})").format(sql.Identifier(*table.split(".")), columns, values))


def in_plain_sql(conn: Connection) -> None:
    insert(conn, "messages.message", message=Jsonb(1), queue_name="orders")


def from_a_stage(conn: Connection) -> None:
    stage = run(conn, verbs.stage_publish("job", queue_name="orders"))
    assert stage is not None
    insert(conn, stage, message=Jsonb(1), attempt=1, ordinal=0)
    run(conn, verbs.publish_staged("job", "run", '[{"partition": 0, "attempt": 1, "rows": 1}]', queue_name="orders"))


@pytest.mark.parametrize(
    "publish",
    [
        in_a_batch,
        with_a_key_in_sql,
        to_a_topic,
        in_place_of_another,
        in_place_of_another_of_its_batch,
        in_plain_sql,
        from_a_stage,
    ],
)
def test_it_is_kept_however_a_message_is_published(conn: Connection, publish: Callable[[Connection], None]) -> None:
    run(conn, verbs.create_queue("orders"))
    publish(conn)
    (found,) = until(lambda: run(conn, verbs.consume("orders")), what="the message is ready")
    assert lost(found) == {}


def in_readme(step: str) -> str:
    """Return a statement for workers that know plain SQL only."""
    (found,) = re.findall(rf"<!-- raw: {step} -->\n```sql\n(.*?);\n```", (ROOT / "sql" / "README.md").read_text(), re.S)
    return str(found)


@pytest.mark.parametrize("end", ["expired", "lock_expired", "cancelled", "success", "failed"])
def test_it_is_in_the_archive_however_a_message_ends(conn: Connection, end: str) -> None:
    """The test above has what a consumer, a DAG run and a requeue do."""
    conn.row_factory = psycopg.rows.dict_row
    moment = timedelta(milliseconds=1)
    run(conn, verbs.create_queue("orders", max_attempts=1))
    id_ = run(conn, verbs.publish("orders", 1, **KEPT, expires_in=moment if end == "expired" else None))
    if end == "cancelled":
        run(conn, verbs.cancel("orders", [id_]))
    elif end == "success":
        run(conn, verbs.consume("orders"))
    elif end == "failed":
        worker = psycopg.RawCursor(conn)

        def locked() -> Any:
            run(conn, verbs.scan(["orders"]))  # lets it into its group
            return worker.execute(in_readme("lock").encode(), [id_]).fetchone()

        worker.execute(in_readme("finish").encode(), [id_, until(locked)["fence"], end, "no"])
    elif end == "lock_expired":
        run(conn, verbs.lease("orders", lease_for=moment))

    def archived() -> list[dict[str, Any]]:
        run(conn, verbs.scan(["orders"]))
        return conn.execute("SELECT * FROM messages.message_archive").fetchall()

    (found,) = until(archived, what="the message is in the archive")
    assert (found["result"], lost(found)) == (end, {})
