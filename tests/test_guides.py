"""The how-to pages, followed to the letter: their files, shells and manifests."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from textwrap import dedent
from typing import Any

import click
import psycopg
import pytest
import sqlalchemy
import yaml
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy.orm import Session

from airflow_provider_pgqueue.cli.program import program
from tests.core.cli.conftest import program_folder
from tests.core.cli.test_docs import UNSAFE, words
from tests.dead_messages import died_at, handling
from tools import ROOT
from tools.postgres import Cluster

Connection = psycopg.Connection[Any]
Shell = Callable[[str], str]
GUIDES = ROOT / "docs" / "how-to"
HANDLE = """#!/bin/sh
body=$(cat)
echo "$body" >> handled
case $body in *bad*) exit 65 ;; *flaky*) exit 1 ;; esac
"""


def block(page: str, mark: str) -> str:
    found = re.findall(rf"^ *<!-- {mark} -->\n *```\w+\n(.*?)^ *```$", (GUIDES / page).read_text(), re.M | re.S)
    (code,) = found
    return dedent(code)


@pytest.fixture
def shell(tmp_path: Path, cluster: Cluster, dsn: str) -> Shell:
    """Run a shell in an empty folder, with psql, pgqueue and the variables of libpq."""
    path = f"{program_folder(tmp_path)}:{cluster.binaries.folder}:{os.environ['PATH']}"
    names = {"host": "PGHOST", "port": "PGPORT", "user": "PGUSER", "dbname": "PGDATABASE"}
    given = {names[key]: str(value) for key, value in conninfo_to_dict(dsn).items() if key in names}
    environment = os.environ | given | {"PATH": path, "PYTHONPATH": str(ROOT)}

    def run(code: str) -> str:
        command = ["sh", "-euc", code]
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def test_the_worker_in_a_shell_archives_rejects_and_gives_back(conn: Connection, shell: Shell, tmp_path: Path) -> None:
    for name, code in {"worker.sh": block("without-airflow.md", "file: worker.sh"), "handle": HANDLE}.items():
        (tmp_path / name).write_text(code)
        (tmp_path / name).chmod(0o755)
    conn.execute("SELECT messages.create_queue('orders', backoff_first => '1 hour', backoff_max => '1 hour')")
    bodies = ['{"id": "it\'s 7"}', '"bad; $(rm -rf .) \\u00e9"', '"flaky"']
    for body in bodies:
        conn.execute("SELECT messages.publish('orders', %s::jsonb)", [body])

    shell("./worker.sh")

    assert (tmp_path / "handled").read_text().splitlines() == [body.replace("\\u00e9", "é") for body in bodies]
    archived = conn.execute("SELECT result, handled_by FROM messages.message_archive ORDER BY id").fetchall()
    assert archived == [("success", "worker.sh"), ("rejected", "worker.sh")]
    waiting = conn.execute("SELECT attempts, visible_at > now() FROM messages.message WHERE lock_token IS NULL")
    assert waiting.fetchall() == [(1, True)]


def shown(page: str, mark: str = "shell: shown") -> tuple[str, str]:
    """Return the commands of a block of a page, without those that change what is installed, and what they print."""
    pattern = rf"^<!-- {mark} -->\n```sh\n(.*?)^```\n\n(?:[^\n]+:\n\n)?```text\n(.*?)^```$"
    ((commands, printed),) = re.findall(pattern, (GUIDES / page).read_text(), re.M | re.S)
    return re.sub(r"^(pip|export) .*\n", "", commands, flags=re.M), printed


def flat(text: str) -> list[str]:
    """Return the words of a text, without what the server of the tests adds to them."""
    return list(chain.from_iterable(line for line in words(text) if line[:2] not in UNSAFE))


@pytest.mark.parametrize(
    ("page", "before"),
    [
        ("publish.md", "SELECT"),
        ("operations.md", "SELECT messages.publish('orders', '7', reference => 'order-7')"),
        ("monitoring.md", "SELECT messages.maintain(); SELECT messages.publish('orders', '7')"),
        ("upgrade.md", "SELECT"),
        (
            "move-here.md",
            "CREATE SCHEMA pgmq; CREATE TABLE pgmq.q_orders (msg_id bigint PRIMARY KEY, read_ct integer DEFAULT 0,"
            " enqueued_at timestamptz, vt timestamptz DEFAULT now(), message jsonb);"
            " INSERT INTO pgmq.q_orders VALUES (1, 1, now(), now() + interval '1 hour', '1')",
        ),
        (
            "dead-messages.md",
            "SELECT messages.publish('orders', '7'); SELECT messages.archive(lock_token, ARRAY[id], 'rejected',"
            " 'an order needs an order_id') FROM messages.lease('orders', locked_by => 'handlers:pack 5553@vm')",
        ),
    ],
)
def test_a_page_shows_what_its_commands_print(
    page: str, before: str, conn: Connection, shell: Shell, tmp_path: Path
) -> None:
    (tmp_path / "orders.jsonl").write_text("1\n2\n")
    conn.execute("SELECT messages.create_queue('orders'), setval('messages.message_id_seq', 4710)")
    for statement in before.split("; "):
        conn.execute(statement.encode())
    commands, printed = shown(page)
    assert flat(shell(commands)) == flat(printed.replace("mydb", conn.info.dbname))


@pytest.mark.parametrize("page", ["../../README.md", "../tutorial/quickstart.md"])
def test_a_first_page_shows_what_an_installation_prints(page: str, empty_dsn: str, shell: Shell) -> None:
    commands, printed = shown(page)
    database = str(conninfo_to_dict(empty_dsn)["dbname"])
    assert flat(shell(f"export PGDATABASE={database}\n{commands}")) == flat(printed.replace("mydb", database))


def test_the_names_of_pgmq_are_installed_as_the_page_shows(conn: Connection, shell: Shell) -> None:
    commands, printed = shown("move-here.md", "shell: names")
    assert flat(shell(commands)) == flat(printed.replace("mydb", conn.info.dbname))


def test_an_uninstallation_asks_as_the_page_shows(conn: Connection, shell: Shell) -> None:
    conn.execute("SELECT messages.publish('default', '7')")
    commands, printed = shown("upgrade.md", "shell: uninstall")
    asked = shell(f"echo y | script --quiet --return --command '{commands.strip()}' /dev/null")
    assert flat(asked) == flat(printed.replace("mydb", conn.info.dbname).replace("db.example.com", ""))


@pytest.mark.parametrize(
    ("page", "mark"), [("monitoring.md", "metrics"), ("queues-page.md", "web"), ("queues-page.md", "proxy")]
)
def test_a_server_prints_its_address_as_the_page_shows(page: str, mark: str, dsn: str, shell: Shell) -> None:
    commands, printed = shown(page, f"shell: {mark}")
    command = commands.strip().replace(" --port 8081", "").replace(":9187", ":0")
    command = command.replace("postgresql://user@host/database", dsn)
    address = shell(f"{{ {command} 2>&1 & echo $! >pid; }} | head -n 1; kill $(cat pid)")
    without_token = [re.sub(r"[^/]{32}/$", "", text.strip()) for text in (address, printed)]
    assert flat(without_token[0]) == flat(without_token[1])


def test_dead_messages_are_decided_on_as_the_page_shows(
    conn: Connection, connect: Callable[..., Connection], shell: Shell
) -> None:
    conn.execute("SELECT messages.create_queue('orders'), setval('messages.message_id_seq', 4710)")
    causes = {"an order needs an order_id": 1, "no country": 18, "the label printer does not answer": 212, "": 7}
    for details, messages in causes.items():
        conn.execute("SELECT messages.publish_batch('orders', to_jsonb(array_fill(7, ARRAY[%s])))", [messages])
        die(conn, details)
    for id_, text in conn.execute("SELECT id, details FROM messages.message_archive").fetchall():
        if not text:
            died_at(conn, id_, "2026-01-01")
    commands, printed = shown("dead-messages.md", "shell: decide")
    with handling(connect()):
        assert shell(commands) == printed


def test_a_night_is_tried_as_the_page_shows(conn: Connection, shell: Shell) -> None:
    conn.execute("SELECT messages.create_queue('orders')")
    commands, printed = shown("dead-messages.md", "shell: every night")
    *first, last = commands.splitlines()
    out = shell("\n".join(first))
    die(conn, "KeyError: 'order_id'")
    assert out + shell(last) == printed


def die(conn: Connection, details: str) -> None:
    """Let all messages that are ready die of one cause."""
    conn.execute(
        "SELECT messages.archive(lock_token, array_agg(id), 'failed', %s) FROM messages.lease('orders', 1000)"
        " GROUP BY lock_token",
        [details],
    )


@pytest.mark.cron
def test_psql_installs_the_job_of_pg_cron_as_the_page_shows(
    cron_session: Connection, cron_dsn: str, shell: Shell
) -> None:
    cron_session.execute("CREATE EXTENSION IF NOT EXISTS pg_cron")
    commands, printed = shown("security.md", "shell: cron")
    found = shell(f"DSN={cron_dsn}; {commands.replace('sql/install', f'{ROOT}/sql/install')}")
    assert flat(found) == flat(printed)


def test_a_dump_is_restored_with_all_its_messages(cluster: Cluster, conn: Connection, dsn: str, shell: Shell) -> None:
    database = str(conninfo_to_dict(dsn)["dbname"])
    conn.execute("SELECT messages.create_queue('orders')")
    conn.execute("SELECT messages.publish_batch('orders', '[1, 2, 3]')")
    conn.execute("SELECT messages.archive(lock_token, ARRAY[id]) FROM messages.lease('orders', 1)")
    conn.execute("SELECT count(*) FROM messages.lease('orders', 1, lease_for => '1 millisecond')")
    shell(block("backup.md", "shell: dump").replace("mydb", database))
    restored = f"{database}_restored"
    try:
        printed = shell(block("backup.md", "shell: restore").replace("restored", restored))
        with psycopg.connect(cluster.dsn(restored), autocommit=True) as copy:
            copy.execute("SELECT messages.maintain()")
            left = copy.execute("SELECT message FROM messages.lease('orders', 10) ORDER BY id").fetchall()
            done = copy.execute("SELECT message, result FROM messages.message_archive").fetchall()
            (new,) = copy.execute("SELECT messages.publish('orders', '4')").fetchone() or (0,)
    finally:
        cluster.drop_database(restored)
    _, expected = shown("backup.md", "shell: restore")
    assert flat(printed) == flat(expected.replace("restored", restored))
    assert (left, done) == ([(2,), (3,)], [(1, "success")])
    assert new > 3


def test_each_way_to_publish_publishes_beside_the_data(conn: Connection, shell: Shell, tmp_path: Path) -> None:
    conn.execute("SELECT messages.create_queue('orders')")
    conn.execute("CREATE TABLE shop_order (order_id bigint PRIMARY KEY)")
    (tmp_path / "shop.py").write_text(block("publish.md", "file: shop.py"))
    shell(f"{sys.executable} shop.py")
    published = conn.execute("SELECT message FROM messages.message ORDER BY id").fetchall()
    assert published == [({"order_id": number},) for number in (8, 9, 10)]
    assert conn.execute("SELECT order_id FROM shop_order").fetchall() == [(8,)]


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2"])
def test_a_session_of_an_orm_publishes_in_its_transaction(conn: Connection, dsn: str, driver: str) -> None:
    conn.execute("SELECT messages.create_queue('orders')")
    conn.execute("CREATE TABLE shop_order (order_id bigint PRIMARY KEY)")
    page: dict[str, Any] = {}
    exec(compile(block("publish.md", "sqlalchemy"), "publish.md", "exec"), page)
    given = conninfo_to_dict(dsn)
    address = sqlalchemy.URL.create(
        f"postgresql+{driver}", given["user"], None, None, None, given["dbname"], {"host": given["host"]}
    )
    engine = sqlalchemy.create_engine(address, connect_args={"port": given["port"]})
    with Session(engine) as session, session.begin():
        page["place_order"](session, 7)
    with Session(engine) as session:
        page["place_order"](session, 8)  # never committed
    engine.dispose()
    assert conn.execute("SELECT message FROM messages.message").fetchall() == [({"order_id": 7},)]
    assert conn.execute("SELECT order_id FROM shop_order").fetchall() == [(7,)]


def manifests() -> list[Any]:
    found = re.findall(r"^```yaml\n(.*?)^```$", (GUIDES / "where-it-runs.md").read_text(), re.M | re.S)
    return [yaml.safe_load(code) for code in found]


def test_the_manifests_run_commands_that_exist_with_options_that_exist() -> None:
    pods = [one["spec"]["template"]["spec"] for one in manifests() if "template" in one["spec"]]
    commands = [container["command"] for pod in pods for container in pod["containers"]]
    assert [command[:2] for command in commands] == [["pgqueue", "install"], ["pgqueue", "worker"]]
    for _, name, *arguments in commands:
        group = click.Context(program)
        command = program.get_command(group, name)
        command.make_context(name, [str(argument) for argument in arguments], parent=group).close()


def test_the_scaler_asks_what_an_observer_may_ask(conn: Connection) -> None:
    (query,) = [one["spec"]["triggers"][0]["metadata"]["query"] for one in manifests() if one["kind"] == "ScaledObject"]
    conn.execute("SELECT messages.create_queue('orders')")
    with conn.transaction(force_rollback=True):
        conn.execute("CREATE ROLE scaler")
        conn.execute(sql.SQL("GRANT messages_observer TO scaler"))
        conn.execute("SET LOCAL ROLE scaler")
        assert conn.execute(query.encode()).fetchall() == [(0,)]


@pytest.mark.cron
def test_a_login_that_may_publish_schedules_its_job(cron_session: Connection, cron_dsn: str) -> None:
    cron_session.execute("CREATE EXTENSION IF NOT EXISTS pg_cron; CREATE ROLE shop LOGIN IN ROLE messages_publisher")
    cron_session.execute("GRANT USAGE ON SCHEMA cron TO shop; SELECT messages.create_queue('orders')")
    schedule, runs, unschedule = block("publish.md", "cron").strip().removesuffix(";").split(";\n")
    try:
        with psycopg.connect(cron_dsn, user="shop", autocommit=True) as shop:
            shop.execute(schedule.encode())
            ((command,),) = shop.execute("SELECT command FROM cron.job").fetchall()
            for _ in range(2):
                shop.execute(command)
            shop.execute(runs.encode())
            shop.execute(unschedule.encode())
        assert cron_session.execute("SELECT message FROM messages.message").fetchall() == [({"kind": "nightly"},)]
    finally:
        cron_session.execute("DROP OWNED BY shop; DROP ROLE shop")


def test_the_tests_of_users_run_each_in_a_database_of_its_own(cluster: Cluster, tmp_path: Path) -> None:
    server = cluster.dsn(user="tester").rpartition("/")[0]
    for name in ("conftest.py", "test_orders.py"):
        code = block("testing.md", name).replace("postgresql://tester@localhost:5432", server)
        (tmp_path / name).write_text(code)
    with psycopg.connect(cluster.dsn(), autocommit=True) as admin:
        admin.execute("CREATE ROLE tester LOGIN CREATEDB")
        databases = "SELECT datname FROM pg_database WHERE datdba = 'tester'::regrole"
        try:
            environment = os.environ | {"PYTHONPATH": str(ROOT)}
            command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
            done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
            assert "3 passed" in done.stdout, done.stdout
            assert admin.execute(databases).fetchall() == []
        finally:
            admin.execute("DROP ROLE tester")
