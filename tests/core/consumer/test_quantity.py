"""Numbers agree with their nouns."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import airflow_provider_pgqueue
from airflow_provider_pgqueue.core.quantity import per_second, quantity, rate, size
from tools import ROOT

PACKAGE = Path(airflow_provider_pgqueue.__file__).parent


@pytest.mark.parametrize(
    ("number", "shown"), [(0, "0 messages"), (1, "1 message"), (2, "2 messages"), (1234567, "1,234,567 messages")]
)
def test_a_number_agrees_with_its_noun(number: int, shown: str) -> None:
    assert quantity(number) == shown
    assert quantity(number, "dead message") == shown.replace("message", "dead message")


def test_a_rate_reads_as_a_rate() -> None:
    assert [rate(number, 2) for number in (0, 0.5, 3, 2468)] == [
        "0 messages/s",
        "0.25 messages/s",
        "1.5 messages/s",
        "1,234 messages/s",
    ]
    assert rate(0, 0) == "0 messages/s"
    assert per_second(9.99) == "10/s"


@pytest.mark.parametrize(
    ("number", "shown"),
    [(1, "1 byte"), (1023, "1,023 bytes"), (1024, "1.0 KiB"), (1_572_864, "1.5 MiB"), (268_435_455, "256.0 MiB")],
)
def test_a_size_has_the_unit_that_suits_it(number: int, shown: str) -> None:
    assert size(number) == shown


def test_no_text_leaves_the_plural_to_the_reader() -> None:
    files = [*PACKAGE.rglob("*.py"), *PACKAGE.rglob("*.html"), *(ROOT / "sql").rglob("*.sql")]
    assert len(files) > 200
    found = [f"{file.name}: {text}" for file in files for text in re.findall(r"[a-z]+\(e?s\)", file.read_text())]
    assert found == []
