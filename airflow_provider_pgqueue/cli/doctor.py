"""Looks for problems, and prints how to fix them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import click
import psycopg

from airflow_provider_pgqueue.cli.connection import Connection, open_connection
from airflow_provider_pgqueue.cli.output import records, span, to_text
from airflow_provider_pgqueue.cli.settings import Settings, with_settings
from airflow_provider_pgqueue.cli.text import one_line, print_text, printable
from airflow_provider_pgqueue.core import verbs
from airflow_provider_pgqueue.core.client import run
from airflow_provider_pgqueue.core.connection import check_version, current_version
from airflow_provider_pgqueue.core.errors import (
    READ_ONLY,
    TO_THE_PRIMARY,
    ConnectionFailed,
    InvalidArgument,
    PermissionDenied,
    PgQueueError,
    SchemaError,
    SchemaTooNew,
    refused,
    translate,
)
from airflow_provider_pgqueue.core.message import Finding
from airflow_provider_pgqueue.core.migrations import code_version
from airflow_provider_pgqueue.core.privilege import fix_of
from airflow_provider_pgqueue.core.quantity import quantity
from airflow_provider_pgqueue.core.query import query

_OLDEST = 15
_SEVERITIES = ("critical", "warning", "notice", "ok")
# What a login may be for, and the functions that it then calls; a group role may call all functions of one line.
_USES: Final = {
    "publish": ("publish", "publish_batch"),
    "consume": ("lease", "extend", "archive", "release"),
    "observe": ("status", "health"),
    "run maintenance": ("maintain",),
    "read the archive": ("archive_log_end", "split_archive_log"),
}


@click.command()
@click.option(
    "--fail-on",
    type=click.Choice(["warning", "critical"]),
    default="warning",
    show_default=True,
    help="The lowest severity that makes the exit status 1.",
)
@click.option("--all", "show_all", is_flag=True, help="List also the checks that found no problem.")
@with_settings
def doctor(settings: Settings, fail_on: str, show_all: bool) -> int:
    """Look for problems: connection, schema, privileges, maintenance, health.

    Each problem comes with its fix, the most severe first. The exit status is 1 if there is one. A notice is no
    problem: something to know, such as a check for which this login lacks a privilege.
    """
    findings = sorted(_examine(settings), key=lambda finding: _SEVERITIES.index(finding.severity))
    bad = {"critical"} if fail_on == "critical" else {"critical", "warning"}
    sound = not any(finding.severity in bad for finding in findings)
    if settings.as_json:
        print_text(to_text({"sound": sound, "findings": records(findings)}))
        return 0 if sound else 1
    for finding in findings:
        if show_all or finding.severity != "ok":
            print_text(_line(finding))
    print_text(_summary(findings, show_all))
    return 0 if sound else 1


def _line(finding: Finding) -> str:
    text = printable(f"{finding.severity:<8}  {finding.check_name}: {finding.finding}")
    return text + (f"\n{'':<8}  fix: {printable(finding.fix)}" if finding.fix else "")


def _summary(findings: list[Finding], show_all: bool) -> str:
    ok = sum(finding.severity == "ok" for finding in findings)
    notices = sum(finding.severity == "notice" for finding in findings)
    text = f"{quantity(len(findings) - ok - notices, 'problem')}"
    checks = f"{quantity(ok, 'check')} ok"
    text += f"; {quantity(notices, 'notice')}" if notices else ""
    return f"{text}; {checks}." if show_all or not ok else f"{text}; {checks}, listed by --all."


def _examine(settings: Settings) -> Iterator[Finding]:
    try:
        conn = open_connection(settings)
    except (ConnectionFailed, InvalidArgument) as error:
        yield Finding("connection", "critical", one_line(str(error)))
        return
    with conn:
        yield Finding("connection", "ok", _where(conn))
        yield _server(conn)
        yield _pooler(conn)
        try:
            check_version(conn)
            current_version(conn)  # which a login that may not ask is not let through
        except SchemaError as error:
            install = "pgqueue install, as a role that may create schemas"
            fix = error.fix if isinstance(error, SchemaTooNew) else install
            yield Finding("schema", "critical", error.problem, fix)
            return
        except psycopg.Error as error:
            yield Finding("schema", "critical", one_line(str(translate(error))))
            return
        except PgQueueError as error:
            yield _refused(conn, "schema", "critical", error)
            return
        yield Finding("schema", "ok", f"version {code_version()}, as this package needs")
        yield _privileges(conn)
        yield from _maintenance(conn)
        yield from _health(conn)


def _where(conn: Connection) -> str:
    return f"database {conn.info.dbname} on {conn.info.host}:{conn.info.port} as {conn.info.user}"


def _server(conn: Connection) -> Finding:
    major = conn.info.server_version // 10000
    text = f"PostgreSQL {conn.info.parameter_status('server_version')}"
    if major < _OLDEST:
        return Finding("server", "critical", text, f"upgrade to PostgreSQL {_OLDEST} or newer")
    if conn.execute("SHOW transaction_read_only").fetchone() == ("on",):
        return Finding("server", "critical", f"{text}: {READ_ONLY}", TO_THE_PRIMARY)
    return Finding("server", "ok", text)


def _pooler(conn: Connection) -> Finding:
    # A pooler in transaction mode makes up the process id that it gives to a client.
    if conn.execute(query("backend_pid")).fetchone() == (conn.info.backend_pid,):
        return Finding("pooler", "ok", "the connection is direct: notifications arrive")
    return Finding(
        "pooler",
        "notice",  # for publishers and for what polls, a pooler is as good
        "a connection pooler is in between: over this connection no notifications arrive",
        "give the triggerer a direct connection (listen_conn_id in Airflow), and workers a direct --dsn or a shorter "
        "--poll-interval",
    )


def _privileges(conn: Connection) -> Finding:
    asked = [name for names in _USES.values() for name in names]
    ((granted, on_tables),) = conn.execute(query("privileges"), [asked]).fetchall()
    may = set(granted)
    uses = [use for use, names in _USES.items() if may.issuperset(names)]
    if on_tables:
        uses.append("work on the tables with plain SQL")
    half = [names for names in _USES.values() if may.intersection(names) and not may.issuperset(names)]
    # A login with only the maintenance role may call health() but not status(), which is no problem.
    half = [names for names in half if not (uses and names == _USES["observe"])]
    who = f"role {conn.info.user}"
    if half:
        some = ", ".join(name for name in half[0] if name in may)
        missing = [name for name in half[0] if name not in may]
        return Finding(
            "privileges",
            "warning",
            f"{who} may execute {some}, but not {', '.join(sorted(missing))}",
            fix_of(conn, f"permission denied for function {missing[0]}"),
        )
    if uses:
        return Finding("privileges", "ok", f"{who} may {', '.join(uses)}")
    return Finding(
        "privileges",
        "warning",
        f"{who} may do nothing",
        fix_of(conn, "permission denied for schema messages", wants="observer"),
    )


def _maintenance(conn: Connection) -> Iterator[Finding]:
    try:
        mode = run(conn, verbs.maintenance_mode())
        queues = run(conn, verbs.status())
    except PermissionDenied as error:
        yield _refused(conn, "maintenance_mode", "notice", error)
        return
    except (psycopg.Error, PgQueueError) as error:
        yield Finding("maintenance_mode", "warning", one_line(str(error)))
        return
    age = queues[0].maintenance_age if queues else None
    last = f"it last ran {span(age)} ago" if age is not None else "it has never run"
    yield Finding("maintenance_mode", "ok", f"maintenance by {mode}; {last}")


def _health(conn: Connection) -> Iterator[Finding]:
    try:
        yield from run(conn, verbs.health())
        yield from _settings(conn)
    except PermissionDenied as error:
        yield _refused(conn, "health", "notice", error)


def _settings(conn: Connection) -> Iterator[Finding]:
    bad = [Finding("settings", "warning", *row) for row in conn.execute(query("settings")).fetchall()]
    yield from bad or [Finding("settings", "ok", "nothing that would lose messages or keep dead versions")]


def _refused(conn: Connection, check: str, severity: str, error: PgQueueError) -> Finding:
    """Return the finding that a check was skipped, with the missing privilege."""
    told = refused(conn, error, wants="observer") if error.fix is None else error
    fix = told.fix if isinstance(told, PgQueueError) else None
    return Finding(check, severity, f"not checked: {one_line(error.problem)}", fix)
