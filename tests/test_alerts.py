"""Each alert fires at what it is for, and at nothing that only looks like it: series of hours, played to Prometheus."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml

from tools import ROOT, prometheus

ALERTS = ROOT / "monitoring" / "alerts.yml"
NAMES = {rule["alert"] for rule in yaml.safe_load(ALERTS.read_text())["groups"][0]["rules"]}

READY = 'pgqueue_unfinished_messages{queue="orders",state="ready"}'
OLDEST_READY = 'pgqueue_oldest_ready_age_seconds{queue="orders"}'
NOT_CONSUMED = 'pgqueue_oldest_unconsumed_age_seconds{queue="orders"}'
OLDEST_LEASE = 'pgqueue_oldest_lease_age_seconds{queue="orders"}'
PUBLISHED = 'pgqueue_published_messages_total{queue="orders"}'
SUCCESS = 'pgqueue_finished_messages_total{queue="orders",result="success"}'
FAILED = 'pgqueue_finished_messages_total{queue="orders",result="failed"}'
DEAD = 'pgqueue_dead_messages{queue="orders"}'
PAUSED = 'pgqueue_queue_paused{queue="orders"}'
LONGEST_RUN = 'pgqueue_longest_run_seconds{queue="orders"}'
MAINTENANCE_AGE = "pgqueue_maintenance_age_seconds"
CRITICAL = 'pgqueue_health_severity{check="dead_tuples",severity="critical"}'
WARNING = 'pgqueue_health_severity{check="dead_tuples",severity="warning"}'
OTHER_NOT_CONSUMED = 'pgqueue_oldest_unconsumed_age_seconds{queue="other"}'


def grows(by: float, minutes: int, begin: float = 0) -> str:
    """A value that changes by as much each minute, in the notation of promtool."""
    return f"{begin}{by:+}x{minutes - 1}"


def flat(value: float, minutes: int) -> str:
    return grows(0, minutes, value)


# A queue that gets 6,000 messages a minute and finishes them within seconds.
HEALTHY: Mapping[str, tuple[float, float]] = {
    "pgqueue_up": (1, 0),
    MAINTENANCE_AGE: (30, 0),
    CRITICAL: (0, 0),
    WARNING: (0, 0),
    READY: (10, 0),
    'pgqueue_unfinished_messages{queue="orders",state="leased"}': (20, 0),
    OLDEST_READY: (1, 0),
    NOT_CONSUMED: (0, 0),
    OLDEST_LEASE: (5, 0),
    DEAD: (0, 0),
    PAUSED: (0, 0),
    PUBLISHED: (0, 6000),
    SUCCESS: (0, 6000),
    FAILED: (0, 0),
    LONGEST_RUN: (10, 0),
    'pgqueue_finished_messages_total{queue="other",result="success"}': (0, 50),
    'pgqueue_published_messages_total{queue="other"}': (0, 50),
    'pgqueue_unfinished_messages{queue="other",state="leased"}': (50, 0),
    'pgqueue_unfinished_messages{queue="other",state="ready"}': (50, 0),
    'pgqueue_oldest_ready_age_seconds{queue="other"}': (1, 0),
    OTHER_NOT_CONSUMED: (0, 0),
    'pgqueue_queue_paused{queue="other"}': (0, 0),
}


@dataclass(frozen=True)
class Case:
    """What happens, for how many minutes, in place of what is healthy, and which alerts fire at some time."""

    happens: str
    minutes: int
    series: Mapping[str, str]
    fires: frozenset[str] = field(default_factory=frozenset)


def case(happens: str, minutes: int, series: Mapping[str, str], *alerts: str) -> Case:
    return Case(happens, minutes, series, frozenset(alerts))


def two_hour_handler(earlier: int) -> dict[str, str]:
    """One worker with messages that take two hours each, after so many of them."""
    runs = earlier + 1
    return {
        READY: flat(0, runs * 120),
        OLDEST_LEASE: " ".join([grows(60, 120)] * runs),
        PUBLISHED: flat(4, runs * 120),
        SUCCESS: " ".join(flat(run, 120) for run in range(runs)),
        LONGEST_RUN: " ".join([flat(0, 120)] + [f"{flat(7200, 5)} {flat(0, 115)}"] * earlier),
    }


CASES = {
    "PgQueueDown": (
        case("the database is away for ten minutes", 60, {"pgqueue_up": f"{flat(0, 10)} {flat(1, 50)}"}, "PgQueueDown"),
        case("the database restarts", 60, {"pgqueue_up": f"{flat(0, 3)} {flat(1, 57)}"}),
    ),
    "PgQueueMaintenanceLate": (
        case("maintenance stops", 60, {MAINTENANCE_AGE: grows(60, 60)}, "PgQueueMaintenanceLate"),
        case("a maintenance run is ten minutes late", 60, {MAINTENANCE_AGE: f"{grows(60, 10)} {flat(30, 50)}"}),
    ),
    "PgQueueHealthCritical": (
        case("a check is critical", 60, {CRITICAL: flat(1, 60)}, "PgQueueHealthCritical"),
        case("a check is critical for a short time", 60, {CRITICAL: f"{flat(1, 3)} {flat(0, 57)}"}),
    ),
    "PgQueueHealthWarning": (
        case("a check is a warning", 60, {WARNING: flat(1, 60)}, "PgQueueHealthWarning"),
        case("a check is a warning for a while", 60, {WARNING: f"{flat(1, 20)} {flat(0, 40)}"}),
    ),
    "PgQueueNotConsumed": (
        case(
            "nobody leases from one of the others",
            60,
            {OTHER_NOT_CONSUMED: grows(60, 60), 'pgqueue_oldest_ready_age_seconds{queue="other"}': grows(60, 60)},
            "PgQueueNotConsumed",
        ),
        case("a message of low priority waits while others are leased", 60, {OLDEST_READY: grows(60, 60)}),
    ),
    "PgQueueFallingBehind": (
        case(
            "15 % more is published than finished",
            120,
            {PUBLISHED: grows(115, 120), SUCCESS: grows(100, 120), READY: grows(15, 120), OLDEST_READY: grows(9, 120)},
            "PgQueueFallingBehind",
        ),
        case(
            "a backlog grows by 15 % in 20 hours",
            1201,
            {PUBLISHED: grows(6012.5, 1201), READY: grows(12.5, 1201, 100000), OLDEST_READY: flat(1000, 1201)},
            "PgQueueFallingBehind",
        ),
        case(
            "a backlog stays, and its depth is estimated",
            2880,
            {READY: " ".join(["97000 103000 100000 98500 102500"] * 576), OLDEST_READY: flat(1000, 2880)},
        ),
        case(
            "a nightly load is worked off within six hours, twice",
            2880,
            {
                PUBLISHED: f"{flat(0, 60)} {flat(360000, 1440)} {flat(720000, 1380)}",
                SUCCESS: f"{flat(0, 60)} {grows(1000, 360)} {flat(360000, 1080)} {grows(1000, 360, 360000)} "
                + flat(720000, 1020),
                READY: f"{flat(0, 60)} {grows(-1000, 360, 360000)} {flat(0, 1080)} {grows(-1000, 360, 360000)} "
                + flat(0, 1020),
                OLDEST_READY: f"{flat(0, 60)} {grows(60, 360)} {flat(0, 1080)} {grows(60, 360)} {flat(0, 1020)}",
            },
        ),
        case(
            "a queue is paused for an afternoon",
            240,
            {PAUSED: flat(1, 240), SUCCESS: flat(0, 240), READY: grows(4000, 240), OLDEST_READY: grows(60, 240)},
        ),
    ),
    "PgQueueDeep": (
        case(
            "two million messages are delayed until tomorrow",
            60,
            {'pgqueue_unfinished_messages{queue="orders",state="delayed"}': flat(2_000_000, 60)},
            "PgQueueDeep",
        ),
        case(
            "two million messages are published and worked off in ten minutes",
            60,
            {READY: f"{grows(-200_000, 10, 2_000_000)} {flat(10, 50)}"},
        ),
        case("900,000 messages are delayed until tomorrow", 60, {READY: flat(900_000, 60)}),
    ),
    "PgQueueHanging": (
        case("one worker of a busy queue hangs", 60, {OLDEST_LEASE: grows(60, 60)}, "PgQueueHanging"),
        case(
            "the first message of a queue hangs for more than a day",
            1500,
            {
                OLDEST_LEASE: grows(60, 1500),
                SUCCESS: flat(0, 1500),
                PUBLISHED: flat(1, 1500),
                LONGEST_RUN: flat(0, 1500),
            },
            "PgQueueHanging",
        ),
        case("the first handler takes two hours", 120, two_hour_handler(earlier=0)),
        case("handlers take two hours each", 600, two_hour_handler(earlier=4)),
        case(
            "maintenance stops, and with it all counters",
            180,
            {
                MAINTENANCE_AGE: f"{flat(30, 60)} {grows(60, 120)}",
                PUBLISHED: f"{grows(6000, 60)} {flat(360000, 120)}",
                SUCCESS: f"{grows(6000, 60)} {flat(360000, 120)}",
            },
            "PgQueueMaintenanceLate",
        ),
    ),
    "PgQueueDeadMessages": (
        case("a message is dead", 60, {DEAD: flat(1, 60)}, "PgQueueDeadMessages"),
        case("a dead message is requeued at once", 60, {DEAD: f"{flat(1, 10)} {flat(0, 50)}"}),
    ),
    "PgQueueDying": (
        case("200 messages die in a minute", 180, {FAILED: f"{flat(0, 120)} {flat(200, 60)}"}, "PgQueueDying"),
        case(
            "200 messages die in a minute where some always do",
            1560,
            {FAILED: f"{grows(3, 1500)} {flat(4700, 60)}"},
            "PgQueueDying",
        ),
        case(
            "a fifth of few messages die",
            180,
            {PUBLISHED: grows(2, 180), SUCCESS: grows(1.6, 180), FAILED: grows(0.4, 180)},
            "PgQueueDying",
        ),
        case(
            "the only message of an hour dies",
            180,
            {PUBLISHED: flat(1, 180), SUCCESS: flat(0, 180), FAILED: f"{flat(0, 60)} {flat(1, 120)}"},
        ),
        case("3 of 6,000 messages a minute die, as always", 1560, {FAILED: grows(3, 1560)}),
    ),
    "PgQueuePaused": (
        case("a queue is paused for two days", 2880, {PAUSED: flat(1, 2880)}, "PgQueuePaused"),
        case("a queue is paused for an hour", 120, {PAUSED: f"{flat(1, 60)} {flat(0, 60)}"}),
    ),
}
ALL = [one for cases in CASES.values() for one in cases]


def test_each_alert_has_a_series_that_fires_it_and_a_neighbour_that_does_not() -> None:
    assert set(CASES) == NAMES
    for alert, cases in CASES.items():
        assert {alert in one.fires for one in cases} == {True, False}, alert


@pytest.mark.prometheus
@pytest.mark.parametrize("one", ALL, ids=[one.happens for one in ALL])
def test_what_happens_fires_its_alert_and_no_other(one: Case, tmp_path: Path) -> None:
    known = {"sick": well(one.minutes) | dict(one.series), "well": well(one.minutes)}
    # Two databases have a queue of that name, and only with one of them is anything wrong.
    series = [
        {"series": with_instance(name, instance), "values": values}
        for instance, all_of in known.items()
        for name, values in all_of.items()
    ]
    fired = 'group by (alertname, instance) (max_over_time(ALERTS{alertstate="firing"}[30d]))'
    tests = {
        "rule_files": [str(ALERTS)],
        # Rules are evaluated over days in steps of four minutes, which take a quarter of the time.
        "evaluation_interval": "1m" if one.minutes < 1000 else "4m",
        "tests": [
            {
                "interval": "1m",
                "input_series": series,
                "promql_expr_test": [
                    {
                        "expr": fired,
                        "eval_time": f"{one.minutes - 1}m",
                        "exp_samples": [
                            {"labels": f'{{alertname="{alert}",instance="sick"}}', "value": 1}
                            for alert in sorted(one.fires)
                        ],
                    }
                ],
            }
        ],
    }
    (tmp_path / "tests.yml").write_text(json.dumps(tests))
    found = prometheus.find()
    assert found is not None
    command = [found / "promtool", "test", "rules", tmp_path / "tests.yml"]
    # Go's garbage collector would take a fifth of the time of a process that lives for seconds.
    done = subprocess.run(command, env=os.environ | {"GOGC": "off"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def well(minutes: int) -> dict[str, str]:
    return {name: grows(by, minutes, begin) for name, (begin, by) in HEALTHY.items()}


def with_instance(name: str, instance: str) -> str:
    metric, _, labels = name.partition("{")
    return f'{metric}{{instance="{instance}"' + (f",{labels}" if labels else "}")
