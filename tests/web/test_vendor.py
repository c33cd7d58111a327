"""The libraries of the page are what their publishers packed."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from tools.vendor import LIBRARIES, SBOM, sbom


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


def test_the_bill_of_materials_in_the_wheel_has_each_library_with_its_sums() -> None:
    assert json.loads(SBOM.read_text()) == sbom(), "python -m tools.vendor writes it"
    files = [one for library in sbom()["components"] for one in library["components"]]
    (page, *_) = LIBRARIES
    assert {one["name"]: one["hashes"][0]["content"] for one in files} == {
        file.name: hashlib.sha256(file.read_bytes()).hexdigest()
        for file in page.iterdir()
        if file.name != "vendor.json"
    }
