"""What a verb is, and how its rows become a result."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final, Generic, TypeVar

from airflow_provider_pgqueue.core.body import to_json
from airflow_provider_pgqueue.core.errors import LeaseLost
from airflow_provider_pgqueue.core.message import Row

T = TypeVar("T")
ZERO: Final = timedelta(0)


@dataclass(frozen=True, slots=True)
class Statement(Generic[T]):
    """A call of one function of schema `messages`; `decode` makes the result of all its rows."""

    function: str
    arguments: Mapping[str, Any]
    decode: Callable[[list[Row]], T]
    types: Mapping[str, str] = field(default_factory=dict)

    @property
    def sql(self) -> str:
        """The text to run: named arguments, so that the functions may grow new ones; NULL leaves the default."""
        named = ", ".join(
            f'"{name}" => %({name})s' + (f"::{self.types[name]}" if name in self.types else "") for name in self.given
        )
        return f"SELECT * FROM messages.{self.function}({named})"  # noqa: S608 names from this module only

    @property
    def given(self) -> dict[str, Any]:
        """The arguments that are not left to the default of the function."""
        return {name: value for name, value in self.arguments.items() if value is not None}


def nothing(rows: list[Row]) -> None:
    return None


def only(row: Row) -> Any:
    (value,) = row.values()
    return value


def one(rows: list[Row]) -> Any:
    return only(rows[0])


def onlys(rows: list[Row]) -> list[Any]:
    return [only(row) for row in rows]


def ids_of(rows: list[Row]) -> list[int]:
    return onlys(rows)


def list_of(kind: Callable[[Row], T]) -> Callable[[list[Row]], list[T]]:
    return lambda rows: [kind(row) for row in rows]


def unless_lost(ids: Collection[int]) -> Callable[[list[Row]], list[int]]:
    """Decode ids; raise LeaseLost for those that were asked for and did not come back."""

    def decode(rows: list[Row]) -> list[int]:
        done = ids_of(rows)
        if lost := set(ids) - set(done):
            raise LeaseLost(lost)
        return done

    return decode


def optional_json(value: Mapping[str, Any] | None) -> str | None:
    return None if value is None else to_json(value)
