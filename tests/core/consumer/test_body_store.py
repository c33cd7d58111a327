"""Bodies in a folder, and pointers in messages: written before the message, read for the consumer, removed after it."""

from __future__ import annotations

import hashlib
import itertools
import json
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

from airflow_provider_pgqueue.cli.program import run_program
from airflow_provider_pgqueue.core import (
    BodyStore,
    BodyUnavailable,
    Consumer,
    DeadMessage,
    Failed,
    HandlerBroken,
    InvalidArgument,
    Message,
    PermissionDenied,
    Rejected,
    Repair,
    connect,
    run,
    verbs,
)
from airflow_provider_pgqueue.core.errors import MessageTooLarge
from airflow_provider_pgqueue.core.json_text import JsonText
from airflow_provider_pgqueue.core.tuning import TUNING
from tests.waiting import until

Connection = psycopg.Connection[Any]
Connect = Callable[..., Connection]
Queue = Callable[..., str]
LARGE = {"report": "ünï ☃ " * 20_000}
ALL = timedelta(days=-1)  # also those that are written in the next day


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "bodies"
    folder.mkdir()
    return folder


@pytest.fixture
def store(folder: Path) -> BodyStore:
    return BodyStore(folder)


def publish(conn: Connection, store: BodyStore, *bodies: Any, **options: Any) -> list[int]:
    return run(conn, verbs.publish_batch("orders", [store.put(conn, body) for body in bodies], **options))


def publish_pointer(conn: Connection, folder: Path, data: bytes = b'"secret"', **said: Any) -> Path:
    """Publish a pointer in plain SQL, with what it says otherwise, and return the file that `data` is in."""
    pointer = json.loads(BodyStore(folder, above=0).put(conn, 1))["pgqueue_body"]
    file = folder / pointer["name"]
    file.write_bytes(data)
    pointer |= {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()} | said
    conn.execute("SELECT messages.publish('orders', %s)", [json.dumps({"pgqueue_body": pointer})])
    return file


def bodies(conn: Connection) -> list[Any]:
    return [body for (body,) in conn.execute("SELECT message FROM messages.message ORDER BY id")]


def drained(conn: Connection, store: BodyStore | None, **given: Any) -> list[Any]:
    """Return the bodies that a consumer gets."""
    found: list[Any] = []
    consumer = Consumer(queue_name="orders", handle=lambda message: found.append(message.body), bodies=store, **given)
    consumer.drain(conn)
    return found


def failures(conn: Connection) -> dict[int, str]:
    """Return the last errors of the messages that wait for another attempt."""
    rows = conn.execute(
        "SELECT id, last_error FROM messages.message WHERE last_error IS NOT NULL ORDER BY id"
    ).fetchall()
    return dict(rows)


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_a_large_body_is_kept_in_the_folder_and_a_small_one_in_the_message(
    conn: Connection, queue: Queue, store: BodyStore, folder: Path
) -> None:
    queue()
    publish(conn, store, {"small": 1}, LARGE, [LARGE, None])
    small, *pointers = bodies(conn)
    assert small == {"small": 1}
    assert files(folder) == {pointer["pgqueue_body"]["name"] for pointer in pointers}
    assert all(len(json.dumps(pointer)) < 300 for pointer in pointers)
    assert drained(conn, store) == [{"small": 1}, LARGE, [LARGE, None]]


def test_the_limit_is_the_size_of_the_text_in_bytes(conn: Connection, queue: Queue, folder: Path) -> None:
    queue()
    publish(conn, BodyStore(folder, above=8), "ünïx", "ünïxx")
    kept, pointer = bodies(conn)
    assert (kept, pointer["pgqueue_body"]["bytes"]) == ("ünïx", 9)
    with pytest.raises(MessageTooLarge, match="a body of 5 bytes is too large: at_most is 4"):
        BodyStore(folder, above=2, at_most=4).put(conn, "abc")
    above: Any
    for above in (-1, 5, "3", None):
        with pytest.raises(InvalidArgument, match=f"above is {above}"):
            BodyStore(folder, above=above, at_most=4)


def test_a_folder_that_is_a_text_is_refused_before_the_first_large_body() -> None:
    text: Any = "/var/lib/bodies"
    with pytest.raises(InvalidArgument, match=r"folder is a str\. Give a path, such as pathlib\.Path"):
        BodyStore(text)


@pytest.mark.parametrize("body", [{"pgqueue_body": 1}, {"pgqueue_body": {"name": "../x", "bytes": 1, "sha256": "0"}}])
def test_a_body_that_looks_like_a_pointer_comes_out_as_it_went_in(
    conn: Connection, queue: Queue, store: BodyStore, body: Any
) -> None:
    queue()
    publish(conn, store, body)
    assert drained(conn, store) == [body]


@pytest.mark.parametrize(
    "text",
    ['{ "pgqueue_body": 1}', '\n{\n"pgqueue_body" :1}', '{"\\u0070gqueue_body": 1}', '{"pgqueue\\u005fbody": 1}'],
)
def test_so_does_one_that_is_json_text_already(conn: Connection, queue: Queue, store: BodyStore, text: str) -> None:
    queue()
    publish(conn, store, JsonText(text))
    assert drained(conn, store) == [{"pgqueue_body": 1}]


def test_no_name_is_used_twice_whatever_the_body(conn: Connection, store: BodyStore, folder: Path) -> None:
    for _ in range(3):
        store.put(conn, LARGE)
    assert len(files(folder)) == 3


def test_a_batch_handler_gets_no_more_bodies_at_once_than_fit(
    conn: Connection, queue: Queue, store: BodyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue()
    monkeypatch.setattr(TUNING, "bodies_at_once", 2 * len(json.dumps(LARGE, ensure_ascii=False).encode()) + 100)
    publish(conn, store, LARGE, 1, LARGE, LARGE, 2, LARGE, LARGE, 3)
    calls: list[list[Any]] = []

    def handle(messages: list[Message]) -> None:
        calls.append([message.body if isinstance(message.body, int) else "large" for message in messages])
        if 2 in calls[-1]:
            raise ValueError("no")

    counts = Consumer(queue_name="orders", handle_batch=handle, bodies=store).drain(conn, max_messages=8)
    assert calls == [["large", 1, "large"], ["large", 2, "large"], ["large", 3]]
    assert counts == {"success": 5, "retried": 3}


def test_a_batch_that_is_stopped_between_two_calls_gives_the_rest_back_without_an_attempt(
    conn: Connection, queue: Queue, store: BodyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue()
    monkeypatch.setattr(TUNING, "bodies_at_once", 1)
    publish(conn, store, LARGE, LARGE, LARGE)
    calls: list[int] = []
    consumer = Consumer(queue_name="orders", handle_batch=lambda some: calls.append(len(some)), bodies=store)
    assert consumer.drain(conn, stop=lambda: bool(calls)) == {"success": 1, "released": 2}
    assert conn.execute("SELECT attempts FROM messages.message").fetchall() == [(0,), (0,)]


def test_the_command_worker_reads_them_too(
    conn: Connection,
    dsn: str,
    queue: Queue,
    store: BodyStore,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    queue()
    publish(conn, store, LARGE)
    (tmp_path / "sizes.py").write_text("def handle(message):\n    assert list(message.body) == ['report']\n")
    monkeypatch.setenv("PGQUEUE_DSN", dsn)
    monkeypatch.syspath_prepend(tmp_path)
    run_program(["worker", "sizes:handle", "--queue", "orders", "--until-empty", "--bodies-at", str(folder)])
    assert "1 success" in capsys.readouterr().out


def test_plain_sql_and_a_consumer_without_a_folder_see_the_pointer(
    conn: Connection, queue: Queue, store: BodyStore
) -> None:
    queue()
    publish(conn, store, LARGE)
    (pointer,) = bodies(conn)
    assert set(pointer["pgqueue_body"]) == {"name", "bytes", "sha256"}
    assert drained(conn, None) == [pointer]


def test_a_body_that_is_missing_or_changed_fails_its_own_message_with_an_error_that_names_it(
    conn: Connection, queue: Queue, store: BodyStore, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    queue("orders", backoff_first="1 hour", backoff_max="1 hour")
    ids = publish(conn, store, *[{"n": n} | LARGE for n in range(5)])
    names = [pointer["pgqueue_body"]["name"] for pointer in bodies(conn)]
    (folder / names[0]).unlink()
    (folder / names[1]).write_bytes(b"?" * (folder / names[1]).stat().st_size)
    (folder / names[2]).write_bytes((folder / names[2]).read_bytes() + b" ")
    (folder / names[3]).write_bytes(b"")
    assert drained(conn, store) == [{"n": 4} | LARGE]
    found = failures(conn)
    assert list(found) == ids[:4]
    for id_, why in zip(ids, ["it is missing", *["it is not what was published"] * 3], strict=False):
        error = f"BodyUnavailable: the body of message {id_} of queue orders in {folder} cannot be had: {why}"
        assert error in found[id_]
        assert "report" not in found[id_]
    assert "report" not in caplog.text


def test_in_a_batch_too_what_cannot_be_read_fails_alone(
    conn: Connection, queue: Queue, store: BodyStore, folder: Path
) -> None:
    queue("orders", backoff_first="1 hour", backoff_max="1 hour", max_attempts=1)
    ids = publish(conn, store, LARGE, LARGE, 3)
    (folder / bodies(conn)[0]["pgqueue_body"]["name"]).unlink()
    handled: list[int] = []

    def handle(messages: list[Message]) -> None:
        handled.extend(message.id for message in messages)

    counts = Consumer(queue_name="orders", handle_batch=handle, bodies=store).drain(conn)
    assert (handled, counts) == (ids[1:], {"success": 2, "failed": 1})


def test_a_rule_may_say_what_becomes_of_it(conn: Connection, queue: Queue, store: BodyStore, folder: Path) -> None:
    queue()
    publish(conn, store, LARGE)
    (folder / bodies(conn)[0]["pgqueue_body"]["name"]).unlink()
    assert drained(conn, store, on_error={BodyUnavailable: Failed}) == []
    assert conn.execute("SELECT result FROM messages.message_archive").fetchall() == [("failed",)]


def test_a_folder_that_is_gone_stops_the_consumer_before_every_message_is_spent(
    conn: Connection, queue: Queue, store: BodyStore, folder: Path
) -> None:
    queue("orders", backoff_first="1 hour", backoff_max="1 hour")
    publish(conn, BodyStore(folder, above=0), *range(20))
    folder.rename(folder.with_name("elsewhere"))
    with pytest.raises(HandlerBroken):
        drained(conn, store, give_up_after=5)
    assert conn.execute("SELECT count(*) FROM messages.message WHERE attempts = 0").fetchone() == (15,)


GOOD = "7-5-20261126T120000-" + "a" * 32
HOSTILE = [
    *("../secret", "secret", "/etc/passwd", "file:///etc/passwd", "s3://other/secret", "", ".", "..", GOOD + "/../x"),
    *(
        f"../{GOOD}",
        f"sub/{GOOD}",
        f"{GOOD}\n",
        GOOD.upper(),
        GOOD.replace("7", "\u0667"),
        "7" * 3000 + GOOD,
        7,
        None,
        [GOOD],
    ),
]


def test_a_pointer_leads_nowhere_but_to_a_file_that_the_store_named(
    conn: Connection, queue: Queue, store: BodyStore, folder: Path, tmp_path: Path
) -> None:
    queue("orders", backoff_first="1 hour", backoff_max="1 hour")
    data = b'"secret"'
    for place in (tmp_path / "secret", tmp_path / GOOD, folder / "secret", folder / "sub" / GOOD):
        place.parent.mkdir(exist_ok=True)
        place.write_bytes(data)
    for name in HOSTILE:
        conn.execute("SELECT messages.publish('orders', %s)", [json.dumps(_pointer(name, data))])
    conn.execute("SELECT messages.publish('orders', '1')")
    assert drained(conn, store) == [1]
    errors = failures(conn)
    assert len(errors) == len(HOSTILE)
    for id_, error in errors.items():
        assert f"the body of message {id_} of queue orders in" in error
        assert "cannot be had: the pointer to it" in error
        assert len(error) < 500  # a part of the body must not fill an error


def test_so_does_one_with_a_character_that_postgresql_cannot_store(
    conn: Connection, queue: Queue, store: BodyStore
) -> None:
    message = Message(**_fields(conn, queue("orders")), body=_pointer(f"{GOOD}\0", b'"secret"'))
    with pytest.raises(BodyUnavailable, match="a name that this package does not give"):
        store.read(message)


def _pointer(name: Any, data: bytes) -> Any:
    return {"pgqueue_body": {"name": name, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}}


def _fields(conn: Connection, queue_name: str) -> dict[str, Any]:
    run(conn, verbs.publish(queue_name, 1))
    (message,) = run(conn, verbs.lease(queue_name))
    return {name: getattr(message, name) for name in Message.__dataclass_fields__ if name != "body"}


def test_a_pointer_that_says_anything_else_is_an_error(
    conn: Connection, queue: Queue, store: BodyStore, folder: Path
) -> None:
    queue("orders", backoff_first="1 hour", backoff_max="1 hour")
    size, malformed, other = "another size than 1 to 268435455 bytes", "the pointer to it is malformed", "not what was"
    wrong: list[tuple[dict[str, Any], str]] = [
        *(({"bytes": number}, size) for number in (2**31, 0, -1, 10**4000)),
        *((said, malformed) for said in ({"bytes": "8"}, {"bytes": 8.5}, {"more": 1})),
        *((said, other) for said in ({"bytes": 7}, {"sha256": None}, {"sha256": ["x"]})),
    ]
    for said, _ in wrong:
        publish_pointer(conn, folder, **said)
    assert drained(conn, store) == []
    assert [why for (_, why), error in zip(wrong, failures(conn).values(), strict=True) if why not in error] == []


def test_a_file_is_read_up_to_the_size_that_its_pointer_says(
    conn: Connection, queue: Queue, store: BodyStore, folder: Path
) -> None:
    queue("orders", backoff_first="1 hour", backoff_max="1 hour")
    file = publish_pointer(conn, folder)
    with file.open("ab") as stream:
        stream.truncate(2**40)  # sparse: to read it all would fill the memory
    assert drained(conn, store) == []
    assert "it is not what was published" in failures(conn)[1]


def test_json_that_python_cannot_read_is_an_error_of_its_message(
    conn: Connection, queue: Queue, store: BodyStore, folder: Path
) -> None:
    queue("orders", backoff_first="1 hour", backoff_max="1 hour")
    publish_pointer(conn, folder, b"[" * 100_000)
    publish_pointer(conn, folder, b"\xff")
    assert drained(conn, store) == []
    assert len([text for text in failures(conn).values() if "Python cannot read its JSON" in text]) == 2


def test_a_requeue_and_a_repair_keep_the_pointer_and_its_body(conn: Connection, queue: Queue, store: BodyStore) -> None:
    queue()
    publish(conn, store, LARGE)
    (pointer,) = bodies(conn)
    seen: list[DeadMessage] = []

    def look(dead: DeadMessage) -> Any:
        seen.append(dead)
        return dead.body

    for remedy in ("requeue", "repair"):
        Consumer(queue_name="orders", handle=lambda message: Rejected("no"), bodies=store).drain(conn)
        if remedy == "requeue":
            run(conn, verbs.requeue_dead(verbs.DeadFilter("orders", results=["rejected"])))
        else:
            assert Repair(which=verbs.DeadFilter("orders"), function=look).run(conn)["requeued"] == 1
        assert store.clean(conn, older_than=ALL) == 0
        assert bodies(conn) == [pointer]
    assert [(dead.body, store.read(dead).body) for dead in seen] == [(pointer, LARGE)]
    assert drained(conn, store) == [LARGE]


def test_clean_removes_what_no_message_points_to_and_keeps_the_rest(
    conn: Connection, queue: Queue, store: BodyStore, folder: Path
) -> None:
    queue()
    with conn.transaction(force_rollback=True):
        publish(conn, store, LARGE)
    publish(conn, store, "waits", LARGE)
    publish(conn, store, {"archived": LARGE})
    kept = {body["pgqueue_body"]["name"] for body in bodies(conn) if isinstance(body, dict)}
    run(conn, verbs.consume("orders", max_messages=3))
    publish(conn, store, {"delayed": LARGE}, delay=timedelta(days=300))
    kept.add(bodies(conn)[-1]["pgqueue_body"]["name"])
    other = {"README", "1-1-20200101T000000-" + "0" * 32}
    for name in other:
        (folder / name).write_text("of somebody else")
    assert store.clean(conn) == 0, "all are younger than a day"
    assert store.clean(conn, older_than=ALL) == 1
    assert files(folder) == kept | other
    assert store.clean(conn, older_than=ALL) == 0
    conn.execute("DELETE FROM messages.message_archive")
    assert store.clean(conn, older_than=ALL) == 2
    conn.execute("SELECT messages.purge_queue('orders')")
    assert store.clean(conn, older_than=ALL) == 1
    assert files(folder) == other


def test_a_directory_that_is_not_there_is_named_by_whoever_writes_reads_or_cleans(
    conn: Connection, queue: Queue, store: BodyStore, folder: Path
) -> None:
    queue("orders", backoff_first="1 hour", backoff_max="1 hour")
    publish(conn, store, LARGE)
    folder.rename(folder.with_name("elsewhere"))
    with pytest.raises(BodyUnavailable, match=rf"cannot be written to {folder}: FileNotFoundError: .* must exist"):
        publish(conn, store, LARGE)
    assert drained(conn, store) == []
    assert f"in {folder} cannot be had: it is missing" in failures(conn)[1]
    with pytest.raises(FileNotFoundError, match=str(folder)):
        store.clean(conn, older_than=ALL)


@pytest.mark.parametrize("years", [2100, 6000, 7000, 2_700_000])
def test_what_is_older_than_any_body_removes_none(conn: Connection, store: BodyStore, folder: Path, years: int) -> None:
    store.put(conn, LARGE)
    assert store.clean(conn, older_than=timedelta(days=365.25 * years)) == 0
    assert len(list(folder.iterdir())) == 1


def test_a_body_whose_key_is_remembered_stays_until_it_is_cleaned(
    conn: Connection, queue: Queue, store: BodyStore, folder: Path
) -> None:
    queue()
    for body in (LARGE, {"again": LARGE}):
        publish(conn, store, body, dedup_keys=["k"])
    assert len(files(folder)) == 2
    assert store.clean(conn, older_than=ALL) == 1
    assert drained(conn, store) == [LARGE]


def test_two_databases_in_one_folder_clean_their_own(
    conn: Connection, queue: Queue, store: BodyStore, folder: Path, cluster: Any, template_database: str
) -> None:
    queue()
    publish(conn, store, LARGE)
    with connect(cluster.create_database("bodies_of_another", template=template_database)) as another:
        run(another, verbs.create_queue("orders"))
        publish(another, store, [LARGE])
        store.put(another, "orphan" * 100_000)
        assert store.clean(conn, older_than=ALL) == 0
        assert store.clean(another, older_than=ALL) == 1
        assert drained(another, store) == [[LARGE]]
    cluster.drop_database("bodies_of_another")
    assert drained(conn, store) == [LARGE]


def test_cleaning_needs_the_role_that_reads_all_messages_and_removes_nothing_without_it(
    conn: Connection, connect: Connect, store: BodyStore, folder: Path
) -> None:
    store.put(conn, LARGE)
    conn.execute("CREATE ROLE cleaner LOGIN IN ROLE messages_upkeep")
    try:
        cleaner = connect(user="cleaner", row_factory=dict_row)
        with pytest.raises(PermissionDenied, match="messages_reader"):
            store.clean(cleaner, older_than=ALL)
        assert len(files(folder)) == 1
        conn.execute("GRANT messages_reader TO cleaner")
        assert store.clean(cleaner, older_than=ALL) == 1
        cleaner.close()
    finally:
        conn.execute("DROP ROLE cleaner")


def test_publishers_consumers_and_cleaners_at_once_lose_no_body(
    conn: Connection, connect: Connect, queue: Queue, folder: Path
) -> None:
    queue()
    store, stop, removed = BodyStore(folder, above=0), threading.Event(), Counter[str]()
    published: list[int] = []
    got: list[int] = []

    def publisher(number: int) -> None:
        own = connect()
        for n in itertools.count(number * 1_000_000):
            if stop.wait(0.005):
                return
            with own.transaction(force_rollback=n % 3 == 0):
                publish(own, store, n)
            if n % 3:
                published.append(n)

    def cleaner(number: int) -> None:
        own = connect()
        while not stop.wait(0.02):
            # Longer than any of these transactions, also on a machine with a lot to do.
            removed[str(number)] += store.clean(own, older_than=timedelta(seconds=4))

    def consumer() -> None:
        own = connect()
        handler = Consumer(queue_name="orders", handle=lambda message: got.append(message.body), bodies=store)
        while not stop.wait(0.005):
            handler.drain(own)

    with ThreadPoolExecutor(5) as pool:
        running = [pool.submit(publisher, number) for number in (1, 2)]
        running += [pool.submit(cleaner, number) for number in (1, 2)]
        running.append(pool.submit(consumer))
        try:
            until(lambda: len(removed) == 2 and removed.total() > 20, what="bodies that were removed")
        finally:
            stop.set()
        for one in running:
            one.result()
    # What was committed late is found by a look.
    until(lambda: got.extend(drained(conn, store)) or not bodies(conn), what="the end of the queue")
    assert sorted(got) == sorted(published)
    store.clean(conn, older_than=ALL)
    assert len(files(folder)) == len(published)


@pytest.mark.parametrize("command", [["peek", "orders"], ["show", "ID", "--body"]])
def test_what_shows_a_message_shows_at_most_the_pointer(
    conn: Connection,
    dsn: str,
    queue: Queue,
    store: BodyStore,
    command: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    queue()
    (id_,) = publish(conn, store, LARGE)
    monkeypatch.setenv("PGQUEUE_DSN", dsn)
    run_program([str(id_) if word == "ID" else word for word in command])
    shown = capsys.readouterr().out
    assert "pgqueue_body" in shown
    assert "report" not in shown


def test_cleaning_reads_no_body_that_is_kept_in_the_queue(conn: Connection, queue: Queue, store: BodyStore) -> None:
    queue()
    text = "SELECT to_jsonb(string_agg(random()::text, '')) FROM generate_series(1, 9999)"
    conn.execute(f"SELECT messages.publish('orders', ({text}))".encode())
    publish(conn, store, LARGE)
    store.put(conn, LARGE)
    blocks = """
        SELECT pg_stat_force_next_flush()::text, sum(toast_blks_read + toast_blks_hit)::bigint
          FROM pg_statio_all_tables WHERE schemaname = 'messages'
    """
    conn.execute(blocks)
    before = conn.execute(blocks).fetchone()
    assert store.clean(conn, older_than=ALL) == 1
    conn.execute(blocks)
    assert conn.execute(blocks).fetchone() == before
    conn.execute("SELECT md5(message::text) FROM messages.message")
    conn.execute(blocks)
    assert conn.execute(blocks).fetchone() != before
