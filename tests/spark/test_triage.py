"""What messages died of: the right causes, the numbers that SQL counts, a page that nothing hostile gets out of."""

from __future__ import annotations

import html
import json
import re
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from psycopg.rows import dict_row
from pyspark.sql import SparkSession

from airflow_provider_pgqueue.core import InvalidArgument, run, verbs
from airflow_provider_pgqueue.core.dead_causes import Period
from airflow_provider_pgqueue.spark import triage
from airflow_provider_pgqueue.spark.pipelines.triage.causes import Causes
from airflow_provider_pgqueue.spark.pipelines.triage.report import render, write_report
from tests.core.roles.test_roles import logins

Connection = psycopg.Connection[Any]
Queue = Callable[..., str]
BODY = "the body, which nobody may see"
NASTY = "<script>alert('x')</script> \"'--; DROP TABLE; \u202e\u2028 ${7*7} {{7*7}} $\\frac{x$ 名前"
CITIES = ("Athens", "Bern", "Cairo", "Dublin", "Essen", "Florence", "Graz", "Hanoi", "Izmir", "Jakarta")

MONDAY = datetime(2026, 6, 1, tzinfo=UTC)
WEEK = Period(begin=MONDAY, end=MONDAY + timedelta(days=7))

# The page ------------------------------------------------------------------------------------------------------------


def found(**causes: str) -> Causes:
    """Return causes by their names, each with a trend; with a capital letter somebody decided about all of it."""
    series = [1] * WEEK.steps
    rows = [
        {
            **dict.fromkeys(("queue_name", "result", "error", "pattern"), "x"),
            **dict.fromkeys(("requeued", "dismissed", "died_again"), 0),
            **dict.fromkeys(("first_at", "last_at"), MONDAY),
            "cause": name,
            "trend": said,
            "dead": WEEK.steps,
            "unremedied": WEEK.steps * name.islower(),
            "series": series,
            "fingerprints": ["x"],
            "sample_ids": [1],
            "sample_references": [None],
        }
        for name, said in causes.items()
    ]
    sums = Counter(causes=len(rows), dead=1000, unremedied=999, requeued=1000, died_again=1, dismissed=0)
    return Causes(causes=rows, sums=sums, series=[len(rows)] * WEEK.steps)


def test_new_and_growing_causes_without_a_remedy_are_named_first_with_links_to_their_rows() -> None:
    page = render("night 1", WEEK, found(a="steady", b="growing", C="new", d="new", e="fading"))
    assert re.findall(r'href="#(\w+)"', page) == ["b", "d"]
    assert re.findall(r'<tr id="(\w+)"', page) == ["a", "b", "C", "d", "e"]


def test_a_share_that_is_not_all_or_nothing_does_not_look_so() -> None:
    page = html.unescape(render("night 1", WEEK, found(a="steady"))).replace("\N{NO-BREAK SPACE}", " ")
    assert ">99 % of them" in page
    assert "<1 % of them died again" in page


# In the database ------------------------------------------------------------------------------------------------------


class Deaths:
    """Archives dead messages in the first week that the archive has."""

    def __init__(self, conn: Connection) -> None:
        self.conn = conn
        row = conn.execute("SELECT min(first_at) FROM messages.archive_partitions()").fetchone()
        assert row is not None
        self.begin: datetime = row[0].astimezone(UTC)
        self.end = self.begin + timedelta(days=7)

    def add(
        self,
        said: str,
        number: int = 1,
        *,
        after: timedelta = timedelta(hours=1),
        every: timedelta = timedelta(0),
        **row: Any,
    ) -> list[int]:
        """Let a number of messages die of one failure; `every` so often from `after` the beginning on."""
        values = {
            "queue_name": "orders",
            "result": "failed",
            "error": "shop.ShopError",
            "reference": None,
            "requeued_from": None,
            "fingerprinted": True,
        } | row
        rows = self.conn.execute(
            """
            INSERT INTO messages.message_archive (queue_name, result, created_at, archived_at, attempts, reference,
                                                  requeued_from, failure, fingerprint, message)
            SELECT %(queue_name)s, %(result)s, %(at)s, %(at)s + n * %(every)s, 5, %(reference)s,
                   %(requeued_from)s, failure,
                   CASE WHEN %(fingerprinted)s THEN messages.fingerprint(%(result)s, NULL, failure) END,
                   jsonb_build_object('secret', %(body)s::text)
              FROM generate_series(0, %(number)s - 1) n, LATERAL (SELECT jsonb_build_object('error', %(error)s::text,
                   'message', replace(%(said)s, '{n}', n::text), 'traceback', %(body)s::text) AS failure) f
            RETURNING id
            """,
            values | {"at": self.begin + after, "every": every, "number": number, "said": said, "body": BODY},
        ).fetchall()
        return [id_ for (id_,) in rows]

    def triage(self, spark: SparkSession, dsn: str, run_id: str = "night 1", **options: Any) -> dict[str, Any]:
        """Find out what they died of."""
        return triage(spark, run_id=run_id, dsn=dsn, **({"since": self.begin, "until": self.end} | options))


@pytest.fixture
def deaths(conn: Connection, queue: Queue) -> Deaths:
    queue("orders")
    queue("bills")
    return Deaths(conn)


def causes(conn: Connection, **arguments: Any) -> list[dict[str, Any]]:
    given = ", ".join(f"{name} => %({name})s" for name in arguments)
    with conn.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(f"SELECT * FROM messages.triage_causes({given})".encode(), arguments).fetchall()  # noqa: S608


def test_a_pipeline_role_finds_the_causes_that_were_made_and_the_numbers_are_those_of_sql(
    spark: SparkSession, dsn: str, conn: Connection, deaths: Deaths
) -> None:
    hour = timedelta(hours=1)
    for place, city in enumerate(CITIES):
        deaths.add(f"no address in {city} for order {{n}}", 10 + place, every=hour, reference=f"to {city}")
    deaths.add("no address in Bern for order {n}", 3, queue_name="bills")
    deaths.add("no address in Bern for order {n}", 2, error="shop.OtherError")
    deaths.add("connection refused", 7, error="OSError", result="rejected", fingerprinted=False)
    refused = deaths.add("connection reset", 4, error="OSError", after=timedelta(days=6))
    deaths.add("at the beginning of the window", after=timedelta(0))
    deaths.add("at the end of the window", after=timedelta(days=7))
    run(
        conn,
        verbs.requeue_dead(verbs.DeadFilter("orders", fingerprints=[fingerprint(conn, refused[0])]), max_messages=3),
    )
    deaths.add("another cause altogether kills it", requeued_from=refused[0], after=timedelta(days=8))
    dismiss(conn, refused[3])

    with logins(dsn) as login:
        login("triage_pipeline", "messages_pipeline")
        summary = deaths.triage(spark, make_conninfo(dsn, user="triage_pipeline"))

    found = causes(conn)
    by_cause = {(one["queue_name"], one["result"], one["error"], one["pattern"]): one for one in found}
    assert {key: one["dead"] for key, one in by_cause.items()} == {
        ("orders", "failed", "shop.ShopError", "no address in * for order #"): sum(range(10, 20)),
        ("bills", "failed", "shop.ShopError", "no address in bern for order #"): 3,
        ("orders", "failed", "shop.OtherError", "no address in bern for order #"): 2,
        ("orders", "rejected", "OSError", "connection refused"): 7,
        ("orders", "failed", "OSError", "connection reset"): 4,
        ("orders", "failed", "shop.ShopError", "at the beginning of the window"): 1,
    }
    reset = by_cause["orders", "failed", "OSError", "connection reset"]
    assert {name: reset[name] for name in ("unremedied", "requeued", "dismissed", "died_again", "trend")} == {
        "unremedied": 0,
        "requeued": 3,
        "dismissed": 1,
        "died_again": 1,
        "trend": "new",
    }
    towns = by_cause["orders", "failed", "shop.ShopError", "no address in * for order #"]
    assert len(towns["fingerprints"]) == len(CITIES)
    assert towns["fingerprints"][0] == fingerprint(conn, towns["sample_ids"][0])
    assert towns["sample_references"][0] == "to Jakarta"
    for one in found:
        row = conn.execute(
            """
            SELECT count(*), count(*) FILTER (WHERE remedy IS NULL), count(*) FILTER (WHERE remedy = 'requeued'),
                   count(*) FILTER (WHERE remedy = 'dismissed'), min(archived_at), max(archived_at),
                   (array_agg(id ORDER BY archived_at DESC, id DESC))[:5]
              FROM messages.message_archive
             WHERE messages.fingerprint(result, details, failure) = ANY (%s) AND queue_name = %s
               AND archived_at >= %s AND archived_at < %s
            """,
            [one["fingerprints"], one["queue_name"], deaths.begin, deaths.end],
        ).fetchone()
        assert row == tuple(
            one[name] for name in ("dead", "unremedied", "requeued", "dismissed", "first_at", "last_at", "sample_ids")
        )
        assert sum(one["series"]) == one["dead"]
        assert len(one["series"]) == 7 * 24
    counted = ("causes", "dead", "unremedied", "requeued", "dismissed", "died_again")
    assert {name: summary[name] for name in counted} == {
        "causes": 6,
        "dead": 162,
        "unremedied": 158,
        "requeued": 3,
        "dismissed": 1,
        "died_again": 1,
    }
    assert summary["left_out"] == {"causes": 0, "dead": 0}
    (bill,) = causes(conn, queue_name="bills")
    assert causes(conn, cause=bill["cause"]) == [bill]


def fingerprint(conn: Connection, id_: int) -> str:
    row = conn.execute("SELECT fingerprint FROM messages.dead_message WHERE id = %s", [id_]).fetchone()
    row = row or conn.execute("SELECT fingerprint FROM messages.message_archive WHERE id = %s", [id_]).fetchone()
    assert row is not None
    return str(row[0])


def dismiss(conn: Connection, id_: int) -> None:
    (leased,) = run(conn, verbs.lease_dead(verbs.DeadFilter("orders", ids=[id_])))
    run(conn, verbs.dismiss(leased.lock_token, [id_], "no more"))


def test_a_triage_that_dies_is_done_again_in_its_place_and_the_next_one_replaces_it(
    spark: SparkSession, dsn: str, conn: Connection, deaths: Deaths, tmp_path: Path
) -> None:
    deaths.add("disk full")
    with pytest.raises(InvalidArgument, match="cannot be written"):
        deaths.triage(spark, dsn, report=str(tmp_path / "nowhere" / "page.html"))
    assert [one["dead"] for one in causes(conn)] == [1]
    deaths.add("disk full")
    assert deaths.triage(spark, dsn)["dead"] == 2
    assert [one["dead"] for one in causes(conn)] == [2]

    summary = deaths.triage(spark, dsn, "night 2", queues=["bills"], report=str(tmp_path / "page.html"))
    assert (summary["causes"], summary["dead"], causes(conn)) == (0, 0, [])
    assert "No message died." in (tmp_path / "page.html").read_text()
    assert [one["dead"] for one in causes(conn, run_id="night 1")] == [2]


def test_the_page_escapes_what_is_hostile_loads_nothing_and_has_no_body(
    spark: SparkSession, dsn: str, deaths: Deaths, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    deaths.add(NASTY, 3, error=NASTY, reference=NASTY)
    deaths.add("x" * 1_000_000, error="")
    for number in range(12):
        deaths.add("word " * (number + 1), number + 1)
    page = tmp_path / "page.html"
    summary = deaths.triage(spark, dsn, report=str(page), max_causes=11)
    text = page.read_text()
    assert summary["left_out"] == {"causes": 3, "dead": 4}
    assert BODY not in text
    assert len(text) < 500_000
    assert re.findall(r"<(script|iframe|link|object)|(?:src|srcset|href)=\"(?!data:|#)|\bon\w+=", text) == []
    assert html.escape("<script>alert(") in text
    assert "\u202e" not in text
    assert "名前" in text
    assert "default-src 'none'" in text
    assert NASTY not in json.dumps(summary, ensure_ascii=False) + "".join(capfd.readouterr())


def test_the_line_of_the_page_requeues_the_cause(
    spark: SparkSession, dsn: str, conn: Connection, deaths: Deaths, tmp_path: Path
) -> None:
    for city in CITIES:
        deaths.add(f"no address in {city}", 2)
    kept = deaths.add("disk full")
    deaths.triage(spark, dsn, report=str(tmp_path / "page.html"))
    lines = [
        html.unescape(line) for line in re.findall(r"<pre>(SELECT.*?)</pre>", (tmp_path / "page.html").read_text())
    ]
    assert conn.execute(lines[1].encode()).rowcount == 20
    assert run(conn, verbs.dead_ids()) == kept
    assert conn.execute(lines[5].replace("REASON", "disk is larger now").encode()).fetchall() == [(kept[0],)]


def test_the_history_is_bounded_and_a_record_is_whole_or_nothing(conn: Connection) -> None:
    for number in range(33):
        conn.execute("SELECT messages.record_triage_causes(%s, %s)", [f"night {number}", json.dumps([example("a")])])
    assert conn.execute("SELECT count(*), min(recorded_at) FROM messages.triage_cause").fetchone()[0] == 30  # type: ignore[index]
    for wrong in (
        [example("b"), example("c", dead=7)],
        [example("b"), example("b")],
        {"cause": "b"},
        [example("d")] * 1001,
    ):
        with pytest.raises(psycopg.Error):
            conn.execute("SELECT messages.record_triage_causes('night 32', %s)", [json.dumps(wrong)])
    assert [one["cause"] for one in causes(conn)] == ["a"]


def example(cause: str, **values: Any) -> dict[str, Any]:
    moment = "2026-06-01T00:00:00+00:00"
    return {
        "cause": cause,
        "queue_name": "orders",
        "result": "failed",
        "error": None,
        "pattern": "disk full",
        "trend": "new",
        "dead": 1,
        "unremedied": 1,
        "requeued": 0,
        "dismissed": 0,
        "died_again": 0,
        "first_at": moment,
        "last_at": moment,
        "series_from": moment,
        "series_step": "1 hour",
        "series": [1],
        "fingerprints": ["f"],
        "sample_ids": [1],
        "sample_references": [None],
    } | values


def test_a_limited_role_sees_the_causes_of_its_queues_and_records_none(
    conn: Connection, dsn: str, deaths: Deaths
) -> None:
    given = json.dumps([example("a"), example("b", queue_name="bills")])
    conn.execute("SELECT messages.record_triage_causes('night 1', %s)", [given])
    with logins(dsn) as login:
        bob = login("triage_bob")
        conn.execute("SELECT messages.grant_queue('orders', 'triage_bob', 'observe')")
        assert [one["queue_name"] for one in causes(bob)] == ["orders"]
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            bob.execute("SELECT messages.record_triage_causes('night 2', '[]')")


def test_a_page_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "nowhere" / "x.html", tmp_path, tmp_path / "file" / "x.html"):
        with pytest.raises(InvalidArgument, match=f"report '{path}' cannot be written: .*run it again"):
            write_report(path, "run", WEEK, found(a="new"))
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_what_cannot_be_is_refused(session: SparkSession) -> None:
    with pytest.raises(InvalidArgument, match="max_causes is 0"):
        triage(session, max_causes=0)
    with pytest.raises(InvalidArgument, match="an end after the beginning"):
        triage(session, since=MONDAY, until=MONDAY)
