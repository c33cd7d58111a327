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


def test_a_queue_of_pgmq_is_adopted(run_pgqueue: Pgqueue, dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("CREATE SCHEMA pgmq")
        # The table of a queue as PGMQ 1.4 makes it, without headers.
        conn.execute(
            "CREATE TABLE pgmq.q_orders (msg_id bigint PRIMARY KEY, read_ct integer DEFAULT 0, enqueued_at timestamptz,"
            " vt timestamptz DEFAULT now(), message jsonb)"
        )
        conn.execute("INSERT INTO pgmq.q_orders (msg_id, message) VALUES (2, '2'), (1, '1')")
        conn.execute("INSERT INTO pgmq.q_orders VALUES (3, 1, now(), now() + interval '1 hour', '3')")
        done = run_pgqueue("adopt-pgmq", "orders", "--to", "packing", "--dsn", dsn)
        assert done.out.startswith("moved 2 messages and 0 archived messages to packing. Workers have 1 message until ")
        conn.execute("INSERT INTO pgmq.q_orders (msg_id, message) VALUES (4, '4')")
        moved = conn.execute("SELECT message, reference FROM messages.lease('packing', 10)").fetchall()
        assert moved == [(n, f"pgmq {n}") for n in (1, 2, 4)]
    assert run_pgqueue("adopt-pgmq", "orders", "--to", "packing", "--json", "--dsn", dsn).json["leased"] == 1
    assert "schema pgmq has no queue 'nope'" in run_pgqueue("adopt-pgmq", "nope", "--dsn", dsn).err
