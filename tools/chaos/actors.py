"""The processes that use the queue: publishers, and consumers of each kind.

    python -m tools.chaos.actors KIND NAME DSN HISTORY SEED

Each continues through every error until SIGTERM, and writes down what it does. A body is {"k": a name of its own, "n":
its number in its group}.
"""

from __future__ import annotations

import json
import logging
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any

import psycopg

from airflow_provider_pgqueue.core import (
    Consumer,
    Failed,
    Message,
    Outcome,
    PgQueueError,
    Rejected,
    Retry,
    Worker,
    run,
    verbs,
)
from airflow_provider_pgqueue.core.errors import ConnectionFailed
from tools.chaos.history import History
from tools.chaos.leases import LIMITED

Connection = psycopg.Connection[Any]
LEASE = timedelta(seconds=1.5)
QUEUES = {
    "team_a": ["a_orders", "a_orders", "a_short", "a_groups", "a_groups", "a_effects", LIMITED, "a_turns", "a_long"],
    "team_b": ["b_orders", "b_orders", "b_dedup"],
    "anybody": ["default", "volatile", "c_orders"],
    "airflow": ["d_watched", "d_waited", "d_deferred"],
    "slices": ["d_slices"],
}
PACE = {"airflow": 5.0, "slices": 10.0}  # calls a second, where they are not 40
GROUPS_EACH = 5


class Actor:
    """The base of all kinds: the history, the random numbers, and the loop that continues after errors."""

    def __init__(self, name: str, dsn: str, history: History, seed: int) -> None:
        self.name, self.dsn, self.history = name, dsn, history
        self.random = random.Random(seed)
        self.stopping = threading.Event()
        self.number = 0
        signal.signal(signal.SIGTERM, lambda *_: self.stopping.set())

    def serve(self, work: Callable[[Connection], None]) -> None:
        """Call `work` again and again on a connection, which is opened anew when it breaks."""
        while not self.stopping.is_set():
            with (
                suppress(psycopg.Error, PgQueueError, OSError),
                psycopg.connect(self.dsn, autocommit=True, connect_timeout=5) as conn,
            ):
                while not self.stopping.is_set() and not conn.closed:
                    try:
                        work(conn)
                    except (psycopg.OperationalError, ConnectionFailed):
                        break
                    except (psycopg.Error, PgQueueError) as error:
                        self.history.write("error", actor=self.name, type=type(error).__name__, text=str(error)[:200])
                        self.stopping.wait(0.05)
            self.stopping.wait(0.1)


class Publisher(Actor):
    """Publishes about a hundred messages a second to the queues of a team."""

    def __init__(self, name: str, dsn: str, history: History, seed: int) -> None:
        super().__init__(name, dsn, history, seed)
        self.team = name.partition(".")[0]
        self.life = f"{name}-{time.time_ns() % 10**12}"
        self.in_group: dict[str, int] = {}
        self.unsure: list[str] = []  # dedup keys whose publishing has to be repeated

    def start(self) -> None:
        self.serve(self.publish)

    def body(self, queue: str) -> dict[str, Any]:
        self.number += 1
        return {"k": f"{self.life}-{self.number}", "q": queue}

    def publish(self, conn: Connection) -> None:
        queue = self.random.choice(QUEUES[self.team])
        # Now and then more than a rate lets pass in a second, but on average less.
        sizes = [1] * 29 + [50] if queue == LIMITED else [1, 1, 1, 2, 5]
        bodies = [self.body(queue) for _ in range(self.random.choice(sizes))]
        options: dict[str, Any] = {}
        if queue == "a_groups":
            groups = [f"{self.life}/{self.random.randrange(GROUPS_EACH)}" for _ in bodies]
            for body, group in zip(bodies, groups, strict=True):
                self.in_group[group] = self.in_group.get(group, 0) + 1
                body |= {"g": group, "n": self.in_group[group]}
            options["group_keys"] = groups
        if queue == LIMITED:
            options["group_keys"] = [self.random.choice("abc") for _ in bodies]
        if queue == "a_turns":
            options["topics"] = [self.random.choice(["small", "large"]) for _ in bodies]
        if queue == "a_long":
            for body in bodies:
                body["text"] = body["k"] * self.random.choice([1, 100])
                body["sha256"] = sha256(body["text"].encode()).hexdigest()
            options["references"] = [body["k"] for body in bodies]
        if queue == "b_dedup":
            keys = [body["k"] for body in bodies]
            if self.unsure or self.random.random() < 0.3:
                keys = [self.unsure.pop() if self.unsure else key for key in keys]
            for body, key in zip(bodies, keys, strict=True):
                body["d"] = body["k"] = key
            options["dedup_keys"] = keys
        if self.random.random() < 0.1:
            options["priority"] = self.random.choice([0, 9])
        if self.random.random() < 0.05:
            options["delay"] = timedelta(seconds=self.random.random())
        rolled_back = self.random.random() < 0.05 and queue != "b_dedup"
        keys = [body["k"] for body in bodies]
        self.history.write("rolled back" if rolled_back else "invoke", q=queue, keys=keys)
        try:
            with conn.transaction(force_rollback=rolled_back):
                run(conn, verbs.publish_batch(queue, bodies, **options))
        except (psycopg.OperationalError, ConnectionFailed):
            self.unsure += keys if queue == "b_dedup" else []
            raise
        except (psycopg.Error, PgQueueError):
            # A server that goes away says so with many codes: only in a connection that lives was nothing published.
            if not conn.closed and not conn.broken:
                self.history.write("fail", q=queue, keys=keys)
            raise
        if not rolled_back:
            self.history.write("ok", q=queue, keys=keys)
        if self.team == "team_a" and self.random.random() < 0.02:
            self.trespass(conn)
        self.stopping.wait(self.random.expovariate(PACE.get(self.team, 40.0)))

    def trespass(self, conn: Connection) -> None:
        """Try a verb that only another team may call."""
        calls: list[verbs.Statement[Any]] = [
            verbs.publish("b_orders", {"k": "trespass"}),
            verbs.lease("b_orders"),
            verbs.status("b_orders"),
        ]
        for call in calls:
            with suppress(PgQueueError):
                run(conn, call)
                self.history.write("trespass", what=call.function)


class Functions(Actor):
    """Leases, extends, archives and releases through the functions, and dawdles past its lease now and then."""

    queues = ("a_orders", "a_short", LIMITED, "a_turns", "b_orders", "b_dedup", "c_orders", "volatile")

    def start(self) -> None:
        self.serve(self.turn)

    def turn(self, conn: Connection) -> None:
        mine = [
            queue for queue in self.queues if queue[0] == self.name[0] or (queue == "volatile" and self.name[0] != "b")
        ]
        queue = self.random.choice(mine)
        self.number += 1
        holder = f"{self.name}-{time.time_ns() % 10**12}-{self.number}"
        messages = run(conn, verbs.lease(queue, max_messages=self.random.choice([1, 4, 20]), lease_for=LEASE))
        if not messages:
            self.stopping.wait(0.05)
            return
        token = messages[0].lock_token
        assert token
        self.history.write("deliver", q=queue, keys=[m.body["k"] for m in messages], token=str(token))
        ids = [message.id for message in messages]
        chance = self.random.random()
        if chance < 0.01:
            self.stopping.wait(2.0)
        elif chance < 0.1:
            with suppress(PgQueueError):
                run(conn, verbs.extend(token, ids, lease_for=LEASE))
        if chance > 0.95:
            conn.execute("SELECT messages.release(%s, %s::bigint[], '100 ms', count_attempt => false)", [token, ids])
            return
        result = "rejected" if chance > 0.92 else "success"
        done = conn.execute(
            "SELECT messages.archive(%s, %s::bigint[], %s, handled_by => %s)", [token, ids, result, holder]
        ).fetchall()
        finished = {row[0] for row in done}
        keys = [m.body["k"] for m in messages if m.id in finished]
        self.history.write("finish", q=queue, keys=keys, holder=holder, result=result)


class Workers(Actor):
    """The worker of the package, with a handler that sometimes raises, rejects, fails or asks to come again."""

    def start(self) -> None:
        queue = {"a": "a_groups", "b": "b_orders", "l": "a_long"}[self.name[0]]
        consumer = Consumer(
            queue_name=queue, handle=self.handle, batch_size=20, lease_for=LEASE, handled_by=self.name,
            on_error={Exception: Retry(timedelta(milliseconds=50))},
            handler_timeout=LEASE / 3 if queue == "a_long" else None,
        )  # fmt: skip
        while not self.stopping.is_set():
            try:
                worker = Worker(conninfo=self.dsn, consumer=consumer, poll_interval=0.3)
                worker.run()  # takes SIGTERM over
                return
            except Exception as error:
                self.history.write("error", actor=self.name, type=type(error).__name__, text=str(error)[:200])
                time.sleep(0.2)

    def handle(self, message: Message) -> Outcome | None:
        self.history.write("deliver", q=message.queue_name, keys=[message.body["k"]])
        if message.queue_name == "a_long":
            self.work_long(message)
        match self.random.randrange(200):
            case 0:
                raise KeyError("a bug")
            case 1:
                return Rejected("no good")
            case 2:
                return Failed("cannot be")
            case 3:
                return Retry(timedelta(milliseconds=20), count_attempt=False)
        return None

    def work_long(self, message: Message) -> None:
        key, text = message.body["k"], message.body["text"]
        if message.reference != key or sha256(text.encode()).hexdigest() != message.body["sha256"]:
            self.history.write("wrong body", keys=[key])
        if self.random.random() < 0.03:
            time.sleep(2 * LEASE.total_seconds())  # and loses the lease, which is renewed for a third of one


class Raw(Actor):
    """Plain SQL, as the first conventions have it: select, lock, delete, archive."""

    def start(self) -> None:
        self.serve(self.turn)

    def turn(self, conn: Connection) -> None:
        rows = conn.execute(
            "SELECT id FROM messages.message WHERE queue_name = 'default' AND visible_at <= clock_timestamp()"
            " AND (lock_expires_at IS NULL OR lock_expires_at < clock_timestamp()) ORDER BY visible_at LIMIT 20"
        ).fetchall()
        for (id_,) in rows or [(None,)]:
            if id_ is None or self.stopping.wait(0.005):
                self.stopping.wait(0.1)
                return
            locked = conn.execute(
                "UPDATE messages.message SET lock_expires_at = clock_timestamp() + interval '1.5 s', locked_by = %s"
                " WHERE id = %s AND (lock_expires_at IS NULL OR lock_expires_at < clock_timestamp()) RETURNING id",
                [self.name, id_],
            ).fetchone()
            if locked is None:
                continue
            with conn.transaction():
                row = conn.execute(
                    "DELETE FROM messages.message WHERE id = %s RETURNING created_at, message, queue_name, attempts",
                    [id_],
                ).fetchone()
                if row is not None:
                    conn.execute(
                        "INSERT INTO messages.message_archive"
                        " (created_at, message, queue_name, attempts, result, handled_by)"
                        " VALUES (%s, %s, %s, %s, 'success', %s)",
                        [row[0], json.dumps(row[1]), row[2], row[3] + 1, self.name],
                    )


class Effects(Actor):
    """Takes messages with consume() in the transaction of their effect."""

    def start(self) -> None:
        self.serve(self.turn)

    def turn(self, conn: Connection) -> None:
        with conn.transaction():
            messages = run(conn, verbs.consume("a_effects", max_messages=10, handled_by=self.name))
            for message in messages:
                conn.execute("INSERT INTO public.effect (k) VALUES (%s)", [message.body["k"]])
            if self.random.random() < 0.05:
                raise psycopg.Rollback
        if not messages:
            self.stopping.wait(0.05)


class Maintenance(Actor):
    """Runs maintenance, as pg_cron would."""

    def start(self) -> None:
        self.serve(self.turn)

    def turn(self, conn: Connection) -> None:
        run(conn, verbs.maintain())
        self.stopping.wait(1.0)


KINDS = {
    "publisher": Publisher, "functions": Functions, "worker": Workers, "raw": Raw, "effects": Effects,
    "maintenance": Maintenance,
}  # fmt: skip


def main() -> None:
    kind, name, dsn, history, seed = sys.argv[1:]
    logging.basicConfig(level="ERROR")
    KINDS[kind](name, dsn, History(Path(history)), int(seed)).start()  # type: ignore[attr-defined]


if __name__ == "__main__":
    main()
