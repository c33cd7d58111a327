"""What a call costs: the buffers that it touches and the bytes of WAL, which hardly depend on the machine and its load.

Only public verbs are called, so that the limits outlive what is behind them. `pytest -s` prints what was measured.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median_low
from typing import Any

import psycopg
import pytest

from tests.waiting import until, until_past
from tools.postgres import Cluster

Connection = psycopg.Connection[Any]
Connect = Callable[..., Connection]
Lanes = Sequence[int | None]

pytestmark = pytest.mark.long

LEASE = "SELECT * FROM messages.lease('orders', {})"
CONSUME = "SELECT * FROM messages.consume('orders', {})"
READY = "SELECT * FROM messages.ready_queues()"
MAINTENANCE = "SELECT messages.maintain()"
TAKE = "INSERT INTO taken SELECT lock_token, id FROM messages.lease('orders', {})"
FINISH = """
    WITH gone AS (DELETE FROM taken RETURNING *)
    SELECT messages.archive(lock_token, array_agg(id)) FROM gone GROUP BY lock_token
"""
ONE_LANE: Lanes = (None,)  # that of the default priority
TEN_LANES: Lanes = range(10)
RATE = "rate_limit => 1000000, rate_burst => 10000"
BODY = json.dumps({"order_id": 1234567, "note": "x" * 100})
BODIES = f"[{', '.join([BODY] * 100)}]"
WARMING = 10  # calls: from the sixth on, a session keeps its plans
CALLS = 25


@dataclass(frozen=True)
class Cost:
    """What a call costs, or may cost.

    :param growth: the buffers late in a scenario, divided by those early in it.
    """

    buffers: int
    wal: int
    growth: float = 1.0
    rows: int = 0


def measured(conn: Connection, call: str, *arguments: object) -> Cost:
    """Run a call and return what it costs, with all statements inside the function and without the commit."""
    explain = f"EXPLAIN (ANALYZE, BUFFERS, WAL, TIMING OFF, FORMAT JSON) {call}"
    (([top],),) = conn.execute(explain.encode(), arguments).fetchall()
    plan = top["Plan"]
    buffers = plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]
    return Cost(buffers, plan["WAL Bytes"], rows=int(plan["Actual Rows"]))


def middle(costs: Sequence[Cost]) -> Cost:
    """Return the median: a call is dearer that splits a page, or does what only one call in a second does."""
    return Cost(median_low(cost.buffers for cost in costs), median_low(cost.wal for cost in costs))


def repeated(conn: Connection, call: str, rows: int, arguments: Callable[[], Sequence[object]] = tuple) -> Cost:
    """Return what a call costs in a session that has made it before; each call has to return that many rows."""
    costs = [measured(conn, call, *arguments()) for _ in range(WARMING + CALLS)][WARMING:]
    assert {cost.rows for cost in costs} == {rows}
    return middle(costs)


def publish(conn: Connection, messages: int, lane: int | None = None) -> None:
    bodies = "(SELECT jsonb_agg(%s::jsonb) FROM generate_series(1, %s))"
    priority = "" if lane is None else f", priority => {lane}"
    for published in range(0, messages, 10000):
        call = f"SELECT FROM messages.publish_batch('orders', {bodies}{priority})"
        conn.execute(call.encode(), [BODY, min(messages - published, 10000)])


def lease(conn: Connection, messages: int) -> tuple[object, object]:
    """Lease that many messages, and return their token and ids."""
    call = "SELECT lock_token, array_agg(id) FROM messages.lease('orders', %s) GROUP BY lock_token"
    ((lock_token, ids),) = conn.execute(call, [messages]).fetchall()
    assert len(ids) == messages
    return lock_token, ids


def behind_leases(connect: Connect, leased: int, lanes: Lanes, waiting: int) -> Connection:
    """Let others lease as many messages in each lane, publish more into the lowest one, and return a new session."""
    other = connect()
    for lane in lanes:
        publish(other, leased // len(lanes), lane)
    other.execute(MAINTENANCE)  # makes the marks of lanes that were just opened
    for _ in range(0, leased, 1000):
        lease(other, 1000)
    publish(other, waiting, lanes[0])
    return connect()


def call_beside_10000(connect: Connect, call: str, rows: int) -> Cost:
    conn = connect()
    publish(conn, 10000)
    return repeated(conn, call, rows)


def lease_nothing(connect: Connect, used_lanes: Lanes) -> Cost:
    conn = connect()
    for lane in used_lanes:
        publish(conn, 1, lane)
        conn.execute("SELECT FROM messages.consume('orders')")
    return repeated(conn, LEASE.format(1), 0)


def publish_one(connect: Connect) -> Cost:
    return repeated(connect(), "SELECT messages.publish('orders', %s)", 1, lambda: [BODY])


def publish_100(connect: Connect) -> Cost:
    return repeated(connect(), "SELECT * FROM messages.publish_batch('orders', %s)", 100, lambda: [BODIES])


def archive(connect: Connect, messages: int) -> Cost:
    conn = connect()
    publish(conn, 10000)
    return repeated(conn, "SELECT * FROM messages.archive(%s, %s)", messages, lambda: lease(conn, messages))


def lease_limited(connect: Connect, leased: int, waiting: int, policy: str) -> Cost:
    """Return what a lease costs of a queue with limits that are never reached."""
    conn = connect()
    conn.execute(f"SELECT messages.alter_queue('orders', {policy})".encode())
    conn = behind_leases(connect, leased, ONE_LANE, waiting)
    return repeated(conn, LEASE.format(1), 1)


def lease_behind(connect: Connect, leased: int, lanes: Lanes, waiting: int) -> list[Cost]:
    """Return what a lease costs, and the dearest of three for which everything is due that is done now and then."""
    conn = behind_leases(connect, leased, lanes, waiting)
    usual = repeated(conn, LEASE.format(1), min(waiting, 1))
    costs = []
    for _ in range(3):
        ((second_later,),) = conn.execute("SELECT clock_timestamp() + interval '1.1 s'").fetchall()
        until_past(conn, second_later)
        costs.append(measured(conn, LEASE.format(1)))
    assert {cost.rows for cost in costs} == {min(waiting, 1)}
    return [usual, Cost(max(cost.buffers for cost in costs), max(cost.wal for cost in costs))]


def lease_again(connect: Connect, ended: int, live: int) -> Cost:
    """Return the sum of all calls until everything is leased again whose lease ended, all at once, behind live ones."""
    conn, other = connect(), connect()
    publish(other, live + ended)
    for _ in range(0, live, 1000):
        lease(conn, 1000)
    ((end,),) = conn.execute("SELECT clock_timestamp() + interval '6 s'").fetchall()
    for _ in range(0, ended, 1000):
        call = "SELECT FROM messages.lease('orders', 1000, %s - clock_timestamp())"
        assert other.execute(call, [end]).rowcount == 1000
    until_past(conn, end)
    costs: list[Cost] = []

    def some_are_leased() -> bool:
        costs.append(measured(conn, LEASE.format(1000)))
        return costs[-1].rows > 0

    while sum(cost.rows for cost in costs) < ended:
        until(some_are_leased, what="a lease of what ended")
    return Cost(sum(cost.buffers for cost in costs), sum(cost.wal for cost in costs))


def lease_under_held_snapshot(connect: Connect, messages: int, cycles: int, window: int) -> Cost:
    """Return what the last leases of many cost, each followed by an archive, while no dead row can be removed.

    :param window: how many leases count as early, and as late. What a single one costs rises and falls over 200.
    """
    conn, holder = connect(), connect()
    publish(conn, messages * cycles + 10000)
    holder.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1 FROM messages.message LIMIT 1")
    conn.execute("CREATE TEMP TABLE taken (lock_token uuid, id bigint)")  # its buffers are local, so they do not count
    costs = [take_and_finish(conn, messages) for _ in range(cycles)]
    early, late = middle(costs[WARMING:][:window]), middle(costs[-window:])
    return Cost(late.buffers, late.wal, late.buffers / early.buffers)


FAIR_PUBLISH = "SELECT messages.publish('orders', %s, headers => '{\"fair_key\": \"key 0\"}')"


def fair_keys(conn: Connection, keys: int, each: int) -> None:
    """Publish each key on its own, so that messages that follow each other in turns lie on different pages."""
    conn.execute("SELECT messages.alter_queue('orders', fair_by => 'group')")
    for key in range(keys):
        fair_publish(conn, f"key {key}", each)
    until_all_came(conn)


def fair_publish(conn: Connection, key: str, messages: int) -> None:
    call = "SELECT FROM messages.publish_batch('orders', {}, headers => jsonb_build_object('fair_key', %s::text))"
    bodies = "(SELECT jsonb_agg(%s::jsonb) FROM generate_series(1, %s))"
    for published in range(0, messages, 10000):
        conn.execute(call.format(bodies).encode(), [BODY, min(messages - published, 10000), key])


def until_all_came(conn: Connection) -> None:
    ((last,),) = conn.execute("SELECT max(visible_at) FROM messages.message").fetchall()
    until_past(conn, last)


def lease_of_keys(connect: Connect, at_once: Sequence[int], keys: int, held: bool) -> list[Cost]:
    """Return what leases of many keys that take turns cost, each followed by an archive, next to those of one key.

    Each key has twenty messages.
    """
    found: list[list[Cost]] = []
    for number in (1, keys):
        conn, holder = connect(), connect()
        fair_keys(conn, number, 20 * keys // number)
        if held:
            holder.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1 FROM messages.message LIMIT 1")
        conn.execute("CREATE TEMP TABLE taken (lock_token uuid, id bigint)")
        found.append([middle([take_and_finish(conn, each) for _ in range(160)][WARMING:]) for each in at_once])
        conn.execute("SELECT messages.purge_queue('orders')")
    return [Cost(many.buffers, many.wal, many.buffers / one.buffers) for one, many in zip(*found, strict=True)]


def take_and_finish(conn: Connection, messages: int) -> Cost:
    cost = measured(conn, TAKE.format(messages))
    assert conn.execute(FINISH).rowcount == messages
    return cost


def publish_of_key(connect: Connect) -> list[Cost]:
    """Return what a publish costs next to 100,000 messages of its key, and after they were drained, next to 100.

    The second is while a snapshot is held that keeps the dead rows.
    """
    conn, holder = connect(), connect()
    fair_keys(conn, 1, 100)

    def one() -> Cost:
        return repeated(conn, FAIR_PUBLISH, 1, lambda: [BODY])

    early = one()
    fair_publish(conn, "key 0", 100_000)
    until_all_came(conn)
    late = one()
    holder.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1 FROM messages.message LIMIT 1")
    while conn.execute("SELECT FROM messages.consume('orders', 10000)").rowcount:
        pass
    held = one()
    holder.rollback()
    drained = one()
    most = Cost(max(late.buffers, drained.buffers), max(late.wal, drained.wal))
    return [Cost(each.buffers, each.wal, each.buffers / early.buffers) for each in (most, held)]


def publish_among_keys(connect: Connect, keys: int) -> Cost:
    """Return what a publish costs where many keys take turns and nobody has collected statistics, next to one key."""
    costs = []
    for number in (1, keys):
        conn = connect()
        fair_keys(conn, number, 20_000 // number)
        conn.execute("VACUUM messages.message_rows")
        costs.append(repeated(connect(), FAIR_PUBLISH, 1, lambda: [BODY]))
        conn.execute("SELECT messages.purge_queue('orders')")
    one, many = costs
    return Cost(many.buffers, many.wal, many.buffers / one.buffers)


# What each scenario may cost: 1.15 of the most that was measured, on an idle or a busy machine; then its arguments.
COSTS: dict[str, tuple[Any, ...]] = {
    "lease of 1": (Cost(21, 497), call_beside_10000, LEASE.format(1), 1),
    "lease of 100": (Cost(547, 24_435), call_beside_10000, LEASE.format(100), 100),
    "empty lease": (Cost(45, 0), lease_nothing, ()),
    "empty lease, ten lanes used": (Cost(70, 0), lease_nothing, TEN_LANES),
    "publish of 1": (Cost(9, 452), publish_one),
    "publish of 100": (Cost(712, 46_539), publish_100),
    "archive of 1": (Cost(18, 631), archive, 1),
    "archive of 100": (Cost(1512, 55_833), archive, 100),
    "consume of 1": (Cost(35, 760), call_beside_10000, CONSUME.format(1), 1),
    "consume of 100": (Cost(1532, 79_000), call_beside_10000, CONSUME.format(100), 100),
    "ready_queues": (Cost(121, 0), call_beside_10000, READY, 1),
    "maintenance": (Cost(1002, 673), call_beside_10000, MAINTENANCE, 1),
    "lease of 1 behind 100,000": ([Cost(22, 497), Cost(14_741, 838)], lease_behind, 100_000, ONE_LANE, 1000),
    "lease of 1 behind 100,000 in 10 lanes": (
        [Cost(1377, 497), Cost(15_864, 1863)],
        lease_behind, 100_000, TEN_LANES, 1000,
    ),
    "empty lease behind 2,000": ([Cost(465, 0), Cost(1595, 342)], lease_behind, 2000, ONE_LANE, 0),
    "empty lease behind 2,000 in 10 lanes": ([Cost(665, 0), Cost(1911, 1366)], lease_behind, 2000, TEN_LANES, 0),
    "lease of 1 under a rate": (Cost(69, 611), lease_limited, 1000, 1000, RATE),
    "lease of 1 under a rate among 100,000": (Cost(83, 611), lease_limited, 50_000, 50_000, RATE),
    "10,000 ended leases": (Cost(570_000, 9_450_171), lease_again, 10_000, 20_000),
    "lease of 100, held snapshot": (Cost(561, 23_971, 1.15), lease_under_held_snapshot, 100, 400, 20),
    "lease of 1, held snapshot": (Cost(38, 430, 1.28), lease_under_held_snapshot, 1, 1500, 200),
    "lease of 1 and of 100, 1,000 keys": (
        [Cost(40, 480, 2.0), Cost(736, 26_000, 1.4)],
        lease_of_keys, (1, 100), 1000, False,
    ),
    "lease of 1, 200 keys, held snapshot": ([Cost(25, 463, 1.28)], lease_of_keys, (1,), 200, True),
    "publish of 1, 1,000 keys": (Cost(45, 580, 1.2), publish_among_keys, 1000),
    "publish of 1, keys take turns": ([Cost(40, 580, 1.4), Cost(77, 580, 3.9)], publish_of_key),
}  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def without_autovacuum(cluster: Cluster) -> Iterator[None]:
    """Nobody else removes dead rows, collects statistics, or lets plans be made again."""
    with psycopg.connect(cluster.dsn(), autocommit=True) as conn:
        conn.execute("ALTER SYSTEM SET autovacuum = off")
        conn.execute("SELECT pg_reload_conf()")
        yield
        conn.execute("ALTER SYSTEM RESET autovacuum")
        conn.execute("SELECT pg_reload_conf()")


@pytest.mark.parametrize("name", COSTS)
def test_a_call_costs_no_more_than_it_may(connect: Connect, queue: Callable[..., str], name: str) -> None:
    may, scenario, *arguments = COSTS[name]
    queue("orders", notify="off")
    costs = scenario(connect, *arguments)
    pairs = [(may, costs)] if isinstance(may, Cost) else zip(may, costs, strict=True)
    for allowed, cost in pairs:
        found = f"{name:<43}{cost.buffers:>10,} buffers {cost.wal:>11,} WAL  x{cost.growth:.2f}"
        print(f"\n{found}  of {allowed.buffers:,}, {allowed.wal:,}, x{allowed.growth}", end="  ")
        assert cost.buffers <= allowed.buffers, found
        assert cost.wal <= allowed.wal, found
        assert cost.growth <= allowed.growth, found
