"""From one version to the next: online, with the workers of both side by side."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any
from uuid import UUID

import psycopg
import pytest

from airflow_provider_pgqueue.core import migrate, verbs
from airflow_provider_pgqueue.core.client import run
from tests.waiting import until
from tests.wheels import UV, built, empty_environment
from tools import ROOT
from tools.chapters import functions
from tools.golden import GOLDEN, describe
from tools.postgres import Cluster
from tools.release import newest

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
        text = re.sub(rf"\b(messages\.)?{name}(?=[.(]| IS\n)", rf"\1{name}_recorded", functions()[name].text)
        text = text.replace("\n) RETURNS", ",\n    note text DEFAULT NULL\n) RETURNS", 1)
        text = re.sub(r"(COMMENT ON FUNCTION [\w.]+\([^)]+)\)", r"\1, text)", text)
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
    process = Version(Path(sys.executable), later).start("print(migrate(conn))", dsn)
    with process:
        try:
            yield process
        finally:
            process.kill()


def outcome(upgrading: subprocess.Popen[str]) -> str:
    said, error = upgrading.communicate(timeout=120)
    assert upgrading.returncode == 0, error
    return said.strip()


@dataclass(frozen=True, slots=True)
class Version:
    """A version of the package: the folder that has it, and the Python that finds it there."""

    python: Path
    folder: Path

    def start(self, code: str, dsn: str) -> subprocess.Popen[str]:
        """Start a program with a session `conn`."""
        head = "import os, sys\nfrom airflow_provider_pgqueue.core import *\nconn = connect(sys.argv[1])\n"
        proof = "assert connect.__code__.co_filename.startswith(os.getcwd()), connect.__code__\n"
        command, pipe = [self.python, "-c", head + proof + code, dsn], subprocess.PIPE
        return subprocess.Popen(command, cwd=self.folder, stdin=pipe, stdout=pipe, stderr=pipe, text=True)

    def run(self, code: str, dsn: str) -> str:
        """Run a program with a session `conn`, and return what it prints."""
        with self.start(code, dsn) as process:
            return outcome(process)

    def pgqueue(self, dsn: str, *arguments: str) -> str:
        """Run the command of this version, and return what it prints."""
        command, environment = [self.python.with_name("pgqueue"), *arguments], os.environ | {"PGQUEUE_DSN": dsn}
        done = subprocess.run(command, cwd=self.folder, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of the newest release that has a tag; before the first one, and in an sdist, that of the checkout."""
    folder, sources = tmp_path_factory.mktemp("released"), ROOT
    if tag := newest():
        sources = folder / "sources"
        sources.mkdir()
        packed = ["git", "-c", f"safe.directory={ROOT}", "archive", tag]
        archive = subprocess.run(packed, cwd=ROOT, check=True, capture_output=True).stdout
        subprocess.run(["tar", "-x"], cwd=sources, check=True, input=archive)
    return built("wheel", folder, sources)


@pytest.fixture(scope="module")
def release(released: Path) -> Version:
    """The newest release, installed in an environment of its own, which has its dependencies from the checkout's."""
    programs = empty_environment(released.parent / "environment")
    install = [UV, "pip", "install", "--quiet", "--offline", "--no-deps", "--python", programs / "python", released]
    subprocess.run(install, check=True)
    (packages,) = programs.parent.glob("lib/python*/site-packages")
    # Python does not read the .pth files of a folder that a .pth file names, so the checkout itself is not found.
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    return Version(programs / "python", released.parent)


def offered(conn: Connection) -> set[tuple[str, str, str]]:
    """Return the functions that some role may call: names, arguments and results."""
    query = """
        SELECT proname, pg_get_function_identity_arguments(p.oid), pg_get_function_result(p.oid)
          FROM pg_proc AS p WHERE pronamespace = 'messages'::regnamespace
           AND EXISTS (SELECT FROM aclexplode(proacl) AS a WHERE a.grantee <> proowner)
    """
    return set(conn.execute(query).fetchall())


PUBLISH = """
def step():
    return [run(conn, verbs.publish("orders", 1))]
"""
WORK = """
from contextlib import suppress
def step():
    handled = []
    check_version(conn)
    consumer = Consumer(queue_name="orders", batch_size=5, handle=lambda message: handled.append(message.id))
    # An archive waits three seconds for the migration. A worker then begins anew, and what it had leased comes back.
    with suppress(ConnectionFailed):
        # Without a limit a drain ends when no message is ready: publishers that are quicker put that off for a minute.
        consumer.drain(conn, max_messages=50)
    return handled
"""
PUBLISH_NOTE = """
def step():
    return conn.execute("SELECT messages.publish_recorded('orders', '1', note => 'later')").fetchone()
"""
WORK_NOTE = """
def step():
    lease = "SELECT id, lock_token FROM messages.lease_recorded('orders', 5, note => 'later')"
    ids, tokens = zip(*conn.execute(lease).fetchall() or [(None, None)])
    archive = "SELECT messages.archive_recorded(%s, %s::bigint[], note => 'later')"
    return [id for (id,) in conn.execute(archive, [tokens[0], list(filter(None, ids))])]
"""
# A reader of standard input in a thread holds no lock of Python's, so that a program that fails can end.
UNTIL_STOPPED = """
import threading
stopped = threading.Event()
threading.Thread(target=lambda: (os.read(0, 1), stopped.set()), daemon=True).start()
while not stopped.is_set():
    print(*step(), flush=True)
"""


class Load:
    """Programs that publish and work until they are stopped; the ids of the messages that each had, by its name."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self.done: dict[str, list[int]] = {}
        self.failures: list[str] = []
        self._news = threading.Condition()
        self._readers: dict[IO[str], threading.Thread] = {}

    def start(self, name: str, version: Version, step: str) -> None:
        """Repeat `step`, which returns the ids of what it published or handled, in a process of its own."""
        self.done[name] = []
        process = version.start(step + UNTIL_STOPPED, self.dsn)
        assert process.stdin is not None
        self._readers[process.stdin] = threading.Thread(target=self._read, args=[name, process])
        self._readers[process.stdin].start()

    def _read(self, name: str, process: subprocess.Popen[str]) -> None:
        with process:
            assert process.stdout is not None
            assert process.stderr is not None
            for line in process.stdout:
                with self._news:
                    self.done[name] += map(int, line.split())
                    self._news.notify_all()
            error = process.stderr.read()
        if process.returncode:
            with self._news:
                self.failures.append(error)
                self._news.notify_all()

    def wait_for(self, more: int, *names: str) -> None:
        """Wait until each of them did so much more."""
        with self._news:
            enough = {name: len(self.done[name]) + more for name in names}
            assert self._news.wait_for(
                lambda: self.failures or all(len(self.done[name]) >= enough[name] for name in names), timeout=60
            )
        assert self.failures == []

    def stop(self) -> None:
        """Let each program end its step, and read what it still prints."""
        for stdin in self._readers:
            stdin.close()
        for reader in self._readers.values():
            reader.join()


@pytest.fixture
def load(empty_dsn: str) -> Iterator[Load]:
    load = Load(empty_dsn)
    yield load
    load.stop()


EMPTY = """
while conn.execute("SELECT FROM messages.message").rowcount:
    print(*step())
"""
LEASE = """
run(conn, verbs.publish("orders", "held", priority=9))
(held,) = run(conn, verbs.lease("orders", lease_for="1 hour"))
print(held.id, held.lock_token)
"""
ARCHIVE = """
from uuid import UUID
print(*run(conn, verbs.archive(UUID("{token}"), [{id}])))
"""


def test_an_upgrade_under_load_loses_nothing_and_workers_of_both_versions_go_on(
    release: Version, later: Path, empty_dsn: str, load: Load
) -> None:
    assert "installed schema messages, version 1" in release.pgqueue(empty_dsn, "install")
    release.pgqueue(empty_dsn, "queues", "create", "orders", "--lease-for", "10s")
    held, token = release.run(LEASE, empty_dsn).split()
    load.start("published", release, PUBLISH)
    load.start("worked", release, WORK)
    load.start("worked too", release, WORK)
    load.wait_for(100, *load.done)
    waiting = "SELECT FROM pg_locks WHERE relation = 'messages.message'::regclass AND NOT granted AND mode ~ 'AccessE'"
    with psycopg.connect(empty_dsn, autocommit=True) as conn, psycopg.connect(empty_dsn) as reader:
        reader.execute("SELECT FROM messages.message")
        with upgrade(later, empty_dsn) as upgrading:
            until(lambda: conn.execute(waiting).rowcount, what="the lock of the migration")
            reader.rollback()
            assert outcome(upgrading) == "[2]"
        load.start("published a note", Version(Path(sys.executable), later), PUBLISH_NOTE)
        load.start("worked with a note", Version(Path(sys.executable), later), WORK_NOTE)
        load.wait_for(100, *load.done)
        # A process of the release that begins only now.
        assert "published 1 message" in release.pgqueue(empty_dsn, "publish", "orders", "--message", "1")
        assert release.run(ARCHIVE.format(id=held, token=token), empty_dsn) == held
        load.stop()
        assert load.failures == []
        # The next lease looks at all of the queue, also at what was committed behind a mark.
        conn.execute("SELECT setval(scan_due, 1) FROM messages.queue")
        rest = release.run(WORK + EMPTY, empty_dsn).split()
        archived = conn.execute("SELECT id, result FROM messages.message_archive").fetchall()
        assert conn.execute("SELECT FROM messages.message").rowcount == 0
    published = [int(held), *load.done["published"], *load.done["published a note"]]
    handled = [int(held), *map(int, rest)]
    handled += [id for name, ids in load.done.items() if name.startswith("worked") for id in ids]
    (by_command,) = set(handled) - set(published)
    assert set(handled) == {*published, by_command}
    assert sorted(archived) == [(id, "success") for id in sorted({*published, by_command})]


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
run(conn, verbs.publish_batch("orders", [1, 2]))
"""


def test_what_the_newest_release_left_is_upgraded_and_its_workers_go_on(release: Version, empty_dsn: str) -> None:
    held, token = release.run(INSTALL + LEASE, empty_dsn).split()
    with psycopg.connect(empty_dsn, autocommit=True) as conn:
        before = offered(conn)
        migrate(conn)
        assert describe(conn) == GOLDEN.read_text()
        assert len(before) > 50
        assert before - offered(conn) == set()
        assert len(release.run(WORK + "print(*step())", empty_dsn).split()) == 2
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
