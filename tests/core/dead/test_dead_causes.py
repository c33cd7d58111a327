"""What one cause of death is: which messages share it, and how it develops."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from airflow_provider_pgqueue.core.dead_causes import Period, group, normalise, trend

CITIES = ("Athens", "Bern", "Cairo", "Dublin", "Essen", "Florence", "Graz", "Hanoi", "Izmir", "Jakarta")

MONDAY = datetime(2026, 6, 1, tzinfo=UTC)
WEEK = Period(begin=MONDAY, end=MONDAY + timedelta(days=7))


@pytest.mark.parametrize(
    ("before", "lately", "first_after", "said"),
    [
        (0, 1, timedelta(days=6), "new"),
        (0, 900, timedelta(days=6), "new"),
        (5, 0, timedelta(0), "fading"),
        (300, 100, timedelta(0), "steady"),
        (300, 180, timedelta(0), "steady"),
        (300, 220, timedelta(0), "growing"),
        (300, 40, timedelta(0), "fading"),
        (1, 2, timedelta(0), "steady"),
        (100, 100, timedelta(days=3.5), "steady"),
        (50, 350, timedelta(days=3.5), "growing"),
    ],
)
def test_a_trend_compares_the_last_quarter_with_the_time_since_the_first_death(
    before: int, lately: int, first_after: timedelta, said: str
) -> None:
    assert trend(WEEK, before=before, lately=lately, first_at=MONDAY + first_after) == said


def test_a_period_has_hours_up_to_two_weeks_and_then_days() -> None:
    begin = MONDAY + timedelta(minutes=30)
    assert Period(begin=begin, end=begin + timedelta(hours=2)).steps == 3
    assert Period(begin=begin, end=begin + timedelta(hours=2)).first_step == MONDAY
    assert Period(begin=MONDAY, end=MONDAY + timedelta(days=14)).steps == 14 * 24
    assert Period(begin=begin, end=begin + timedelta(days=30)).steps == 31


def test_messages_that_differ_in_a_word_are_one_pattern() -> None:
    found = group(normalise(f"no address in {city} for order {n}") for n, city in enumerate(CITIES))
    assert set(found.values()) == {"no address in * for order #"}


def test_messages_of_other_causes_stay_apart() -> None:
    said = ["connection refused", "connection reset", "disk full", "", "no such table: orders", "no such file"]
    assert len(set(group(map(normalise, said)).values())) == len(said)


def test_a_chain_of_small_steps_does_not_lead_from_one_cause_to_another() -> None:
    words = list("abcdefghij")
    chain = [" ".join([*"zyxwvutsrq"[:n], *words[n:]]) for n in range(11)]
    patterns = set(group(chain).values())
    assert min(sum(word != "*" for word in pattern.split()) for pattern in patterns) >= 7
    assert len(patterns) > 2


def test_the_patterns_do_not_depend_on_the_order() -> None:
    texts = [
        normalise(f"{verb} {city} at once, please, {n}") for n, city in enumerate(CITIES) for verb in ("load", "save")
    ]
    assert group(texts) == group(reversed(texts)) == group(texts * 2)


def test_a_normalised_message_has_no_number_id_quoted_text_or_control_character() -> None:
    said = "Card '4111' of\x1b[31m\u202e user 0f8b-12 (1, 2, 3) at 2026-01-31 10:00:00.5 \"x\", 'y'"
    assert normalise(said) == "card ? of [31m user # (#) at # ?"
