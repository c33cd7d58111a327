"""Transactions of several verbs in any order, next to each other: none ends another one's, whatever they hold."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from threading import Event
from typing import Any

import psycopg
import pytest

from airflow_provider_pgqueue.core import PgQueueError, run, verbs

Connection = psycopg.Connection[Any]
Connect = Callable[..., Connection]
Queue = Callable[..., str]

pytestmark = pytest.mark.long

QUEUES = ("orders", "others")
GROUPS = "abcdefgh"


class Transaction:
    """A transaction that calls random verbs."""

    def __init__(self, conn: Connection, chance: random.Random) -> None:
        self.conn, self.chance = conn, chance

    @property
    def queue(self) -> str:
        return self.chance.choice(QUEUES)

    def publish(self) -> None:
        run(self.conn, verbs.publish(self.queue, 1, group_key=self.chance.choice(GROUPS)))

    def publish_batch(self) -> None:
        groups = [self.chance.choice([*GROUPS, None]) for _ in range(4)]
        run(self.conn, verbs.publish_batch(self.queue, range(4), group_keys=groups, priority=self.chance.randrange(3)))

    def publish_once(self) -> None:
        keys = [f"{key}" for key in self.chance.sample(range(30), 2)]
        conflict = self.chance.choice(["skip", "replace"])
        run(self.conn, verbs.publish_batch("orders", [1, 2], dedup_keys=keys, on_conflict=conflict))

    def handle(self) -> None:
        for message in run(self.conn, verbs.lease(self.queue, max_messages=self.chance.randint(1, 5))):
            ids, token = [message.id], message.lock_token
            match self.chance.randrange(5):
                case 0:
                    run(self.conn, verbs.release(token, ids, count_attempt=self.chance.random() < 0.5))
                case 1:
                    run(self.conn, verbs.archive(token, ids, result="failed"))
                case 2:
                    run(self.conn, verbs.extend(token, ids, lease_for=timedelta(milliseconds=2)))
                case _:
                    run(self.conn, verbs.archive(token, ids))

    def consume(self) -> None:
        run(self.conn, verbs.consume(self.queue, max_messages=self.chance.randint(1, 5)))

    def requeue(self) -> None:
        run(self.conn, verbs.requeue_dead(self.queue, max_messages=3))

    def dismiss(self) -> None:
        if leased := run(self.conn, verbs.lease_dead(self.queue, max_messages=3)):
            run(self.conn, verbs.dismiss(leased[0].lock_token, [message.id for message in leased], "not needed"))

    def alter(self) -> None:
        run(self.conn, verbs.alter_queue(self.queue, on_dead_head=self.chance.choice(["block", "skip"])))

    def limit(self) -> None:
        run(self.conn, verbs.alter_queue("others", max_leased=self.chance.choice([0, 500])))

    def purge(self) -> None:
        run(self.conn, verbs.purge_queue("others"))

    def maintenance(self) -> None:
        run(self.conn, verbs.maintain())


VERBS = [name for name in vars(Transaction) if not name.startswith("_") and name != "queue"]


def states(acts: Callable[[], object], found: Counter[str], what: str) -> None:
    """Count how it ended: by its SQLSTATE, or as done."""
    try:
        acts()
    except (PgQueueError, psycopg.Error) as error:
        cause = error if isinstance(error, psycopg.Error) else error.__cause__
        state = getattr(cause, "sqlstate", None) or "PQ"
        found[state if state.startswith("PQ") else f"{state} in {what}: {cause}"] += 1
    else:
        found["done"] += 1


@pytest.mark.parametrize("limit", [{}, {"max_leased": 20}], ids=["none", "max_leased"])
def test_transactions_of_several_verbs_in_any_order_do_not_deadlock(
    connect: Connect, queue: Queue, limit: dict[str, int]
) -> None:
    for name in QUEUES:
        queue(name, max_attempts=3, **limit)
    queue("volatile")
    ended = Event()

    def work(seed: int) -> Counter[str]:
        conn = connect(autocommit=False, options="-c deadlock_timeout=50ms -c statement_timeout=30s")
        chance, found = random.Random(seed), Counter[str]()
        for _ in range(50):
            names = [chance.choice(VERBS) for _ in range(chance.randint(2, 4))]
            transaction = Transaction(conn, chance)

            def act(transaction: Transaction = transaction, names: list[str] = names) -> None:
                with transaction.conn.transaction(force_rollback=chance.random() < 0.2):
                    for name in names:
                        getattr(transaction, name)()

            states(act, found, " ".join(names))
        return found

    def drop() -> Counter[str]:
        conn, found = connect(), Counter[str]()
        while not ended.wait(0.01):
            states(lambda: run(conn, verbs.create_queue("volatile")), found, "create")
            states(lambda: run(conn, verbs.publish("volatile", 1, group_key="a")), found, "publish")
            states(lambda: run(conn, verbs.drop_queue("volatile", force=True)), found, "drop")
        return found

    with ThreadPoolExecutor(7) as pool:
        dropped = pool.submit(drop)
        try:
            found = sum(pool.map(work, range(6)), Counter[str]())
        finally:
            ended.set()
        found += dropped.result()
    assert {state: number for state, number in found.items() if not state.startswith(("done", "PQ"))} == {}
    assert found["done"] > 150


@pytest.mark.parametrize("verb", [verbs.lease, verbs.consume])
def test_a_transaction_that_holds_a_group_keeps_nobody_from_what_lies_behind_its_messages(
    connect: Connect, queue: Queue, verb: Callable[..., Any]
) -> None:
    conn, holder = connect(), connect(autocommit=False)
    run(conn, verbs.publish(queue("orders"), "head", group_key="a"))
    assert len(run(holder, verbs.lease("orders"))) == 1
    run(conn, verbs.publish_batch("orders", range(10), group_keys=["a"] * 10))
    run(conn, verbs.publish("orders", "free"))
    assert [message.body for message in run(conn, verb("orders", max_messages=4))] == ["free"]
