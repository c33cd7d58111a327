"""An asset that is made twice, once without watchers, loses its watcher at random: Airflow keeps one of the two."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import pytest

from tools import ROOT

PAGES = sorted([*(ROOT / "docs").rglob("*.md"), ROOT / "README.md", *(ROOT / "dags_examples").glob("*.py")])


def made(text: str) -> Counter[str]:
    """Count how often each asset is made by its name or URI."""
    return Counter(
        node.args[0].value
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "Asset"
        and node.args
        and isinstance(node.args[0], ast.Constant)
    )


def blocks(page: str) -> list[str]:
    return [block.partition("```")[0] for block in page.split("```python\n")[1:]]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_example_makes_an_asset_once(path: Path) -> None:
    text = path.read_text()
    for source in [text] if str(path).endswith(".py") else blocks(text):
        lines = source.splitlines()
        indent = min((len(line) - len(line.lstrip()) for line in lines if line.strip()), default=0)
        assert all(number == 1 for number in made("\n".join(line[indent:] for line in lines)).values())
