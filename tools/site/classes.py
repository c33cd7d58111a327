"""The classes of the Airflow layer as Markdown: `make golden` writes them into the page, which GitHub shows too."""

from __future__ import annotations

import importlib
import inspect
import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.providers.common.compat.sdk import BaseOperator, BaseSensorOperator

from tools import ROOT

PAGE: Final[Path] = ROOT / "docs" / "reference" / "airflow.md"
_ALL_TASKS: Final = {"QueueTask"}  # what these say of all tasks stands once, at the top of the page
_ON_TOP: Final = {"pgqueue_conn_id"}  # which each of them takes
_SECTION: Final = re.compile(r"^<!-- (?P<name>airflow_provider_pgqueue[\w.]+) -->\n.*?^<!-- end -->$", re.M | re.S)
_PARAM: Final = re.compile(r"^:param (\w+): (.*(?:\n[ ]+.*)*)", re.M)
_ELSEWHERE: Final = re.compile(r"(?<=[.\n])[^.\n]*(?:\n(?!\n)[^.\n]*)*\bthose of (?:a )?`\w+`\.")


_OF_AIRFLOW: Final = {
    name
    for base in (BaseOperator, BaseSensorOperator, SparkSubmitOperator)
    for name in inspect.signature(base.__init__).parameters
}


def names(page: str) -> set[str]:
    """Return the classes and functions that the page describes."""
    return {section["name"] for section in _SECTION.finditer(page)}


def current(page: str) -> str:
    """Return the page with each of its sections as the code is now.

    What was said of a class above is not said again: an argument or a paragraph that is the same leads there.
    """
    said: dict[str, str] = {}
    return _SECTION.sub(lambda section: _section(section["name"], said), page)


def _section(name: str, said: dict[str, str]) -> str:
    module, _, short = name.rpartition(".")
    described = getattr(importlib.import_module(module), short)
    sources = _own(described) if inspect.isclass(described) else [described]
    rows = list(_table(sources, short, said))
    table = "\n".join(["| argument | default | meaning |", "|---|---|---|", *rows]) if rows else ""
    prose = [_prose(described)]
    prose += [_prose(base).partition("\n\n")[2] for base in sources[1:] if base.__name__ not in _ALL_TASKS]
    paragraphs = [one for text in prose for one in text.split("\n\n") if one]
    before = {said.setdefault(one, short) for one in paragraphs} - {short}
    paragraphs = [one for one in paragraphs if said[one] == short]
    paragraphs += [f"What is said of {_link(one)} holds here too." for one in sorted(before)]
    lines = [f"<!-- {name} -->", f"`from {module} import {short}`", *paragraphs, table, "<!-- end -->"]
    return "\n\n".join(filter(None, lines))


def _table(sources: list[Any], short: str, said: dict[str, str]) -> Iterator[str]:
    """Yield the rows of the arguments; those that another class has in the same way are one row, which leads there."""
    rows = [row for row in _rows(sources) if row[0] not in _ON_TOP]
    first = {row: said.setdefault(" ".join(row), short) for row in rows}
    often = {one for one, times in Counter(first.values()).items() if times > 2 and one != short and one[0].isupper()}
    for row in rows:
        if first[row] not in often:
            yield "| `{}` | {} | {} |".format(*row)
    for one in dict.fromkeys(first[row] for row in rows if first[row] in often):
        names = ", ".join(f"`{row[0]}`" for row in rows if first[row] == one)
        yield f"| {names} | | as for {_link(one)} |"


def _link(short: str) -> str:
    return f"[`{short}`](#{short.lower()})"


def _own(described: type) -> list[type]:
    return [one for one in described.__mro__ if one.__module__.startswith("airflow_provider_pgqueue")]


def _rows(sources: list[Any]) -> Iterator[tuple[str, str, str]]:
    """Yield name, default and meaning of an argument: those of the class itself, then those that it hands to its bases.

    What only has another default here is Airflow's, which describes it.
    """
    meanings = _meanings(sources)
    for name, default in _arguments(sources).items():
        if name in meanings or name not in _OF_AIRFLOW:
            yield name, default, meanings.get(name, "")


def _arguments(sources: list[Any]) -> dict[str, str]:
    found: dict[str, str] = {}
    for source in sources:
        call: Callable[..., Any] | None = vars(source).get("__init__") if inspect.isclass(source) else source
        if call is None:
            continue
        parameters = inspect.signature(call).parameters.values()
        for one in parameters:
            if one.name != "self" and one.kind in (one.KEYWORD_ONLY, one.POSITIONAL_OR_KEYWORD):
                found.setdefault(one.name, _default(one))
        if not any(one.kind is one.VAR_KEYWORD for one in parameters):
            break
    return found


def _default(parameter: inspect.Parameter) -> str:
    if parameter.default is parameter.empty:
        return "required"
    if type(parameter.default).__name__ == "timedelta":
        return f"`timedelta(seconds={parameter.default.total_seconds():.0f})`"
    return f"`{parameter.default!r}`" if not isinstance(parameter.default, str) else f'`"{parameter.default}"`'


def _meanings(sources: list[Any]) -> dict[str, str]:
    found: dict[str, str] = {}
    for source in sources:
        for name, text in _PARAM.findall(inspect.cleandoc(vars(source).get("__doc__") or source.__doc__ or "")):
            found.setdefault(name, " ".join(text.split()).replace("|", "&#124;").replace("<", "&lt;"))
    return found


def _prose(described: Any) -> str:
    text = _PARAM.sub("", inspect.cleandoc(described.__doc__ or ""))
    return re.sub(r"\n{3,}", "\n\n", _ELSEWHERE.sub("", text)).strip()


def main() -> None:
    """Write the page anew."""
    PAGE.write_text(current(PAGE.read_text()))


if __name__ == "__main__":
    main()
