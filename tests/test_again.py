"""What was red is tried once more: green then, it is named; red again, or too much of it, the run is red."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tools.again import MOST, again

STEADY = "def test_steady(): pass\n"
ALWAYS = "def test_always(): assert False\n"
ONCE = """
from pathlib import Path
def test_once():
    seen = Path(__file__).with_name("seen")
    first = not seen.exists()
    seen.touch()
    assert not first
"""


@pytest.mark.parametrize(
    ("tests", "status", "said"),
    [
        (STEADY + ONCE, 0, "UNSTEADY, red at first:\n    test_some.py::test_once"),
        (STEADY + ONCE + ALWAYS, 1, "2 red; once more"),
        (STEADY, 1, ""),  # whatever ended that run was no test
        ("".join(f"def test_{n}(): assert False\n" for n in range(MOST + 1)), 1, ""),
    ],
)
def test_the_red_tests_of_a_run_decide_once_more(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    tests: str,
    status: int,
    said: str,
) -> None:
    (tmp_path / "test_some.py").write_text(tests)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    monkeypatch.chdir(tmp_path)
    cache = tmp_path / "cache"
    subprocess.run([sys.executable, "-m", "pytest", "-o", f"cache_dir={cache}", "-p", "no:xdist"], check=False)
    capfd.readouterr()
    assert again(cache, ["-p", "no:xdist"]) == status
    out = capfd.readouterr().out
    assert said in out
    assert ("UNSTEADY" in out) == (status == 0)
    assert ("once more" in out) == bool(said)
