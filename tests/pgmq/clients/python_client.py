"""Does the usual work with one of PGMQ's four Python clients, in their own environment, and prints how each case ended.

Called as `python python_client.py sync|async|sqlalchemy|sqlalchemy_async HOST PORT DATABASE USER`.
"""

import asyncio
import inspect
import json
import sys
import time
import warnings
from datetime import UTC, datetime, timedelta

import pgmq

CLIENTS = {
    "sync": pgmq.SyncPGMQueue,
    "async": pgmq.AsyncPGMQueue,
    "sqlalchemy": pgmq.SQLAlchemyPGMQueue,
    "sqlalchemy_async": pgmq.SQLAlchemyAsyncPGMQueue,
}
BODY = {"order_id": 7}
Q = "orders"


class Client:
    """Calls a client of either kind; each method can be awaited."""

    def __init__(self, client):
        self.client = client

    def __getattr__(self, name):
        async def call(*args, **kwargs):
            result = getattr(self.client, name)(*args, **kwargs)
            return await result if inspect.isawaitable(result) else result

        return call


async def send_and_read(q):
    sent = await q.send(Q, BODY)
    read = await q.read(Q, vt=20)
    assert (read.msg_id, read.message, read.read_ct, read.headers) == (sent, BODY, 1, None)
    assert timedelta(seconds=15) < read.vt - datetime.now(UTC) <= timedelta(seconds=20)
    assert read.enqueued_at <= read.last_read_at
    assert await q.read(Q, vt=20) is None


async def headers(q):
    await q.send(Q, BODY, headers={"trace": "a"})
    await q.send_batch(Q, [BODY, BODY], headers=[{"n": 1}, {"n": 2}])
    assert [read.headers for read in await q.read_batch(Q, vt=20, batch_size=5)] == [{"trace": "a"}, {"n": 1}, {"n": 2}]


async def delay(q):
    sent = [await q.send(Q, BODY, delay=1), *await q.send_batch(Q, [BODY], delay=1)]
    assert await q.read(Q, vt=20) is None
    assert sorted(await _all(q, 2)) == sent


async def delay_as_a_time(q):
    at = datetime.now(UTC) + timedelta(seconds=1)
    sent = [await q.send(Q, BODY, tz=at), *await q.send_batch(Q, [BODY], delay=at)]
    assert await q.read(Q, vt=20) is None
    assert sorted(await _all(q, 2)) == sent


async def batch(q):
    sent = await q.send_batch(Q, [{"n": 1}, {"n": 2}, {"n": 3}])
    assert [(read.msg_id, read.message["n"]) for read in await q.read_batch(Q, vt=20, batch_size=3)] == list(
        zip(sent, [1, 2, 3], strict=True)
    )


async def vt_ends(q):
    sent = await q.send(Q, BODY)
    await q.read(Q, vt=1)
    again = await _all(q, 1)
    assert again == [sent]


async def archive_and_delete(q):
    sent = await q.send_batch(Q, [BODY] * 6)
    await q.read_batch(Q, vt=20, batch_size=3)
    assert await q.archive(Q, sent[0])
    assert await q.delete(Q, sent[1])
    assert not await q.archive(Q, sent[0])
    assert sorted(await q.archive_batch(Q, [sent[2], sent[3]])) == [sent[2], sent[3]]
    assert sorted(await q.delete_batch(Q, [sent[4], sent[5]])) == [sent[4], sent[5]]
    assert await q.read(Q, vt=20) is None


async def set_vt(q):
    sent = await q.send(Q, BODY)
    later = await q.set_vt(Q, sent, 60)
    assert later.vt > datetime.now(UTC) + timedelta(seconds=50)
    assert await q.read(Q, vt=20) is None
    await q.set_vt(Q, sent, datetime.now(UTC))
    assert await _all(q, 1) == [sent]
    assert [one.msg_id for one in await q.set_vt(Q, [sent], 60)] == [sent]


async def pop(q):
    sent = await q.send(Q, BODY)
    popped = await q.pop(Q)
    assert (popped.msg_id, popped.message) == (sent, BODY)
    assert await q.pop(Q) is None


async def metrics(q):
    await q.send_batch(Q, [BODY, BODY])
    found = await q.metrics(Q)
    assert (found.queue_name, found.queue_length, found.queue_visible_length) == (Q, 2, 2)
    assert Q in {one.queue_name for one in await q.metrics_all()}


async def queues(q):
    await q.create_queue("another")
    await q.create_queue("another")
    assert "another" in {one.queue_name for one in await q.list_queues()}
    assert await q.drop_queue("another")
    assert "another" not in {one.queue_name for one in await q.list_queues()}
    assert await q.purge(Q) == 0


async def unlogged_queue(q):
    await q.create_queue("another", unlogged=True)


async def partitioned_queue(q):
    await q.create_partitioned_queue("another")


async def read_by_content(q):
    await q.read(Q, conditional={"order_id": 7})


async def read_in_groups(q):
    await q.read_grouped(Q)


async def topics(q):
    await q.bind_topic("orders.*", Q)


async def notifications(q):
    await q.enable_notify(Q)


async def _all(q, count):
    """Read until there are so many."""
    found, ends = [], time.monotonic() + 20
    while len(found) < count and time.monotonic() < ends:
        found += [one.msg_id for one in await q.read_with_poll(Q, vt=30, qty=count, max_poll_seconds=2) or []]
    return found


CASES = [send_and_read, headers, delay, delay_as_a_time, batch, vt_ends, archive_and_delete, set_vt, pop, metrics]
CASES += [queues, unlogged_queue, partitioned_queue, read_by_content, read_in_groups, topics, notifications]


async def main(kind, host, port, database, username):
    given = {"host": host, "port": port, "database": database, "username": username, "password": "any"}
    q = Client(CLIENTS[kind](**given, init_extension=False))
    if "async" in kind:
        await q.init()
    ended = {}
    for case in CASES:
        await q.create_queue(Q)
        try:
            await case(q)
        except Exception as error:
            ended[case.__name__] = f"{type(error).__name__}: {error}"
        else:
            ended[case.__name__] = "passed"
        await q.drop_queue(Q)
    print(json.dumps(ended))
    await (q.dispose() if kind == "sqlalchemy" else q.close())


warnings.simplefilter("ignore")
asyncio.run(main(*sys.argv[1:]))
