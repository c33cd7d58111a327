"""Each fix that the checks of health() offer runs as the role that the documentation names, under a small time-out."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from airflow_provider_pgqueue.core import run, verbs
from airflow_provider_pgqueue.core.installation import CRON_ROLE
from tests.core.maintenance.test_health import gone, pid_of
from tools.chapters import functions

Connection = psycopg.Connection[Any]
Connect = Callable[..., Connection]
ADMIN, OWNER, SIGNAL, SUPERUSER = "messages_admin", "messages_owner", "pg_signal_backend", "postgres"
LITERAL = re.compile(r"'(?:[^']|'')*'(?:\s*\n\s*'(?:[^']|'')*')*")
STATEMENT = re.compile(
    r"SELECT |ALTER |VACUUM|REINDEX|GRANT |REVOKE |DROP |SET |ANALYZE|CREATE |INSERT |UPDATE |DELETE |-- "
)
# Not a fix: it calls the checks.
CALL = "SELECT %1$L::text, c.severity"
# By how a fix begins: the role that runs it, and what stands in its gaps.
FIXES: dict[str, tuple[str, tuple[str, ...]]] = {
    "-- ": (ADMIN, ("orders",)),
    "SELECT messages.purge_cron_history()": (ADMIN, ()),
    "SELECT messages.maintain()": (ADMIN, ()),
    "SELECT messages.alter_queue(%L": (ADMIN, ("orders",)),
    "SELECT * FROM messages.requeue_dead(%L)": (ADMIN, ("orders",)),
    "SELECT * FROM messages.requeue_dead(%L, ids": (ADMIN, ("orders", "{{1}}")),
    "SELECT messages.dismiss_dead(%L": (ADMIN, ("orders", "{{1}}")),
    "SELECT * FROM messages.dead_causes(%L)": (ADMIN, ("orders",)),
    "SET statement_timeout = 0; SELECT messages.": (ADMIN, ()),
    "SELECT a.pid, a.application_name": (ADMIN, ()),
    "SELECT * FROM pg_prepared_xacts": (ADMIN, ("forgotten",)),
    "SELECT * FROM pg_replication_slots": (ADMIN, ("unread",)),
    "SET statement_timeout = 0; VACUUM (ANALYZE)": (OWNER, ()),
    "SET statement_timeout = 0; REINDEX": (OWNER, ("message_order_idx",)),
    "ALTER TABLE %s REPLICA IDENTITY": (OWNER, ("messages.inbox",)),
    "REVOKE %s FROM %s": (OWNER, ("messages_reader", "bystander")),
    "REVOKE SELECT ON": (OWNER, ("bystander",)),
    "SELECT pg_terminate_backend(%s)": (SIGNAL, ("{pid}",)),
    "GRANT pg_monitor TO %I": (SUPERUSER, ("bystander",)),
}
# Those of pg_cron run in the database that has it.
CRON: dict[str, tuple[str, ...]] = {
    "SELECT messages.install_cron(run_as": (),
    "SELECT messages.install_cron()": (),
    "SELECT cron.unschedule(jobid)": (),
    "SELECT cron.unschedule(%s)": ("{job}",),
    "SELECT cron.alter_job(%s": ("{job}",),
    "DELETE FROM cron.job_run_details": (),
}


def offered() -> Iterator[str]:
    """The fixes in the source of the checks, with gaps."""
    for one in (one for name, one in functions().items() if name.startswith("health")):
        body = one.text.partition("COMMENT ON")[0]
        for quoted in LITERAL.findall(body):
            text = re.sub(r"'\s*\n\s*'", "", quoted)[1:-1].replace("''", "'")
            if STATEMENT.match(text) and not text.startswith(CALL):
                yield text


OFFERED = sorted(set(offered()))


def begins(text: str, known: dict[str, Any]) -> str | None:
    return max((name for name in known if text.startswith(name)), key=len, default=None)


def written(conn: Connection, text: str, gaps: tuple[str, ...], **values: object) -> str:
    """The fix as somebody reads it: with what stands in its gaps."""
    filled = [gap.format(**values) for gap in gaps]
    if not re.search(r"%(\d\$)?[LIs]", text):
        return text
    ((fix,),) = conn.execute("SELECT format(%s, VARIADIC %s::text[])", [text, filled]).fetchall()
    return str(fix)


def statements(fix: str) -> list[str]:
    """As psql runs them, one at a time, without the comments for the reader."""
    parts = [] if fix.startswith("-- ") else fix.partition(" -- ")[0].split("; ")
    return [one for part in parts if (one := part.strip())]


@pytest.fixture
def roles(conn: Connection) -> Iterator[None]:
    for role in ("bystander", "fixer"):
        conn.execute(f"CREATE ROLE {role} LOGIN".encode())
    conn.execute("GRANT messages_reader TO bystander; GRANT SELECT ON messages.message TO bystander")
    yield
    for role in ("bystander", "fixer"):
        conn.execute(f"DROP OWNED BY {role}; DROP ROLE {role}".encode())


@pytest.mark.usefixtures("roles")
def test_each_fix_runs_as_the_role_that_is_named_under_a_small_timeout(conn: Connection, connect: Connect) -> None:
    run(conn, verbs.create_queue("orders"))
    run(conn, verbs.publish("orders", 1))
    for text in OFFERED:
        if begins(text, CRON):
            continue
        role, gaps = FIXES[begins(text, FIXES) or f"nobody tries {text}"]
        victim = connect(user="bystander")
        fix = written(conn, text, gaps, pid=pid_of(victim))
        if role == SUPERUSER:
            session = connect()
        else:
            conn.execute(f"GRANT {role} TO fixer".encode())
            session = connect(user="fixer")
        session.execute("SET statement_timeout = '2s'")
        said: list[str] = []
        # type: ignore[misc]
        session.add_notice_handler(lambda notice, said=said: said.append(str(notice.message_primary)))
        for statement in statements(fix):
            session.execute(statement.encode())
        assert [one for one in said if "skipping" in one] == [], fix
        if role == SIGNAL:
            gone(conn, pid_of(victim))
        if role != SUPERUSER:
            conn.execute(f"REVOKE {role} FROM fixer".encode())
        session.close()


@pytest.mark.cron
def test_each_fix_of_pg_cron_runs_under_a_small_timeout(cron_conn: Connection) -> None:
    run(cron_conn, verbs.install_cron(CRON_ROLE))
    cron_conn.execute("CREATE ROLE keeper LOGIN IN ROLE messages_maintenance; GRANT USAGE ON SCHEMA cron TO keeper")
    cron_conn.execute("SET statement_timeout = '5s'")
    try:
        for text in OFFERED:
            if (name := begins(text, CRON)) is None:
                continue
            run(cron_conn, verbs.install_cron(CRON_ROLE))
            ((job,),) = cron_conn.execute("SELECT min(jobid) FROM cron.job").fetchall()
            # A superuser has to name a login.
            cron_conn.execute("SET ROLE keeper" if name == "SELECT messages.install_cron()" else "SET ROLE postgres")
            for statement in statements(written(cron_conn, text, CRON[name], job=job)):
                cron_conn.execute(statement.encode())
            cron_conn.execute("RESET ROLE")
    finally:
        cron_conn.execute("RESET ROLE; DELETE FROM cron.job; DROP OWNED BY keeper; DROP ROLE keeper")


def test_what_is_tried_is_what_the_checks_offer() -> None:
    tried = FIXES.keys() | CRON.keys()
    assert {begins(text, dict.fromkeys(tried)) for text in OFFERED} == tried
