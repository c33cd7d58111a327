"""Published against archived against a business table: each kind of discrepancy is found, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark.errors import PythonException
from pyspark.sql import SparkSession

from airflow_provider_pgqueue.core import InvalidArgument
from airflow_provider_pgqueue.spark import __main__ as command_line
from airflow_provider_pgqueue.spark import reconcile
from airflow_provider_pgqueue.spark.pipelines.pipeline import raised_in_spark

Connection = psycopg.Connection[Any]
Reconcile = Callable[..., dict[str, Any]]

NOTHING = dict.fromkeys(("lost", "doubled", "missing_effect", "effect_without_success", "slow"), 0)
EXPECTED = {"expected_query": "SELECT reference FROM shop.wanted;\n"}
INVOICES = {"business_query": "TABLE shop.invoice -- all", "business_column": "Order"}


@pytest.fixture
def compare(spark: SparkSession, dsn: str) -> Reconcile:
    """Reconcile: `compare("run", by="id", …)`."""
    return lambda run_id, **options: reconcile(spark, run_id=run_id, dsn=dsn, **options)


@pytest.fixture
def shop(conn: Connection) -> Connection:
    """A hundred orders, of which each was wanted, archived as success in a minute and has its invoice."""
    conn.execute("CREATE SCHEMA shop")
    conn.execute('CREATE TABLE shop.wanted (reference text); CREATE TABLE shop.invoice ("Order" text)')
    conn.execute("SELECT messages.create_queue('orders'), messages.create_queue('other')")
    archive(conn, *(f"order-{number}" for number in range(100)))
    conn.execute("INSERT INTO shop.wanted SELECT reference FROM messages.message_archive")
    conn.execute("INSERT INTO shop.invoice SELECT reference FROM messages.message_archive")
    return conn


def archive(conn: Connection, *references: str | None, result: str = "success", took: str = "1 minute") -> None:
    conn.execute(
        "INSERT INTO messages.message_archive (queue_name, reference, result, created_at, archived_at, message)"
        " SELECT 'orders', reference, %s, now() - interval '1 hour' - %s::interval, now() - interval '1 hour',"
        " '\"canary\"' FROM unnest(%s::text[]) AS reference",
        [result, took, list(references)],
    )


def plant(conn: Connection) -> None:
    """Let one thing of each kind go wrong, in ways that are one kind only where that is possible."""
    conn.execute("INSERT INTO shop.wanted VALUES ('never-published'), ('never-published'), ('''; DROP \"x\",')")
    archive(conn, "order-1")
    conn.execute("INSERT INTO shop.invoice VALUES ('order-2'), ('never-heard-of'), ('dead')")
    conn.execute("DELETE FROM shop.invoice WHERE \"Order\" = 'order-3'")
    archive(conn, "dead", result="failed")
    archive(conn, "late", took="3 hours")
    conn.execute("INSERT INTO shop.wanted VALUES ('dead'), ('late'), ('waits'), ('waits-long'), ('requeued')")
    archive(conn, "requeued", result="failed")
    archive(conn, "requeued")
    conn.execute("INSERT INTO shop.invoice VALUES ('late'), ('requeued'), ('waits')")
    conn.execute("SELECT messages.publish('orders', '1', reference => r) FROM unnest(ARRAY['waits', 'waits-long']) r")
    conn.execute("UPDATE messages.message SET created_at = now() - interval '3 hours' WHERE reference = 'waits-long'")


FOUND = {
    "lost": ['\'; DROP "x",', "never-published"],
    "doubled": ["order-1", "order-2"],
    "missing_effect": ["order-3"],
    "effect_without_success": ["dead", "never-heard-of"],
    "slow": ["late", "waits-long"],
}


def test_each_kind_that_is_planted_is_found_and_nothing_else(
    shop: Connection, compare: Reconcile, tmp_path: Path, spark: SparkSession
) -> None:
    plant(shop)
    found = compare("planted", output=f"{tmp_path}/", slow_after=timedelta(hours=2), **EXPECTED, **INVOICES)
    assert found["sample"] == FOUND
    assert found["found"] == {kind: len(keys) for kind, keys in FOUND.items()}
    assert (found["unfinished"], found["discrepancies"]) == (2, 9)

    rows = spark.read.parquet(found["output"]).collect()
    assert {kind: sorted(row["key"] for row in rows if row["kind"] == kind) for kind in FOUND} == FOUND
    (doubled,) = [row for row in rows if row["key"] == "order-1"]
    assert (len(doubled["ids"].split()), doubled["successes"], doubled["effects"]) == (2, 2, 1)
    assert "canary" not in json.dumps(found)


def test_messages_without_a_list_speak_for_themselves(shop: Connection, compare: Reconcile) -> None:
    plant(shop)
    archive(shop, None, None)
    found = compare("alone")
    assert found["found"] == NOTHING | {"doubled": 1}
    assert found["without_key"] == 2
    assert (found["expected"], found["effects"]) == (None, None)


def test_ids_can_be_the_keys_and_files_can_say_what_is_expected(
    shop: Connection, compare: Reconcile, tmp_path: Path, spark: SparkSession
) -> None:
    ids = [id_ for (id_,) in shop.execute("SELECT id FROM messages.message_archive ORDER BY id").fetchall()]
    (tmp_path / "ids.csv").write_text("id,note\n" + "".join(f'{id_},"a, b"\n' for id_ in [*ids, 10**15]))
    (tmp_path / "ids.jsonl").write_text("".join(f'{{"id": {id_}}}\n' for id_ in [*ids, 10**15]))
    spark.createDataFrame([(id_,) for id_ in [*ids, 10**15, None]], "id long").write.parquet(str(tmp_path / "ids"))
    for expected, business in (("ids.csv", "ids.jsonl"), ("ids", "ids.csv")):
        found = compare(expected, by="id", expected=str(tmp_path / expected), business=str(tmp_path / business))
        assert found["sample"] == {"lost": [str(10**15)], "effect_without_success": [str(10**15)]}


def test_time_and_queue_choose_the_messages(shop: Connection, compare: Reconcile) -> None:
    archive(shop, "old", "old", took="5 hours")
    shop.execute("SELECT messages.publish('other', '1'), messages.publish('orders', '1')")
    (moment,) = shop.execute("SELECT now() - interval '2 hours'").fetchone() or ()
    assert compare("before", until=moment)["sample"] == {"doubled": ["old"]}
    assert compare("after", since=moment, queues=("orders",))["messages"] == 101


def test_nothing_at_all_is_no_discrepancy(conn: Connection, compare: Reconcile) -> None:
    nobody = "SELECT '1' AS reference WHERE false"
    assert compare("empty", expected_query=nobody, business_query=nobody)["found"] == NOTHING


@pytest.mark.parametrize(
    ("keys", "error"),
    [
        ({"expected_query": "SELECT 1 AS y"}, "column q.x does not exist"),
        ({"expected_query": "SELECT * FROM nowhere"}, 'relation "nowhere" does not exist'),
        ({"expected_query": "no sql"}, "syntax error"),
        ({"expected": "/nowhere.csv"}, "cannot be read as csv"),
        ({"expected_query": "SELECT 1 AS x", "expected": "x"}, "Give files or a query"),
        ({"expected_query": "SELECT 1 AS x", "expected_dsn_variable": "NO_SUCH_DSN"}, "NO_SUCH_DSN is not set"),
    ],
)
def test_a_source_that_is_none_is_a_clear_error(
    conn: Connection, compare: Reconcile, keys: dict[str, str], error: str
) -> None:
    with pytest.raises(InvalidArgument, match=error):
        compare("bad", expected_column="x", **keys)


def test_a_query_changes_nothing(shop: Connection, compare: Reconcile) -> None:
    shop.execute(
        "CREATE FUNCTION shop.wanted_now() RETURNS SETOF text LANGUAGE sql"
        " AS $$ DELETE FROM shop.wanted RETURNING reference $$"
    )
    with pytest.raises(PythonException, match="cannot execute DELETE in a read-only transaction"):
        compare("writes", expected_query="SELECT reference FROM shop.wanted_now() AS reference")
    assert shop.execute("SELECT FROM shop.wanted").rowcount == 100


def test_a_query_that_fails_for_a_row_shows_nothing_of_it(shop: Connection, compare: Reconcile) -> None:
    with pytest.raises(PythonException) as failed:
        compare("fails", expected_query="SELECT reference::integer AS reference FROM shop.wanted")
    said = raised_in_spark(failed.value)
    assert isinstance(said, InvalidArgument)
    assert "the query fails: invalid input syntax for type integer: …" in str(said)
    assert "order-" not in str(failed.value)


def test_an_output_that_cannot_be_written_is_named_without_its_password(
    shop: Connection, compare: Reconcile, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    for output, shown in ((f"{tmp_path}/file/x", f"{tmp_path}/file/x"), ("gopher://me:geheim@x/y", "gopher://x/y")):
        with pytest.raises(InvalidArgument, match=f"output '{shown}' cannot be written"):
            compare("out", output=output, **EXPECTED)
    assert compare("out", output=str(tmp_path / "x"), **EXPECTED)["output"] == f"{tmp_path}/x/discrepancies"


def test_a_missing_column_of_a_file_is_named(conn: Connection, compare: Reconcile, tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("a,b\n1,2\n")
    with pytest.raises(InvalidArgument, match=r"no column 'x'. It has a, b"):
        compare("bad", expected=str(tmp_path / "x.csv"), expected_column="x")


def test_options_that_are_none_are_refused(compare: Reconcile) -> None:
    for options in ({"by": "message"}, {"output_format": "xlsx"}, {"slow_after": timedelta(-1)}):
        with pytest.raises(InvalidArgument, match="Give"):
            compare("run", **options)


def test_a_strict_command_exits_with_1_while_something_is_wrong(
    shop: Connection,
    spark: SparkSession,
    dsn: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    # The command stops its session at the end; this one is of all tests.
    monkeypatch.setattr(SparkSession, "stop", lambda self: None)
    monkeypatch.setenv("PGQUEUE_DSN", dsn)
    monkeypatch.setenv("SHOP_DSN", dsn)
    given = ["--expected-query", "TABLE shop.wanted", "--business-query", "TABLE shop.invoice"]
    given += ["--business-column", "Order", "--business-dsn-variable", "SHOP_DSN", "--strict"]

    def call(*arguments: str) -> int:
        return command_line.run(["reconcile", *given, *arguments])

    assert call("--slow-after", "2h") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["discrepancies"], found["found"], found["sample"]) == (0, NOTHING, {})
    assert (found["messages"], found["expected"], found["effects"], found["unfinished"]) == (100, 100, 100, 0)
    plant(shop)
    assert call("--run-id", "wrong", "--output", str(tmp_path), "--output-format", "csv") == 1
    assert "7 discrepancies in run wrong" in capsys.readouterr().err
    listed = spark.read.option("header", "true").option("escape", '"').csv(f"{tmp_path}/discrepancies").collect()
    wanted = {(kind, key) for kind, keys in FOUND.items() if kind != "slow" for key in keys}
    assert {(row["kind"], row["key"]) for row in listed} == wanted
    shop.execute("DELETE FROM shop.invoice; DELETE FROM shop.wanted; DELETE FROM messages.message_archive")
    assert call("--run-id", "wrong") == 0
    assert json.loads(capsys.readouterr().out)["discrepancies"] == 0
