"""Breaks the SQL on purpose, one function at a time, and asks the tests whether they notice.

    .venv/bin/python -m tools.mutants [NAME …] [--list]

A mutant is a change of the text of one function as it is installed. The tests that have to fail run against a
template database with that change (`PGQUEUE_MUTANT=NAME pytest …`). A text that is no longer there is an error: then
the function has changed, and the mutant has to follow it.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

import psycopg

from tools import ROOT, SetupError

VARIABLE: Final = "PGQUEUE_MUTANT"
LONGEST: Final = 300.0  # seconds: tests that hang have noticed, and statement_timeout ends most of them long before
MODEL: Final = "tests/core/test_state_machine.py"
CONTRACT: Final = "tests/test_contract.py"
SEEDS: Final = "tests/test_seeds.py"
PUBLISH: Final = "tests/core/test_publish.py"
GROUPS: Final = "tests/core/test_groups.py"
BANDS: Final = "tests/core/test_bands.py"
SHORT_WAY: Final = "tests/core/test_short_way.py"
SWEEP: Final = "tests/core/test_sweep.py"
POLICY: Final = "tests/core/test_policy.py"
ROLES: Final = "tests/core/test_roles.py"
SCHEDULES: Final = "tests/core/test_schedules.py"
OUTCOMES: Final = "tests/core/test_outcomes.py"
BAD_INPUT: Final = "tests/core/test_bad_input.py"
OTHERS_DEAD: Final = "tests/core/test_dead.py::test_the_token_of_another_lease_changes_no_dead_message"
ENDED_DEAD: Final = "tests/core/test_dead.py::test_a_lease_that_ended_changes_no_dead_message"
FILTERS: Final = "tests/core/test_dead.py::test_a_filter_chooses_dead_messages_for_each_verb_alike"
DEAD_RUNS: Final = "tests/core/test_dispatch_dead.py"
STALE: Final = f"{CONTRACT}::test_a_stale_token_is_refused_and_changes_nothing"
WAITED: Final = f"{CONTRACT}::test_a_call_that_waited_for_a_row_lock_past_its_lease_is_refused"


@dataclass(frozen=True, slots=True)
class Mutant:
    """A mistake in one function, and the tests that have to notice it."""

    name: str
    function: str
    changes: tuple[tuple[str, str], ...]
    tests: tuple[str, ...]

    def apply(self, conn: psycopg.Connection[Any]) -> None:
        """Replace the function in the database by one with the mistake."""
        found = conn.execute(
            "SELECT pg_get_functiondef(oid) FROM pg_proc"
            " WHERE pronamespace = 'messages'::regnamespace AND proname = %s",
            [self.function],
        ).fetchone()
        if found is None:
            raise SetupError(f"mutant {self.name}: there is no function messages.{self.function}")
        text = str(found[0])
        for old, new in self.changes:
            if old not in text:
                raise SetupError(f"mutant {self.name}: messages.{self.function} has no {old!r} any more")
            text = text.replace(old, new)
        conn.execute(text.encode())


def _m(name: str, function: str, old: str, new: str, *tests: str) -> Mutant:
    return Mutant(name, function, ((old, new),), tests or _tests_of(name))


def _tests_of(name: str) -> tuple[str, ...]:
    """Return what notices a mistake of this kind, the quickest first: the model takes half a minute, and finds most."""
    subject = name.partition(":")[0]
    return {
        "release": (OUTCOMES, POLICY, MODEL),
        "sweep": (SWEEP, MODEL),
        "groups": (GROUPS, MODEL),
        "publish": (PUBLISH, MODEL),
    }.get(subject, (CONTRACT, MODEL))


def _check_apart(verb: str) -> Mutant:
    """Return the mutant of a verb that looks first and acts then, in two statements."""
    fence = f"m.id = ANY ({verb}.ids) AND m.lock_token = {verb}.lock_token AND m.lock_expires_at > clock_timestamp()"
    look = f"ids := ARRAY(SELECT m.id FROM messages.message m WHERE {fence});"  # noqa: S608
    start = {
        "archive": "RETURN QUERY\n    WITH mine",
        "extend": "RETURN QUERY\n    UPDATE",
        "release": "FOR released IN",
    }
    changes = ((fence, f"m.id = ANY ({verb}.ids)"), (start[verb], f"{look}\n    {start[verb]}"))
    return Mutant(f"{verb}: checks apart from acting", verb, changes, (f"{WAITED}[{verb}]",))


def _fences() -> Iterator[Mutant]:
    for verb in ("archive", "extend", "release"):
        yield _m(f"{verb}: no token", verb, f" AND m.lock_token = {verb}.lock_token", "", f"{STALE}[{verb}]")
        ended = (" AND m.lock_expires_at > clock_timestamp()", "")
        yield _m(f"{verb}: a lease that ended", verb, *ended, f"{WAITED}[{verb}]")
        now = (" AND m.lock_expires_at > clock_timestamp()", " AND m.lock_expires_at > now()")
        yield _m(f"{verb}: the time of the transaction", verb, *now, f"{WAITED}[{verb}]")
        yield _check_apart(verb)
    for verb in ("requeue", "dismiss", "release_dead", "extend_dead"):
        yield _m(f"{verb}: no token", verb, f" AND d.lock_token = {verb}.lock_token", "", f"{OTHERS_DEAD}[{verb}]")
        ended = (" AND d.lock_expires_at > clock_timestamp()", "")
        yield _m(f"{verb}: a lease that ended", verb, *ended, f"{ENDED_DEAD}[{verb}]")


def _short_ways() -> Iterator[Mutant]:
    for name, old, new in (
        ("bands", "l.band IS NULL AND ", ""),
        ("max_leased", "l.max_leased IS NULL AND ", ""),
        ("pauses", "AND NOT l.paused ", ""),
        ("short leases", "AND l.until >= moment + interval '1 s'", ""),
        ("a sweep that is due", "AND l.sweep_due > moment - interval '1 s'", ""),
        ("a clock that went back", "AND l.sweep_due < moment + interval '1 s'", ""),
        ("the number", "lease.max_messages BETWEEN 1 AND 10000 AND ", ""),
        ("lease_for", "num_nonnulls(lease.lease_for, ", "num_nonnulls("),
        ("topics", "lease.lease_for, lease.topic, ", "lease.lease_for, "),
        ("headers", "lease.topic, lease.headers) = 0", "lease.topic) = 0"),
        ("what is left", "wanted := lease.max_messages - taken", "wanted := 0"),
        ("what it leased", "wanted := lease.max_messages - taken", "wanted := lease.max_messages"),
        ("the mark", "WHEN r.visible_at > r.from_at + interval '0.2 ms'", "WHEN false"),
    ):
        yield _m(f"lease: the short way ignores {name}", "lease", old, new, SHORT_WAY, BANDS, SWEEP)
    limited = "pg_has_role(session_user, to_regrole('messages_limited'), 'MEMBER') IS NOT TRUE"
    yield _m("lease: the short way ignores grants", "lease", limited, "true", TEAM)


TEAM: Final = "tests/core/test_roles.py::test_a_team_is_refused_at_a_queue_whose_marks_are_set"
OPEN_LEASE: Final = f"{CONTRACT}::test_a_lease_in_an_open_transaction_holds_up_nobody"
TWO_BACKENDS: Final = f"{SEEDS}::test_s4_two_backends_get_different_batches_and_a_rollback_gives_one_back"
DEPTH_TESTS: Final = (MODEL, f"{POLICY}::test_a_full_queue_refuses_a_publish_and_takes_the_next_when_there_is_room")
TOO_LARGE: Final = f"{BAD_INPUT}::test_a_body_that_is_too_large_is_refused_by_every_way_in"
PLANNED: Final = f"{SCHEDULES}::test_a_session_that_planned_before_another_committed_publishes_nothing_again"
TWICE: Final = f"{SCHEDULES}::test_twice_in_the_same_minute_publishes_once"

MUTANTS: Final = (
    *_fences(),
    # lease
    _m("lease: waits for locked rows", "lease", "FOR UPDATE SKIP LOCKED", "FOR UPDATE", OPEN_LEASE),
    _m("consume: waits for locked rows", "consume", "FOR UPDATE SKIP LOCKED", "FOR UPDATE", TWO_BACKENDS),
    _m("lease: locks nothing", "lease", "FOR UPDATE SKIP LOCKED", "", OPEN_LEASE),
    _m("lease: no attempt", "lease", "attempts = m.attempts + 1", "attempts = m.attempts"),
    _m("lease: one token for all", "lease", "gen_random_uuid()", "'00000000-0000-4000-8000-000000000001'::uuid"),
    _m("lease: what is leased", "lease", "m.lock_expires_at IS NULL AND", ""),
    _m("lease: what expired", "lease", "AND (m.expires_at IS NULL OR m.expires_at > moment)", ""),
    _m("lease: newest first", "lease", "ORDER BY m.visible_at LIMIT", "ORDER BY m.visible_at DESC LIMIT"),
    _m("lease: lowest priority first", "lease", "ORDER BY p.priority DESC", "ORDER BY p.priority"),
    _m("lease: no delay", "lease", "AND m.visible_at <= moment", ""),
    _m("lease: any topic", "lease", "AND (pattern IS NULL OR '.' || m.topic ~ pattern)", ""),
    _m("lease: any headers", "lease", "AND (lease.headers IS NULL OR m.headers @> lease.headers)", ""),
    _m("lease: never sweeps", "lease", "EXIT WHEN swept OR", "EXIT WHEN true OR"),
    _m("lease: stops after the first priority", "lease", "EXIT WHEN wanted <= 0", "EXIT WHEN true"),
    _m("lease: only the highest of a band", "lease", "b.priority < chosen", "false", BANDS),
    _m("band: not divided by a backlog", "arrange_bands", "FILTER (WHERE NOT m.shares)", "FILTER (WHERE false)", BANDS),
    _m("band: what is leased joins", "arrange_bands", "m.visible_at <= moment))", "m.lock_expires_at IS NULL))", BANDS),
    _m("band: waits for who arranges it", "arrange_bands", "FOR UPDATE SKIP LOCKED", "FOR UPDATE", BANDS),
    _m("band: its mark hides what is ready", "sweep_band", "least(lowest, below)", "moment", BANDS),
    _m("band: no backlog leaves", "sweep_band", "IF cardinality(leaving) > 0", "IF false", BANDS),
    _m("band: its expired leases stay", "sweep_band", "swept.lowest);", "lowest);", BANDS),
    _m("sweep: all who see that it is due", "begin_sweep", "RETURN false;", "RETURN true;", SWEEP),
    _m("lease: moves the mark back", "lease", "BETWEEN min(visible_at) AND moment", "BETWEEN moment AND moment", SWEEP),
    _m(
        "lease: max_leased does not count",
        "count_leasable",
        "RETURN greatest(0, ",
        "RETURN 1000000 + greatest(0, ",
        POLICY,
    ),
    _m("lease: a limit is not read again", "lease", "IF level.low_water IS NULL THEN", "IF false THEN", POLICY),
    _m("lease: a limit waits for nobody", "renew_marks", "'ALTER SEQUENCE %s CACHE 1'", "'SELECT %L'", POLICY),
    _m("lease: a pause is none", "check_lease", "IF paused THEN", "IF false THEN"),
    _m("lease: any number", "check_lease", "max_messages NOT BETWEEN 1 AND 10000", "false", BAD_INPUT),
    _m("lease by plain SQL: the old token stays", "lease_taken_over", "NEW.lock_token := NULL;", ""),
    *_short_ways(),
    # consume
    _m(
        "consume: archives and does not delete",
        "consume",
        "DELETE FROM messages.message m USING ready WHERE m.ctid = ready.place RETURNING m.*",
        "SELECT m.* FROM messages.message m, ready WHERE m.ctid = ready.place",
    ),
    _m("consume: no attempt", "consume", "g.priority, g.attempts + 1,", "g.priority, g.attempts,"),
    _m("consume: what is leased", "consume", "m.lock_expires_at IS NULL AND", ""),
    # archive and release
    Mutant(
        "archive: does not delete",
        "archive",
        (("DELETE FROM messages.message m", "SELECT m.* FROM messages.message m"), ("RETURNING m.*)", ")")),
        (CONTRACT, MODEL),
    ),
    _m("archive: no outcomes", "archive", "coalesce(o.outcome ->> 'result', archive.result)", "archive.result"),
    _m("archive: no dead message", "message_archived", "IF NEW.result <> 'success' THEN", "IF false THEN"),
    _m(
        "release: an attempt for all", "release", "m.attempts - (release.count_attempt IS FALSE)::integer", "m.attempts"
    ),
    _m(
        "release: past the last attempt",
        "release",
        " AND (release.count_attempt IS FALSE OR m.attempts < q.max_attempts)",
        "",
    ),
    _m("release: no delay", "release", "WHEN release.delay > '0' THEN", "WHEN false THEN"),
    _m("release: no back-off", "release", "WHEN release.back_off THEN", "WHEN false THEN"),
    # sweep
    _m(
        "sweep: not the leases",
        "sweep",
        "coalesce(m.lock_expires_at, m.expires_at) <= moment",
        "m.expires_at <= moment",
    ),
    _m(
        "sweep: not what expired",
        "sweep",
        "coalesce(m.lock_expires_at, m.expires_at) <= moment",
        "m.lock_expires_at <= moment",
    ),
    _m("sweep: a pause where more expired", "sweep_priority", "WHEN more THEN began", "WHEN false THEN began"),
    _m("sweep: all begins at the head", "sweep_all", "m.visible_at DESC LIMIT 10000", "m.visible_at LIMIT 10000"),
    _m("sweep: one attempt more", "sweep", "::integer >= sweep.max_attempts", "::integer > sweep.max_attempts"),
    _m(
        "sweep: the token stays",
        "sweep",
        "SET lock_expires_at = NULL, lock_token = NULL,",
        "SET lock_expires_at = NULL,",
    ),
    _m(
        "sweep: no attempt of plain SQL",
        "sweep",
        "attempts = m.attempts + (m.lock_token IS NULL)::integer",
        "attempts = m.attempts",
    ),
    _m(
        "sweep: leases that go on",
        "sweep",
        "coalesce(m.lock_expires_at, m.expires_at) <= moment",
        "m.lock_expires_at IS NOT NULL",
    ),
    Mutant(
        "sweep: archives and deletes in two statements",
        "sweep",
        (
            ("FOR UPDATE SKIP LOCKED", ""),
            ("DELETE FROM messages.message m WHERE m.ctid", "SELECT m.* FROM messages.message m WHERE m.ctid"),
            ("WHERE over)) RETURNING m.*", "WHERE over))"),
            (
                "freed, archived;",
                "freed, archived;\nDELETE FROM messages.message m USING messages.message_archive a WHERE a.id = m.id;",
            ),
        ),
        (f"{CONTRACT}::test_eight_upkeeps_at_once_archive_each_message_once",),
    ),
    # groups
    _m(
        "groups: no lock",
        "enter_groups",
        "WHERE NOT pg_try_advisory_xact_lock_shared(bucket.lock)",
        "WHERE false",
        GROUPS,
    ),
    _m(
        "groups: everybody is a head",
        "enter_groups",
        "head.id IS NULL AND m.group_key IS NOT NULL",
        "false",
    ),
    _m(
        "groups: nobody looks again for what was started",
        "enter_groups",
        "IF busy <> '{}' OR missed <> '{}' THEN",
        "IF false THEN",
        GROUPS,
    ),
    _m(
        "groups: what waits without a head comes last",
        "enter_groups",
        "AND w.group_key = g.group_key",
        "AND false AND w.group_key = g.group_key",
        GROUPS,
    ),
    _m(
        "groups: a sweep overlooks who is finishing",
        "make_next_of_missed_groups_ready",
        "WHERE NOT pg_try_advisory_xact_lock_shared(",
        "WHERE 0 > (",
        GROUPS,
    ),
    _m(
        "groups: a sweep forgets who is starting",
        "make_next_of_missed_groups_ready",
        "FROM unnest(later) AS l (key)",
        "FROM unnest(later) AS l (key) WHERE false",
        GROUPS,
    ),
    _m(
        "groups: a requeued head goes to the end",
        "enter_groups",
        "AND h.id = again.requeued_from",
        "AND false",
    ),
    _m(
        "groups: a batch forgets who waits",
        "publish_batch",
        "WHEN place.waits[body.number] THEN 'infinity'",
        "WHEN false THEN 'infinity'",
    ),
    _m(
        "groups: the last message ends its group though somebody publishes",
        "make_next_of_group_ready",
        "EXIT WHEN NOT alone;",
        "alone := true;",
        GROUPS,
    ),
    _m(
        "groups: the last is next",
        "make_next_of_group_ready",
        "ORDER BY f.id LIMIT 1",
        "ORDER BY f.id DESC LIMIT 1",
    ),
    _m(
        "groups: nobody is next",
        "message_archived",
        "PERFORM messages.make_next_of_group_ready(NEW.queue_name, NEW.group_key, NEW.id);",
        "",
    ),
    _m("groups: a dead head blocks nobody", "message_archived", "(NEW.result = 'success' OR", "(true OR"),
    _m(
        "groups: a dismissed head blocks",
        "dismiss",
        "PERFORM messages.make_next_of_group_ready(dismissed.queue_name, dismissed.group_key, dismissed.id);",
        "",
    ),
    # publish
    _m("publish: a key is always new", "publish_deduplicated", "WHERE d.expires_at <= moment", ""),
    _m("publish: a key is known for ever", "publish_deduplicated", "WHERE d.expires_at <= moment", "WHERE false"),
    _m(
        "publish: replaces what is leased",
        "publish_deduplicated",
        "WHERE m.id = known AND m.lock_expires_at IS NULL",
        "WHERE m.id = known",
    ),
    _m(
        "publish: replaces nothing",
        "publish_deduplicated",
        "publish_deduplicated.on_conflict = 'replace' AND",
        "false AND",
    ),
    _m("publish: no depth", "check_max_depth", "IF free < 0 THEN", "IF false THEN", *DEPTH_TESTS),
    _m("publish: full for ever", "check_max_depth", "    IF moment >= ", "    IF false AND moment >= ", *DEPTH_TESTS),
    _m("publish: what is open is nothing", "check_max_depth", "max_depth - open - count", "max_depth - count", POLICY),
    _m("publish: a pause after what may roll back", "check_max_depth", "(free + young + open) * 50", "0", POLICY),
    _m("publish: all get the same room", "check_max_depth", "max(nextval(queue.depth_number))", "last", POLICY),
    _m(
        "publish: any size, by the trigger",
        "new_message",
        "arrival.largest > policy.max_body_bytes",
        "false",
        TOO_LARGE,
    ),
    _m(
        "publish: to the queue of another team",
        "publish",
        "PERFORM messages.check_access(publish.queue_name, 'publish');",
        "",
        ROLES,
    ),
    _m(
        "publish: no topic",
        "publish",
        "publish.headers, publish.reference, publish.topic\n",
        "publish.headers, publish.reference, NULL\n",
    ),
    _m("topics: any queue", "route_topic", "WHERE '.' || route_topic.topic ~ messages.topic_regex(b.pattern)", ""),
    # dead messages
    _m(
        "requeue: the dead message stays",
        "requeue",
        "DELETE FROM messages.dead_message d",
        "UPDATE messages.dead_message d SET result = d.result",
    ),
    _m("requeue: no count", "requeue", "a.requeues + 1", "a.requeues"),
    _m(
        "lease_dead: what is leased", "lease_dead", "AND (d.lock_expires_at IS NULL OR d.lock_expires_at <= moment)", ""
    ),
    *(
        _m(f"{verb}: any {what}", verb, text, "true", FILTERS)
        for verb in ("lease_dead", "dead_ids")
        for what, text in (
            ("reference", f"({verb}.reference IS NULL OR a.reference = {verb}.reference)"),
            ("time", f"({verb}.until IS NULL OR d.archived_at < {verb}.until)"),
        )
    ),
    _m(
        "dispatch_dead: two runs of a cause",
        "dispatch_dead",
        "               AND d.ended_at IS NULL);",
        "AND false);",
        DEAD_RUNS,
    ),
    _m(
        "dispatch_dead: a message that has a run",
        "dispatch_dead",
        "AND d.fingerprint = cause.fingerprint AND d.dispatch_id IS NULL\n",
        "AND d.fingerprint = cause.fingerprint\n",
        DEAD_RUNS,
    ),
    _m(
        "dispatch_dead: no pause",
        "dispatch_dead",
        "AND s.result = 'success')) > clock_timestamp();",
        "AND s.result = 'success')) IS NULL AND false;",
        DEAD_RUNS,
    ),
    _m("dispatch_dead: one pause after all", "dispatch_dead", "* 2 ^ least(count(*) - 1, 20)", "", DEAD_RUNS),
    _m(
        "end_dispatch: another run after a success",
        "end_dispatch",
        "CASE WHEN end_dispatch.result = 'success' THEN known.dispatch_id END",
        "NULL",
        DEAD_RUNS,
    ),
    _m(
        "reopen_dispatch: dead messages stay free",
        "reopen_dispatch",
        "IF dispatch.fingerprint IS NOT NULL THEN",
        "IF false THEN",
        DEAD_RUNS,
    ),
    # queues, roles, runs, schedules
    _m("purge: what is leased", "purge_queue", " AND coalesce(m.lock_expires_at <= clock_timestamp(), true)", ""),
    _m("purge: keys stay", "purge_queue", "AND d.id = ANY (gone);", "AND false;"),
    _m("drop: publishers go on", "drop_queue", "'EXCLUSIVE'", "'ACCESS SHARE'", POLICY),
    _m("roles: any queue", "check_access", "ELSIF NOT EXISTS (", "ELSIF false AND NOT EXISTS (", ROLES),
    _m(
        "roles: who may observe may consume",
        "check_access",
        "g.privilege IN (check_access.privilege,",
        "g.privilege IN ('observe', check_access.privilege,",
        ROLES,
    ),
    _m("roles: the role of the moment", "session_is_limited", "session_user", "current_user", ROLES),
    _m("once: always", "once", "RETURN FOUND", "RETURN true", OUTCOMES),
    _m(
        "schedules: a tick of two sessions",
        "run_schedules_at",
        " AND s.checked_until = known.checked_until AND NOT s.paused",
        " AND NOT s.paused",
        PLANNED,
    ),
    _m(
        "schedules: a tick again",
        "run_schedules_at",
        "checked_until = moment, last_error = NULL",
        "last_error = NULL",
        TWICE,
    ),
)
# For every run of the tests: that the mechanism works, and three mistakes that were made before.
HANDFUL: Final = ("archive: no token", "lease: never sweeps", "sweep: archives and deletes in two statements")


def mutant(name: str) -> Mutant:
    """Return the mutant of this name."""
    return next(mutant for mutant in MUTANTS if mutant.name == name)


def is_caught(mutant: Mutant) -> bool:
    """Return whether one of its tests fails; SetupError if they cannot run."""
    return not _pass(mutant.tests, mutant.name)


def _pass(tests: Collection[str], mutant_name: str = "") -> bool:
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-n", "0", "-p", "no:cacheprovider", *tests]
    # Tests that wait for a lock for ever end in an error. The worker of xdist that we may be in is not theirs.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment |= {VARIABLE: mutant_name, "PGOPTIONS": "-c statement_timeout=30s"}
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=LONGEST, check=False
        )
    except subprocess.TimeoutExpired:
        return False
    if done.returncode not in (0, 1) or re.search(r"^ERROR ", done.stdout, re.MULTILINE):
        raise SetupError(f"pytest ended with {done.returncode} for {mutant_name or tests}:\n{done.stdout[-3000:]}")
    return done.returncode == 0


def main() -> int:
    """Print what became of each mutant, and `caught n of n`."""
    parser = argparse.ArgumentParser(prog="python -m tools.mutants", description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", help="mutants whose name contains one of these; all without any")
    parser.add_argument("--list", action="store_true", help="print their names only")
    parser.add_argument("--jobs", type=int, default=2, help="how many at once")
    arguments = parser.parse_args()
    chosen = [m for m in MUTANTS if not arguments.names or any(name in m.name for name in arguments.names)]
    if arguments.list:
        print("\n".join(m.name for m in chosen))
        return 0
    if not arguments.names and not _pass(sorted({test for mutant in chosen for test in mutant.tests})):
        raise SetupError("the tests fail without any mutant")
    survivors = []
    with ThreadPoolExecutor(arguments.jobs) as pool:
        for mutant, (caught, seconds) in zip(chosen, pool.map(_timed, chosen), strict=True):
            print(f"{'caught  ' if caught else 'SURVIVED'}  {seconds:5.1f} s  {mutant.name}", flush=True)
            survivors += [] if caught else [mutant.name]
    print(
        f"caught {len(chosen) - len(survivors)} of {len(chosen)}",
        *(f"survived: {name}" for name in survivors),
        sep="\n",
    )
    return 1 if survivors else 0


def _timed(mutant: Mutant) -> tuple[bool, float]:
    began = time.monotonic()
    return is_caught(mutant), time.monotonic() - began


if __name__ == "__main__":
    try:
        sys.exit(main())
    except SetupError as error:
        sys.exit(str(error))
