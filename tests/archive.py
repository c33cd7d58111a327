"""Closed partitions of the archive with messages in them, and what is in the target of an export."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pyarrow.parquet as pq

from tools.partitions import make_empty_partition

Connection = psycopg.Connection[Any]


def without_beginning(conn: Connection) -> None:
    """Let the archive take what ended before the month in which it was installed."""
    conn.execute(
        "ALTER TABLE messages.message_archive_default DROP CONSTRAINT IF EXISTS archived_before_the_archive_begins"
    )


def make_partition(conn: Connection, days_ago: int, rows: int = 0, *, days: int = 1) -> str:
    """Make a closed partition with messages of two queues and all results; nobody has to decide about the dead."""
    first = (datetime.now(UTC) - timedelta(days=days_ago)).replace(hour=0, minute=0, second=0, microsecond=0)
    name = make_empty_partition(conn, first, first + timedelta(days=days))
    conn.execute(
        """
        INSERT INTO messages.message_archive (created_at, archived_at, leased_at, priority, attempts, queue_name,
               result, handled_by, details, reference, topic, headers, output, failure, fingerprint, message)
        SELECT %(first)s - interval '1.5 hours', %(first)s + n * %(span)s / %(rows)s,
               CASE WHEN n %% 3 = 0 THEN %(first)s END, n %% 7, n %% 5,
               CASE n %% 2 WHEN 0 THEN 'orders' ELSE 'returns' END,
               CASE n %% 10 WHEN 1 THEN 'failed' WHEN 2 THEN 'rejected' ELSE 'success' END, 'packer',
               CASE n %% 4 WHEN 0 THEN '' WHEN 1 THEN 'é|:\n' || n WHEN 2 THEN repeat('ü', n) END, 'shop-' || n,
               CASE WHEN n %% 2 = 0 THEN 'shop.order' END, CASE WHEN n %% 3 = 1 THEN '{"kind": "slow"}'::jsonb END,
               CASE WHEN n %% 5 = 1 THEN 'null'::jsonb END,
               CASE WHEN n %% 10 = 1 THEN '{"error": "ShopError"}'::jsonb END,
               CASE WHEN n %% 10 IN (1, 2) THEN 'cause' END,
               jsonb_build_object('order', n, 'text', repeat('x€', n %% 400))
          FROM generate_series(0, %(rows)s - 1) n
        """,
        {"first": first, "rows": rows, "span": timedelta(days=days)},
    )
    conn.execute("DELETE FROM messages.dead_message")
    return name


def cut(conn: Connection, partition: str, chunks: int) -> None:
    """Let an export cut a partition into so many chunks: as if its pages had 250,000 messages for each."""
    table = f"messages.{partition}"
    # What PostgreSQL knows of the partition must stay as it is here.
    conn.execute(f"ALTER TABLE {table} SET (autovacuum_enabled = off)".encode())
    conn.execute(f"ANALYZE {table}".encode())
    conn.execute("UPDATE pg_class SET reltuples = 250000 * %s WHERE oid = %s::regclass", [chunks, table])


def die(conn: Connection, partition: str) -> int:
    """Put a dead message in the partition without a resolution; return its id."""
    (id_,) = conn.execute(
        "INSERT INTO messages.message_archive (created_at, archived_at, queue_name, result, message)"
        " SELECT p.first_at, p.first_at, 'orders', 'failed', '1' FROM messages.archive_partitions() p"
        " WHERE p.partition::text = 'messages.' || %s RETURNING id",
        [partition],
    ).fetchone() or (0,)
    return int(id_)


def change(conn: Connection, partition: str, statement: str, *parameters: Any) -> None:
    conn.execute(statement.replace("{}", f"messages.{partition}").encode(), parameters or None)


def rows_in_archive(conn: Connection, partition: str) -> list[tuple[Any, ...]]:
    (columns,) = conn.execute(
        "SELECT string_agg(attname || CASE WHEN atttypid = 'jsonb'::regtype THEN '::text' ELSE '' END, ', '"
        " ORDER BY attnum) FROM pg_attribute"
        " WHERE attrelid = 'messages.message_archive'::regclass AND attnum > 0 AND NOT attisdropped"
    ).fetchone() or ("",)
    columns += ", (archived_at AT TIME ZONE 'UTC')::date"
    query = " ".join(["SELECT", columns, "FROM", f"messages.{partition}", "ORDER BY id"])
    return conn.execute(query.encode()).fetchall()


def ids_in_data(target: Path) -> list[int]:
    """Return the ids that a reader finds who looks into the folder and at no manifest."""
    return (
        sorted(pq.read_table(target / "data", columns=["id"])["id"].to_pylist()) if (target / "data").exists() else []
    )


def files(target: Path) -> list[str]:
    return sorted(str(path.relative_to(target)) for path in target.rglob("*") if path.is_file())


def manifest_of(target: Path, name: str) -> str:
    return (target / "_manifests" / f"{name}.json").read_text()


def exists(conn: Connection, name: str) -> bool:
    return conn.execute("SELECT to_regclass('messages.' || %s) IS NOT NULL", [name]).fetchone() == (True,)


def damage(file: Path) -> None:
    """Change a byte of the ids in a file."""
    ids = pq.ParquetFile(file).metadata.row_group(0).column(0)
    content = bytearray(file.read_bytes())
    content[ids.data_page_offset + ids.total_compressed_size // 2] ^= 0xFF
    file.write_bytes(content)
