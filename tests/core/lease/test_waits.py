"""Whatever one idle transaction has called, no call of another waits for it without an end."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from queue import SimpleQueue
from typing import Any

import psycopg
import pytest

from airflow_provider_pgqueue.core import run, verbs
from airflow_provider_pgqueue.core.errors import LeaseLost
from tests.clones import Clones
from tools import ROOT
from tools.postgres import Cluster

Connection = psycopg.Connection[Any]

pytestmark = pytest.mark.long

SETUP = """
    SELECT messages.create_queue('orders', max_leased => 500), messages.create_queue('other');
    SELECT messages.publish_batch('orders', '[1, 2, 3, 4, 5, 6]'), messages.publish('orders', '7', dedup_key => 'key');
    CREATE TABLE given AS
    SELECT 'live' AS what, min(l.lock_token::text)::uuid AS token, array_agg(l.id) AS ids
      FROM messages.lease('orders', 2) l;
    SELECT messages.archive(l.lock_token, ARRAY[l.id], 'failed') FROM messages.lease('orders', 2) l;
    INSERT INTO given SELECT 'dead', min(l.lock_token::text)::uuid, array_agg(l.id)
      FROM messages.lease_dead('orders', 1) l;
    INSERT INTO given SELECT 'idle', NULL, array_agg(d.id) FROM messages.dead_message d WHERE d.lock_token IS NULL;
    SELECT messages.dispatch_messages('orders', 'work');
    SELECT messages.bind_topic('orders', 'a.*');
    SELECT messages.begin_run('run', 'drain'), messages.stage_publish('job');
    SELECT messages.maintain()
"""
LIVE = "(SELECT token FROM given WHERE what = 'live'), (SELECT ids FROM given WHERE what = 'live')"
DEAD = "(SELECT token FROM given WHERE what = 'dead'), (SELECT ids FROM given WHERE what = 'dead')"
IDLE = "(SELECT ids FROM given WHERE what = 'idle')"
DISPATCH = "(SELECT min(dispatch_id) FROM messages.dispatch)"
RUN = "'work', (SELECT min(run_id) FROM messages.dispatch)"
STAGED = '\'[{"partition": 0, "attempt": 1, "rows": 0}]\''
# Every verb that writes, with arguments that find something.
CALLS = {
    "act_for": "SELECT messages.act_for('ann', '7c9e6679-7425-40de-944b-e07fc1f90ae7')",
    "alter_history": "SELECT messages.alter_history(hours_for => '40 days')",
    "alter_queue": "SELECT messages.alter_queue('orders', max_attempts => 7)",
    "alter_queue skip": "SELECT messages.alter_queue('orders', on_dead_head => 'skip')",
    "adopt_archive_default": "SELECT messages.adopt_archive_default()",
    "apply_retention": "SELECT messages.apply_retention()",
    "archive": f"SELECT messages.archive({LIVE})",
    "archive_and_lease": f"SELECT messages.archive_and_lease({LIVE}, NULL, 'orders', 1)",
    "begin_run": "SELECT messages.begin_run('run', 'drain')",
    "begin_run new": "SELECT messages.begin_run('new', 'drain')",
    "bind_topic": "SELECT messages.bind_topic('orders', 'b.*')",
    "cancel": "SELECT messages.cancel('orders', (SELECT ids FROM given WHERE what = 'live'))",
    "consume": "SELECT messages.consume('orders')",
    "create_queue": "SELECT messages.create_queue('new')",
    "dismiss": f"SELECT messages.dismiss({DEAD}, 'done')",
    "dismiss_dead": f"SELECT messages.dismiss_dead('orders', 'done', ids => {IDLE})",
    "dispatch_messages": "SELECT messages.dispatch_messages('orders', 'work')",
    "dispatched_messages": f"SELECT messages.dispatched_messages({RUN})",
    "drop_queue": "SELECT messages.drop_queue('orders', true)",
    "drop_stage": "SELECT messages.drop_stage('job')",
    "end_dispatch": f"SELECT messages.end_dispatch({RUN}, 'success')",
    "end_dispatch lost": f"SELECT messages.end_dispatch({RUN}, 'lost')",
    "extend": f"SELECT messages.extend({LIVE}, '1 minute')",
    "extend_dead": f"SELECT messages.extend_dead({DEAD}, '1 minute')",
    "extend_dispatches": f"SELECT messages.extend_dispatches(ARRAY[{DISPATCH}])",
    "finish_run": "SELECT messages.finish_run('run', '{}')",
    "grant_queue": "SELECT messages.grant_queue('orders', 'pg_monitor', 'observe')",
    "expect_cron": "SELECT messages.expect_cron('postgres')",
    "lease": "SELECT messages.lease('orders')",
    "lease_dead": "SELECT messages.lease_dead('orders')",
    "lock_export": "SELECT messages.lock_export('message_archive_202601')",
    "scan_next": "SELECT messages.scan_next('')",
    "once": "SELECT messages.once('mail', 1)",
    "partition_archive": "SELECT messages.partition_archive('day')",
    "pause_queue": "SELECT messages.pause_queue('orders')",
    "publish": "SELECT messages.publish('orders', '1')",
    "publish key": "SELECT messages.publish('orders', '1', dedup_key => 'key')",
    "publish replace": "SELECT messages.publish('orders', '1', dedup_key => 'key', on_conflict => 'replace')",
    "publish new key": "SELECT messages.publish('orders', '1', dedup_key => 'new')",
    "publish new priority": "SELECT messages.publish('other', '1', priority => 9)",
    "publish_batch": "SELECT messages.publish_batch('orders', '[1, 2]')",
    "publish_staged": f"SELECT messages.publish_staged('job', 'staged', {STAGED}, 'orders')",
    "publish_test": "SELECT messages.publish_test('orders', '1')",
    "publish_topic": "SELECT messages.publish_topic('a.b', '1')",
    "purge_queue": "SELECT messages.purge_queue('orders')",
    "record_task_failure": f"SELECT messages.record_task_failure({RUN}, 'task', '{{\"error\": \"E\"}}')",
    "release": f"SELECT messages.release({LIVE})",
    "release_dead": f"SELECT messages.release_dead({DEAD})",
    "release_messages": "SELECT messages.release_messages('orders', (SELECT ids FROM given WHERE what = 'live'))",
    "release_messages holder": "SELECT messages.release_messages('orders', holder => 'work')",
    "requeue": f"SELECT messages.requeue({DEAD})",
    "requeue_dead": f"SELECT messages.requeue_dead('orders', ids => {IDLE})",
    "resume_queue": "SELECT messages.resume_queue('orders')",
    "revoke_queue": "SELECT messages.revoke_queue('orders', 'pg_monitor', 'observe')",
    "scan": "SELECT messages.scan('{orders,other}')",
    "stage_publish": "SELECT messages.stage_publish('job')",
    "start_dispatch": f"SELECT messages.start_dispatch({DISPATCH})",
    "adopt_copy": "SELECT messages.adopt_copy()",
    "unbind_topic": "SELECT messages.unbind_topic('orders', 'a.*')",
    "maintain": "SELECT messages.maintain()",
}


# Next to each call with itself.
REFUSED = [
    ("dispatch_messages", "dispatch_messages"),
    ("lease", "lease"),
    ("partition_archive", "partition_archive"),
    ("partition_archive", "adopt_archive_default"),
    ("maintain", "adopt_copy"),
    ("end_dispatch", "end_dispatch"),
    ("extend_dispatches", "end_dispatch"),
    ("extend_dispatches", "end_dispatch lost"),
    ("extend_dispatches", "release_messages holder"),
    ("extend", "release_messages"),
    ("extend", "cancel"),
    ("stage_publish", "stage_publish"),
    ("stage_publish", "publish_staged"),
    ("begin_run new", "begin_run new"),
    ("act_for", "act_for"),
]
CROSSED = [
    ("extend", "archive"),
    ("archive", "release"),
    ("release", "extend"),
    ("dismiss", "requeue"),
    ("requeue", "release_dead"),
    ("release_dead", "extend_dead"),
    ("lease", "pause_queue"),
    ("dispatch_messages", "alter_queue"),
    ("publish key", "publish replace"),
    ("publish_staged", "drop_stage"),
    ("archive", "partition_archive"),
    ("publish", "drop_queue"),
]


def documented() -> dict[str, tuple[float, float]]:
    """Return how many seconds the reference says that each call waits, from and to."""
    text = (ROOT / "docs/reference/queues.md").read_text(encoding="utf-8")
    table = text.partition("| seconds | call |\n|---|---|\n")[2].partition("\n\n")[0]
    waits: dict[str, tuple[float, float]] = {}
    for seconds, calls in re.findall(r"^\| ([\d. to]+) \| (.+) \|$", table, re.MULTILINE):
        least, _, most = seconds.partition(" to ")
        waits |= dict.fromkeys(re.findall(r"\w+(?=`)|all others", calls), (float(least), float(most or least)))
    return waits


def ended(databases: SimpleQueue[str], held: str, called: str) -> tuple[str, float]:
    """Return the error of a call next to an open transaction with another one, nothing if it succeeded, and seconds."""
    dsn = databases.get()
    patience = "-c statement_timeout=40s -c deadlock_timeout=200ms"
    try:
        with psycopg.connect(dsn) as holder, psycopg.connect(dsn, options=patience) as caller:
            holder.execute(CALLS[held].encode())
            began = time.monotonic()
            try:
                caller.execute(CALLS[called].encode())
            except psycopg.Error as error:
                return f"{error.sqlstate} {error.diag.message_primary}", time.monotonic() - began
            finally:
                caller.rollback()
                holder.rollback()
        return "", 0.0
    finally:
        databases.put(dsn)


def test_whatever_an_open_transaction_called_the_next_call_succeeds_or_says_what_is_in_use(
    cluster: Cluster, clones: Clones
) -> None:
    databases: SimpleQueue[str] = SimpleQueue()
    # The first one waits for half a minute, the others for seconds.
    pairs = list(dict.fromkeys([("expect_cron", "expect_cron"), *((name, name) for name in CALLS), *CROSSED, *REFUSED]))
    with ExitStack() as stack:
        for _ in range(8):
            dsn = cluster.dsn(stack.enter_context(clones.one()))
            with psycopg.connect(dsn, autocommit=True) as conn:
                conn.execute(SETUP.encode())
            databases.put(dsn)
        pool = stack.enter_context(ThreadPoolExecutor(8))
        states = dict(zip(pairs, pool.map(lambda pair: ended(databases, *pair), pairs), strict=True))
    waited = {pair: seconds for pair, (_, seconds) in states.items() if seconds}
    said = {pair: state for pair, (state, _) in states.items() if state}
    # What ends a message is called most, and has no handler of errors.
    bare = {pair: state for pair, state in said.items() if pair[1] in ("archive", "archive_and_lease")}
    assert bare
    assert all(state == "55P03 canceling statement due to lock timeout" for state in bare.values())
    named = {pair: state for pair, state in said.items() if pair not in bare}
    assert {pair: state for pair, state in named.items() if not re.fullmatch("PQ016 .* (is|are) in use", state)} == {}
    assert set(REFUSED) - named.keys() == set()
    assert {"release", "once", "publish new key", "create_queue", "pause_queue"} <= {one for one, _ in said}
    limits = documented()
    expected = {pair: limits.get(pair[1].split()[0], limits["all others"]) for pair in waited}
    # A busy machine may add to it.
    odd = {pair: waited[pair] for pair, (least, most) in expected.items() if not least <= waited[pair] < 1.5 * most + 1}
    assert odd == {}
    assert {"drop_queue", "partition_archive", "apply_retention", "expect_cron"} <= {called for _, called in waited}


def test_every_verb_that_writes_is_called_next_to_an_open_transaction(conn: Connection) -> None:
    called = {name for call in CALLS.values() for name in re.findall(r"messages\.(\w+)\(", call)}
    writing = conn.execute(
        "SELECT proname FROM pg_proc WHERE pronamespace = 'messages'::regnamespace AND provolatile = 'v'"
        " AND has_function_privilege('messages_admin', oid, 'EXECUTE')"
        r" AND prosrc ~ '(INSERT INTO|UPDATE|DELETE FROM|LOCK TABLE) messages[.]|FOR UPDATE|messages[.]lock_'"
    )
    assert {name for (name,) in writing} - called == set()


def test_a_message_that_another_transaction_has_costs_the_others_of_its_lease_nothing(
    conn: Connection, dsn: str, queue: Callable[..., str]
) -> None:
    queue("orders")
    ids = run(conn, verbs.publish_batch("orders", [1, 2, 3]))
    token = run(conn, verbs.lease("orders", max_messages=3))[0].lock_token
    conn.execute("SET statement_timeout = '10s'")
    with psycopg.connect(dsn) as holder:
        holder.execute("SELECT messages.cancel('orders', %s)", [ids[:1]])
        assert sorted(run(conn, verbs.extend(token, ids, lease_for=3600))) == ids
        longer = conn.execute(
            "SELECT id FROM messages.message WHERE lock_expires_at > now() + interval '50 minutes' ORDER BY id"
        )
        assert [id for (id,) in longer] == ids[1:]
        holder.commit()
    with pytest.raises(LeaseLost) as lost:
        run(conn, verbs.extend(token, ids, lease_for=3600))
    assert list(lost.value.ids) == ids[:1]
