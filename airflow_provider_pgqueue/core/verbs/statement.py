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
    """A call of one function of schema `messages`; `decode` makes the result of all its rows.

    What is not `durable` may be undone by a crash of the server: docs/decisions/0015-leases-are-not-flushed.md.
    """

    function: str
    arguments: Mapping[str, Any]
    decode: Callable[[list[Row]], T]
    types: Mapping[str, str] = field(default_factory=dict)
    durable: bool = True

    @property
    def sql(self) -> str:
        """The text to run: named arguments, so that the functions may grow new ones; NULL leaves the default."""
        return f"SELECT * FROM {self._call}"  # noqa: S608 names from this module only

    @property
    def sql_alone(self) -> str:
        """The text for a transaction of its own, whose commit need not wait for the disk unless it is durable."""
        if self.durable:
            return self.sql
        return f"SELECT found.* FROM set_config('synchronous_commit', 'off', true), {self._call} found"  # noqa: S608

    @property
    def _call(self) -> str:
        named = ", ".join(
            f'"{name}" => %({name})s' + (f"::{self.types[name]}" if name in self.types else "") for name in self.given
        )
        return f"messages.{self.function}({named})"

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


def only_row(rows: list[Row]) -> Row:
    (row,) = rows
    return row


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
