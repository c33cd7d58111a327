"""Errors that go from one process to another, as those of pools and of Spark do, arrive as they were raised."""

from __future__ import annotations

import copy
import inspect
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from airflow_provider_pgqueue.core import LeaseLost, PgQueueError, errors

SPECIAL: dict[type[PgQueueError], PgQueueError] = {
    errors.LeaseLost: LeaseLost(range(5, 17)),
    errors.TransactionLeftOpen: errors.TransactionLeftOpen(),
}
CLASSES = [
    kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, PgQueueError)
]  # in the order of their names


def again(error: Any) -> Any:
    return pickle.loads(pickle.dumps(error))


@pytest.mark.parametrize("repeat", [again, copy.copy])
@pytest.mark.parametrize("kind", CLASSES)
def test_an_error_survives_pickle_and_copy(kind: type[PgQueueError], repeat: Callable[[Any], Any]) -> None:
    error = copy.copy(SPECIAL[kind]) if kind in SPECIAL else kind("it is so", "Do this.")
    error.at("connection shop")
    error.add_note("a note")
    found = repeat(error)
    assert type(found) is kind
    assert (str(found), found.args, vars(found)) == (str(error), error.args, vars(error))
