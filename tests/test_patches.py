"""A test that replaces a private name tests nothing any more after a rename, or an import that is written otherwise."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tools import ROOT


def replaced(source: str) -> Iterator[str]:
    """Yield the private names that `setattr` or a patch is told to replace, as an argument or in a dotted path."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Call(func=ast.Attribute(attr="setattr" | "delattr" | "patch" | "object") | ast.Name(id="setattr")):
                texts = [given.value for given in node.args[:2] if isinstance(given, ast.Constant)]
                yield from (text for text in texts if isinstance(text, str) and any(map(is_private, text.split("."))))


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


@pytest.mark.parametrize(
    "patch",
    [
        'monkeypatch.setattr(hub, "_DEADLINE", 1.0)',
        'monkeypatch.setattr("package.module._DEADLINE", 1.0)',
        'setattr(hub, "_DEADLINE", 1.0)',
        'mock.patch("package._module.name")',
    ],
)
def test_a_private_name_that_is_replaced_is_found(patch: str) -> None:
    assert len(list(replaced(patch))) == 1


def test_no_test_replaces_a_private_name() -> None:
    paths = sorted((ROOT / "tests").rglob("*.py"))
    found = [f"{path.relative_to(ROOT)}: {name}" for path in paths for name in replaced(path.read_text())]
    assert found == [], "give it as an argument, or set a number of core/tuning.py"
