"""The libraries of the page are what their publishers packed."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from tools.vendor import LIBRARIES


@pytest.mark.parametrize("folder", LIBRARIES, ids=lambda folder: folder.parts[-3])
def test_each_file_has_the_sum_that_was_written_down(folder: Path) -> None:
    known = json.loads((folder / "vendor.json").read_text())
    assert [one["package"] for one in known] == [f"{one.name}@{one.version}" for one in LIBRARIES[folder]]
    sums = {name: sum_ for one in known for name, sum_ in one["sha256"].items()}
    assert sums == {
        file.name: hashlib.sha256(file.read_bytes()).hexdigest()
        for file in folder.iterdir()
        if file.name != "vendor.json"
    }


@pytest.mark.parametrize("folder", LIBRARIES, ids=lambda folder: folder.parts[-3])
def test_each_library_has_its_licence_beside_it(folder: Path) -> None:
    for library in LIBRARIES[folder]:
        assert any(name.endswith(".LICENSE") for name in library.files)
