"""The names of PGMQ from the shell."""

from __future__ import annotations

import psycopg

from tests.core.cli.conftest import Pgqueue
from tests.core.cli.test_install import psql
from tools import ROOT
from tools.postgres import Cluster


def test_install_makes_the_names_of_pgmq_as_psql_does(run_pgqueue: Pgqueue, cluster: Cluster, empty_dsn: str) -> None:
    assert "schema pgmq" in run_pgqueue("install", "--pgmq", "--no-cron", "--dsn", empty_dsn).out
    psql(cluster, ROOT / "sql" / "pgmq.sql", empty_dsn)
    with psycopg.connect(empty_dsn, autocommit=True) as conn:
        assert conn.execute("SELECT pgmq.send('default', '1')").fetchone() == (1,)
    assert "schema pgmq" not in run_pgqueue("install", "--no-cron", "--dsn", empty_dsn).out
    assert "COMMENT ON SCHEMA pgmq" in run_pgqueue("install", "--pgmq", "--print-sql").out
