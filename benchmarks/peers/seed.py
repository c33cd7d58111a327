"""The convention this project grew from: two tables, a row trigger that notifies with the id, a lock by id.

Its consumers learn ids from NOTIFY and race for each. Here every consumer knows its ids beforehand and none is
contended, which is the best case.
"""

from __future__ import annotations

from typing import Final

from benchmarks.peer import Peer
from benchmarks.server import Connection

_SCHEMA: Final = """
CREATE SCHEMA messages;
CREATE TABLE messages.message (
    id              serial    PRIMARY KEY,
    created_at      timestamp NOT NULL DEFAULT CURRENT_TIMESTAMP,
    message         jsonb     NOT NULL,
    lock_expires_at timestamp
);
CREATE INDEX ON messages.message (lock_expires_at);
CREATE TYPE messages.result AS ENUM ('success', 'failed', 'rejected', 'lock_expired');
CREATE TABLE messages.message_archive (
    id          serial          PRIMARY KEY,
    created_at  timestamp       NOT NULL,
    archived_at timestamp       NOT NULL DEFAULT CURRENT_TIMESTAMP,
    message     jsonb           NOT NULL,
    result      messages.result NOT NULL,
    handled_by  varchar(50)     NOT NULL,
    details     text
);
CREATE FUNCTION messages.notify_worker() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN PERFORM pg_notify('new_message', NEW.id::text); RETURN NEW; END $$;
CREATE TRIGGER notify_worker AFTER INSERT ON messages.message FOR EACH ROW EXECUTE FUNCTION messages.notify_worker();
"""


def _install(conn: Connection) -> None:
    conn.execute(_SCHEMA.encode())


SEED: Final = Peer(
    name="seed",
    install=_install,
    empty="TRUNCATE messages.message, messages.message_archive RESTART IDENTITY",
    add="INSERT INTO messages.message (message) SELECT %(body)s::jsonb FROM generate_series(1, %(count)s)",
    tables=["messages.message"],
    count="SELECT count(*) FROM messages.message",
)
