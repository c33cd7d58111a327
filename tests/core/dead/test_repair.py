"""Repair of dead messages in one process: each gets one resolution, whatever the function says and whatever dies."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import fields
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from airflow_provider_pgqueue.core import (
    KEEP,
    LEAVE,
    Dismiss,
    Failed,
    InvalidArgument,
    InvalidOutcome,
    PgQueueError,
    Repair,
    Retry,
    run,
    verbs,
)
from airflow_provider_pgqueue.core.repair.validator import MatchesSchema
from tests.dead_messages import handling
from tools import ROOT

Connection = psycopg.Connection[Any]
Connect = Callable[..., Connection]
Die = Callable[..., list[int]]
MINUTE = timedelta(minutes=1)


@pytest.fixture
def dead(conn: Connection, queue: Callable[..., str]) -> Die:
    """Let messages with the bodies {"n": 0}, {"n": 1}, … die: `dead(10)`; returns their ids."""
    queue("orders", max_attempts=1)

    def die(number: int, *, result: str = "failed", details: str = "no city", queue_name: str = "orders") -> list[int]:
        run(conn, verbs.publish_batch(queue_name, [{"n": n, "secret": "canary"} for n in range(number)]))
        # One at a time, so that they die in the order of their ids.
        rows = conn.execute(
            "SELECT id, messages.archive(lock_token, ARRAY[id], %s, details => %s)"
            " FROM (SELECT * FROM messages.lease(%s, 10000) ORDER BY id) AS leased",
            [result, details, queue_name],
        ).fetchall()
        return [row[0] for row in rows]

    return die


def repair(function: Any, run_id: str = "night 1", **given: Any) -> Repair:
    chosen = {field.name: given.pop(field.name) for field in fields(verbs.DeadFilter) if field.name in given}
    which = verbs.DeadFilter(**{"queue_name": "orders"} | chosen)
    return Repair(function=function, run_id=run_id, which=which, **given)


def keep(message: Any) -> Any:
    return KEEP


def resolutions(conn: Connection) -> dict[str | None, int]:
    return dict(conn.execute("SELECT resolution, count(*) FROM messages.message_archive GROUP BY 1").fetchall())


def bodies(conn: Connection) -> list[Any]:
    return [row[0] for row in conn.execute("SELECT message FROM messages.message ORDER BY requeued_from").fetchall()]


def everything(conn: Connection) -> dict[str, list[Any]]:
    """Return each table and sequence of the queue, row by row."""
    names = conn.execute(
        "SELECT oid::regclass::text FROM pg_class"
        " WHERE relnamespace = 'messages'::regnamespace AND relkind IN ('r', 'S')"
    ).fetchall()
    return {name: sorted(map(str, conn.execute(f"TABLE {name}".encode()).fetchall())) for (name,) in names}


def test_a_repaired_message_succeeds_and_both_versions_stay(conn: Connection, dead: Die) -> None:
    ids = dead(25)

    def add_city(message: Any) -> Any:
        assert message.attempts == 1
        return message.body | {"city": "Bern"}

    summary = repair(add_city, batch_size=10).run(conn)
    assert summary == {
        "requeued": 25,
        **dict.fromkeys(["dismissed", "left", "invalid", "raised", "lost", "held", "resolved", "unknown"], 0),
        "ids": {"requeued": ids},
        "stopped": None,
        "dry_run": False,
    }
    conn.execute("SELECT messages.archive(lock_token, ARRAY[id]) FROM messages.lease('orders', 100)")
    rows = conn.execute(
        """
        SELECT old.id, old.message ->> 'city', new.message ->> 'city', new.result, old.resolved_by
          FROM messages.message_archive old JOIN messages.message_archive new ON new.requeued_from = old.id
         ORDER BY old.id
        """
    ).fetchall()
    assert rows == [(id_, None, "Bern", "success", "repair night 1") for id_ in ids]


def test_each_thing_that_a_function_may_say_concerns_its_message_alone(
    conn: Connection, dead: Die, caplog: pytest.LogCaptureFixture
) -> None:
    ids = dead(16)

    def say(message: Any) -> Any:
        match message.body["n"]:
            case 0:
                return KEEP
            case 1:
                return LEAVE
            case 2:
                return Dismiss("not ours")
            case 3:
                raise ValueError(f"look: {message.body}")
            case 4:
                return float("nan")
            case 5:
                return {"nul": "\0"}
            case 6:
                return None
            case 7:
                return "x" * 2_000_000
            case 8:
                return Dismiss(" ")
            case 9:
                return Dismiss("what\0ever \ud800")
            case 10:
                return object()
            case 11:
                return {"surrogate": "\ud800"}
            case 12:
                return (deep := []) or deep.append(deep) or deep
            case 13:
                return 10**5000
            case 15:
                raise asyncio.CancelledError
        return {"n": message.body["n"], "new": True}

    with caplog.at_level(logging.DEBUG):
        summary = repair(say).run(conn)
    assert summary["ids"] == {
        "requeued": [ids[0], ids[14]],
        "dismissed": [ids[2], ids[9]],
        "left": [ids[1]],
        "invalid": [ids[n] for n in (4, 5, 7, 10, 11, 12, 13)],
        "raised": [ids[3], ids[6], ids[8], ids[15]],
    }
    assert bodies(conn)[:2] == [{"n": 0, "secret": "canary"}, {"n": 14, "new": True}]
    free = {one.id for one in run(conn, verbs.lease_dead("orders"))}
    assert free == {*ids} - {*summary["ids"]["requeued"], *summary["ids"]["dismissed"]}
    assert "canary" not in caplog.text + json.dumps(summary)


def test_a_body_is_that_of_the_time_at_which_the_function_returned(conn: Connection, dead: Die) -> None:
    dead(3)
    template: dict[str, Any] = {}

    def fix(message: Any) -> Any:
        template["n"] = message.body["n"]
        return template

    assert repair(fix).run(conn)["requeued"] == 3
    assert sorted(body["n"] for body in bodies(conn)) == [0, 1, 2]


@pytest.mark.parametrize("ends", [KeyboardInterrupt, SystemExit, TimeoutError])
def test_what_ends_the_run_leaves_what_was_decided_before_and_holds_nothing(
    conn: Connection, dead: Die, ends: type[BaseException]
) -> None:
    class TimeIsUp(BaseException):
        """As AirflowTaskTimeout, which a signal raises."""

    dead(5)
    error = TimeIsUp if ends is TimeoutError else ends

    def fix(message: Any) -> Any:
        if message.body["n"] == 3:
            raise error
        return KEEP

    with pytest.raises(error):
        repair(fix).run(conn)
    assert resolutions(conn) == {None: 2, "requeued": 3}
    assert len(run(conn, verbs.lease_dead("orders"))) == 2


def test_a_body_that_the_validator_refuses_stays_dead_and_is_named(conn: Connection, dead: Die, tmp_path: Path) -> None:
    ids = dead(6)
    schema = tmp_path / "order.json"
    schema.write_text(json.dumps({"type": "object", "properties": {"n": {"type": "integer", "maximum": 3}}}))
    summary = repair(keep, validator=str(schema)).run(conn)
    assert summary["ids"] == {"requeued": ids[:4], "invalid": ids[4:]}

    def no_five(body: Any) -> str | None:
        return "five" if body["n"] == 5 else None

    summary = repair(keep, "night 2", validator=no_five).run(conn)
    assert summary["ids"] == {"requeued": [ids[4]], "invalid": [ids[5]]}
    assert resolutions(conn) == {"requeued": 5, None: 1}


def test_functions_are_found_by_their_names(conn: Connection, dead: Die) -> None:
    ids = dead(1)
    assert repair("operator:attrgetter", validator="json:dumps").run(conn)["ids"] == {"raised": ids}
    with pytest.raises(InvalidArgument, match=r"module 'nowhere' cannot be imported"):
        repair("nowhere:f").run(conn)
    with pytest.raises(InvalidArgument, match=r"module 'nowhere' cannot be imported"):
        repair(keep, validator="nowhere:f").run(conn)


def test_a_file_that_is_no_schema_is_refused_and_references_are_not_followed(tmp_path: Path) -> None:
    path = tmp_path / "schema.json"
    path.write_text('{"type": 7}')
    with pytest.raises(InvalidArgument, match="is not a JSON Schema"):
        MatchesSchema.of(path)
    path.write_text('{"$ref": "http://localhost:9/schema.json"}')
    with pytest.raises(Exception, match="Unresolvable"):
        MatchesSchema.of(path)({})


def test_only_what_was_chosen_is_repaired_oldest_first(conn: Connection, dead: Die) -> None:
    rejected, failed = dead(3, result="rejected"), dead(5, details="disk full")
    dead(2)
    (cause,) = [one for one in run(conn, verbs.dead_causes("orders")) if one.waiting == 5]
    given = {"fingerprints": [cause.fingerprint], "max_messages": 2}
    assert repair(keep, **given).run(conn)["ids"] == {"requeued": failed[:2]}
    assert repair(keep, **given).run(conn)["ids"] == {}  # the run had its two
    rejects = {"results": ["rejected"], "max_requeues": 1}
    assert repair(keep, "night 2", **rejects).run(conn)["ids"] == {"requeued": rejected}
    conn.execute("SELECT messages.archive(lock_token, ARRAY[id], 'rejected') FROM messages.lease('orders', 100)")
    summary = repair(keep, "night 3", **rejects).run(conn)
    assert (summary["requeued"], summary["left"]) == (0, 5)


def test_a_cause_is_repaired_by_its_fingerprint(conn: Connection, dead: Die) -> None:
    ids = dead(2, details="no address")
    dead(1, details="disk full")
    (cause,) = [one.fingerprint for one in run(conn, verbs.dead_causes("orders")) if one.waiting == 2]
    assert repair(keep, queue_name=None, cause=cause).run(conn)["ids"] == {"requeued": ids}
    with pytest.raises(InvalidArgument, match=r"cause is .nope..*Give a fingerprint"):
        repair(keep, cause="nope")
    with pytest.raises(InvalidArgument, match="Give either cause or fingerprints"):
        repair(keep, cause=cause, fingerprints=[cause])


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"max_messages": 0}, "max_messages is 0"),
        ({"max_requeues": 0}, "max_requeues is 0"),
        ({"canary": -1}, "canary is -1"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"stop_when_failing": 0.0}, "stop_when_failing is 0"),
        ({"stop_when_failing": 101.0}, "stop_when_failing is 101"),
        ({"max_per_second": 0.0}, "max_per_second is 0"),
    ],
)
def test_what_cannot_be_is_refused(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        repair("a:b", **wrong)


def test_a_queue_that_does_not_exist_is_named(conn: Connection) -> None:
    with pytest.raises(PgQueueError, match="orderz"):
        repair(keep, queue_name="orderz").run(conn)


def test_a_dry_run_changes_nothing_and_says_what_would_be(conn: Connection, dead: Die) -> None:
    ids = dead(4)
    (held,) = run(conn, verbs.lease_dead("orders", max_messages=1))
    before = everything(conn)
    summary = repair(lambda m: KEEP if m.body["n"] % 2 else LEAVE, dry_run=True, canary=1).run(conn)
    assert everything(conn) == before
    assert summary["dry_run"]
    assert summary["ids"] == {"requeued": [ids[1], ids[3]], "left": [ids[2]], "held": [held.id]}
    run(conn, verbs.release_dead(held.lock_token, [held.id]))
    assert repair(keep).run(conn)["requeued"] == 4


def test_a_canary_that_dies_again_stops_the_run_each_time(conn: Connection, connect: Connect, dead: Die) -> None:
    dead(30)
    with handling(connect(), "failed"):
        summary = repair(keep, canary=5).run(conn)
    assert (summary["requeued"], summary["stopped"]) == (5, "the canary died again")
    assert summary["canary"] == {"requeued": 5, "died_again": 5}
    assert repair(keep, canary=5).run(conn)["stopped"] == "the canary died again"
    assert resolutions(conn) == {"requeued": 5, None: 30}


def test_a_canary_of_which_few_die_again_lets_the_others_follow(conn: Connection, connect: Connect, dead: Die) -> None:
    dead(30)
    with handling(connect()):
        summary = repair(keep, canary=5).run(conn)
    assert (summary["requeued"], summary["stopped"]) == (30, None)
    assert summary["canary"] == {"requeued": 5, "died_again": 0}


def test_a_canary_that_nobody_handles_in_time_stops_the_run(conn: Connection, dead: Die) -> None:
    dead(10)
    summary = repair(keep, canary=2, canary_wait=timedelta(milliseconds=10)).run(conn)
    assert summary["stopped"] == "the canary was not finished in time"
    assert resolutions(conn) == {"requeued": 2, None: 8}


def test_a_canary_of_which_nothing_was_requeued_stops_the_run(conn: Connection, dead: Die) -> None:
    dead(10)
    summary = repair(lambda m: LEAVE, canary=2).run(conn)
    assert (summary["stopped"], summary["left"]) == ("the canary requeued nothing", 2)


def test_a_canary_for_which_nothing_waits_is_not_waited_for(conn: Connection, dead: Die) -> None:
    dead(2)
    summary = repair(keep, canary=2, canary_wait=timedelta(days=1)).run(conn)
    assert (summary["requeued"], summary["stopped"]) == (2, None)


def test_a_rate_is_not_exceeded(conn: Connection, dead: Die) -> None:
    dead(20)
    repair(keep, max_per_second=10).run(conn)
    (moments,) = conn.execute("SELECT array_agg(resolved_at ORDER BY 1) FROM messages.message_archive").fetchone() or ()
    assert moments[-1] - moments[0] >= timedelta(seconds=0.9)
    assert moments[9] - moments[0] < timedelta(seconds=0.9)


def test_what_is_told_to_stop_settles_the_message_in_hand_and_gives_the_rest_back(conn: Connection, dead: Die) -> None:
    ids = dead(30)
    seen: list[int] = []

    def note(message: Any) -> Any:
        seen.append(message.id)
        return KEEP

    summary = repair(note, batch_size=10).run(conn, stop=lambda: len(seen) >= 13)
    assert (summary["ids"], summary["stopped"]) == ({"requeued": ids[:13]}, "told to stop")
    assert [one.id for one in run(conn, verbs.lease_dead("orders"))] == ids[13:]


@pytest.mark.parametrize("after", [3, 13])  # within the canary, and when it has passed
def test_a_repair_with_a_canary_that_is_told_to_stop_says_so(
    conn: Connection, connect: Connect, dead: Die, after: int
) -> None:
    ids = dead(30)
    seen: list[int] = []

    def note(message: Any) -> Any:
        seen.append(message.id)
        return KEEP

    with handling(connect()):
        summary = repair(note, canary=5, batch_size=10).run(conn, stop=lambda: len(seen) >= after)
    assert (summary["ids"], summary["stopped"]) == ({"requeued": ids[:after]}, "told to stop")


def test_a_repair_that_is_told_to_stop_while_it_waits_for_others_says_so(conn: Connection, dead: Die) -> None:
    held, free = dead(2)
    run(conn, verbs.lease_dead(verbs.DeadFilter("orders", ids=[held]), lease_for=MINUTE))
    seen: list[int] = []
    asked = itertools.count()

    def note(message: Any) -> Any:
        seen.append(message.id)
        return KEEP

    # It asks twice before it first looks for what others hold.
    summary = repair(note).run(conn, stop=lambda: bool(seen) and next(asked) > 4)
    assert (summary["ids"], summary["stopped"]) == ({"requeued": [free]}, "told to stop")


def test_each_batch_is_reported(conn: Connection, dead: Die) -> None:
    dead(25)
    said: list[Counter[str]] = []
    repair(lambda m: LEAVE if m.body["n"] == 12 else KEEP, batch_size=10).run(conn, on_batch=said.append)
    assert said == [{"requeued": 10}, {"requeued": 19, "left": 1}, {"requeued": 24, "left": 1}]


def test_two_at_once_give_each_message_one_resolution(conn: Connection, connect: Connect, dead: Die) -> None:
    ids = dead(200)
    both = threading.Barrier(2, timeout=30)
    summaries: list[dict[str, Any]] = []

    def start(run_id: str, session: Connection) -> None:
        met = iter([both.wait])

        def meet(message: Any) -> Any:
            for wait in met:  # each has leased a batch before one of them settles
                wait()
            return KEEP

        summaries.append(repair(meet, run_id, batch_size=7).run(session))

    threads = [threading.Thread(target=start, args=(f"night {number}", connect())) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(summary["requeued"] for summary in summaries) == len(ids)
    assert sum(summary["requeued"] + summary["resolved"] for summary in summaries) == 2 * len(ids)
    assert conn.execute("SELECT count(*), count(DISTINCT requeued_from) FROM messages.message").fetchone() == (200, 200)


def test_a_lease_is_renewed_while_the_function_works(conn: Connection, connect: Connect, dead: Die) -> None:
    dead(3)
    other = connect()

    def outlast(message: Any) -> Any:
        """Return when the lease that the message came with would have ended."""
        while other.execute("SELECT clock_timestamp() > %s", [message.lock_expires_at]).fetchone() == (False,):
            other.execute("SELECT pg_sleep(0.05)")
        return KEEP

    assert repair(outlast, lease_for=timedelta(seconds=1)).run(conn)["requeued"] == 3


def test_a_lease_that_was_taken_over_meanwhile_loses_its_message_alone(
    conn: Connection, connect: Connect, dead: Die
) -> None:
    ids = dead(3)
    other = connect()

    def be_robbed(message: Any) -> Any:
        if message.id == ids[1]:
            other.execute("UPDATE messages.dead_message SET lock_expires_at = now() WHERE id = %s", [message.id])
            (taken,) = run(other, verbs.lease_dead(verbs.DeadFilter("orders", ids=[message.id])))
            run(other, verbs.dismiss(taken.lock_token, [taken.id], "mine", resolved_by="somebody"))
        return KEEP

    summary = repair(be_robbed).run(conn)
    assert summary["ids"] == {"requeued": [ids[0], ids[2]], "lost": [ids[1]]}
    assert resolutions(conn) == {"requeued": 2, "dismissed": 1}


def test_what_a_renewal_finds_lost_is_not_asked_about(
    conn: Connection, connect: Connect, dead: Die, caplog: pytest.LogCaptureFixture
) -> None:
    ids = dead(3)
    other, asked = connect(), []

    def be_robbed(message: Any) -> Any:
        asked.append(message.id)
        if message.id == ids[0]:
            other.execute("UPDATE messages.dead_message SET lock_token = gen_random_uuid() WHERE id = %s", [ids[1]])
            patience = time.monotonic() + 30
            while "ended" not in caplog.text and time.monotonic() < patience:
                other.execute("SELECT pg_sleep(0.02)")
        return KEEP

    summary = repair(be_robbed, lease_for=timedelta(seconds=1)).run(conn)
    assert asked == [ids[0], ids[2]]
    assert summary["ids"] == {"requeued": [ids[0], ids[2]], "lost": [ids[1]]}


def test_what_somebody_else_holds_is_waited_for(conn: Connection, connect: Connect, dead: Die) -> None:
    ids = dead(3)
    given_back, dismissed = run(conn, verbs.lease_dead(verbs.DeadFilter("orders", ids=ids[:2])))
    found: list[dict[str, Any]] = []
    session = connect(application_name="waits")
    thread = threading.Thread(target=lambda: found.append(repair(keep).run(session)))
    thread.start()
    # It asks for resolutions again and again once it has done what it could.
    patience = time.monotonic() + 30
    asked = "SELECT FROM pg_stat_activity WHERE application_name = 'waits' AND query LIKE '%messages.resolutions%'"
    while conn.execute(asked.encode()).rowcount == 0 and time.monotonic() < patience:
        conn.execute("SELECT pg_sleep(0.005)")
    run(conn, verbs.release_dead(given_back.lock_token, [given_back.id]))
    run(conn, verbs.dismiss(dismissed.lock_token, [dismissed.id], "not ours"))
    thread.join()
    assert found[0]["ids"] == {"requeued": [given_back.id, ids[2]], "resolved": [dismissed.id]}


def test_what_stays_held_is_named(conn: Connection, dead: Die) -> None:
    ids = dead(2)
    run(conn, verbs.lease_dead("orders", max_messages=1, lease_for=MINUTE))
    summary = repair(keep, lease_for=timedelta(seconds=1)).run(conn)
    assert summary["ids"] == {"requeued": [ids[1]], "held": [ids[0]]}


def test_killed_between_lease_and_settling_and_run_again_each_message_has_one_resolution(
    conn: Connection, dsn: str, dead: Die, tmp_path: Path
) -> None:
    ids = dead(40)
    (tmp_path / "deadly.py").write_text(
        textwrap.dedent(
            """
            import os, signal
            from datetime import timedelta
            from airflow_provider_pgqueue.core import KEEP, Repair, connect, verbs

            def die(message):
                if message.body["n"] == 25:
                    os.kill(os.getpid(), signal.SIGKILL)
                return KEEP

            if __name__ == "__main__":
                given = dict(batch_size=10, max_messages=35, lease_for=timedelta(seconds=2))
                repair = Repair(function=die, run_id="night 1", which=verbs.DeadFilter("orders"), **given)
                repair.run(connect(os.environ["PGQUEUE_DSN"]))
            """
        )
    )
    environment = os.environ | {"PGQUEUE_DSN": dsn, "PYTHONPATH": str(ROOT)}
    killed = subprocess.run([sys.executable, str(tmp_path / "deadly.py")], env=environment, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert resolutions(conn) == {"requeued": 20, None: 20}
    assert conn.execute("SELECT count(*) FROM messages.dead_message WHERE lock_token IS NOT NULL").fetchone() == (10,)
    summary = repair(keep, max_messages=35, lease_for=timedelta(seconds=2)).run(conn)
    assert (summary["requeued"], summary["ids"]["requeued"]) == (35, ids[20:35])
    assert [row[0] for row in conn.execute("SELECT requeued_from FROM messages.message ORDER BY 1")] == ids[:35]


def test_a_consumer_may_repair_and_a_team_only_its_queue(dsn: str, conn: Connection, dead: Die) -> None:
    dead(1)
    conn.execute("SELECT messages.create_queue('bills', max_attempts => 1)")
    dead(1, queue_name="bills")
    conn.execute("CREATE ROLE repair_bob LOGIN; GRANT messages_consumer TO repair_bob")
    conn.execute("CREATE ROLE repair_team LOGIN")
    try:
        run(conn, verbs.grant_queue("bills", "repair_team", "consume"))
        with psycopg.connect(dsn, user="repair_bob", autocommit=True) as bob:
            assert repair(keep, "bob's").run(bob)["requeued"] == 1
        with psycopg.connect(dsn, user="repair_team", autocommit=True) as team:
            assert repair(keep, queue_name="bills", canary=1).run(team)["requeued"] == 1
            with pytest.raises(PgQueueError, match="no privilege to consume on queue 'orders'"):
                repair(keep).run(team)
            with pytest.raises(PgQueueError, match="limited to its queues"):
                repair(keep, queue_name=None, ids=[1]).run(team)
            assert run(team, verbs.count_resolutions("repair bob's")) == {"requeued": 0, "dismissed": 0}
            assert run(team, verbs.requeued_results("repair bob's", 10))["requeued"] == 0
        assert run(conn, verbs.count_resolutions("repair bob's")) == {"requeued": 1, "dismissed": 0}
    finally:
        for role in ("repair_bob", "repair_team"):
            conn.execute(f"DROP OWNED BY {role}; DROP ROLE {role}".encode())


def generates(message: Any) -> Iterator[Any]:
    yield message.body


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (True, "returned True for dead message"),
        (keep, "returned a function"),
        (Failed("no"), "returned a Failed"),
        (Retry, "returned a type"),
        (generates(None), "returned a generator"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_meant_as_a_body_stops_the_repair_at_the_first_message(
    conn: Connection, dead: Die, answer: Any, said: str
) -> None:
    dead(3)
    calls: list[int] = []

    def mistaken(message: Any) -> Any:
        calls.append(message.id)
        return answer

    with pytest.raises(InvalidOutcome, match=f"^the repair function mistaken {said}.*Return a new body, or KEEP"):
        repair(mistaken).run(conn)
    assert len(calls) == 1
    # Nothing is published, and nobody has to wait for the end of a lease.
    assert repair(lambda message: message.body).run(conn)["requeued"] == 3


def test_a_body_that_is_a_boolean_may_be_repaired_with_one(conn: Connection, queue: Callable[..., str]) -> None:
    id_ = run(conn, verbs.publish(queue("flags", max_attempts=1), False))
    (held,) = run(conn, verbs.lease("flags"))
    run(conn, verbs.archive(held.lock_token, [id_], result="failed"))
    assert repair(lambda message: not message.body, queue_name="flags").run(conn)["requeued"] == 1
    assert conn.execute("SELECT message FROM messages.message").fetchall() == [(True,)]


def test_an_async_function_repairs_and_validates(conn: Connection, dead: Die) -> None:
    dead(2)

    async def mend(message: Any) -> Any:
        return {"n": message.body["n"] + 10}

    async def judge(body: Any) -> str | None:
        return "too small" if body["n"] < 11 else None

    summary = repair(mend, validator=judge).run(conn)
    assert (summary["requeued"], summary["invalid"]) == (1, 1)
    assert conn.execute("SELECT message FROM messages.message").fetchall() == [({"n": 11},)]


def test_a_generator_function_is_refused_before_anything_is_leased(conn: Connection, dead: Die) -> None:
    dead(1)
    for given in ({"function": generates}, {"function": keep, "validator": generates}):
        with pytest.raises(InvalidArgument, match=r"^generates is a generator function"):
            repair(given.pop("function"), **given).run(conn)


def test_ids_that_no_dead_message_has_are_counted(
    conn: Connection, dead: Die, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = dead(2)
    alive = run(conn, verbs.publish("orders", 1))
    assert repair(keep, ids=[first]).run(conn)["unknown"] == 0
    summary = repair(keep, "night 2", ids=[first, second, alive, 10**9]).run(conn)
    # The first has its resolution already, from another run.
    assert (summary["requeued"], summary["unknown"]) == (1, 2)
    assert summary["ids"] == {"requeued": [second], "unknown": [alive, 10**9]}
    assert repair(keep, "night 3", ids=[10**9], dry_run=True).run(conn)["unknown"] == 1
    assert run(conn, verbs.requeue_dead(verbs.DeadFilter("orders", ids=[10**9]))) == []
    assert "none of the ids given is an open dead message without a lease" in caplog.text
