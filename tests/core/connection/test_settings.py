"""Whatever a role or database sets: each verb does the same, from SQL and from Python, or fails with its own error."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, Final
from uuid import UUID

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from airflow_provider_pgqueue.core import connect, migrate, migrations, run, verbs
from airflow_provider_pgqueue.core.errors import PgQueueError
from airflow_provider_pgqueue.core.installation import CRON_ROLE
from airflow_provider_pgqueue.core.message import Message
from tests.core.install.test_schema import dump, psql
from tools import ROOT
from tools.postgres import Cluster

Connection = psycopg.Connection[Any]

pytestmark = pytest.mark.long

Outcome = dict[str, str]
Settings = dict[str, str]

# What can have any text. The others of that kind name files, libraries, tables of a server, or what a log says.
TEXTS: Final = {
    "DateStyle": ["German, DMY", "SQL, DMY", "SQL, MDY", "Postgres, YMD", "ISO, DMY"],
    "TimeZone": ["Asia/Kathmandu", "America/St_Johns", "<+1330>-13:30", "Antarctica/Troll", "Europe/Dublin"],
    "application_name": ["", "x" * 63],
    "client_encoding": ["SQL_ASCII", "LATIN1", "EUC_JP"],
    "createrole_self_grant": ["set, inherit"],
    "default_tablespace": [""],
    "default_text_search_config": ["pg_catalog.simple"],
    "lc_messages": ["C"],
    "lc_numeric": ["C"],
    "lc_time": ["C"],
    "plpgsql.extra_errors": ["all"],
    "plpgsql.extra_warnings": ["all"],
    "search_path": ["", "shadow, pg_catalog", "messages", "pg_temp, shadow, pg_catalog"],
    "temp_tablespaces": [""],
    "timezone_abbreviations": ["India", "Australia"],
}
# Rightly stop a statement, with the errors of PostgreSQL for that or ours.
STOPS: Final = {
    "statement_timeout": {"57014"},
    "lock_timeout": {"55P03"},
    "transaction_timeout": {"25P04"},
    "idle_session_timeout": {"57P05"},
    "idle_in_transaction_session_timeout": {"25P03"},
    "default_transaction_read_only": {"25006"},
    "default_transaction_isolation": {"PQ004", "40001"},
    "max_stack_depth": {"54001"},
    "temp_file_limit": {"53400"},
}
MAY_END: Final = {*STOPS, "exit_on_error"}
# The first turns off triggers, on purpose: health() warns of it. The others are properties of one transaction.
LEFT_OUT: Final = {
    "session_replication_role",
    "transaction_deferrable",
    "transaction_isolation",
    "transaction_read_only",
}

STEPS: Final = re.findall(r"^-- (.+)\n(SELECT .*);$", (ROOT / "tests/data/verbs.sql").read_text(), re.MULTILINE)
NAMES: Final = (f"walk_{number}" for number in itertools.count())


def settings_of(conn: Connection, kinds: list[str]) -> Iterator[tuple[str, str]]:
    """Yield each setting that a role may have, with each value that could make a difference."""
    rows = conn.execute(
        "SELECT name, vartype, setting, min_val, max_val, enumvals FROM pg_settings"
        " WHERE context IN ('user', 'superuser') AND vartype = ANY (%s) ORDER BY name",
        [kinds],
    ).fetchall()
    for name, kind, setting, least, most, choices in rows:
        if name in LEFT_OUT:
            continue
        values = {"bool": ["on", "off"], "enum": choices, "string": TEXTS.get(name, [])}.get(kind, [least, most])
        for value in values:
            if value != setting:
                yield name, value


def companies(walked: list[tuple[str, str]]) -> list[list[tuple[str, str]]]:
    """Put values of different settings together, as each session costs a second; what stops a verb is alone."""
    alone = [[setting] for setting in walked if setting[0] in MAY_END]
    others = [setting for setting in walked if setting[0] not in MAY_END]
    # At least as many as a setting has values, which stand together: one session has one value of a setting.
    number = max(*Counter(name for name, _ in others).values(), len(others) // 24)
    return alone + [others[place::number] for place in range(number)]


def session_options(settings: Settings) -> str:
    return " ".join(f"-c {name}=" + re.sub(r"([\\ ])", r"\\\1", value) for name, value in settings.items())


def sql_walk(conn: Connection) -> Outcome:
    """Call each verb once in this session, and say what each returned or the state of its error."""
    queue = next(NAMES)
    found = {}
    for verb, text in STEPS:
        try:
            rows = conn.execute(text.replace("$q", queue).encode(), prepare=False).fetchall()
            found[verb] = repr([tuple(plain(value) for value in row) for row in rows]).replace(queue, "QUEUE")
        except psycopg.Error as error:
            found[verb] = f"{error.sqlstate} {error.diag.message_primary}".replace(queue, "QUEUE")
        if conn.broken:
            break
    return found


def plain(value: Any) -> Any:
    """What a value is when the encoding of the session left bytes."""
    return value.decode() if isinstance(value, bytes) else value


def python_walk(conn: Connection) -> Outcome:
    """Call the verbs that parse something through the package, and say what each returned or its error."""
    queue = next(NAMES)
    found: Outcome = {}
    leased: list[Message] = []

    def step(verb: str, do: Callable[[], Any]) -> None:
        try:
            found[verb] = repr(do()).replace(queue, "QUEUE")
        except PgQueueError as error:
            found[verb] = f"{getattr(error.__cause__, 'sqlstate', None)} {error}".replace(queue, "QUEUE")

    def lease() -> Any:
        leased.extend(run(conn, verbs.lease(queue, max_messages=10, lease_for=timedelta(minutes=90))))
        return [(m.body, m.reference, m.headers, m.created_at.tzinfo is not None) for m in leased]

    def extend() -> Any:
        return len(run(conn, verbs.extend(*held(), lease_for=timedelta(hours=1))))

    def archive() -> Any:
        return len(run(conn, verbs.archive(*held(), result="failed", details="ä")))

    def held() -> tuple[UUID, list[int]]:
        if not leased:
            raise PgQueueError("nothing was leased")
        token = leased[0].lock_token
        return token, [message.id for message in leased]

    def status() -> Any:
        return [(s.depth, s.leased, s.oldest_age and s.oldest_age.days) for s in run(conn, verbs.status(queue))]

    def search() -> Any:
        rows = run(conn, verbs.search_messages(queue, state="done"))
        return [(row["state"], row["error"], row["at"] > row["created_at"]) for row in rows]

    def partitions() -> Any:
        rows = run(conn, verbs.archive_partitions())
        return [(row["partition"].count("."), (row["end_at"] - row["first_at"]).days > 0) for row in rows][:1]

    step("create_queue", lambda: run(conn, verbs.create_queue(queue, lease_for=timedelta(days=0.25, seconds=1.5))))
    step("publish", lambda: run(conn, verbs.publish(queue, {"text": "€ \\ ' äñ"}, delay=timedelta(microseconds=1))) > 0)
    step("batch", lambda: len(run(conn, verbs.publish_batch(queue, [1.5, None], references=["NULL", None]))))
    for verb in (lease, extend, status, archive, search):
        step(verb.__name__, verb)
    step("causes", lambda: [(c.waiting, c.example) for c in run(conn, verbs.dead_causes(queue))])
    step("dead", lambda: [(d.result, d.oldest_age.days) for d in run(conn, verbs.dead_queues([queue]))])
    step("archive_log_end", lambda: type(run(conn, verbs.archive_log_end())))
    step("archive_partitions", partitions)
    step("maintenance", lambda: sorted(run(conn, verbs.maintain())))
    step("health", lambda: [f.check_name for f in run(conn, verbs.health())])
    step("drop_queue", lambda: run(conn, verbs.drop_queue(queue, force=True)))
    return found


def clean(conn: Connection) -> None:
    """Remove what a walk that was stopped left."""
    conn.execute("SELECT messages.drop_queue(queue_name, force => true) FROM messages.queue WHERE queue_name ~ '^walk'")
    conn.execute("DELETE FROM messages.message_archive")


def differences(settings: Settings, expected: Outcome, found: Outcome) -> list[str]:
    """Where a walk differs from that under the defaults, other than by an error that a setting asks for."""
    allowed = set().union(*(STOPS.get(name, set()) for name in settings))
    stopped = any(text[:5] in allowed for text in found.values())
    wrong = [] if len(found) == len(expected) or set(settings) <= MAY_END else ["the walk ended early"]
    for verb, text in found.items():
        if text == expected[verb] or text[:5] in allowed:
            continue
        # What follows a call that was stopped has less to do, or nothing: what is not there.
        if stopped and (text[:3] == "PQ0" or not re.match(r"[0-9A-Z]{5} ", text)):
            continue
        wrong.append(f"{verb}: {text[:300]} instead of {expected[verb][:300]}")
    return wrong


@pytest.mark.parametrize("walk", [sql_walk, python_walk])
def test_no_setting_of_a_session_changes_what_a_verb_does(
    dsn: str, conn: Connection, walk: Callable[[Connection], Outcome], capsys: pytest.CaptureFixture[str]
) -> None:
    def opened(dsn: str) -> Connection:
        return psycopg.connect(dsn, autocommit=True) if walk is sql_walk else connect(dsn)

    conn.execute("CREATE SCHEMA shadow")
    conn.execute("CREATE FUNCTION shadow.set_config(text, text, boolean) RETURNS text LANGUAGE sql AS 'SELECT 1/0'")
    conn.execute("CREATE FUNCTION shadow.current_setting(text) RETURNS text LANGUAGE sql AS 'SELECT 1/0'")
    with opened(dsn) as session:
        expected = walk(session)
    assert walk(conn) == expected
    refused = sorted(verb for verb, text in expected.items() if re.match(r"[0-9A-Z]{5} ", text))
    assert refused == (["publish bad topic", "publish_topic of none"] if walk is sql_walk else [])

    def walked_with(settings: Settings) -> list[str]:
        """Walk under these settings at once, and say what was other than it should be."""
        try:
            with opened(make_conninfo(dsn, options=session_options(settings))) as session:
                found = walk(session)
        except (PgQueueError, psycopg.Error) as error:
            return [] if set(settings) <= set(STOPS) else [repr(error)]
        finally:
            clean(conn)
        return differences(settings, expected, found)

    # What the package parses depends on no number.
    kinds = ["bool", "enum", "string"] + (["integer", "real"] if walk is sql_walk else [])
    walked = list(settings_of(conn, kinds))
    wrong = []
    for together in companies(walked):
        if walked_with(dict(together)):
            alone = [(name, value, text) for name, value in together for text in walked_with({name: value})]
            wrong += [f"{name} = {value}: {text}" for name, value, text in alone] or [f"only all of {together}"]
    with capsys.disabled():
        settings = len({name for name, _ in walked})
        print(f"\n{walk.__name__}: {settings} settings, {len(walked)} values, {len(expected)} calls each")
    assert not wrong, "\n".join(wrong)


# As many as one session can have: each alone would take minutes.
HOSTILE: Final[Settings] = {
    "DateStyle": "German, DMY",
    "IntervalStyle": "iso_8601",
    "TimeZone": "Asia/Kathmandu",
    "array_nulls": "off",
    "bytea_output": "escape",
    "check_function_bodies": "on",
    "client_min_messages": "debug1",
    "default_transaction_isolation": "serializable",
    "escape_string_warning": "off",
    "extra_float_digits": "-15",
    "plpgsql.extra_errors": "all",
    "quote_all_identifiers": "on",
    "row_security": "off",
    "search_path": "shadow, pg_catalog",
    "standard_conforming_strings": "off",
    "transform_null_equals": "on",
}


@pytest.mark.parametrize("program", ["psql", "pgqueue"])
def test_the_settings_of_a_session_do_not_change_what_is_installed(
    cluster: Cluster, dsn: str, empty_dsn: str, monkeypatch: pytest.MonkeyPatch, program: str
) -> None:
    for _ in ("install", "upgrade"):
        if program == "psql":
            psql(cluster, make_conninfo(empty_dsn, options=session_options(HOSTILE)), "install.sql")
        else:
            with connect(empty_dsn, options=session_options(HOSTILE)) as session:
                migrate(session)
    assert dump(cluster, empty_dsn) == dump(cluster, dsn)


@pytest.mark.cron
def test_row_security_off_stops_neither_maintenance_nor_what_looks_at_pg_cron(cron_dsn: str) -> None:
    with connect(cron_dsn) as plain, connect(cron_dsn, options="-c row_security=off") as session:
        run(plain, verbs.install_cron(CRON_ROLE))
        plain.execute("SET ROLE messages_owner")
        session.execute("SET ROLE messages_owner")
        assert sorted(run(session, verbs.maintain())) == sorted(run(plain, verbs.maintain()))
        assert run(session, verbs.maintenance_mode()) == "pg_cron"
        found = [finding for finding in run(session, verbs.health()) if finding.check_name.startswith("cron")]
        assert [finding.severity for finding in found] == ["ok", "ok"]


def test_no_literal_of_the_schema_has_a_backslash() -> None:
    """Without standard_conforming_strings such a literal has another value, and the compiled function keeps it."""
    for script in migrations.scripts():
        for number, line in enumerate(script.text.splitlines(), 1):
            assert "\\" not in re.sub(r"\bE'[^']*'", "", line), f"{script.path}:{number}: {line}"


def test_partitions_are_made_for_their_days_whatever_style_a_session_writes_moments_in(conn: Connection) -> None:
    def bounds() -> list[Any]:
        return conn.execute("SELECT partition, first_at, end_at FROM messages.archive_partitions()").fetchall()

    made = bounds()
    for name, _, _ in made[1:]:
        conn.execute(sql.SQL("DROP TABLE {}").format(sql.SQL(name)))
    # A day that is written as the first says is read as another day, or none, as the second says.
    conn.execute("SET DateStyle = 'German, MDY'")
    conn.execute("SELECT messages.make_archive_partitions(), messages.set_archive_begin()")
    conn.execute("RESET ALL")
    assert bounds() == made
