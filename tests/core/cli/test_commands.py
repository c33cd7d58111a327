"""Each command on a real database: what it prints for people, what for programs, and what it refuses."""

from __future__ import annotations

import io
import os
import pty
import re
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import click
import psycopg
import pytest
from rich.console import Console

from airflow_provider_pgqueue.cli.output import fitting
from airflow_provider_pgqueue.cli.queues import create
from airflow_provider_pgqueue.cli.show import peeking
from airflow_provider_pgqueue.core import run, verbs
from airflow_provider_pgqueue.core.tuning import TUNING
from tests.core.cli.conftest import Pgqueue, Program
from tests.dead_messages import died_at

Connection = psycopg.Connection[Any]
Connect = Callable[..., Connection]
Queue = Callable[..., str]


def bodies(conn: Connection) -> list[Any]:
    return [body for (body,) in conn.execute("SELECT message FROM messages.message ORDER BY id").fetchall()]


def kill(conn: Connection, queue: str, *reasons: str, result: str = "failed") -> None:
    for reason in reasons:
        run(conn, verbs.publish(queue, {"reason": reason}))
        (message,) = run(conn, verbs.lease(queue))
        run(conn, verbs.archive(message.lock_token, [message.id], result=result, details=reason))


def test_queues_are_created_listed_altered_and_dropped(pgqueue: Pgqueue) -> None:
    created = pgqueue("queues", "create", "orders", "--max-attempts", "3", "--lease-for", "2m", "--json").json
    assert created == {"queue_name": "orders", "created": True}
    assert "exists" in pgqueue("queues", "create", "orders").out
    assert "changed lease_for of queue orders" in pgqueue("queues", "alter", "orders", "--lease-for", "PT5M").out
    _, orders = pgqueue("queues", "--json").json["queues"]
    assert (orders["queue_name"], orders["max_attempts"], orders["lease_for"]) == ("orders", 3, 300.0)
    assert "orders" in pgqueue("queues").out
    dropped = pgqueue("queues", "drop", "orders", "--yes", "--json").json
    assert dropped == {"queue_name": "orders", "messages_deleted": 0}
    assert len(pgqueue("queues", "--json").json["queues"]) == 1


def test_a_queue_with_messages_is_dropped_by_force_only(pgqueue: Pgqueue, conn: Connection, queue: Queue) -> None:
    run(conn, verbs.publish_batch(queue("orders"), [1, 2]))
    refused = pgqueue("queues", "drop", "orders")
    assert refused.status == 2
    assert "Drop queue orders, with 2 unfinished messages?" in refused.err
    refused = pgqueue("queues", "drop", "orders", "--yes")
    assert (refused.status, len(bodies(conn))) == (1, 2)
    assert pgqueue("queues", "drop", "orders", "--yes", "--force", "--json").json["messages_deleted"] == 2


def test_queues_are_paused_and_resumed(pgqueue: Pgqueue, conn: Connection, queue: Queue) -> None:
    queue("orders")
    assert pgqueue("queues", "pause", "orders", "--json").json == {"queue_name": "orders", "paused": True}
    assert conn.execute("SELECT paused FROM messages.queue WHERE queue_name = 'orders'").fetchone() == (True,)
    assert pgqueue("queues", "resume", "orders").out == "resumed queue orders.\n"
    assert conn.execute("SELECT paused FROM messages.queue WHERE queue_name = 'orders'").fetchone() == (False,)


@pytest.mark.parametrize(
    "arguments",
    [
        ["publish", "nope", "--message", "1"],
        ["peek", "nope"],
        ["tail", "nope"],
        ["stats", "nope"],
        ["requeue", "nope"],
        ["dead", "nope"],
        ["dismiss", "nope", "--reason", "no", "--yes"],
        ["purge", "nope", "--yes"],
        ["worker", "nope", "json:loads", "--until-empty"],
        ["queues", "alter", "nope", "--max-attempts", "2"],
        ["queues", "drop", "nope", "--yes"],
        ["queues", "pause", "nope"],
        ["queues", "resume", "nope"],
    ],
    ids=" ".join,
)
def test_an_unknown_queue_is_one_line_that_names_it(pgqueue: Pgqueue, arguments: list[str]) -> None:
    ended = pgqueue(*arguments)
    assert (ended.status, ended.out) == (1, "")
    assert ended.err.startswith("error: ")
    assert "Create it: pgqueue queues create nope" in ended.err
    assert len(ended.err.splitlines()) == 1


def test_a_refusal_names_the_command_that_helps(pgqueue: Pgqueue, conn: Connection, queue: Queue) -> None:
    queue("orders")
    run(conn, verbs.publish("orders", 1))
    assert "delete them with it: pgqueue queues drop orders --force" in pgqueue("queues", "drop", "orders", "-y").err


def test_a_bad_policy_is_one_line_with_the_fix(pgqueue: Pgqueue) -> None:
    ended = pgqueue("queues", "create", "orders", "--max-attempts", "0")
    assert ended.status == 1
    assert ended.err.startswith("error: max_attempts")
    assert pgqueue("queues", "create", "No Queue").status == 1
    assert pgqueue("queues", "alter", "default").status == 2


def test_each_line_of_a_file_is_published_as_it_is_written(
    pgqueue: Pgqueue, conn: Connection, queue: Queue, tmp_path: Path
) -> None:
    file = tmp_path / "orders.jsonl"
    file.write_bytes('\ufeff{"order_id": 7}\r\n\n"ü"\n12345678901234567890.10\n'.encode())
    assert pgqueue("publish", queue("orders"), str(file), "--json").json["published"] == 3
    texts = conn.execute("SELECT message::text FROM messages.message ORDER BY id").fetchall()
    assert texts == [('{"order_id": 7}',), ('"ü"',), ("12345678901234567890.10",)]


def test_standard_input_is_published_in_batches(pgqueue: Pgqueue, conn: Connection, queue: Queue) -> None:
    lines = "\n".join(map(str, range(2500)))
    ended = pgqueue("publish", queue("orders"), stdin=lines)
    assert ended.out.startswith("published 2,500 messages to orders in ")
    assert bodies(conn) == list(range(2500))
    assert pgqueue("publish", "orders", "-", stdin="1").status == 0


def test_one_message_is_published_with_its_options(pgqueue: Pgqueue, conn: Connection, queue: Queue) -> None:
    options = ["--priority", "5", "--delay", "10m", "--expires-in", "1d", "--reference-field", "id"]
    assert pgqueue("publish", queue("orders"), "--message", '{"id": 7}', *options).status == 0
    row = conn.execute(
        "SELECT priority, reference, visible_at > now() + interval '9 minutes',"
        "       expires_at > now() + interval '23 hours' FROM messages.message"
    ).fetchone()
    assert row == (5, "7", True, True)


def test_topic_and_keys_are_published(pgqueue: Pgqueue, conn: Connection, queue: Queue) -> None:
    lines = '{"id": "a", "who": "x"}\n{"id": "b", "who": "x"}\n{"id": "a", "who": "x"}'
    options = ["--topic", "orders.new", "--dedup-key-field", "id", "--group-key-field", "who"]
    ended = pgqueue("publish", queue("orders"), *options, "--json", stdin=lines).json
    assert (ended["published"], ended["duplicates"]) == (2, 1)
    assert conn.execute("SELECT topic, group_key, message->>'id' FROM messages.message ORDER BY id").fetchall() == [
        ("orders.new", "x", "a"),
        ("orders.new", "x", "b"),
    ]


def test_one_message_is_published_with_its_keys_and_without_a_rate(
    pgqueue: Pgqueue, conn: Connection, queue: Queue
) -> None:
    keys = ["--reference", "order 7", "--group-key", "acme", "--dedup-key", "7", "--priority", "9"]
    assert pgqueue("publish", queue("orders"), "--message", "7", *keys).out == "published 1 message to orders.\n"
    again = pgqueue("publish", "orders", "--message", "-", *keys, "--dedup-window", "1h", stdin="8")
    assert again.out == "published 0 messages to orders and found 1 duplicate.\n"
    rows = conn.execute("SELECT message, reference, group_key, priority FROM messages.message").fetchall()
    assert rows == [(7, "order 7", "acme", 9)]


@pytest.mark.parametrize("option", ["--reference", "--group-key", "--dedup-key"])
def test_a_key_of_one_message_is_refused_for_lines(pgqueue: Pgqueue, option: str) -> None:
    lines = pgqueue("publish", "default", option, "a", stdin="1")
    assert (lines.status, lines.out) == (2, "")
    assert f"{option} is for one --message. Of lines, name a field: {option}-field" in lines.err
    both = pgqueue("publish", "default", "--message", "1", option, "a", f"{option}-field", "a")
    assert f"give {option} or {option}-field, not both" in both.err


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"{secret", "line 3 is not JSON: Expecting property name enclosed in double quotes at column 2."),
        (b'{"a": NaN}', "line 3: NaN is not JSON."),
        (b'"secret \\u0000"', "line 3: \\u0000 cannot be stored."),
        (b'"secret \\ud800"', "line 3: the value has half of a surrogate pair."),
        (b'"secret \xff"', "line 3 is not UTF-8."),
        (b"[" * 100_000, "line 3 is nested too deep."),
        (b"1" * 5000, "line 3 has a number that is too long."),
    ],
)
def test_a_bad_line_is_named_without_its_content_and_nothing_is_published(
    pgqueue: Pgqueue, conn: Connection, queue: Queue, line: bytes, reason: str
) -> None:
    ended = pgqueue("publish", queue("orders"), "--batch-size", "1", stdin=b"1\n\n" + line + b"\n4\n")
    assert (ended.status, ended.out) == (1, "")
    assert ended.err.startswith(f"error: {reason} ")
    assert "secret" not in ended.err
    assert bodies(conn) == []


def test_what_a_publish_per_batch_has_published_before_an_error_is_said(
    pgqueue: Pgqueue, conn: Connection, queue: Queue
) -> None:
    ended = pgqueue("publish", queue("orders"), "--per-batch", "--batch-size", "2", stdin="1\n2\n3\n{\n5")
    assert ended.status == 1
    assert ended.err.startswith(
        "published 2 messages to orders, up to line 2, before this error:\nerror: line 4 is not"
    )
    assert bodies(conn) == [1, 2]


def test_a_field_that_is_not_there_is_named_with_its_line(pgqueue: Pgqueue, conn: Connection, queue: Queue) -> None:
    ended = pgqueue("publish", queue("orders"), "--reference-field", "id", stdin='{"id": "a"}\n{"id": null}')
    assert ended.err == "error: line 2: the field 'id' is not a string or a number. Give it one.\n"
    assert bodies(conn) == []


def test_a_body_that_is_too_large_names_the_lines_of_its_batch(pgqueue: Pgqueue, queue: Queue) -> None:
    queue("orders", max_body_bytes=100)
    ended = pgqueue("publish", "orders", "--batch-size", "2", stdin=f'1\n2\n3\n"{"x" * 200}"\n')
    assert ended.status == 1
    assert ended.err.startswith("error: line 3 to line 4: ")
    assert "xxx" not in ended.err
    alone = pgqueue("publish", "orders", "--message", f'"{"x" * 200}"').err
    assert alone.startswith("error: --message: ")
    assert "xxx" not in alone


def test_a_body_or_headers_that_are_no_json_are_named_by_their_option(pgqueue: Pgqueue, queue: Queue) -> None:
    command = ["publish", queue("orders")]
    ended = pgqueue(*command, "--message", "{order_id: 7}")
    assert ended.err.startswith("error: --message is not JSON: ")
    assert "order_id: 7" not in ended.err
    ended = pgqueue("publish", "orders", "--message", "1", "--headers", "[1]")
    assert (ended.status, ended.err.splitlines()[-1]) == (
        2,
        "error: Invalid value for '--headers': It is not a JSON object.",
    )


def test_no_lines_publish_nothing(pgqueue: Pgqueue, queue: Queue) -> None:
    assert pgqueue("publish", queue("orders"), "--json", stdin="\n").json["published"] == 0


def test_a_literal_backslash_before_u0000_is_published(pgqueue: Pgqueue, conn: Connection, queue: Queue) -> None:
    assert pgqueue("publish", queue("orders"), stdin=r'"C:\\u0000"').status == 0
    assert bodies(conn) == [r"C:\u0000"]


def test_a_file_and_a_message_at_once_are_wrong_usage(pgqueue: Pgqueue) -> None:
    assert pgqueue("publish", "default", "-", "--message", "1").status == 2


def test_somebody_who_watches_sees_a_progress_bar_on_stderr(program: Program, dsn: str, tmp_path: Path) -> None:
    (tmp_path / "lines").write_text("1\n" * 3000)
    ours, theirs = pty.openpty()
    with program("publish", "default", str(tmp_path / "lines"), "--json", dsn=dsn, stderr=theirs) as process:
        out, _ = process.communicate(timeout=30)
    os.close(theirs)
    assert '"published": 3000' in out
    assert b"\x1b[" in os.read(ours, 10_000)
    os.close(ours)


def test_peek_shows_what_waits_in_the_order_of_leasing_and_takes_nothing(
    pgqueue: Pgqueue, conn: Connection, queue: Queue
) -> None:
    run(conn, verbs.publish_batch(queue("orders"), [{"order_id": 1}, {"order_id": 2}, {"order_id": 3}]))
    run(conn, verbs.publish("orders", "first", priority=9))
    run(conn, verbs.publish("orders", "later", delay=timedelta(hours=1)))
    run(conn, verbs.lease("orders"))
    found = pgqueue("peek", "orders", "--json").json["messages"]
    assert [one["message"] for one in found] == ["first", {"order_id": 1}, {"order_id": 2}, {"order_id": 3}, "later"]
    assert [one["state"] for one in found] == ["leased", "ready", "ready", "ready", "delayed"]
    assert len(pgqueue("peek", "orders", "-n", "2", "--json").json["messages"]) == 2
    assert '{"order_id": 1}' in pgqueue("peek", "orders").out
    assert pgqueue("peek", "default").out == "no messages\n"


def test_peek_prints_each_body_as_it_is_however_deep_and_long(pgqueue: Pgqueue, conn: Connection) -> None:
    deep, long = "[" * 2000 + "]" * 2000, "12345678901234567890.123456789"
    conn.execute("SELECT messages.publish('default', body::jsonb) FROM unnest(%s::text[]) body", [[deep, long]])
    printed = pgqueue("peek", "default", "--json").out
    assert deep in printed
    assert f'"message": {long}' in printed


def test_peek_says_what_waits_behind_another_of_its_group(pgqueue: Pgqueue, conn: Connection) -> None:
    run(conn, verbs.publish_batch("default", ["head", "next"], group_keys=["a", "a"]))
    run(conn, verbs.lease("default"))
    for options in ([], ["--headers-only"]):
        found = pgqueue("peek", "default", "--json", *options).json["messages"]
        assert [(one["state"], one["group_key"]) for one in found] == [("leased", "a"), ("behind", "a")]
        assert found[1]["visible_at"] is None


def test_peek_says_why_a_message_is_retried(pgqueue: Pgqueue, conn: Connection) -> None:
    run(conn, verbs.publish("default", 1))
    (message,) = run(conn, verbs.lease("default"))
    failure = {"error": "LookupError", "message": "no such order"}
    run(conn, verbs.release(message.lock_token, [message.id], failure=failure))
    for options in ([], ["--headers-only"]):
        (found,) = pgqueue("peek", "default", "--json", *options).json["messages"]
        assert found["last_error"] == "LookupError: no such order"
        assert "no such order" in pgqueue("peek", "default", *options).out


def test_peek_without_bodies_shows_none(pgqueue: Pgqueue, conn: Connection, queue: Queue) -> None:
    run(conn, verbs.publish(queue("orders"), "SECRET"))
    for options, size in (([], "15 bytes"), (["--json"], '"body_bytes": 15}')):
        ended = pgqueue("peek", "orders", "--headers-only", *options)
        assert ended.status == 0
        assert "SECRET" not in ended.out
        assert size in ended.out


def test_peek_without_bodies_shows_the_order_of_leasing_and_reads_no_more_than_it_shows(
    pgqueue: Pgqueue, conn: Connection, queue: Queue
) -> None:
    run(conn, verbs.publish_batch(queue("orders"), range(5000)))
    run(conn, verbs.publish("orders", "first", priority=9))
    conn.execute("ANALYZE messages.message_rows")
    full, headers = (pgqueue("peek", "orders", "--json", *more).json["messages"] for more in ([], ["--headers-only"]))
    assert [one["id"] for one in headers] == [one["id"] for one in full]
    read = "SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_xact_user_tables WHERE relname = 'message_rows'"
    with conn.transaction():
        assert conn.execute(peeking("peek_headers"), ["orders", 20]).rowcount == 20
        (rows,) = conn.execute(read).fetchall()[0]
    assert rows < 100
    assert "queue 'missing' does not exist" in pgqueue("peek", "missing", "--headers-only").err


@pytest.fixture
def guest(conn: Connection, dsn: str) -> Iterator[str]:
    """The connection string of a role without any privilege."""
    conn.execute("CREATE ROLE cli_guest LOGIN")
    yield dsn.replace("postgres@", "cli_guest@")
    conn.execute("DROP OWNED BY cli_guest")
    conn.execute("DROP ROLE cli_guest")


def test_peek_names_the_privilege_that_is_missing(pgqueue: Pgqueue, conn: Connection, guest: str) -> None:
    conn.execute("GRANT USAGE ON SCHEMA messages TO cli_guest")
    conn.execute("GRANT EXECUTE ON FUNCTION messages.schema_version, messages.latest_migration TO cli_guest")
    ended = pgqueue("peek", "default", "--dsn", guest)
    assert ended.status == 1
    assert ended.err == (
        "error: permission denied for table message. GRANT messages_reader TO cli_guest; or "
        "leave out the bodies with --headers-only\n"
    )
    told = pgqueue("peek", "default", "--headers-only", "--dsn", guest).err
    assert told == "error: permission denied for view message_overview. GRANT messages_observer TO cli_guest\n"


def test_a_hostile_body_is_shown_escaped(pgqueue: Pgqueue, conn: Connection, queue: Queue) -> None:
    run(conn, verbs.publish(queue("orders"), "\x1b[2J\x9b[red]x"))
    out = pgqueue("peek", "orders").out
    assert "\x1b" not in out
    assert "\x9b" not in out
    assert "[red]x" in out


def test_tail_shows_each_archived_message_once(pgqueue: Pgqueue, conn: Connection, queue: Queue) -> None:
    kill(conn, queue("orders"), "no stock", "broken")
    kill(conn, queue("invoices"), "late", result="rejected")
    ended = pgqueue("tail", "--since", "1h", "--no-follow", "--json")
    assert [(one["queue_name"], one["result"], one["details"]) for one in ended.lines] == [
        ("orders", "failed", "no stock"),
        ("orders", "failed", "broken"),
        ("invoices", "rejected", "late"),
    ]
    assert all(0 <= one["run_time"] < 60 for one in ended.lines)
    (line,) = pgqueue("tail", "invoices", "--since", "1h", "--no-follow").out.splitlines()
    assert " invoices rejected " in line
    assert pgqueue("tail", "--no-follow").out == ""


def test_tail_follows_and_shows_what_is_committed_late(program: Program, dsn: str, connect: Connect) -> None:
    conn, slow = connect(), connect(autocommit=False)
    kill(slow, "default", "late")
    with program("tail", "--json", "--since", "1m", "--poll-interval", "10ms", "--stop-after", "2", dsn=dsn) as process:
        kill(conn, "default", "early")
        first = process.stdout.readline()
        slow.commit()
        rest, err = process.communicate(timeout=20)
    assert '"details": "early"' in first
    assert '"details": "late"' in rest
    assert (process.returncode, err) == (0, "")


def test_the_defaults_that_the_help_shows_are_those_of_a_new_queue(pgqueue: Pgqueue) -> None:
    pgqueue("queues", "create", "orders")
    (row,) = (one for one in pgqueue("queues", "--json").json["queues"] if one["queue_name"] == "orders")
    context = click.Context(create, resilient_parsing=True)
    options = [one for one in create.params if isinstance(one, click.Option) and one.help and "[default: " in one.help]
    for option in options:
        (shown,) = re.findall(r"\[default: (.*)\]$", option.help or "")
        if shown in ("forever", "no limit", "no turns", "1 for each key", "not paused"):
            assert row[option.name] in (None, False), option.name
        else:
            value = option.type_cast_value(context, shown)
            assert row[option.name] == (value.total_seconds() if isinstance(value, timedelta) else value), option.name
    assert {one.name for one in options} == set(verbs.queues.Policy.__annotations__)


@pytest.mark.parametrize("command", ["create", "alter"])
def test_the_help_of_all_options_of_a_policy_fits_on_a_screen(
    pgqueue: Pgqueue, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    shown = pgqueue("queues", command, "--help").out.splitlines()
    assert len(shown) <= 45
    assert max(map(len, shown)) <= 100


@pytest.mark.parametrize("width", [60, 80, 120, 400])
def test_a_table_fits_the_terminal(width: int) -> None:
    rows = [{f"column_{number}": text for number, text in enumerate(["x" * 30, 1234567, None] * 4)}] * 2
    written = io.StringIO()
    Console(width=width, file=written).print(fitting(rows, list(rows[0]), width))
    lines = [line.rstrip() for line in written.getvalue().splitlines()]
    assert max(map(len, lines)) <= width
    values = [line.split() for line in lines]
    if width < 200:
        assert values[:2] == [["column_0", "x" * 30], ["column_1", "1234567"]]
        assert values.count([]) == 1, "an empty line between two rows"
    else:
        assert values[0] == list(rows[0])


def test_stats_are_numbers_and_rates(pgqueue: Pgqueue, conn: Connection, queue: Queue) -> None:
    run(conn, verbs.publish_batch(queue("orders"), [1, 2, 3]))
    run(conn, verbs.consume("orders", max_messages=2))
    kill(conn, "default", "no")
    found = {one["queue_name"]: one for one in pgqueue("stats", "--window", "1h", "--json").json["queues"]}
    assert (found["orders"]["ready"], found["orders"]["success_rate"] > 0, found["orders"]["dead_rate"]) == (1, True, 0)
    assert (found["default"]["dead"], found["default"]["dead_rate"] >= 0) == (1, True)
    assert pgqueue("stats", "orders", "--window", "1s", "--json").json["queues"][0]["queue_name"] == "orders"
    assert "success_rate" in pgqueue("stats").out
    assert re.search(r" 0\.00028/s +0/s$", pgqueue("stats", "orders", "--window", "2h").out, re.M)


def test_a_queue_that_never_had_a_message_is_shown_in_words(pgqueue: Pgqueue, queue: Queue) -> None:
    queue("orders")
    values = dict(zip(*map(str.split, pgqueue("stats", "orders").out.splitlines()), strict=True))
    assert (values["oldest_age"], values["maintenance_age"], values["limited_until"]) == ("none", "never", "no")
    assert pgqueue("stats", "orders", "--json").json["queues"][0]["oldest_age"] is None
    assert re.search(r"^orders .* no limit +forever$", pgqueue("queues").out, re.M)


def test_dead_messages_are_counted_by_cause(pgqueue: Pgqueue, conn: Connection, queue: Queue) -> None:
    kill(conn, queue("orders"), "no stock", "no stock")
    kill(conn, "orders", "no such order", result="rejected")
    causes = pgqueue("dead", "orders", "--json").json["causes"]
    assert sorted((cause["result"], cause["waiting"]) for cause in causes) == [("failed", 2), ("rejected", 1)]
    people = pgqueue("dead").out
    assert "no stock" in people
    assert "cause" in people.splitlines()[0].split()


def test_requeue_publishes_dead_messages_again(pgqueue: Pgqueue, conn: Connection, queue: Queue) -> None:
    kill(conn, queue("orders"), "a", "b", "c")
    kill(conn, "orders", "d", result="rejected")
    dry = pgqueue("requeue", "orders", "--dry-run", "--json").json
    assert (dry["would_requeue"], dry["waiting"]) == (3, {"failed": 3})
    assert bodies(conn) == []
    assert pgqueue("requeue", "orders", "--max", "2", "--json").json["requeued"] == 2
    assert bodies(conn) == [{"reason": "a"}, {"reason": "b"}]
    assert pgqueue("requeue", "orders", "--result", "rejected").out.startswith("requeued 1 message of orders, as ")
    assert pgqueue("requeue", "orders", "--dry-run").out == "would requeue 1 message of orders: 1 failed.\n"
    conn.execute("UPDATE messages.dead_message SET requeues = 1")
    assert pgqueue("requeue", "orders", "--max-requeues", "1", "--dry-run", "--json").json["would_requeue"] == 0


def test_resolutions_take_what_a_filter_finds_in_short_transactions_and_are_in_the_audit(
    pgqueue: Pgqueue, conn: Connection, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TUNING, "resolutions_at_once", 2)
    kill(conn, queue("orders"), "a", "b", "c", "d", "e", "f")
    for id_ in run(conn, verbs.dead_ids("orders"))[::2]:
        died_at(conn, id_, "2020-01-01")
    conn.execute("UPDATE messages.message_archive SET reference = 'r' WHERE message ->> 'reason' = 'a'")
    assert pgqueue("requeue", "--reference", "r", "--dry-run", "--json").json["would_requeue"] == 1
    assert pgqueue("requeue", "--reference", "r").out.startswith("requeued 1 message of reference r, as ")
    before = pgqueue("dismiss", "orders", "--until", "1d", "--reason", "old", "--yes", "--json").json["dismissed"]
    assert pgqueue("requeue", "orders", "--since", "1d", "--dry-run", "--json").json["would_requeue"] == 5 - before
    assert pgqueue("requeue", "orders", "--since", "1d", "--json").json["requeued"] == 5 - before
    entries = conn.execute("SELECT action, affected FROM messages.audit WHERE action LIKE '%_dead'").fetchall()
    assert sum(affected for _, affected in entries) == 6
    assert max(affected for _, affected in entries) == 2
    assert pgqueue("requeue").status == 2


def test_a_resolution_that_stops_at_its_maximum_says_what_is_left(
    pgqueue: Pgqueue, conn: Connection, queue: Queue
) -> None:
    kill(conn, queue("orders"), "a", "b", "c", "d", result="rejected")
    only = ["orders", "--result", "rejected", "--max"]
    dry = pgqueue("requeue", *only, "3", "--dry-run")
    assert dry.out == "would requeue the oldest 3 of 4 messages of orders: 4 rejected.\n"
    asked = pgqueue("dismiss", *only, "3", "--reason", "old")
    assert "Dismiss the oldest 3 of 4 messages of orders: 4 rejected?" in asked.err
    done = pgqueue("requeue", *only, "1").out
    assert re.fullmatch(r"requeued 1 message of orders, as \d+; 3 more remain: run it again, or raise --max\.\n", done)
    assert pgqueue("dismiss", *only, "1", "--reason", "old", "--yes", "--json").json["remaining"] == 2
    assert pgqueue("requeue", *only, "1", "--json").json["remaining"] == 1
    ended = pgqueue("dismiss", *only, "1", "--reason", "old", "--yes", "--json").json
    assert (ended["dismissed"], ended["remaining"]) == (1, 0)


@pytest.mark.parametrize("command", [["requeue"], ["requeue", "--dry-run"], ["dismiss", "--reason", "old", "--yes"]])
def test_a_cause_that_is_no_fingerprint_is_refused(
    pgqueue: Pgqueue, conn: Connection, queue: Queue, command: list[str]
) -> None:
    kill(conn, queue("orders"), "a")
    (found,) = pgqueue("dead", "--json").json["causes"]
    ended = pgqueue(*command, "--cause", "no such cause")
    assert (ended.status, "is not a cause. List the causes: pgqueue dead" in ended.err) == (2, True)
    assert pgqueue(*command, "--cause", "000000000000").status == 0
    ended = pgqueue(*command, "--cause", found["fingerprint"], "--cause", "no such cause")
    assert (ended.status, len(run(conn, verbs.dead_ids()))) == (2, 1), "one of two is wrong: nothing is done"
    dry = pgqueue("requeue", "--dry-run", "--cause", "000000000000").out
    assert "no open dead message has the cause 000000000000" in dry


def test_dismiss_asks_and_keeps_the_reason(pgqueue: Pgqueue, conn: Connection, queue: Queue) -> None:
    kill(conn, queue("orders"), "a", "b")
    refused = pgqueue("dismiss", "orders", "--reason", "old")
    assert refused.status == 2
    assert "Dismiss 2 messages of orders: 2 failed? Standard input is not a terminal" in refused.err
    assert pgqueue("dismiss", "orders", "--reason", "old", "--yes", "--json").json["dismissed"] == 2
    assert conn.execute("SELECT DISTINCT dismissed_for FROM messages.message_archive").fetchall() == [("old",)]
    assert pgqueue("dismiss", "orders", "--reason", "old", "--yes").out == "dismissed 0 messages of orders.\n"


def test_purge_without_yes_refuses_where_nobody_can_answer(pgqueue: Pgqueue, conn: Connection, queue: Queue) -> None:
    run(conn, verbs.publish_batch(queue("orders"), [1, 2, 3]))
    run(conn, verbs.lease("orders"))
    refused = pgqueue("purge", "orders")
    assert refused.status == 2
    assert "Delete 2 messages of queue orders for good? Standard input is not a terminal" in refused.err
    assert len(bodies(conn)) == 3
    assert pgqueue("purge", "orders", "--yes", "--json").json == {"queue_name": "orders", "messages_deleted": 2}
    assert bodies(conn) == [1]


@pytest.mark.parametrize(("answer", "status", "left"), [("n", 1, 1), ("y", 0, 0)])
def test_purge_asks_at_a_terminal(
    program: Program, dsn: str, conn: Connection, answer: str, status: int, left: int
) -> None:
    run(conn, verbs.publish("default", 1))
    ours, theirs = pty.openpty()
    with program("purge", "default", dsn=dsn, stdin=theirs) as process:
        os.write(ours, f"{answer}\n".encode())
        _, err = process.communicate(timeout=20)
    os.close(ours)
    os.close(theirs)
    assert (process.returncode, len(bodies(conn))) == (status, left)
    assert ("error: not confirmed: nothing was changed." in err) == (status == 1)


def test_maintenance_prints_its_counts_and_its_help_explains_each(pgqueue: Pgqueue) -> None:
    counts = pgqueue("maintenance", "--json").json
    assert {"freed", "archived", "notified"} <= set(counts)
    explained = pgqueue("maintenance", "--help").out
    assert [name for name in counts if name not in explained] == []
    assert pgqueue("maintenance").out.startswith("ran maintenance: ")


def test_doctor_looks_at_everything_in_a_kept_database(pgqueue: Pgqueue, conn: Connection) -> None:
    run(conn, verbs.maintain())
    ended = pgqueue("doctor", "--json")
    severities = {finding["check_name"]: finding["severity"] for finding in ended.json["findings"]}
    ours = ("connection", "server", "pooler", "schema", "privileges", "maintenance_mode", "maintenance_lag")
    assert [severities[one] for one in ours] == ["ok"] * len(ours)
    assert len(severities) > len(ours)
    # The servers of the tests run without fsync, which it finds.
    assert ended.json["sound"] == (set(severities.values()) == {"ok"})
    assert ended.status == (0 if ended.json["sound"] else 1)
    assert pgqueue("doctor", "--fail-on", "critical").status == 0


def test_doctor_shows_problems_first_and_counts_the_rest(pgqueue: Pgqueue, conn: Connection) -> None:
    conn.execute("UPDATE messages.schema_migration SET applied_at = now() - interval '1 hour'")
    lines = pgqueue("doctor").out.splitlines()
    assert lines[0].startswith("critical  maintenance_lag: no maintenance ran since the installation 01:00:")
    assert lines[1].startswith("          fix: SELECT messages.maintain()")
    assert re.fullmatch(r"\d problems?; \d+ checks ok, listed by --all\.", lines[-1])
    assert not any(line.startswith("ok ") for line in lines)
    severities = [finding["severity"] for finding in pgqueue("doctor", "--json").json["findings"]]
    assert severities == sorted(severities, key=["critical", "warning", "ok"].index)
    everything = pgqueue("doctor", "--all").out.splitlines()
    assert sum(line.startswith("ok ") for line in everything) == severities.count("ok")
    # The first says how long ago, and a second may have passed.
    assert everything[1 : len(lines) - 1] == lines[1:-1]


@pytest.mark.parametrize(
    ("setting", "finding", "fix"),
    [
        ("synchronous_commit = off", "synchronous_commit is off (database): a crash", "set synchronous_commit = on"),
        (
            "session_replication_role = replica",
            "session_replication_role is replica (database): no trigger checks",
            "set session_replication_role = origin",
        ),
    ],
)
def test_doctor_names_a_setting_that_loses_messages(
    pgqueue: Pgqueue, conn: Connection, setting: str, finding: str, fix: str
) -> None:
    conn.execute(f"ALTER DATABASE {conn.info.dbname} SET {setting}".encode())
    found = [one for one in pgqueue("doctor", "--json").json["findings"] if finding in one["finding"]]
    assert [(one["check_name"], one["severity"], one["fix"]) for one in found] == [("settings", "warning", fix)]


def test_doctor_finds_a_role_that_may_do_nothing(pgqueue: Pgqueue, guest: str) -> None:
    ended = pgqueue("doctor", "--json", "--dsn", guest)
    assert ended.status == 1
    assert ended.json["findings"][0]["severity"] == "critical"
    assert "permission denied" in ended.json["findings"][0]["finding"]


def test_doctor_is_status_1_when_something_is_wrong(run_pgqueue: Pgqueue, empty_dsn: str) -> None:
    ended = run_pgqueue("doctor", "--json", "--dsn", empty_dsn)
    assert (ended.status, ended.json["sound"]) == (1, False)
    assert {"check_name": "schema", "severity": "critical"}.items() <= ended.json["findings"][0].items()
    ended = run_pgqueue("doctor", "--json", "--dsn", "postgresql://u:geheim@127.0.0.1:1/db")
    assert [finding["check_name"] for finding in ended.json["findings"]] == ["connection"]
    assert "geheim" not in ended.out
