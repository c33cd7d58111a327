"""The commands with which an operator looks and puts right, and JSON from each command there is."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import socket
import time
import urllib.request
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import click
import psycopg
import pytest

from airflow_provider_pgqueue.cli.program import COMMANDS
from airflow_provider_pgqueue.cli.program import program as whole_program
from airflow_provider_pgqueue.core import Consumer, Message, run, verbs
from tests.core.cli.conftest import Ended, Pgqueue, Program
from tests.core.cli.test_commands import kill
from tests.waiting import PATIENCE

Connection = psycopg.Connection[Any]
Queue = Callable[..., str]


@pytest.fixture
def orders(conn: Connection, queue: Queue) -> str:
    """The queue orders: three that wait, one of them leased, and two dead ones of different causes."""
    queue("orders", max_attempts=1)
    kill(conn, "orders", "no stock", "no shop")
    run(conn, verbs.publish_batch("orders", [1, 2, 3], references=["a", "b", "c"], headers={"shop": 7}))
    run(conn, verbs.lease("orders", locked_by="packer"))
    conn.execute("SELECT messages.maintain()")
    return "orders"


def dead(conn: Connection) -> list[int]:
    return run(conn, verbs.dead_ids("orders"))


def test_show_follows_one_message_and_knows_when_there_is_none(pgqueue: Pgqueue, conn: Connection, orders: str) -> None:
    first, _ = dead(conn)
    entries = pgqueue("show", str(first), "--json").json["entries"]
    assert [entry["entry"] for entry in entries] == ["published", "leased", "archived"]
    shown = pgqueue("show", str(first)).out
    assert "no stock" in shown
    assert "other_id" not in shown
    ended = pgqueue("show", "999999")
    assert (ended.status, ended.out) == (1, "")
    assert "message 999999 is not known" in ended.err


def test_what_a_handler_raised_is_where_its_failure_is_named(
    pgqueue: Pgqueue, conn: Connection, queue: Queue, dsn: str
) -> None:
    queue("orders", max_attempts=3)
    (id_,) = run(conn, verbs.publish_batch("orders", [{"order": 7}], references=["shop-7"]))
    library = "/opt/venv/lib/python3.11"
    trace = f"""Traceback (most recent call last):
  File "{library}/site-packages/airflow_provider_pgqueue/core/consumer/time_limit.py", line 9, in call
    return handle(message)
  File "/srv/shop/orders.py", line 12, in pack
    take(stock)
  File "{library}/json/decoder.py", line 337, in decode
    raise error
shop.StockError: none left"""
    failure = {"error": "shop.StockError", "message": "none left", "traceback": trace}
    (held,) = run(conn, verbs.lease("orders", locked_by="packer"))
    run(conn, verbs.release(held.lock_token, [id_], delay=timedelta(hours=1), failure=failure))
    shown = pgqueue("show", str(id_), "--message", "--traceback").out
    own, _, whole = shown.partition("The whole traceback:")
    assert "orders.py" in own
    assert library not in own
    assert "shop.StockError: none left" in own
    assert shown.count("none left") == 1, "each error once"
    assert "site-packages" in whole
    assert re.search(r'^body, \d+ bytes:\n\{\n +"order": 7$', shown, re.M)
    assert "attempt failed, attempt 1, by packer" in shown
    plain = pgqueue("show", str(id_)).out
    assert "none left" in plain
    assert "/srv/shop" not in plain
    assert '"order"' not in plain
    assert max(map(len, plain.splitlines())) <= 100
    conn.execute("CREATE ROLE looker LOGIN IN ROLE messages_observer")
    try:
        looker = f"{dsn}{'&' if '?' in dsn else '?'}user=looker"
        seen = pgqueue("show", str(id_), "--traceback", "--dsn", looker).out
        assert "none left" not in seen
        assert "no traceback that this login may read" in seen
        refused = pgqueue("show", str(id_), "--message", "--dsn", looker)
        assert (refused.status, refused.out) == (1, "")
        assert "GRANT messages_reader TO looker" in refused.err
    finally:
        conn.execute("DROP ROLE looker")


def test_equal_attempts_have_one_traceback_and_name_the_class_once(
    pgqueue: Pgqueue, conn: Connection, queue: Queue
) -> None:
    id_ = run(conn, verbs.publish(queue("orders", max_attempts=3, backoff_first="0"), 1))

    def handle(message: Message) -> None:
        raise KeyError("city")

    Consumer(queue_name="orders", handle=handle).drain(conn)
    shown = pgqueue("show", str(id_), "--traceback").out
    assert shown.count("The whole traceback:") == 1
    assert shown.count("The traceback is that of attempt 1.") == 2
    plain = pgqueue("show", str(id_)).out
    assert plain.count("\n    KeyError: 'city'\n") == 3
    assert "KeyError: KeyError" not in plain


def test_requeue_says_what_it_left_out(pgqueue: Pgqueue, conn: Connection, queue: Queue) -> None:
    queue("orders", max_attempts=1)
    for result in ("failed", "rejected"):
        run(conn, verbs.publish("orders", 1))
        (held,) = run(conn, verbs.lease("orders"))
        run(conn, verbs.archive(held.lock_token, [held.id], result=result))
    told = "; 1 rejected left out: add --result rejected"
    assert told in pgqueue("requeue", "orders", "--dry-run").out
    dismiss = ["dismiss", "orders", "--reason", "no", "--yes"]
    assert told in pgqueue(*dismiss, "--dry-run").out
    assert told in pgqueue("requeue", "orders").out
    dismissed = pgqueue(*dismiss)
    assert dismissed.out == f"dismissed 0 messages of orders{told}.\n"
    assert "left out" not in pgqueue("requeue", "orders", "--result", "rejected").out
    assert "left out" not in pgqueue("requeue", "orders").out
    none = "would requeue 0 messages of orders: no dead message without a lease (failed, lock_expired).\n"
    assert pgqueue("requeue", "orders", "--dry-run").out == none
    assert pgqueue("dead").out == "no dead messages\n"
    assert pgqueue("dead", "--json").json == {"causes": []}


def test_ids_that_no_dead_message_has_are_refused_and_what_was_resolved_is_said(
    pgqueue: Pgqueue, conn: Connection, orders: str
) -> None:
    first, second = dead(conn)
    for command in (["requeue"], ["dismiss", "--reason", "no", "--yes"]):
        refused = pgqueue(*command, "--id", str(first), "--id", "999999")
        assert (refused.status, dead(conn)) == (1, [first, second])
        assert "no dead message has the id 999999. Nothing was changed" in refused.err
    pgqueue("requeue", "--id", str(first))
    again = pgqueue("requeue", "--id", str(first), "--id", str(second))
    new = conn.execute("SELECT max(id) FROM messages.message").fetchone() or ()
    done = f"requeued 1 message of those that were named, as {new[0]}; requeued or dismissed before: {first}.\n"
    assert again.out.endswith(done)
    for command, did in ((["requeue"], "requeued"), (["dismiss", "--reason", "no", "--yes"], "dismissed")):
        again = pgqueue(*command, "--id", str(first))
        text = f"{did} 0 messages of those that were named; requeued or dismissed before: {first}.\n"
        assert (again.status, again.out, again.err) == (0, text, "")


def test_the_list_of_a_group_is_the_bare_command(pgqueue: Pgqueue) -> None:
    assert "'pgqueue queues' alone lists them" in pgqueue("queues", "list").err


def test_peek_finds_by_state_and_reference_in_a_hundred_columns(
    pgqueue: Pgqueue, conn: Connection, orders: str
) -> None:
    def found(*arguments: str) -> list[Any]:
        return [row["state"] for row in pgqueue("peek", "orders", *arguments, "--json").json["messages"]]

    assert found("--reference", "b") == ["ready"]
    assert found("--state", "success") == found("--reference", "none") == []
    assert found("--state", "dead") == ["failed", "failed"]
    assert found("--state", "failed", "-n", "1") == ["failed"]
    assert found("--state", "leased", "--reference", "a") == ["leased"]
    shown = pgqueue("peek", "orders", "--state", "dead").out
    assert "no stock" in shown
    assert max(map(len, shown.splitlines())) <= 100
    assert "packer" in pgqueue("peek", "orders", "--state", "leased").out
    assert pgqueue("peek", "nope", "--state", "dead").status == 1
    assert pgqueue("peek", "orders", "--state", "eaten").status == 2


def test_a_single_message_or_a_cause_is_requeued_or_dismissed(pgqueue: Pgqueue, conn: Connection, orders: str) -> None:
    first, second = dead(conn)
    looked = pgqueue("requeue", "--id", str(first), "--dry-run", "--json").json
    assert (looked["would_requeue"], looked["waiting"], len(dead(conn))) == (1, {"failed": 1}, 2)
    done = pgqueue("requeue", "--id", str(first), "--json").json
    assert [message["id"] for message in done["messages"]] == [first]
    (cause,) = [row["fingerprint"] for row in pgqueue("dead", "--json").json["causes"]]
    looked = pgqueue("dismiss", "--cause", cause, "--reason", "known", "--dry-run", "--json").json
    assert (looked["would_dismiss"], len(dead(conn))) == (1, 1)
    refused = pgqueue("dismiss", "--cause", cause, "--reason", "known")
    assert (refused.status, len(dead(conn))) == (2, 1)
    done = pgqueue("dismiss", "--cause", cause, "--reason", "known", "--yes", "--json")
    assert not done.err, done
    assert done.json["ids"] == [second]
    assert dead(conn) == []


@pytest.mark.parametrize("command", [["requeue"], ["dismiss", "--reason", "all", "--yes"]])
def test_several_causes_are_resolved_in_one_command(
    pgqueue: Pgqueue, conn: Connection, orders: str, command: list[str]
) -> None:
    causes = [row["fingerprint"] for row in pgqueue("dead", "--json").json["causes"]]
    assert len(causes) == len(dead(conn)) == 2
    assert causes[0] in pgqueue("dead").out
    named = [word for cause in causes for word in ("--cause", cause)]
    assert f"2 messages of causes {causes[0]}, {causes[1]}" in pgqueue(*command, *named, "--dry-run").out
    assert pgqueue(*command, *named).status == 0
    assert dead(conn) == []
    (arguments,) = conn.execute("SELECT arguments FROM messages.audit WHERE action LIKE '%_dead'").fetchone() or ()
    assert sorted(arguments["fingerprints"]) == sorted(causes)


@pytest.mark.parametrize("command", [["requeue"], ["dismiss", "--reason", "all", "--yes"]])
def test_nothing_is_requeued_or_dismissed_that_nobody_named(
    pgqueue: Pgqueue, conn: Connection, orders: str, command: list[str]
) -> None:
    ended = pgqueue(*command)
    assert ended.status == 2
    assert "--cause" in ended.err
    assert len(dead(conn)) == 2


def test_stats_show_who_works(pgqueue: Pgqueue, orders: str) -> None:
    holders = pgqueue("stats", "--workers", "--json").json["workers"]
    assert [row["leased"] for row in holders if row["worker"] == "packer"] == [1]
    assert "packer" in pgqueue("stats", "orders", "--workers").out
    assert "packer" not in pgqueue("stats", "orders").out


def test_stats_that_watch_clear_the_screen_of_a_terminal(program: Program, dsn: str, orders: str) -> None:
    mine, theirs = pty.openpty()
    pipes = {"stdin": theirs, "stdout": theirs, "stderr": theirs}
    shown = ""
    with program("stats", "--watch", "20ms", dsn=dsn, env={"TERM": "xterm", "COLUMNS": "160"}, **pipes) as process:
        end = time.monotonic() + PATIENCE
        while shown.count("\x1b[2J") < 3 or shown.count("orders") < 2:
            assert time.monotonic() < end, shown[-2000:]
            if select.select([mine], [], [], 1)[0]:
                shown += os.read(mine, 65536).decode(errors="replace")
        process.send_signal(2)
        assert process.wait(PATIENCE) == 130
    os.close(mine)
    os.close(theirs)


def test_metrics_are_served_until_the_program_ends(program: Program, dsn: str, orders: str) -> None:
    with program("metrics", "--listen", "127.0.0.1:0", dsn=dsn) as process:
        (address,) = re.findall(r"http://\S+", process.stderr.readline())
        with urllib.request.urlopen(address, timeout=PATIENCE) as answer:
            text = answer.read().decode()
        assert 'pgqueue_unfinished_messages{queue="orders",state="ready"} 2.0' in text
        assert "pgqueue_up 1.0" in text
        for request in ("GET /metrics HTTP/1.1", "GET /nothing HTTP/1.1", "BREW / HTTP/1.1", "no HTTP at all"):
            with socket.create_connection(("127.0.0.1", urlsplit(address).port or 0), timeout=PATIENCE) as conn:
                conn.sendall(f"{request}\r\nConnection: close\r\n\r\n".encode())
                assert not re.search(r"Python|WSGI|BaseHTTP", conn.makefile("rb").read().decode()), request
        process.terminate()


def test_an_address_that_cannot_be_listened_at_is_one_line(pgqueue: Pgqueue) -> None:
    assert pgqueue("metrics", "--listen", "nowhere").status == 2
    ended = pgqueue("metrics", "--listen", "192.0.2.1:80")
    assert (ended.status, len(ended.err.splitlines())) == (1, 1)


WALK: dict[str, list[str]] = {
    "install": [],
    "uninstall": ["--yes"],
    "doctor": [],
    "queues": [],
    "queues create": ["mail"],
    "queues alter": ["orders", "--max-attempts", "2"],
    "queues pause": ["orders"],
    "queues resume": ["orders"],
    "queues drop": ["orders", "--yes", "--force"],
    "publish": ["orders", "--message", "1"],
    "show": ["1"],
    "peek": ["orders"],
    "tail": ["orders", "--since", "1h", "--no-follow"],
    "stats": [],
    "metrics": [],
    "worker": ["orders", "json:dumps", "--until-empty"],
    "cancel": ["orders", "1"],
    "dead": [],
    "requeue": ["orders"],
    "dismiss": ["orders", "--reason", "a test", "--yes"],
    "purge": ["orders", "--yes"],
    "maintenance": [],
    "export": ["--target", "/tmp/no partition of the archive is closed"],
}
KEEPS_RUNNING = {"tail", "worker"}
LAST = ("queues drop", "uninstall")  # what the others need is gone then
READS = [
    *("doctor", "queues", "show", "peek", "tail", "stats", "metrics", "dead"),
]


def every_command() -> list[str]:
    context = click.Context(whole_program)
    found = []
    for name in COMMANDS:
        command = whole_program.get_command(context, name)
        found.append(name)
        if isinstance(command, click.Group):
            found += [f"{name} {inner}" for inner in command.commands]
    return found


def test_the_walk_has_every_command() -> None:
    # What adopt-pgmq needs and does is in tests/pgmq.
    assert set(every_command()) - {"web", "adopt-pgmq"} == set(WALK)


HOSTILE = "a\u202eb\u2066c\u3164d\u2800e\u200bf\x9bg\ufe0fh\U000e0041i"
UNSEEN = set(HOSTILE) - set("abcdefghi")


@pytest.mark.parametrize("option", ["--json", ""])
def test_what_strangers_wrote_is_seen_whatever_prints_it(
    pgqueue: Pgqueue, conn: Connection, queue: Queue, option: str
) -> None:
    queue("orders", max_attempts=1)
    for _ in range(3):
        named = {"headers": {HOSTILE: HOSTILE}, "reference": HOSTILE}
        run(conn, verbs.publish("orders", {HOSTILE: HOSTILE}, **named))
    (dead,) = run(conn, verbs.lease("orders", locked_by=HOSTILE))
    failure = {"error": HOSTILE, "message": HOSTILE, "traceback": HOSTILE}
    verb = verbs.archive(dead.lock_token, [dead.id], result="failed", details=HOSTILE, failure=failure)
    run(conn, verb)
    run(conn, verbs.lease("orders", locked_by=HOSTILE))
    run(conn, verbs.maintain())
    shown = ""
    commands = {name: WALK[name] for name in READS} | {"show": [str(dead.id)], "requeue": ["orders", "--dry-run"]}
    commands |= {"dismiss": ["orders", "--reason", HOSTILE, "--yes"], "peek orders": ["--reference", HOSTILE]}
    for name, arguments in commands.items():
        ended = pgqueue(*name.split(), *arguments, *filter(None, [option]))
        assert not UNSEEN & set(ended.out + ended.err), name
        shown += ended.out
        if option:
            assert all(isinstance(line, dict) for line in ended.lines)
    assert shown.count("\\u3164") > 10
    assert json.loads(pgqueue("peek", "orders", "--json").out)["messages"][0]["message"] == {HOSTILE: HOSTILE}


def test_each_command_prints_json(pgqueue: Pgqueue, conn: Connection, orders: str) -> None:
    for name in (*(one for one in WALK if one not in LAST), *LAST):
        ended: Ended = pgqueue(*name.split(), *WALK[name], "--json")
        assert ended.status == 0 or name == "doctor", (name, ended.err)
        lines = ended.out.splitlines()
        assert lines or name in KEEPS_RUNNING, name
        assert all(isinstance(json.loads(line), dict) for line in lines), name
        assert len(lines) == 1 or name in KEEPS_RUNNING, name


def test_json_has_moments_and_durations_that_programs_read(pgqueue: Pgqueue, orders: str) -> None:
    (row,) = [row for row in pgqueue("stats", "--workers", "--json").json["workers"] if row["worker"] == "packer"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\S+\+00:00", row["leased_since"])
    assert timedelta(seconds=pgqueue("stats", "orders", "--json").json["queues"][0]["oldest_age"]) < timedelta(hours=1)


@pytest.mark.parametrize("command", [["queues"], ["stats"], ["peek", "orders"], ["peek", "orders", "--state", "dead"]])
def test_json_tells_each_thing_once_and_nothing_internal(pgqueue: Pgqueue, orders: str, command: list[str]) -> None:
    (rows,) = pgqueue(*command, "--json").json.values()
    names = set(rows[0])
    assert not {name for name in names if name.startswith("depth_")}
    assert not names & {"shared_low_water", "shared_sweep_due", "per_second", "lock_token"}
