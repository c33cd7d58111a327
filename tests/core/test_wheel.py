"""What `pip install` brings: the package and all of sql/, found and read from a zip too."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from airflow_provider_pgqueue.core import migrations
from tools import ROOT


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (built,) = tmp_path.glob("*.whl")
    return built


def test_the_wheel_carries_the_whole_of_sql(wheel: Path) -> None:
    prefix = "airflow_provider_pgqueue/sql/"
    with zipfile.ZipFile(wheel) as archive:
        carried = {name.removeprefix(prefix) for name in archive.namelist() if name.startswith(prefix)}
        entry_points = [name for name in archive.namelist() if name.endswith("entry_points.txt")]
        assert "airflow_provider_pgqueue/py.typed" in archive.namelist()
        assert b"get_provider_info:get_provider_info" in archive.read(entry_points[0])
    tree = {str(path.relative_to(ROOT / "sql")) for path in (ROOT / "sql").rglob("*") if path.is_file()}
    assert carried == tree


def test_the_migrations_are_read_from_inside_a_zip(wheel: Path, tmp_path: Path) -> None:
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]);"
        " from airflow_provider_pgqueue.core import migrations as m;"
        " assert m.__file__.startswith(sys.argv[1]), m.__file__; print(len(m.scripts()), m.code_version())"
    )
    run = subprocess.run(
        [sys.executable, "-c", program, str(wheel)], cwd=tmp_path, check=True, capture_output=True, text=True
    )
    number, version = run.stdout.split()
    assert int(number) > 40
    assert int(version) == migrations.code_version()
