"""Errors that go from one process to another, as those of pools and of Spark do, arrive as they were raised."""

from __future__ import annotations

import copy
import inspect
import pickle
import re
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


def test_the_tree_draws_each_class_below_its_base() -> None:
    drawn: dict[str, str] = {}
    path = ["PgQueueError"]
    for branch, name in re.findall(r"^( [| ]*)\+-- (\w+)", errors.__doc__ or "", re.MULTILINE):
        path[1 + len(branch) // 5 :] = [name]
        drawn[name] = path[-2]
    bases = {kind.__name__: kind.__bases__[0].__name__ for kind in CLASSES}
    assert drawn == {name: base for name, base in bases.items() if name != "PgQueueError"}


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
