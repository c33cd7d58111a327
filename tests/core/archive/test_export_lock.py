"""The lock that keeps two exports of a partition apart."""

from __future__ import annotations

from typing import Any

import psycopg

from airflow_provider_pgqueue.core.query import query

TIMEOUTS = ["idle_in_transaction_session_timeout", "transaction_timeout"]  # the second since PostgreSQL 17


def test_no_timeout_of_the_role_ends_the_lock_of_a_long_export(conn: psycopg.Connection[Any]) -> None:
    known = "SELECT name, set_config(name, '1h', false) FROM pg_settings WHERE name = ANY (%s)"
    names = [name for name, _ in conn.execute(known, [TIMEOUTS])]
    with conn.transaction():
        assert conn.execute(query("lock_export"), ["message_archive_202601"]).fetchone() == (True,)
        found = {name: conn.execute("SELECT current_setting(%s)", [name]).fetchone() for name in names}
    assert found == dict.fromkeys(names, ("0",))
    assert TIMEOUTS[0] in names
