"""The recipes of docs/how-to/spark-pipelines.md: what a few lines of Spark do with the data source."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark.sql import SparkSession

from airflow_provider_pgqueue.spark import drain, repair
from tests.archive import cut, make_partition
from tests.dead_messages import handling
from tests.test_docs import of_page
from tools import ROOT

Connection = psycopg.Connection[Any]
Queue = Callable[..., str]
Recipe = Callable[..., dict[str, Any]]
PAGE = "docs/how-to/spark-pipelines.md"
AT = datetime.now(UTC) - timedelta(minutes=1)
AROUND = {"since": (AT - timedelta(minutes=1)).isoformat(), "until": (AT + timedelta(seconds=1)).isoformat()}


@pytest.fixture
def recipe(session: SparkSession, dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Recipe:
    """Run a block of the page, by its mark, with files in `tmp_path`; returns what it named."""
    monkeypatch.setenv("PGQUEUE_DSN", dsn)

    def run(mark: str, **times: str) -> dict[str, Any]:
        (code,) = of_page(PAGE, "py", mark)
        for name, time in times.items():
            code = re.sub(f'{name}="[^"]*"', f'{name}="{time}"', code)
        named: dict[str, Any] = {}
        exec(compile(re.sub(r"\w+\.csv(?=\")", lambda file: str(tmp_path / file[0]), code), PAGE, "exec"), named)
        return named

    return run


def archive(conn: Connection, **columns: Any) -> None:
    given = {"result": "success", "archived_at": AT, "message": '{"total": 200}'} | columns
    conn.execute(
        f"INSERT INTO messages.message_archive (queue_name, created_at, {', '.join(given)})"  # noqa: S608
        f" VALUES ('orders', now() - interval '2 days', {', '.join(['%s'] * len(given))})".encode(),
        list(given.values()),
    )


def test_what_was_chosen_is_published_again_once_and_groups_keep_their_order(
    conn: Connection, queue: Queue, recipe: Recipe
) -> None:
    queue("orders")
    queue("orders_again")
    columns = {"topic": "shop.order", "priority": 7, "headers": '{"trace": 1e400}'}
    body = '{"total": 123456789012345678901234567890.50, "text": "quote \\" π"}'
    archive(conn, reference="one", message=body, **columns)
    archive(conn, result="failed")
    archive(conn, archived_at=AT + timedelta(seconds=1))
    archive(conn, message='{"total": 100}')
    archive(conn, message='{"total": "nothing"}')
    for number in range(300):
        archive(conn, group_key=f"group {number % 3}", message=f'{{"total": 200, "n": {number}}}')
    assert recipe("publish again", **AROUND)["finished"].count() == 303
    recipe("publish again", **AROUND)
    published = (
        "SELECT message, reference, topic, priority, headers::text FROM messages.message WHERE group_key IS NULL"
    )
    assert conn.execute(published + " AND message = %s::jsonb AND queue_name = 'orders_again'", [body]).rowcount == 1
    assert [row[1:4] for row in conn.execute(published)] == [("one", "shop.order", 7)]
    groups = "SELECT array_agg((message -> 'n')::integer ORDER BY id) FROM messages.message GROUP BY group_key"
    found = [numbers for (numbers,) in conn.execute(groups + " HAVING group_key IS NOT NULL")]
    assert sorted(found) == [list(range(first, 300, 3)) for first in range(3)]


def test_groups_keep_their_order_also_out_of_many_parts(conn: Connection, queue: Queue, recipe: Recipe) -> None:
    queue("orders")
    queue("orders_again")
    name = make_partition(conn, 40, 2000)
    cut(conn, name, 15)
    conn.execute(
        "UPDATE messages.message_archive SET group_key = 'one', result = 'success', queue_name = 'orders',"
        " message = jsonb_build_object('total', 200, 'n', id)"
    )
    recipe("publish again", since="2000-01-31T08:00:00Z", until="2999-01-31T09:00:00Z")
    numbers = [n for (n,) in conn.execute("SELECT (message -> 'n')::bigint FROM messages.message ORDER BY id")]
    assert (len(numbers), numbers) == (2000, sorted(numbers))


def test_each_kind_of_difference_is_found_and_nothing_else(
    conn: Connection, queue: Queue, recipe: Recipe, tmp_path: Path
) -> None:
    queue("orders")
    for reference in ("good", "twice", "twice", "billed twice", "unbilled", "not wanted"):
        archive(conn, reference=reference)
    for reference, result in (("requeued", "failed"), ("requeued", "success"), ("dead", "failed")):
        archive(conn, reference=reference, result=result)
    conn.execute("SELECT messages.publish('orders', '1', reference => r) FROM unnest('{waits,early}'::text[]) r")
    wanted = ("good", "good", "twice", "billed twice", "unbilled", "requeued", "dead", "waits", "early", "lost")
    invoices = ("good", "twice", "billed twice", "billed twice", "requeued", "dead", "early", "not wanted", "stray")
    for name, references in (("wanted", wanted), ("invoices", invoices)):
        (tmp_path / f"{name}.csv").write_text("reference\n" + "".join(f"{one}\n" for one in references))
    found = recipe("compare")["found"].collect()
    assert {row.reference: row.finding for row in found} == {
        "lost": "lost",
        "twice": "doubled",
        "billed twice": "doubled",
        "unbilled": "no invoice",
        "dead": "invoice without success",
        "stray": "invoice without success",
    }
    assert len(found) == 6


def printed(mark: str) -> dict[str, Any]:
    """Return the summary that the page shows below a command, without what it leaves out."""
    pattern = rf"^<!-- shell: {mark} -->\n```sh\n[^`]*```\n\n```text\n(.*?)^```$"
    (text,) = re.findall(pattern, (ROOT / PAGE).read_text(), re.M | re.S)
    summary: dict[str, Any] = json.loads(text.replace(", …", ""))
    return summary


def test_a_drain_has_the_summary_that_the_page_shows(spark: SparkSession, conn: Connection, dsn: str) -> None:
    conn.execute("SELECT messages.create_queue('orders')")
    conn.execute(
        "SELECT messages.publish_batch('orders', '[{\"no\": 1}]' || jsonb_agg(jsonb_build_object('order_id', n)))"
        " FROM generate_series(1, 2000) n"
    )
    packing: dict[str, Any] = {"__name__": "__main__"}
    (code,) = (code for code in of_page(PAGE, "py") if code.startswith("# packing.py"))
    exec(compile(code, PAGE, "exec"), packing)
    summary = drain(spark, queue="orders", function=packing["pack"], dsn=dsn, run_id="nightly-2026-11-21")
    assert printed("drain").items() <= summary.items()


def test_a_repair_has_the_summary_that_the_page_shows(
    spark: SparkSession, conn: Connection, connect: Callable[[], Connection], dsn: str
) -> None:
    conn.execute("SELECT messages.create_queue('orders'), setval('messages.message_id_seq', 9212)")
    conn.execute("SELECT messages.publish_batch('orders', to_jsonb(array_fill('{\"city\": 1}'::jsonb, ARRAY[500])))")
    conn.execute(
        "SELECT messages.archive(lock_token, array_agg(id), 'failed', 'no country')"
        " FROM messages.lease('orders', 500) GROUP BY lock_token"
    )
    repairs: dict[str, Any] = {"__name__": "__main__"}
    (code,) = (code for code in of_page("docs/how-to/dead-messages.md", "python") if code.startswith("# repairs.py"))
    exec(compile(code, PAGE, "exec"), repairs)
    with handling(connect()):
        summary = repair(spark, cause="49a8514b5b1c", function=repairs["add_country"], canary=10, dsn=dsn)
    del summary["ids"]["requeued"][2:]
    assert summary == printed("repair")
