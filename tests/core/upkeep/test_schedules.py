"""Which minutes a cron expression means, and one message a tick, whoever runs the schedules, how often and how late."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import psycopg
import pytest
from croniter import CroniterBadDateError, croniter
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from airflow_provider_pgqueue.core import InvalidArgument, QueueNotFound, run, verbs
from airflow_provider_pgqueue.core.errors import ScheduleNotFound
from airflow_provider_pgqueue.core.installation import CRON_ROLE
from airflow_provider_pgqueue.core.message import Schedule

Connection = psycopg.Connection[Any]
Connect = Callable[..., Connection]
Queue = Callable[..., str]
MINUTE = timedelta(minutes=1)
DAY = timedelta(days=1)


@pytest.fixture
def noon(conn: Connection) -> datetime:
    """A noon, two days ahead, so that no schedule of the test was settled up to it by its creation."""
    row = conn.execute("SELECT date_trunc('day', clock_timestamp(), 'UTC') + interval '60 hours'").fetchone()
    return row[0].astimezone(UTC)


@pytest.fixture
def nightly(conn: Connection, queue: Queue, noon: datetime) -> str:
    """A schedule at noon, created an hour before it."""
    run(conn, verbs.schedule("nightly", "0 12 * * *", queue("orders"), {"n": 1}))
    settle(conn, noon - timedelta(hours=1))
    return "nightly"


def settle(conn: Connection, moment: datetime) -> None:
    """Let the schedules be as if they were created at this time."""
    conn.execute("UPDATE messages.schedule SET checked_until = %s", [moment])


def run_at(conn: Connection, moment: datetime) -> int:
    row = conn.execute("SELECT messages.run_schedules_at(%s)", [moment]).fetchone()
    return int(row[0])


def published(conn: Connection) -> list[Any]:
    return [headers for (headers,) in conn.execute("SELECT headers FROM messages.message ORDER BY id")]


def text(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def only(conn: Connection) -> Schedule:
    (schedule,) = run(conn, verbs.schedules())
    return schedule


def field(lowest: int, highest: int, names: str = "") -> st.SearchStrategy[str]:
    """Return one field: a star, or a list of numbers, names, ranges and steps."""
    words = names.split()

    def word(number: int) -> st.SearchStrategy[str]:
        named = [words[number - lowest]] if number - lowest < len(words) else []
        return st.sampled_from([str(number), *named])

    number = st.integers(lowest, highest)
    # croniter takes a range of one weekday for a star.
    ends = st.tuples(number, number).filter(lambda pair: pair[0] < pair[1])
    span = ends.flatmap(lambda pair: st.tuples(word(pair[0]), word(pair[1]))).map("-".join)
    stepped = st.tuples(st.one_of(st.just("*"), span), st.integers(1, (highest - lowest) // 2)).map(
        lambda parts: f"{parts[0]}/{parts[1]}"
    )
    item = st.one_of(number.flatmap(word), span, stepped)
    return st.one_of(st.just("*"), st.lists(item, min_size=1, max_size=3).map(",".join))


EXPRESSIONS = st.tuples(
    field(0, 59),
    field(0, 23),
    field(1, 31),
    field(1, 12, "JAN FEB MAR APR MAY JUN JUL AUG SEP OCT NOV DEC"),
    field(0, 6, "SUN MON TUE WED THU FRI SAT"),
).map(" ".join)
MINUTES = st.datetimes(datetime(2020, 1, 1), datetime(2039, 12, 31), timezones=st.just(UTC)).map(
    lambda moment: moment.replace(second=0, microsecond=0)
)


def ticks(conn: Connection, cron: str, time_zone: str, after: datetime, until: datetime) -> list[datetime]:
    rows = conn.execute("SELECT messages.cron_ticks(%s, %s, %s, %s)", [cron, time_zone, after, until]).fetchall()
    return [tick.astimezone(UTC) for (tick,) in rows]


def next_tick(conn: Connection, cron: str, time_zone: str, after: datetime) -> datetime | None:
    row = conn.execute("SELECT messages.next_cron_tick(%s, %s, %s)", [cron, time_zone, after]).fetchone()
    return row[0] if row else None


def matches(conn: Connection, cron: str, minute: str) -> bool:
    return conn.execute("SELECT messages.cron_matches(%s, %s)", [cron, minute]).fetchone() == (True,)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cron=EXPRESSIONS, start=MINUTES)
def test_an_expression_comes_when_croniter_says_and_at_no_minute_between(
    conn: Connection, cron: str, start: datetime
) -> None:
    # What croniter calls a bug is how Vixie cron and pg_cron read a day field that begins with a star. They go by the
    # star alone, croniter takes 0-6 for one as well.
    for place in (2, 4):
        assume(croniter.expand(cron)[0][place] != ["*"] or cron.split()[place].startswith("*"))
    known = croniter(cron, start, datetime, implement_cron_bug=True)
    try:
        wanted = [known.get_next() for _ in range(20)]
    except CroniterBadDateError:
        assert next_tick(conn, cron, "UTC", start) is None
        return
    assert ticks(conn, cron, "UTC", start, wanted[-1]) == wanted
    assert next_tick(conn, cron, "UTC", start) == wanted[0]


@pytest.mark.parametrize(
    ("short", "long"),
    [
        ("@hourly", "0 * * * *"),
        ("@daily", "0 0 * * *"),
        ("@midnight", "0 0 * * *"),
        ("@weekly", "0 0 * * 0"),
        ("@monthly", "0 0 1 * *"),
        ("@Yearly", "0 0 1 1 *"),
        ("@annually", "0 0 1 1 *"),
        ("0 0 * * 7", "0 0 * * SUN"),
        ("0 0 * * fri-SUN", "0 0 * * 5,6,0"),
        ("0 0 * jan,Mar-APR *", "0 0 * 1,3,4 *"),
        ("  05  1 \t1 * * ", "5 1 1 * *"),
    ],
)
def test_short_forms_mean_their_long_form(conn: Connection, short: str, long: str) -> None:
    row = conn.execute("SELECT messages.parse_cron(%s), messages.parse_cron(%s)", [short, long]).fetchone()
    assert row[0] == row[1]


def test_one_of_two_restricted_day_fields_is_enough(conn: Connection) -> None:
    # 2026-11-02 is a Monday.
    assert matches(conn, "0 0 13 * MON", "2026-11-02 00:00")
    assert matches(conn, "0 0 13 * MON", "2026-11-13 00:00")
    assert not matches(conn, "0 0 13 * MON", "2026-11-14 00:00")
    assert not matches(conn, "0 0 */2 * MON", "2026-11-02 00:00")
    assert matches(conn, "0 0 */2 * MON", "2026-11-09 00:00")


def test_seconds_do_not_matter_to_a_minute(conn: Connection) -> None:
    assert matches(conn, "30 9 * * *", "2026-11-02 09:30:59.9")
    assert not matches(conn, "30 9 * * *", "2026-11-02 09:31:00")


@pytest.mark.parametrize(
    ("cron", "named"),
    [
        ("", "cron is ''"),
        ("* * * *", "cron is '"),
        ("* * * * * *", "cron is '"),
        ("@reboot", "cron is '@reboot'"),
        ("* * * * *" + " " * 500 + "*", "cron is '"),
        ("60 * * * *", "minute '60'"),
        ("-1 * * * *", "minute '-1'"),
        ("*/0 * * * *", r"minute '\*/0'"),
        ("*/90 * * * *", r"minute '\*/90'"),
        ("5/15 * * * *", "minute '5/15'"),
        ("1,,2 * * * *", "minute '1,,2'"),
        ("1; * * * *", "minute '1;'"),
        ("30-10 * * * *", "minute '30-10'"),
        ("1-2-3 * * * *", "minute '1-2-3'"),
        ("* 24 * * *", "hour '24'"),
        ("* noon * * *", "hour 'noon'"),
        ("* * 0 * *", "day of month '0'"),
        ("* * L * *", "day of month 'L'"),
        ("* * ? * 1", r"day of month '\?'"),
        ("* * * 13 *", "month '13'"),
        ("* * * MON *", "month 'MON'"),
        ("* * * * 8", "day of week '8'"),
        ("* * * * JAN", "day of week 'JAN'"),
        ("0 0 31 2 *", r"'0 0 31 2 \*' never has a tick"),
        ("* * * * '; DROP TABLE messages.schedule", "cron is '"),
    ],
)
def test_what_is_no_expression_is_refused_with_its_field(shared: Connection, cron: str, named: str) -> None:
    with pytest.raises(InvalidArgument, match=rf"{named}.*Give "):
        run(shared, verbs.schedule("s", cron, "orders", 1))


def at(*parts: int) -> datetime:
    return datetime(*parts, tzinfo=UTC)  # type: ignore[arg-type, misc]


@pytest.fixture(params=["UTC", "America/New_York", "Europe/Berlin"])
def session(conn: Connection, request: pytest.FixtureRequest) -> Connection:
    """Sessions in several time zones, which must not matter."""
    conn.execute("SELECT set_config('TimeZone', %s, false)", [request.param])
    return conn


def test_a_time_that_the_clock_skips_is_moved_on_by_the_gap(session: Connection) -> None:
    # In Berlin 02:00 becomes 03:00 on the 29th of March 2026, which is 01:00 UTC.
    assert ticks(session, "30 2 * * *", "Europe/Berlin", at(2026, 3, 27, 12), at(2026, 3, 30, 12)) == [
        at(2026, 3, 28, 1, 30),
        at(2026, 3, 29, 1, 30),
        at(2026, 3, 30, 0, 30),
    ]
    assert ticks(session, "0 2-3 * * *", "Europe/Berlin", at(2026, 3, 29), at(2026, 3, 29, 12)) == [at(2026, 3, 29, 1)]


def test_a_time_that_comes_twice_counts_once_the_first_time(session: Connection) -> None:
    # In Berlin 03:00 becomes 02:00 on the 25th of October 2026, which is 01:00 UTC.
    assert ticks(session, "30 2 * * *", "Europe/Berlin", at(2026, 10, 24, 12), at(2026, 10, 26, 12)) == [
        at(2026, 10, 25, 0, 30),
        at(2026, 10, 26, 1, 30),
    ]
    assert ticks(session, "0 1,2,3 * * *", "Europe/Berlin", at(2026, 10, 24, 12), at(2026, 10, 25, 12)) == [
        at(2026, 10, 24, 23),
        at(2026, 10, 25, 0),
        at(2026, 10, 25, 2),
    ]


def test_a_change_of_half_an_hour_is_no_different(session: Connection) -> None:
    # On Lord Howe Island 02:00 becomes 01:30 on the 5th of April 2026, and 02:30 on the 4th of October.
    lord_howe = "Australia/Lord_Howe"
    assert ticks(session, "45 1 * * *", lord_howe, at(2026, 4, 4), at(2026, 4, 6)) == [
        at(2026, 4, 4, 14, 45),
        at(2026, 4, 5, 15, 15),
    ]
    assert ticks(session, "15 2 * * *", lord_howe, at(2026, 10, 3), at(2026, 10, 5)) == [
        at(2026, 10, 3, 15, 45),
        at(2026, 10, 4, 15, 15),
    ]


@pytest.mark.parametrize("day", [at(2026, 3, 29), at(2026, 10, 25)], ids=["spring", "autumn"])
def test_every_few_minutes_stays_every_few_minutes_when_the_clock_changes(session: Connection, day: datetime) -> None:
    start = day - timedelta(hours=12)
    wanted = [start + timedelta(minutes=15 * number) for number in range(1, 97)]
    assert ticks(session, "*/15 * * * *", "Europe/Berlin", start, wanted[-1]) == wanted


@pytest.mark.parametrize(
    "zone", ["Europe/Berlin", "Australia/Lord_Howe", "America/Havana", "Pacific/Apia", "Asia/Gaza"]
)
@pytest.mark.parametrize(("cron", "a_day"), [("17 * * * *", 24), ("30 0,1,2 * * *", 3)])
def test_a_year_asked_for_in_pieces_is_the_year_asked_for_at_once(
    shared: Connection, zone: str, cron: str, a_day: int
) -> None:
    """No tick may fall between two runs, or into both."""
    start, span = at(2026, 1, 1), timedelta(hours=7, minutes=1)
    pieces = shared.execute(
        """
        SELECT tick FROM generate_series(0, 1250) AS number
         CROSS JOIN LATERAL (SELECT %(start)s + number * %(span)s AS piece) AS pieces
         CROSS JOIN LATERAL messages.cron_ticks(%(cron)s, %(zone)s, piece, piece + %(span)s) AS tick
         ORDER BY tick
        """,
        {"start": start, "span": span, "cron": cron, "zone": zone},
    ).fetchall()
    assert [tick for (tick,) in pieces] == ticks(shared, cron, zone, start, start + 1251 * span)
    assert len(pieces) == pytest.approx(1251 * span / DAY * a_day, abs=3)


def test_a_schedule_is_listed_with_its_next_tick(conn: Connection, queue: Queue) -> None:
    queue("orders")
    assert run(conn, verbs.schedule("nightly", "0 3 * * *", "orders", {"a": 1}, time_zone="Europe/Berlin", priority=7))
    schedule = only(conn)
    assert (schedule.schedule_name, schedule.cron, schedule.time_zone) == ("nightly", "0 3 * * *", "Europe/Berlin")
    assert (schedule.queue_name, schedule.priority, schedule.paused) == ("orders", 7, False)
    assert (schedule.last_tick, schedule.last_error) == (None, None)
    assert schedule.next_at.astimezone(ZoneInfo("Europe/Berlin")).strftime("%H:%M:%S") == "03:00:00"
    assert timedelta(0) < schedule.next_at - schedule.created_at <= timedelta(hours=25)


def test_the_same_schedule_again_changes_nothing(conn: Connection, nightly: str) -> None:
    before = conn.execute("SELECT xmin::text, s.* FROM messages.schedule s").fetchall()
    assert run(conn, verbs.schedule(nightly, "0 12 * * *", "orders", {"n": 1})) is False
    assert conn.execute("SELECT xmin::text, s.* FROM messages.schedule s").fetchall() == before


def test_a_schedule_that_exists_is_then_as_given(conn: Connection, nightly: str, noon: datetime) -> None:
    changed = verbs.schedule(nightly, "0 12 * * *", "orders", [2], priority=3, headers={"by": "test"})
    assert run(conn, changed) is False
    assert run_at(conn, noon) == 1
    row = conn.execute("SELECT message, priority, headers ->> 'by' FROM messages.message").fetchone()
    assert row == ([2], 3, "test")


def test_a_changed_expression_brings_nothing_of_the_past(conn: Connection, queue: Queue) -> None:
    run(conn, verbs.schedule("s", "0 0 1 1 *", queue("orders"), 1))
    conn.execute("UPDATE messages.schedule SET checked_until = clock_timestamp() - interval '20 hours'")
    run(conn, verbs.schedule("s", "* * * * *", "orders", 1))
    row = conn.execute("SELECT clock_timestamp() - checked_until < '10 seconds' FROM messages.schedule").fetchone()
    assert row == (True,)


def test_eight_sessions_that_declare_a_schedule_make_one(connect: Connect, queue: Queue) -> None:
    queue("orders")
    sessions = [connect() for _ in range(8)]
    with ThreadPoolExecutor(8) as pool:
        new = list(pool.map(lambda c: run(c, verbs.schedule("s", "* * * * *", "orders", 1)), sessions))
    assert sorted(new) == [False] * 7 + [True]


def test_an_ended_schedule_publishes_nothing(conn: Connection, nightly: str, noon: datetime) -> None:
    run(conn, verbs.unschedule(nightly))
    assert run_at(conn, noon) == 0
    assert run(conn, verbs.schedules()) == []


def test_a_tick_publishes_one_message_that_says_which(conn: Connection, nightly: str, noon: datetime) -> None:
    assert run_at(conn, noon - MINUTE) == 0
    assert run_at(conn, noon) == 1
    assert published(conn) == [{"schedule": nightly, "tick": text(noon)}]
    assert only(conn).last_tick == noon
    assert only(conn).next_at == noon + DAY


def test_the_headers_of_the_user_stay_beside_ours(conn: Connection, queue: Queue, noon: datetime) -> None:
    run(conn, verbs.schedule("s", "0 12 * * *", queue("orders"), 1, headers={"team": "a", "tick": "mine"}))
    settle(conn, noon - MINUTE)
    run_at(conn, noon)
    assert published(conn) == [{"team": "a", "schedule": "s", "tick": text(noon)}]


def test_twice_in_the_same_minute_publishes_once(conn: Connection, nightly: str, noon: datetime) -> None:
    assert [run_at(conn, noon + timedelta(seconds=second)) for second in (0, 0, 5, 59, 60)] == [1, 0, 0, 0, 0]


def test_a_clock_that_went_back_publishes_nothing_again(conn: Connection, nightly: str, noon: datetime) -> None:
    assert [run_at(conn, noon + offset) for offset in (MINUTE, -MINUTE, timedelta(0), MINUTE)] == [1, 0, 0, 0]


def test_a_late_run_still_publishes(conn: Connection, nightly: str, noon: datetime) -> None:
    assert run_at(conn, noon + timedelta(hours=5)) == 1
    assert published(conn) == [{"schedule": nightly, "tick": text(noon)}]


def test_several_missed_ticks_make_one_message_of_the_last(conn: Connection, queue: Queue, noon: datetime) -> None:
    run(conn, verbs.schedule("often", "*/10 * * * *", queue("orders"), 1))
    settle(conn, noon - timedelta(hours=3))
    assert [run_at(conn, noon + offset * MINUTE) for offset in (5, 9, 10, 11)] == [1, 0, 1, 0]
    assert [headers["tick"] for headers in published(conn)] == [text(noon), text(noon + 10 * MINUTE)]


def test_what_was_missed_more_than_a_day_ago_is_gone(conn: Connection, queue: Queue, noon: datetime) -> None:
    run(conn, verbs.schedule("yearly", noon.strftime("0 12 %d %m *"), queue("orders"), 1))
    settle(conn, noon - MINUTE)
    assert run_at(conn, noon + DAY + MINUTE) == 0
    assert run_at(conn, noon + DAY - MINUTE) == 1


def test_sessions_that_run_at_once_publish_one_message_a_tick(
    connect: Connect, conn: Connection, queue: Queue, noon: datetime
) -> None:
    queue("orders")
    for number in range(5):
        run(conn, verbs.schedule(f"s{number}", "* * * * *", "orders", number))
    settle(conn, noon)
    opened = [connect() for _ in range(8)]
    together = threading.Barrier(8)

    def run_each_minute(session: Connection) -> int:
        done = 0
        for number in range(1, 21):
            together.wait(20)
            done += run_at(session, noon + number * MINUTE)
        return done

    with ThreadPoolExecutor(8) as pool:
        done = list(pool.map(run_each_minute, opened))
    found = [(headers["schedule"], headers["tick"]) for headers in published(conn)]
    wanted = [(f"s{n}", text(noon + minute * MINUTE)) for n in range(5) for minute in range(1, 21)]
    assert sorted(found) == sorted(wanted)
    assert sum(done) == 100


def test_a_schedule_that_another_session_runs_is_left_to_it(
    connect: Connect, conn: Connection, nightly: str, noon: datetime
) -> None:
    first = connect()
    conn.execute("SET statement_timeout = '1s'")
    with first.transaction(force_rollback=True):
        assert run_at(first, noon) == 1
        assert run_at(conn, noon) == 0
    # The first one crashed, as it were: what it published is gone, and so is its tick.
    assert run_at(conn, noon) == 1
    assert len(published(conn)) == 1


def test_a_session_that_planned_before_another_committed_publishes_nothing_again(
    connect: Connect, conn: Connection, nightly: str, noon: datetime
) -> None:
    """The loser has seen the schedule due, then waits at another one until the winner has committed."""
    run(conn, verbs.schedule("a_first", "0 12 * * *", "orders", 1))
    settle(conn, noon - MINUTE)
    loser, blocker = connect(), connect()
    conn.execute(
        "CREATE FUNCTION public.stop() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN PERFORM pg_advisory_xact_lock_shared(1); RETURN new; END $$"
    )
    conn.execute("CREATE TRIGGER stop BEFORE INSERT ON messages.message FOR EACH ROW EXECUTE FUNCTION public.stop()")
    with ThreadPoolExecutor(1) as pool, blocker.transaction():
        blocker.execute("SELECT pg_advisory_xact_lock(1)")
        losing = pool.submit(run_at, loser, noon)
        while conn.execute("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted").fetchone() == (
            0,
        ):
            assert not losing.done()
        blocker.execute("SELECT messages.run_schedules_at(%s)", [noon])
        blocker.execute("COMMIT; BEGIN")
        assert losing.result(20) == 1
    assert sorted(headers["schedule"] for headers in published(conn)) == ["a_first", nightly]


def test_a_paused_schedule_publishes_nothing_and_makes_nothing_up(
    conn: Connection, nightly: str, noon: datetime
) -> None:
    run(conn, verbs.pause_schedule(nightly))
    run(conn, verbs.pause_schedule(nightly))
    assert (only(conn).paused, only(conn).next_at) == (True, None)
    conn.execute("UPDATE messages.schedule SET checked_until = clock_timestamp() - interval '20 hours'")
    assert run_at(conn, noon) == 0

    run(conn, verbs.resume_schedule(nightly))
    row = conn.execute("SELECT clock_timestamp() - checked_until < '10 seconds' FROM messages.schedule").fetchone()
    assert (only(conn).paused, row) == (False, (True,))
    assert run_at(conn, noon) == 1


def test_resuming_what_is_not_paused_loses_no_tick(conn: Connection, nightly: str, noon: datetime) -> None:
    conn.execute("UPDATE messages.schedule SET checked_until = clock_timestamp() - interval '24 hours'")
    overdue = only(conn).next_at
    run(conn, verbs.resume_schedule(nightly))
    assert only(conn).next_at == overdue


def test_declaring_a_paused_schedule_again_leaves_it_paused_unless_told(conn: Connection, nightly: str) -> None:
    run(conn, verbs.pause_schedule(nightly))
    run(conn, verbs.schedule(nightly, "0 12 * * *", "orders", {"n": 1}))
    assert only(conn).paused
    conn.execute("UPDATE messages.schedule SET checked_until = clock_timestamp() - interval '24 hours'")
    run(conn, verbs.schedule(nightly, "0 12 * * *", "orders", {"n": 1}, paused=False))
    schedule = only(conn)
    assert not schedule.paused
    assert schedule.next_at > datetime.now(UTC)


def test_a_schedule_without_its_queue_says_so_once_and_stops_no_other(
    conn: Connection, nightly: str, noon: datetime
) -> None:
    run(conn, verbs.schedule("a_broken", "0 12 * * *", "orders", {"secret": "SECRET"}))
    settle(conn, noon - MINUTE)
    conn.execute("UPDATE messages.schedule SET queue_name = 'gone' WHERE schedule_name = 'a_broken'")
    warnings: list[str] = []
    conn.add_notice_handler(lambda notice: warnings.append(notice.message_primary or ""))

    assert [run_at(conn, noon), run_at(conn, noon + MINUTE)] == [1, 0]
    assert published(conn) == [{"schedule": nightly, "tick": text(noon)}]
    assert warnings == ["schedule a_broken could not publish: queue 'gone' does not exist"]
    broken = run(conn, verbs.schedules())[0]
    assert (broken.last_error, broken.last_tick, broken.next_at) == ("queue 'gone' does not exist", None, noon)

    conn.execute("SELECT messages.create_queue('gone')")
    assert run_at(conn, noon + 2 * MINUTE) == 1
    mended = run(conn, verbs.schedules())[0]
    assert (mended.last_error, mended.last_tick) == (None, noon)


def test_a_publisher_with_an_open_transaction_holds_up_no_schedule(
    connect: Connect, conn: Connection, nightly: str, noon: datetime, queue: Queue
) -> None:
    run(conn, verbs.schedule("a_new_priority", "0 12 * * *", queue("busy"), 1, priority=9))
    settle(conn, noon - MINUTE)
    publisher = connect()
    with publisher.transaction():
        run(publisher, verbs.publish("busy", "first", priority=9))
        assert run_at(conn, noon) == 2
    assert published(conn) == [
        None,
        {"schedule": "a_new_priority", "tick": text(noon)},
        {"schedule": nightly, "tick": text(noon)},
    ]


def test_a_body_that_the_queue_does_not_take_is_not_quoted(conn: Connection, queue: Queue, noon: datetime) -> None:
    run(conn, verbs.schedule("s", "0 12 * * *", queue("orders", max_body_bytes=100), "SECRET" * 50))
    settle(conn, noon - MINUTE)
    assert run_at(conn, noon) == 0
    error = only(conn).last_error
    assert error is not None
    assert "too large for queue 'orders'" in error
    assert "SECRET" not in error


def test_a_paused_queue_takes_its_scheduled_messages(conn: Connection, nightly: str, noon: datetime) -> None:
    run(conn, verbs.alter_queue("orders", paused=True))
    assert run_at(conn, noon) == 1


def test_a_zone_that_the_server_no_longer_knows_stops_no_other(conn: Connection, nightly: str, noon: datetime) -> None:
    run(conn, verbs.schedule("a_broken", "0 12 * * *", "orders", 1))
    settle(conn, noon - MINUTE)
    conn.execute("UPDATE messages.schedule SET time_zone = 'Atlantis' WHERE schedule_name = 'a_broken'")
    assert run_at(conn, noon) == 1
    row = conn.execute("SELECT last_error FROM messages.schedule WHERE schedule_name = 'a_broken'").fetchone()
    assert "Atlantis" in row[0]
    assert [one.next_at is None for one in run(conn, verbs.schedules())] == [True, False]


def test_an_unknown_schedule_is_an_error_in_every_verb(conn: Connection) -> None:
    for verb in (verbs.unschedule, verbs.pause_schedule, verbs.resume_schedule):
        with pytest.raises(ScheduleNotFound, match=r"schedule 'nope' does not exist\..*messages\.schedules"):
            run(conn, verb("nope"))


def test_a_schedule_needs_a_queue_that_exists(conn: Connection) -> None:
    with pytest.raises(QueueNotFound, match="queue 'nope' does not exist"):
        run(conn, verbs.schedule("s", "* * * * *", "nope", 1))


@pytest.mark.parametrize("name", ["", "Nightly", "1s", "a" * 49, "a b", "x'; --", "größe", "a\n"])
def test_a_bad_name_is_refused(shared: Connection, name: str) -> None:
    with pytest.raises(InvalidArgument, match=r"(?s)schedule_name is '.*lower-case letter"):
        run(shared, verbs.schedule(name, "* * * * *", "orders", 1))


@pytest.mark.parametrize("zone", ["", "Mars/Olympus", "UTC+3", "Foo3", "Europe/Berlin; --", "Europe/Berlin3"])
def test_a_bad_time_zone_is_refused(shared: Connection, zone: str) -> None:
    with pytest.raises(InvalidArgument, match=r"time_zone is '.*pg_timezone_names"):
        run(shared, verbs.schedule("s", "* * * * *", "orders", 1, time_zone=zone))


@pytest.mark.parametrize("priority", [-1, 10, 40000])
def test_a_bad_priority_is_refused(shared: Connection, priority: int) -> None:
    with pytest.raises(InvalidArgument, match=rf"priority is {priority}\. Give"):
        run(shared, verbs.schedule("s", "* * * * *", "orders", 1, priority=priority))


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ("message => '1', headers => '[1]'", "headers are of type array"),
        ("message => NULL", "message is NULL"),
        ("message => '1', time_zone => NULL", "time_zone is NULL"),
        ("message => '1', priority => NULL", "priority is NULL"),
        ("message => '1', time_zone => repeat('Z', 1000000)", "time_zone is 'ZZZ"),
    ],
)
def test_bad_sql_arguments_are_refused(shared: Connection, arguments: str, named: str) -> None:
    with pytest.raises(psycopg.Error, match=named) as refused:
        shared.execute(f"SELECT messages.schedule('s', '* * * * *', 'orders', {arguments})".encode())
    assert refused.value.sqlstate == "PQ004"


@pytest.mark.parametrize(
    "call",
    [
        "cron_matches('0 0 1 1 *', 'infinity')",
        "cron_matches('* * * * *', '-infinity')",
        "cron_matches('* * * * *', '294276-12-31 23:59')",
        "cron_matches('* * * * *', NULL)",
        "cron_matches(repeat('*,', 1000000), now()::timestamp)",
        "cron_matches(repeat(' ', 10000000) || '* * * * *', now()::timestamp)",
        "cron_ticks('0 0 1 1 *', 'UTC', now(), 'infinity')",
        "cron_ticks('0 0 1 1 *', 'UTC', '-infinity', now())",
        "cron_ticks('0 0 1 1 *', 'UTC', now(), now() + interval '42 years')",
        "next_cron_tick('0 0 1 1 *', 'UTC', 'infinity')",
    ],
)
def test_no_expression_is_looked_for_without_end(shared: Connection, call: str) -> None:
    shared.execute("SET statement_timeout = '2s'")
    with pytest.raises(psycopg.Error) as refused:
        shared.execute(f"SELECT messages.{call}".encode())
    assert refused.value.sqlstate == "PQ004"


@pytest.mark.cron
def test_install_cron_gives_the_schedules_to_pg_cron(cron_dsn: str) -> None:
    with psycopg.connect(cron_dsn, autocommit=True) as conn:
        run(conn, verbs.install_cron(CRON_ROLE))
        run(conn, verbs.install_cron(CRON_ROLE))
        jobs = dict(conn.execute("SELECT jobname, command FROM cron.job WHERE schedule = '* * * * *'").fetchall())
        assert set(jobs) == {"messages:upkeep", "messages:schedules"}
        conn.execute("SELECT cron.alter_job(jobid, active => false) FROM cron.job")
        conn.execute("SELECT messages.publish_batch('default', (SELECT jsonb_agg(n) FROM generate_series(1, 9000) n))")
        for lease in range(9):
            conn.execute(
                "UPDATE messages.message SET lock_expires_at = now() - interval '1 s' WHERE id %% 9 = %s", [lease]
            )
        assert conn.execute(jobs["messages:upkeep"].encode()).rowcount == -1
        (leased, steps) = conn.execute(
            "SELECT count(lock_expires_at), count(DISTINCT xmin::text) FROM messages.message"
        ).fetchone() or (0, 0)
        assert leased == 0
        assert steps > 1
        conn.execute("DELETE FROM messages.message")
        run(conn, verbs.schedule("s", "* * * * *", "default", 1))
        settle(conn, datetime.now(UTC) - DAY)
        assert conn.execute(jobs["messages:schedules"].encode()).fetchone() == (1,)
        assert run(conn, verbs.uninstall_cron()) == 2


@pytest.mark.cron
def test_a_pg_cron_that_publishes_no_schedule_leaves_the_upkeep_to_airflow(cron_conn: Connection) -> None:
    run(cron_conn, verbs.install_cron(CRON_ROLE))
    cron_conn.execute("SELECT cron.unschedule(jobid) FROM cron.job WHERE jobname = 'messages:schedules'")
    run(cron_conn, verbs.schedule("s", "* * * * *", "default", 1))
    assert run(cron_conn, verbs.upkeep_mode()) == "pg_cron"
    settle(cron_conn, datetime.now(UTC) - timedelta(minutes=10))
    assert run(cron_conn, verbs.upkeep_mode()) == "airflow"
    run(cron_conn, verbs.run_schedules())
    assert run(cron_conn, verbs.upkeep_mode()) == "pg_cron"
