"""`pgqueue worker`: finds the function, hands it messages, stops cleanly."""

from __future__ import annotations

import re
import signal
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from airflow_provider_pgqueue.core import run, verbs
from tests.core.cli.conftest import Ended, Pgqueue, Program
from tests.waiting import until, until_leases_expire, until_waiting

Connection = psycopg.Connection[Any]
Work = Callable[..., Ended]

HANDLERS = """
import os, signal, sys
import psycopg
from airflow_provider_pgqueue.core import Rejected

LIMIT = 3

def pack(message):
    if message.body == "bad":
        return Rejected("bad")

def pack_all(messages):
    return {message.id: Rejected("odd") for message in messages if message.body % 2}

def slow(message):
    with psycopg.connect(os.environ["PGQUEUE_DSN"]) as conn:
        conn.execute("SELECT pg_advisory_lock_shared(7)")  # which the test holds

def breaks(message):
    raise ValueError(f"secret {message.body}")

def hangs(message):
    import time
    if message.body == 1:
        time.sleep(300)

def packs_most(message):
    if message.body < 50:
        raise ValueError(f"no address in {message.body}")

def kills(message):
    if message.body == 1:
        os.kill(os.getpid(), signal.SIGKILL)

async def wait(message):
    import asyncio
    await asyncio.sleep(0)
    return pack(message)

class Own(BaseException): ...

def own(message):
    raise Own(message.body)

def exits(message):
    sys.exit(message.body)

def ends(message):
    if os.path.exists("ended"):
        return None
    open("ended", "x").close()
    if message.body == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if message.body == "exit":
        sys.exit(3)
    return "no outcome"

def interrupted(message):
    # Ctrl-C comes again when the worker has just ended.
    def interrupt(frame, event, argument):
        code = frame.f_code
        if event == "return" and code.co_name == "run" and code.co_filename.endswith("core/worker.py"):
            os.kill(os.getpid(), signal.SIGINT)
    sys.setprofile(interrupt)

class Packer:
    @staticmethod
    def pack(message): ...

    def pack_with(self, message): ...

def none(): ...
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A directory with the module `handlers`."""
    (tmp_path / "handlers.py").write_text(HANDLERS)
    (tmp_path / "broken.py").write_text("import no_such_module")
    return tmp_path


@pytest.fixture
def work(program: Program, dsn: str, folder: Path) -> Work:
    """Work on queue default with a function of `handlers` until the worker ends: `work("pack", "--until-empty")`."""

    def call(function: str, *options: str) -> Ended:
        arguments = ["worker", "default", f"handlers:{function}", *options]
        with program(*arguments, dsn=dsn, cwd=folder) as process:
            out, err = process.communicate(timeout=60)
        return Ended(process.returncode, out, err)

    return call


def results(conn: Connection) -> list[tuple[Any, ...]]:
    rows = "SELECT message, result, split_part(handled_by, ' ', 1) FROM messages.message_archive ORDER BY id"
    return conn.execute(rows.encode()).fetchall()


def test_a_function_of_the_current_directory_handles_the_messages(work: Work, conn: Connection) -> None:
    run(conn, verbs.publish_batch("default", [1, "bad"]))
    ended = work("pack", "--until-empty", "--json")
    assert ended.out == '{"queue_name": "default", "counts": {"success": 1, "rejected": 1}, "died": {}}\n'
    assert ended.status == 0
    assert results(conn) == [(1, "success", "handlers:pack"), ("bad", "rejected", "handlers:pack")]
    assert '"bad"' not in ended.err
    assert " worker of queue default started: it calls handlers:pack for each message;" in ended.err


def test_an_async_function_is_awaited(work: Work, conn: Connection) -> None:
    run(conn, verbs.publish_batch("default", ["good", "bad"]))
    ended = work("wait", "--until-empty")
    assert ended.out == "worker of queue default stopped: 1 success, 1 rejected.\n"
    assert "never awaited" not in ended.err
    assert "unclosed" not in ended.err


def test_a_batch_function_gets_a_lease_at_a_time(work: Work, conn: Connection) -> None:
    run(conn, verbs.publish_batch("default", [1, 2, 3]))
    ended = work("pack_all", "--batch", "--batch-size", "2", "--until-empty")
    assert (ended.status, ended.out) == (0, "worker of queue default stopped: 2 rejected, 1 success.\n")
    assert "stopped" not in ended.err, "it says so once"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_worker_after_the_message_in_hand(
    program: Program, dsn: str, conn: Connection, folder: Path, number: signal.Signals
) -> None:
    run(conn, verbs.publish_batch("default", [1, 2, 3]))
    conn.execute("SELECT pg_advisory_lock(7)")
    with program("worker", "default", "handlers:slow", dsn=dsn, cwd=folder) as process:
        until_waiting(conn, "wait_event = 'advisory'")
        process.send_signal(number)
        conn.execute("SELECT pg_advisory_unlock(7)")
        out, _ = process.communicate(timeout=30)
    assert (process.returncode, out) == (0, "worker of queue default stopped: 1 success, 2 released.\n")
    assert len(results(conn)) == 1
    assert conn.execute("SELECT DISTINCT attempts, lock_token FROM messages.message").fetchall() == [(0, None)]


def test_several_processes_share_the_work_and_stop_together(
    program: Program, dsn: str, conn: Connection, folder: Path
) -> None:
    run(conn, verbs.publish_batch("default", list(range(10))))
    options = ["--batch-size", "1", "--processes", "2"]
    conn.execute("SELECT pg_advisory_lock(7)")
    with program("worker", "default", "handlers:slow", *options, dsn=dsn, cwd=folder) as process:
        until_waiting(conn, "wait_event = 'advisory'", sessions=2)
        process.terminate()
        conn.execute("SELECT pg_advisory_unlock(7)")
        process.communicate(timeout=30)
    assert process.returncode == 0
    rows = conn.execute("SELECT count(DISTINCT handled_by) FROM messages.message_archive").fetchall()
    assert rows == [(2,)]
    assert conn.execute("SELECT count(*) FROM messages.message WHERE lock_token IS NOT NULL").fetchone() == (0,)


def test_a_signal_amid_the_start_of_processes_reaches_those_that_were_started(
    program: Program, dsn: str, folder: Path
) -> None:
    (folder / "stopped.py").write_text(
        "import os, signal\n"
        "def note(): open('children', 'a').write(f'{os.getpid()} ')\n"
        "def stop(): os.kill(os.getpid(), signal.SIGTERM)\n"
        "os.register_at_fork(after_in_child=note, after_in_parent=stop)\n"
        "def pack(message): ...\n"
    )
    with program("worker", "default", "stopped:pack", "--processes", "2", dsn=dsn, cwd=folder) as process:
        out, _ = process.communicate(timeout=30)
    assert (process.returncode, out) == (0, "worker of queue default stopped: nothing.\n")
    children = (folder / "children").read_text().split()
    assert len(children) == 2
    assert not [pid for pid in children if Path(f"/proc/{pid}").exists()]


def test_the_processes_stop_when_their_parent_is_killed(
    program: Program, dsn: str, conn: Connection, folder: Path
) -> None:
    sessions = "SELECT FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'pgqueue worker'"
    run(conn, verbs.publish_batch("default", list(range(10))))
    conn.execute("SELECT pg_advisory_lock(7)")
    options = ["--batch-size", "1", "--processes", "2"]
    with program("worker", "default", "handlers:slow", *options, dsn=dsn, cwd=folder) as process:
        until_waiting(conn, "wait_event = 'advisory'", sessions=2)
        process.kill()
        process.wait(30)
        conn.execute("SELECT pg_advisory_unlock(7)")
        until(lambda: not conn.execute(sessions.encode()).rowcount, what="the processes to end")
    # Each finishes the message that it has in hand first.
    assert {result for _, result, _ in results(conn)} == {"success"}
    assert conn.execute("SELECT count(*) FROM messages.message WHERE lock_token IS NOT NULL").fetchone() == (0,)


@pytest.mark.parametrize(
    ("body", "end"),
    [("kill", "SIGKILL"), ("exit", "exit status 3"), ("break", r"exit status 1 \(InvalidOutcome: .+\)")],
)
def test_a_process_that_ends_alone_is_named_at_once_and_the_other_works_on(
    program: Program, dsn: str, conn: Connection, folder: Path, body: str, end: str
) -> None:
    options = ["--processes", "2"]
    run(conn, verbs.publish("default", body))
    with (
        (folder / "log").open("w") as log,
        program("worker", "default", "handlers:ends", *options, dsn=dsn, cwd=folder, stderr=log) as process,
    ):
        until(lambda: "is not started again" in (folder / "log").read_text(), process=process)
        run(conn, verbs.publish("default", "good"))
        until(lambda: ("good", "success", "handlers:ends") in results(conn), process=process)
        process.terminate()
        process.communicate(timeout=30)
    assert process.returncode == 1
    said = [line for line in (folder / "log").read_text().splitlines() if "worker process" in line]
    assert len(said) == 1
    assert re.search(rf"WARNING .*\d ended with {end} and is not started again; still at work: 1 of 2", said[0])


def test_processes_that_end_because_the_queue_is_empty_are_no_warning(work: Work, conn: Connection) -> None:
    run(conn, verbs.publish_batch("default", [1, 2]))
    ended = work("pack", "--processes", "2", "--until-empty")
    assert (ended.status, ended.out) == (0, "worker of queue default stopped: 2 success.\n")
    assert "WARNING" not in ended.err


def test_a_second_ctrl_c_when_a_process_has_done_its_work_loses_no_count(work: Work, conn: Connection) -> None:
    run(conn, verbs.publish_batch("default", [1, 2]))
    ended = work("interrupted", "--processes", "2", "--until-empty")
    assert (ended.status, ended.out) == (0, "worker of queue default stopped: 2 success.\n")


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("handlers", "names no function"),
        (":pack", "names no function"),
        ("no_such_handlers:pack", "cannot be imported (ModuleNotFoundError: No module named 'no_such_handlers')"),
        ("broken:pack", "No module named 'no_such_module'). The module was found: fix what it raises."),
        ("handlers:nope", "has no function 'nope'"),
        ("handlers:LIMIT", "has no function 'LIMIT'"),
        (
            "handlers:none",
            "none cannot be called with a message: too many positional arguments. Let its first parameter",
        ),
        (
            "handlers:Packer.pack_with",
            "pack_with cannot be called with a message: missing a required argument: 'message'",
        ),
    ],
)
def test_a_wrong_function_is_wrong_usage(
    pgqueue: Pgqueue, conn: Connection, folder: Path, monkeypatch: pytest.MonkeyPatch, path: str, reason: str
) -> None:
    run(conn, verbs.publish("default", 1))
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    ended = pgqueue("worker", "default", path, "--until-empty")
    assert (ended.status, ended.out) == (2, "")
    assert reason in ended.err.splitlines()[-1]
    assert conn.execute("SELECT attempts FROM messages.message").fetchall() == [(0,)], "nothing was leased"


def test_a_worker_without_a_queue_is_wrong_usage(pgqueue: Pgqueue) -> None:
    ended = pgqueue("worker", "handlers:pack")
    assert (ended.status, ended.err.splitlines()[-1]) == (2, "error: Missing argument 'MODULE:FUNCTION'.")


@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_function_that_always_raises_ends_the_worker(work: Work, conn: Connection, processes: str) -> None:
    run(conn, verbs.publish_batch("default", list(range(200))))
    ended = work("breaks", "--give-up-after", "10", "--batch-size", "50", "--processes", processes)
    assert ended.status == 1
    assert "failed on 10 messages in a row, the last with ValueError (handlers.py:20 in breaks)" in ended.err
    assert "secret" not in ended.err
    assert "Traceback" not in ended.err
    failed = conn.execute("SELECT sum(attempts), bool_or(lock_token IS NOT NULL) FROM messages.message").fetchone()
    assert failed == (10 * int(processes), False)


def test_messages_that_failed_before_do_not_stop_the_workers_that_come_after(work: Work, conn: Connection) -> None:
    run(conn, verbs.alter_queue("default", max_attempts=3, backoff_first=timedelta(hours=1)))
    run(conn, verbs.publish_batch("default", list(range(2000))))
    for _ in range(3):
        ended = work("packs_most", "--until-empty")
        assert "HandlerBroken" not in ended.err
        conn.execute("UPDATE messages.message SET visible_at = clock_timestamp()")
    assert Counter(result for _, result, _ in results(conn)) == {"success": 1950, "failed": 50}
    assert ended.status == 1
    assert "50 messages died (50 failed). See why: pgqueue dead default" in ended.err
    assert [cause.waiting for cause in run(conn, verbs.dead_causes("default"))] == [50]


def test_a_worker_after_one_that_was_killed_says_what_died_meanwhile(work: Work, conn: Connection) -> None:
    run(conn, verbs.alter_queue("default", max_attempts=2))
    run(conn, verbs.publish_batch("default", [0, 1, 2]))
    for _ in range(2):
        assert work("kills", "--lease-for", "1s", "--until-empty").status == -signal.SIGKILL
        until_leases_expire(conn)
    ended = work("kills", "--until-empty")
    assert ended.status == 1
    assert "1 message died (1 lock_expired)" in ended.err
    assert Counter(result for _, result, _ in results(conn)) == {"success": 2, "lock_expired": 1}


def test_a_function_that_hangs_keeps_neither_the_others_nor_the_worker(work: Work, conn: Connection) -> None:
    run(conn, verbs.publish_batch("default", [0, 1, 2]))
    ended = work("hangs", "--handler-timeout", "1s", "--lease-for", "2s", "--until-empty")
    assert (ended.status, ended.out) == (0, "worker of queue default stopped: 1 timed_out, 2 success.\n")
    assert "exceeded its time of 0:00:01 on message 2" in ended.err


@pytest.mark.parametrize(
    ("function", "body", "status", "said"),
    [
        ("own", "SECRET", 1, "error: Own ended the command. --debug shows its text."),
        ("exits", "SECRET", 1, "error: SystemExit ended the command. --debug shows its text."),
        ("exits", 3, 3, ""),
    ],
)
def test_what_ends_the_process_is_reported_without_its_text(
    work: Work, conn: Connection, function: str, body: Any, status: int, said: str
) -> None:
    run(conn, verbs.publish_batch("default", [body, body]))
    ended = work(function)
    assert ended.status == status
    assert said in ended.err
    assert "SECRET" not in ended.err
    assert "Traceback" not in ended.err
    assert conn.execute("SELECT attempts FROM messages.message ORDER BY id").fetchall() == [(1,), (0,)]


def test_what_ends_a_child_is_reported_without_its_text(work: Work, conn: Connection) -> None:
    run(conn, verbs.publish_batch("default", ["SECRET", "SECRET"]))
    ended = work("own", "--processes", "2", "--batch-size", "1")
    assert ended.status == 1
    assert "error: Own ended the command" in ended.err
    assert "SECRET" not in ended.err
    assert "Traceback" not in ended.err
