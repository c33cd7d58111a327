"""From one version to the next: online, with the workers of both side by side."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
import pytest

from airflow_provider_pgqueue.core import check_version, migrate, verbs
from airflow_provider_pgqueue.core.client import run
from airflow_provider_pgqueue.core.consumer.loop import Consumer
from tests.waiting import until
from tools import ROOT, release
from tools.chapters import functions
from tools.golden import GOLDEN, describe
from tools.postgres import Cluster

Connection = psycopg.Connection[Any]

pytestmark = pytest.mark.long

MIGRATION = """
ALTER TABLE messages.message ADD COLUMN note text;
COMMENT ON COLUMN messages.message.note IS 'What this upgrade is about.';
"""


@pytest.fixture(scope="module")
def later(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout of a later version: a column more, and three verbs more, with the argument `note`."""
    folder = tmp_path_factory.mktemp("later")
    shutil.copytree(ROOT / "sql", folder / "sql")
    (folder / "airflow_provider_pgqueue").symlink_to(ROOT / "airflow_provider_pgqueue")
    (folder / "sql" / "migrations" / "0002_note.sql").write_text(MIGRATION)
    install = folder / "sql" / "install.sql"
    for name in ("publish", "lease", "archive"):
        text = re.sub(rf"\b(messages\.)?{name}(?=[.(])", rf"\1{name}_recorded", functions()[name].text)
        text = text.replace("\n) RETURNS", ",\n    note text DEFAULT NULL\n) RETURNS", 1)
        text = re.sub(r"(COMMENT ON FUNCTION [^)]+)\)", r"\1, text)", text)
        with (folder / "sql" / "chapters" / f"{functions()[name].chapter}.sql").open("a") as chapter:
            chapter.write(f"\n{text}")
    of_first = re.search(r"^SELECT NOT EXISTS.*?^\\endif\n", install.read_text(), re.M | re.S)
    of_second = of_first[0].replace("version = 1", "version = 2").replace("0001_schema", "0002_note")
    of_second = of_second.replace("(1, 'schema')", "(2, 'note')")
    install.write_text(install.read_text().replace(of_first[0], of_first[0] + of_second))
    return folder


@contextmanager
def upgrade(later: Path, dsn: str) -> Iterator[subprocess.Popen[str]]:
    """Run the migrator of the later version in a process of its own, which ends with the block."""
    migrate = "import psycopg, sys; from airflow_provider_pgqueue.core.migrations import migrate; "
    migrate += "print(migrate(psycopg.connect(sys.argv[1], autocommit=True)))"
    process = subprocess.Popen([sys.executable, "-c", migrate, dsn], cwd=later, stdout=subprocess.PIPE, text=True)
    with process:
        try:
            yield process
        finally:
            process.kill()


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of the newest release that has a tag; before the first one, and in an sdist, that of the checkout."""
    folder, sources = tmp_path_factory.mktemp("released"), ROOT
    if tag := release.newest():
        sources = folder / "sources"
        sources.mkdir()
        packed = ["git", "-c", f"safe.directory={ROOT}", "archive", tag]
        archive = subprocess.run(packed, cwd=ROOT, check=True, capture_output=True).stdout
        subprocess.run(["tar", "-x"], cwd=sources, check=True, input=archive)
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=sources, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


def as_released(wheel: Path, dsn: str, code: str) -> str:
    """Run a program with the release instead of the checkout, and with a session `conn`; return what it prints."""
    head = "import sys; sys.path.insert(0, sys.argv[1])\nfrom airflow_provider_pgqueue.core import *\n"
    proof = "assert connect.__code__.co_filename.startswith(sys.argv[1])\nconn = connect(sys.argv[2])\n"
    command = [sys.executable, "-c", head + proof + code, str(wheel), dsn]
    done = subprocess.run(command, cwd=wheel.parent, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def offered(conn: Connection) -> set[tuple[str, str, str]]:
    """Return the functions that some role may call: names, arguments and results."""
    query = """
        SELECT proname, pg_get_function_identity_arguments(p.oid), pg_get_function_result(p.oid)
          FROM pg_proc AS p WHERE pronamespace = 'messages'::regnamespace
           AND EXISTS (SELECT FROM aclexplode(proacl) AS a WHERE a.grantee <> proowner)
    """
    return set(conn.execute(query).fetchall())


def outcome(upgrading: subprocess.Popen[str]) -> str:
    said, _ = upgrading.communicate(timeout=60)
    assert upgrading.returncode == 0
    return said.strip()


class Load:
    """Threads that publish and work until they are stopped; what each did, by its name."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self.done: dict[str, int] = {}
        self.failures: list[BaseException] = []
        self._news = threading.Condition()
        self._stopped = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self, name: str, work: Callable[[Connection], int]) -> None:
        """Repeat `work`, which returns how many messages it published or archived."""
        self.done[name] = 0
        self._threads.append(threading.Thread(target=self._repeat, args=[name, work]))
        self._threads[-1].start()

    def _repeat(self, name: str, work: Callable[[Connection], int]) -> None:
        try:
            with psycopg.connect(self.dsn, autocommit=True) as conn:
                while not self._stopped.is_set():
                    self._add(name, work(conn))
        except BaseException as error:
            self.failures.append(error)

    def _add(self, name: str, number: int) -> None:
        with self._news:
            self.done[name] += number
            self._news.notify_all()

    def wait_for(self, more: int, *names: str) -> None:
        """Wait until each of them did so much more."""
        with self._news:
            enough = {name: self.done[name] + more for name in names}
            assert self._news.wait_for(
                lambda: bool(self.failures) or all(self.done[name] >= enough[name] for name in names), timeout=60
            )
        assert self.failures == []

    def stop(self) -> None:
        self._stopped.set()
        for thread in self._threads:
            thread.join()


@pytest.fixture
def load(dsn: str) -> Iterator[Load]:
    load = Load(dsn)
    yield load
    load.stop()


def publish(conn: Connection) -> int:
    run(conn, verbs.publish("orders", 1))
    return 1


def publish_note(conn: Connection) -> int:
    conn.execute("SELECT messages.publish_recorded('orders', '1', note => 'later')")
    return 1


def work(conn: Connection) -> int:
    check_version(conn)
    # Without a limit a drain ends when no message is ready: publishers that are quicker put that off for a minute.
    return Consumer(queue_name="orders", batch_size=5, handle=lambda message: None).drain(conn, max_messages=50).total()


def work_note(conn: Connection) -> int:
    leased = conn.execute("SELECT id, lock_token FROM messages.lease_recorded('orders', 5, note => 'later')").fetchall()
    ids = [id_ for id_, _ in leased]
    token = leased[0][1] if leased else None
    return conn.execute("SELECT messages.archive_recorded(%s, %s::bigint[], note => 'later')", [token, ids]).rowcount


def test_an_upgrade_under_load_loses_nothing_and_workers_of_both_versions_go_on(
    later: Path, conn: Connection, dsn: str, queue: Callable[..., str], load: Load, connect: Callable[..., Connection]
) -> None:
    queue("orders")
    run(conn, verbs.publish("orders", "held", priority=1))
    (held,) = run(conn, verbs.lease("orders"))
    load.start("published", publish)
    load.start("worked", work)
    load.start("worked too", work)
    load.wait_for(100, "published", "worked", "worked too")
    reader = connect(autocommit=False)
    reader.execute("SELECT FROM messages.message")
    waiting = "SELECT FROM pg_locks WHERE relation = 'messages.message'::regclass AND NOT granted AND mode ~ 'AccessE'"
    with upgrade(later, dsn) as upgrading:
        until(lambda: conn.execute(waiting).rowcount, what="the lock of the migration")
        reader.rollback()
        assert outcome(upgrading) == "[2]"
    load.start("published a note", publish_note)
    load.start("worked with a note", work_note)
    load.wait_for(100, *load.done)
    assert isinstance(held.lock_token, UUID)
    assert run(conn, verbs.archive(held.lock_token, [held.id])) == [held.id]
    load.stop()
    assert load.failures == []
    # The next lease looks at all of the queue, also at what was committed behind a mark.
    conn.execute("SELECT setval(scan_due, 1) FROM messages.queue")
    while work(conn):
        pass
    published = 1 + load.done["published"] + load.done["published a note"]
    row = conn.execute(
        "SELECT count(*), count(DISTINCT id), min(result), max(result) FROM messages.message_archive"
    ).fetchone()
    assert row == (published, published, "success", "success")
    assert conn.execute("SELECT FROM messages.message").rowcount == 0


def test_a_fresh_schema_is_the_one_under_review(conn: Connection) -> None:
    assert describe(conn) == GOLDEN.read_text(), "the schema changed: look at it with `make golden`"


def test_an_upgraded_schema_is_the_same_as_a_fresh_one(
    later: Path, conn: Connection, dsn: str, empty_dsn: str, cluster: Cluster
) -> None:
    with upgrade(later, dsn) as upgrading:
        assert outcome(upgrading) == "[2]"
    psql = [cluster.binaries.folder / "psql", "-q", "-v", "ON_ERROR_STOP=1", "-f", later / "sql" / "install.sql"]
    subprocess.run([*psql, empty_dsn], check=True)
    with psycopg.connect(empty_dsn) as fresh:
        assert describe(conn) == describe(fresh)


INSTALL = """
install(conn, cron=False)
run(conn, verbs.create_queue("orders"))
run(conn, verbs.publish_batch("orders", [1, 2, 3]))
(held,) = run(conn, verbs.lease("orders", max_messages=1))
print(held.id, held.lock_token)
"""
WORK = """
print(dict(Consumer(queue_name="orders", handle=lambda message: None).drain(conn)))
"""


def test_what_the_newest_release_left_is_upgraded_and_its_workers_go_on(released: Path, empty_dsn: str) -> None:
    held, token = as_released(released, empty_dsn, INSTALL).split()
    with psycopg.connect(empty_dsn, autocommit=True) as conn:
        before = offered(conn)
        migrate(conn)
        assert describe(conn) == GOLDEN.read_text()
        assert len(before) > 50
        assert before - offered(conn) == set()
        assert as_released(released, empty_dsn, WORK) == "{'success': 2}\n"
        assert run(conn, verbs.archive(UUID(token), [int(held)])) == [int(held)]
        results = conn.execute("SELECT result, count(*) FROM messages.message_archive GROUP BY result").fetchall()
        assert results == [("success", 3)]


def test_a_released_migration_is_never_changed(released: Path) -> None:
    prefix = "airflow_provider_pgqueue/sql/migrations/"
    with zipfile.ZipFile(released) as wheel:
        migrations = {name.removeprefix(prefix): wheel.read(name) for name in wheel.namelist() if prefix in name}
    assert migrations
    assert migrations == {name: (ROOT / "sql" / "migrations" / name).read_bytes() for name in migrations}


def test_a_grant_by_hand_outlives_the_upgrade_until_it_is_revoked(later: Path, conn: Connection, dsn: str) -> None:
    def may(function: str) -> bool:
        question = "SELECT has_function_privilege('test_shop', oid, 'EXECUTE') FROM pg_proc WHERE proname = %s"
        row = conn.execute(question, [function]).fetchone()
        return row is not None and bool(row[0])

    conn.execute("CREATE ROLE test_shop NOLOGIN; GRANT EXECUTE ON FUNCTION messages.publish TO test_shop")
    try:
        with upgrade(later, dsn) as upgrading:
            assert outcome(upgrading) == "[2]"
        assert may("publish")
        assert may("latest_migration")
        assert not may("lease")
        conn.execute("REVOKE EXECUTE ON FUNCTION messages.publish FROM test_shop")
        with upgrade(later, dsn) as upgrading:
            assert outcome(upgrading) == "[]"
        assert not may("publish")
    finally:
        conn.execute("DROP OWNED BY test_shop; DROP ROLE test_shop")


def test_a_version_check_reads_the_names_of_the_migrations_alone(tmp_path: Path) -> None:
    (tmp_path / "airflow_provider_pgqueue").symlink_to(ROOT / "airflow_provider_pgqueue")
    (tmp_path / "sql" / "migrations").mkdir(parents=True)
    for name in ("0002_note.sql", "0010_index.sql", "0009_type.sql"):
        (tmp_path / "sql" / "migrations" / name).touch()
    check = "from airflow_provider_pgqueue.core.migrations import code_version; print(code_version())"
    done = subprocess.run([sys.executable, "-c", check], cwd=tmp_path, check=True, capture_output=True, text=True)
    assert done.stdout == "10\n"
