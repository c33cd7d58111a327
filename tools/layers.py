"""The picture of the layers of the code, from the contracts of import-linter: `make golden` writes it."""

from __future__ import annotations

import ast
import re
import textwrap
import tomllib
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any, Final

from tools import ROOT

PICTURE: Final[Path] = ROOT / "docs" / "images" / "layout.svg"
_PACKAGE: Final = "airflow_provider_pgqueue"
_WIDTH: Final = 860
_EDGE: Final = 20
_GAP: Final = 10
_LINE: Final = 16  # pixels from one line of text to the next
_LETTER: Final = 6.2  # pixels that a letter of a description takes on average, and a little more
_KINDS: Final = {"airflow": "imports Airflow", "spark": "imports Spark", "own": "imports neither"}
_STYLE: Final = """<style>
    .plate { fill: #ffffff } .airflow { fill: #eef2fb; stroke: #5c6bc0 } .own { fill: #e3ecdf; stroke: #558b2f }
    .spark { fill: #fff3e0; stroke: #ef6c00 } text { fill: #4b5563; font-size: 12px }
    .code { fill: #1c2430; font: 600 14px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace }
    @media (prefers-color-scheme: dark) {
      .plate { fill: #161b22 } .airflow { fill: #1f2a44; stroke: #8c9eff } .own { fill: #1d2f1c; stroke: #9ccc65 }
      .spark { fill: #3a2a12; stroke: #ffb74d } text { fill: #b1bac4 } .code { fill: #e6edf3 }
    }
  </style>"""


def layers(contracts: list[dict[str, Any]]) -> list[list[str]]:
    """Return the packages of each layer, the highest layer first."""
    (rows,) = (one["layers"] for one in contracts if one["type"] == "layers" and one.get("containers") == [_PACKAGE])
    return [re.findall(r"\w+", row) for row in rows]


def picture() -> str:
    """Return the picture as SVG: a row for each layer, and one for the SQL below all of them."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    rows = [*layers(contracts), ["sql"]]
    drawn, top = list(_legend()), 42
    for row in rows:
        width = (_WIDTH - 2 * _EDGE - _GAP * (len(row) - 1)) / len(row)
        texts = [textwrap.wrap(_description(name), int((width - 24) / _LETTER)) for name in row]
        height = 32 + _LINE * max(map(len, texts))
        for place, (name, text) in enumerate(zip(row, texts, strict=True)):
            left = _EDGE + place * (width + _GAP)
            drawn += _box(name, text, (left, top, width, height), _kind(name, contracts))
        top += height + _GAP
    return "\n  ".join([*_head(top + _GAP, rows), *drawn]) + "\n</svg>\n"


def _head(height: int, rows: list[list[str]]) -> list[str]:
    return [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img" '
        'aria-labelledby="title desc" font-family="system-ui, -apple-system, \'Segoe UI\', Roboto, sans-serif">',
        '<title id="title">The layers of the code</title>',
        f'<desc id="desc">From the top: {"; ".join(", ".join(row) for row in rows)}.</desc>',
        _STYLE,
        f'<rect class="plate" width="{_WIDTH}" height="{height}" rx="10"/>',
    ]


def _legend() -> Iterator[str]:
    yield f'<text x="{_EDGE}" y="26">A package imports only from rows below its own.</text>'
    for place, (kind, meaning) in enumerate(_KINDS.items()):
        left = _WIDTH - 360 + 120 * place
        yield f'<rect class="{kind}" x="{left}" y="15" width="12" height="12" rx="3"/>'
        yield f'<text x="{left + 18}" y="26">{meaning}</text>'


def _box(name: str, text: list[str], place: tuple[float, ...], kind: str) -> Iterator[str]:
    left, top, width, height = place
    yield f'<rect class="{kind}" x="{left:g}" y="{top:g}" width="{width:g}" height="{height:g}" rx="8"/>'
    yield f'<text class="code" x="{left + 12:g}" y="{top + 20:g}">{name}</text>'
    for number, line in enumerate(text):
        yield f'<text x="{left + 12:g}" y="{top + 38 + _LINE * number:g}">{escape(line)}</text>'


def _description(name: str) -> str:
    """Return the first sentence of the docstring of a package or module."""
    if name == "sql":
        return "The schema messages: chapters of functions and views, migrations, grants, queries of the package."
    place = ROOT / _PACKAGE / name
    file = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
    docstring = ast.get_docstring(ast.parse(file.read_text())) or ""
    return re.split(r"(?<=\.)\s", docstring, maxsplit=1)[0].replace("`", "")


def _kind(name: str, contracts: list[dict[str, Any]]) -> str:
    """Return which of the large engines a package may import, as the contracts that forbid them say."""
    for engine in ("airflow", "pyspark"):
        (free,) = (one["source_modules"] for one in contracts if one.get("forbidden_modules") == [engine])
        if name != "sql" and f"{_PACKAGE}.{name}" not in free:
            return engine.removeprefix("py")
    return "own"


def main() -> None:
    PICTURE.write_text(picture())
    print(f"{PICTURE.relative_to(ROOT)} written")


if __name__ == "__main__":
    main()
