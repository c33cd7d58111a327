"""Each command as a member of each group role: what it may see, and the role that fixes a refusal."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from airflow_provider_pgqueue.core import run, verbs
from tests.core.cli.conftest import Ended, Pgqueue
from tests.core.cli.test_commands import kill
from tests.core.cli.test_operate import WALK

Connection = psycopg.Connection[Any]
As = Callable[..., Ended]
GROUPS = ("publisher", "observer", "pipeline", "nothing")
INSTALLERS = ("install", "uninstall")  # need more than a group role
DROPS = ("queues drop",)  # last, because the others need it
GRANT = re.compile(r"GRANT (messages_\w+) TO packer")


@pytest.fixture
def packer(conn: Connection, dsn: str, pgqueue: Pgqueue) -> Iterator[As]:
    """Run a command as the login packer, which belongs to the group role alone that is named first; "": as it is."""
    run(conn, verbs.create_queue("orders"))
    conn.execute("CREATE ROLE packer LOGIN")

    def call(group: str, *arguments: str) -> Ended:
        if group:
            leave(conn)
        if group not in ("", "nothing"):
            conn.execute(f"GRANT messages_{group} TO packer".encode())
        return pgqueue(*arguments, "--dsn", dsn.replace("postgres@", "packer@"))

    yield call
    conn.execute("DROP OWNED BY packer")
    conn.execute("DROP ROLE packer")


def leave(conn: Connection) -> None:
    for (group,) in conn.execute(
        "SELECT r.rolname FROM pg_auth_members m JOIN pg_roles r ON r.oid = m.roleid WHERE m.member = 'packer'::regrole"
    ).fetchall():
        conn.execute(f"REVOKE {group} FROM packer".encode())


@pytest.mark.parametrize("group", GROUPS)
def test_a_refusal_names_a_role_that_the_login_lacks_and_that_fixes_it(
    packer: As, pgqueue: Pgqueue, conn: Connection, dsn: str, group: str
) -> None:
    run(conn, verbs.publish("orders", 1))
    kill(conn, "orders", "why")
    for command in (*(one for one in WALK if one not in (*INSTALLERS, *DROPS)), *DROPS):
        arguments = [*command.split(), *WALK[command], "--json"]
        ended = packer(group, *arguments)
        granted: list[str] = []
        while ended.status == 1 and command != "doctor":
            fix = GRANT.search(ended.err)
            assert fix, (command, ended.err)
            may = conn.execute("SELECT pg_has_role('packer', %s, 'MEMBER')", [fix[1]]).fetchone()
            assert may == (False,), (command, ended.err)
            conn.execute(f"GRANT {fix[1]} TO packer".encode())
            granted.append(fix[1])
            ended = pgqueue(*arguments, "--dsn", dsn.replace("postgres@", "packer@"))
        assert len(granted) <= 1, (command, granted)
        assert ended.status == 0 or command == "doctor", (command, ended.err)


def test_a_consumer_sees_the_depths_and_is_told_once_what_is_left_out(packer: As) -> None:
    ended = packer("consumer", "stats")
    assert ended.status == 0, ended.err
    assert "orders" in ended.out
    assert ended.err.count("GRANT messages_observer TO packer") == 1
    assert "success_rate and dead_rate are left out" in ended.err
    (row,) = [one for one in packer("consumer", "stats", "--json").json["queues"] if one["queue_name"] == "orders"]
    assert (row["depth"], row["success_rate"], row["dead_rate"]) == (0, None, None)
    assert packer("observer", "stats").err == ""


def test_an_observer_lists_the_queues_and_a_team_its_own(packer: As, conn: Connection) -> None:
    for group in ("observer", "admin"):
        ended = packer(group, "queues", "--json")
        assert [one["queue_name"] for one in ended.json["queues"]] == ["default", "orders"], ended.err
    leave(conn)
    run(conn, verbs.grant_queue("orders", "packer", "observe"))
    assert [one["queue_name"] for one in packer("", "queues", "--json").json["queues"]] == ["orders"]


def severities(ended: Ended) -> dict[str, str]:
    return {one["check_name"]: one["severity"] for one in ended.json["findings"]}


@pytest.mark.parametrize("group", ["publisher", "consumer", "observer", "maintenance", "reader", "pipeline", "admin"])
def test_doctor_has_no_complaint_about_a_group_role_that_may_do_what_it_is_for(packer: As, group: str) -> None:
    found = severities(packer(group, "doctor", "--json"))
    assert found["privileges"] == "ok"
    unseen = {"publisher", "consumer", "reader", "pipeline"}
    assert ("health" in found) == (group in unseen)  # as one notice, in place of its checks
    if group in unseen:
        assert found["health"] == "notice"
        ended = packer(group, "doctor")
        assert ended.status == 0, ended.out
        assert "permission denied for function health" in ended.out
        assert "fix: GRANT messages_observer TO packer" in ended.out


def test_doctor_names_what_a_half_granted_login_lacks(packer: As, conn: Connection) -> None:
    conn.execute("GRANT USAGE ON SCHEMA messages TO packer")
    granted = "messages.lease, messages.schema_version, messages.latest_migration"
    conn.execute(f"GRANT EXECUTE ON FUNCTION {granted} TO packer".encode())
    ended = packer("nothing", "doctor", "--json")
    assert ended.status == 1
    (privileges,) = [one for one in ended.json["findings"] if one["check_name"] == "privileges"]
    assert privileges["severity"] == "warning"
    assert privileges["finding"] == "role packer may execute lease, but not archive, extend, release"
    assert privileges["fix"] == "GRANT messages_consumer TO packer"


def test_a_login_whose_name_needs_quotes_gets_them(conn: Connection, dsn: str, pgqueue: Pgqueue) -> None:
    conn.execute('CREATE ROLE "Night-Shift" LOGIN')
    try:
        ended = pgqueue("stats", "--dsn", dsn.replace("postgres@", "Night-Shift@"))
    finally:
        conn.execute('DROP ROLE "Night-Shift"')
    assert ended.status == 1
    assert re.search(r'GRANT messages_\w+ TO "Night-Shift"', ended.err)
