"""The functions of the schema as `sql/chapters/` has them: in which chapter, with which text, and who may call them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Final

from tools import ROOT

FOLDER: Final = ROOT / "sql" / "chapters"
_LISTED: Final = re.compile(r"^\\ir chapters/(\w+)\.sql$", re.M)
_FUNCTION: Final = re.compile(
    r"^CREATE OR REPLACE FUNCTION messages\.(?P<name>\w+)\(.*?^    ' \[(?:for: )?(?P<roles>[a-z, ]+)\]';\n", re.M | re.S
)
_HEAD: Final = re.compile(r"-- (?P<title>[^:\n]+): .*\n(?:--.*\n)+?-- Tables: (?P<tables>[a-z_, ]+)\.\n")


@dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    """A function as it is installed, with its comment, and the line of the chapter in which it begins.

    `roles` are without `messages_`, or `internal` alone.
    """

    name: str
    chapter: str
    line: int
    text: str
    roles: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chapter:
    """A file of functions or views, and the tables that it owns."""

    name: str
    title: str
    tables: frozenset[str]


@cache
def chapters() -> tuple[Chapter, ...]:
    """Return the chapters in the order of `sql/install.sql`; raise ValueError for one whose head is incomplete."""
    return tuple(_chapter(name) for name in _LISTED.findall((ROOT / "sql" / "install.sql").read_text()))


@cache
def functions() -> Mapping[str, Function]:
    """Return the functions by name, in the order in which they are installed."""
    return {one.name: one for chapter in chapters() for one in _functions(chapter.name)}


def _functions(chapter: str) -> Iterator[Function]:
    text = (FOLDER / f"{chapter}.sql").read_text()
    for found in _FUNCTION.finditer(text):
        yield Function(
            name=found["name"],
            chapter=chapter,
            line=text.count("\n", 0, found.start()) + 1,
            text=found[0],
            roles=frozenset(found["roles"].split(", ")),
        )


def _chapter(name: str) -> Chapter:
    head = _HEAD.match((FOLDER / f"{name}.sql").read_text())
    if head is None:
        raise ValueError(f"sql/chapters/{name}.sql does not begin with its title, what it is about, and its tables")
    tables = frozenset() if head["tables"] == "none" else frozenset(head["tables"].split(", "))
    return Chapter(name=name, title=head["title"], tables=tables)
