"""`pgqueue export`: what is printed, the exit status, and the role that it needs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import psycopg
import pytest

from airflow_provider_pgqueue.export import export_files
from tests.archive import exists, make_partition
from tests.core.cli.conftest import Pgqueue
from tests.core.roles.test_roles import logins

Connection = psycopg.Connection[Any]


def test_partitions_are_exported_dropped_and_skipped_the_next_time(
    pgqueue: Pgqueue, conn: Connection, tmp_path: Path
) -> None:
    old, young = make_partition(conn, 60, 100), make_partition(conn, 40, 100)
    arguments = ("export", "--target", str(tmp_path / "export"), "--parallelism", "2")
    done = pgqueue(*arguments, "--older-than", "50d", "--drop")
    files = len(export_files(str(tmp_path / "export")))
    assert (done.status, done.out) == (
        0,
        f"exported 1 partition with 100 messages in {files} files, 0 skipped, 1 dropped.\n",
    )
    assert (exists(conn, old), exists(conn, young)) == (False, True)
    again = pgqueue(*arguments, "--partition", old, "--partition", young, "--json")
    assert (again.json["skipped"], again.json["exported"], again.json["rows"]) == ([old], [young], 100)
    assert pgqueue(*arguments).out == "exported 0 partitions, 1 skipped, 0 dropped.\n"


def test_in_the_first_month_it_says_why_nothing_is_exported_and_exports_what_is_there_if_asked(
    pgqueue: Pgqueue, conn: Connection, tmp_path: Path
) -> None:
    conn.execute("INSERT INTO messages.message_archive (result, created_at, message) VALUES ('success', now(), '1')")
    arguments = ("export", "--target", str(tmp_path))
    said = pgqueue(*arguments).out
    assert re.fullmatch(
        r"exported 0 partitions, 0 skipped, 0 dropped; message_archive_\d+ waits: it takes messages until "
        r"\d{4}-\d\d-01 00:00 UTC; --until now exports what it has\.\n",
        said,
    )
    done = pgqueue(*arguments, "--until", "now")
    assert done.out == "exported 1 partition with 1 message in 1 file, 0 skipped, 0 dropped.\n"
    assert len(export_files(str(tmp_path))) == 1


def test_what_cannot_be_dropped_now_is_named_with_the_reason(
    pgqueue: Pgqueue, conn: Connection, tmp_path: Path
) -> None:
    name = make_partition(conn, 40, 10)
    conn.execute(f"ALTER TABLE messages.{name} OWNER TO postgres".encode())
    kept = pgqueue("export", "--target", str(tmp_path), "--drop")
    assert kept.status == 0
    assert "0 dropped; kept " in kept.out
    assert "belongs to role postgres" in kept.out


def test_a_login_without_the_right_is_told_which_role_it_needs(
    pgqueue: Pgqueue, conn: Connection, dsn: str, tmp_path: Path
) -> None:
    make_partition(conn, 40, 10)
    with logins(dsn) as login:
        login("shop", "messages_publisher")
        refused = pgqueue(
            "export", "--dsn", psycopg.conninfo.make_conninfo(dsn, user="shop"), "--target", str(tmp_path)
        )
    assert (refused.status, refused.out) == (1, "")
    assert refused.err.splitlines() == [
        "error: permission denied for function closed_archive_partitions. GRANT messages_pipeline TO shop"
    ]


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        ([], 2, "--target"),
        (["--target", ""], 1, "target is empty"),
        (["--target", "gopher://x"], 1, "target 'gopher://x' cannot be opened"),
        (["--target", "/proc/export"], 1, "target '/proc/export' cannot be used"),
        (["--target", "x", "--partition", "message_archive_1999"], 1, "'message_archive_1999' does not exist"),
        (["--target", "x", "--older-than", "soon"], 2, "soon"),
        (["--target", "x", "--parallelism", "0"], 2, "--parallelism"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    pgqueue: Pgqueue, conn: Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    arguments: list[str], status: int, says: str,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    make_partition(conn, 40, 10)
    refused = pgqueue("export", *arguments)
    assert refused.status == status
    assert says in refused.err.splitlines()[-1]


def test_the_help_has_an_example(run_pgqueue: Pgqueue) -> None:
    assert "pgqueue export --target /data/messages --older-than 30d --drop" in " ".join(
        run_pgqueue("export", "--help").out.split()
    )
