"""The page through PgBouncer, where nobody can pin how times and durations are written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from airflow_provider_pgqueue.core import run, verbs
from tests.web.conftest import Browse

pytestmark = pytest.mark.pooler


def test_the_page_reads_what_it_shows_in_the_styles_that_a_database_sets(
    browse: Browse, pooled_dsn: str, conn: psycopg.Connection[Any], queue: Callable[..., str]
) -> None:
    (id,) = run(conn, verbs.publish_batch(queue("orders"), [1]))
    for setting in ("DateStyle = 'German'", "IntervalStyle = 'iso_8601'"):
        conn.execute(f"ALTER DATABASE {conn.info.dbname} SET {setting}".encode())
    client = browse(may_act=True, to=pooled_dsn)
    for path in ("/", "/queues/orders", f"/messages/{id}"):
        page = client.get(path)
        assert page.status_code == 200, page.text
