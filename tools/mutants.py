"""Breaks SQL and Python on purpose, one function or file at a time, and asks the tests whether they notice.

    .venv/bin/python -m tools.mutants [NAME …] [--list]

A mutant is a change of the text of one function as it is installed; `mutants.toml` has them. The tests that have to
fail run against a template database with that change (`PGQUEUE_MUTANT=NAME pytest …`). A text is found whatever its
white space, so that a line may be broken for its reader. A text that is no longer there is an error: then the function
has changed, and the mutant has to follow it.

A mutant of `mutants_python.toml` is a change of one file of the package. Its tests run in a copy of the repository.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import psycopg

from tools import ROOT, STATE, SetupError, java, run_main

VARIABLE: Final = "PGQUEUE_MUTANT"
LONGEST: Final = 300.0  # seconds: tests that hang have noticed, and statement_timeout ends most of them long before
HUNG: Final = "nothing within five minutes"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mistake:
    """Texts that are replaced by others, and the tests that have to notice it, the quickest first."""

    name: str
    changes: tuple[tuple[str, str], ...]
    tests: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant(Mistake):
    """A mistake in one function."""

    function: str

    def apply(self, conn: psycopg.Connection[Any]) -> None:
        """Replace the function in the database by one with the mistake."""
        found = conn.execute(
            "SELECT pg_get_functiondef(oid) FROM pg_proc"
            " WHERE pronamespace = 'messages'::regnamespace AND proname = %s",
            [self.function],
        ).fetchone()
        if found is None:
            raise SetupError(f"mutant {self.name}: there is no function messages.{self.function}")
        text = str(found[0])
        for old, new in self.changes:
            text, places = re.subn(_pattern(old), new.replace("\\", r"\\"), text)
            if places == 0:
                raise SetupError(f"mutant {self.name}: messages.{self.function} has no {old!r} any more")
        conn.execute(text.encode())

    @contextmanager
    def place(self) -> Iterator[tuple[Path, dict[str, str]]]:
        """Give the repository in which the tests notice it, and what their environment says."""
        yield ROOT, {VARIABLE: self.name}


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonMutant(Mistake):
    """A mistake in one file of the package."""

    file: str

    def text(self) -> str:
        """Return the file with the mistake; SetupError if it no longer has what is changed, exactly once."""
        text = (ROOT / self.file).read_text()
        for old, new in self.changes:
            if text.count(old) != 1:
                raise SetupError(f"mutant {self.name}: {self.file} has {old!r} {text.count(old)} times, not once")
            text = text.replace(old, new)
        compile(text, self.file, "exec")
        return text

    @contextmanager
    def place(self) -> Iterator[tuple[Path, dict[str, str]]]:
        """Give a copy of the repository with the mistake, in which the programs of the tests find it, too."""
        with tempfile.TemporaryDirectory(dir=STATE, prefix="mutant-") as folder:
            copy = Path(folder)
            for part in ROOT.iterdir():
                if part.is_dir() and not part.name.startswith("."):
                    shutil.copytree(part, copy / part.name, copy_function=os.link)
                elif part.is_file():
                    os.link(part, copy / part.name)
            (copy / ".venv").symlink_to(ROOT / ".venv")
            (copy / ".run").mkdir()
            for made in ("prometheus", "prometheus.lock", java.ARCHIVE.name):  # once, and not for each copy
                (copy / ".run" / made).symlink_to(STATE / made)
            (copy / self.file).unlink()
            (copy / self.file).write_text(self.text())
            yield copy, {"PYTHONPATH": folder}


def _pattern(text: str) -> str:
    """Return a regular expression for a text of SQL whose lines may be broken and indented in any way."""
    words = re.findall(r"\w+|[^\w\s]", text)
    # Two words keep a space between them. A space at an end is meant, too: a word is then no part of a longer one.
    gaps = (r"\s+" if re.fullmatch(r"\w\w", left[-1] + right[0]) else r"\s*" for left, right in pairwise(words))
    inner = "".join(re.escape(word) + gap for word, gap in zip(words, [*gaps, ""], strict=True))
    return (r"(?<=\s)" if text[0].isspace() else "") + inner + (r"(?=\s)" if text[-1].isspace() else "")


def _entries(name: str) -> Iterator[dict[str, Any]]:
    for entry in tomllib.loads(Path(__file__).with_name(name).read_text())["mutant"]:
        yield entry | {"changes": tuple(map(tuple, entry["changes"])), "tests": tuple(entry["tests"])}


MUTANTS: Final = tuple(Mutant(**entry) for entry in _entries("mutants.toml"))
PYTHON_MUTANTS: Final = tuple(PythonMutant(**entry) for entry in _entries("mutants_python.toml"))


def mutant(name: str) -> Mutant:
    """Return the mutant of the SQL of this name."""
    return next(mutant for mutant in MUTANTS if mutant.name == name)


def noticed_by(mutant: Mutant | PythonMutant) -> str | None:
    """Return the test that fails, None if all pass; SetupError if they cannot run."""
    with mutant.place() as (root, environment):
        # One at a time: the first often takes seconds alone, where the others may take a minute before they fail.
        return next(filter(None, (_failure([test], root, **environment) for test in mutant.tests)), None)


def _failure(tests: Collection[str], root: Path = ROOT, **given: str) -> str | None:
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-n", "0", "-p", "no:cacheprovider", *tests]
    # Tests that wait for a lock forever end in an error. The worker of xdist that we may be in is not theirs.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment |= {"PGOPTIONS": "-c statement_timeout=30s", "COLUMNS": "1000"} | given
    try:
        done = subprocess.run(
            command, cwd=root, env=environment, capture_output=True, text=True, timeout=LONGEST, check=False
        )
    except subprocess.TimeoutExpired:
        return HUNG
    if done.returncode not in (0, 1) or re.search(r"^ERROR ", done.stdout, re.MULTILINE):
        raise SetupError(f"pytest ended with {done.returncode} for {tests} with {given}:\n{done.stdout[-3000:]}")
    failed = re.search(r"^FAILED (.+?)(?: - .*)?$", done.stdout, re.MULTILINE)
    return failed[1] if failed else None


def main() -> int:
    """Print which test noticed each mutant, and `caught n of n`."""
    parser = argparse.ArgumentParser(prog="python -m tools.mutants", description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", help="mutants whose name contains one of these; all without any")
    parser.add_argument("--list", action="store_true", help="print their names only")
    parser.add_argument("--jobs", type=int, default=2, help="how many at once")
    arguments = parser.parse_args()
    all_: tuple[Mutant | PythonMutant, ...] = (*MUTANTS, *PYTHON_MUTANTS)
    chosen = [m for m in all_ if not arguments.names or any(name in m.name for name in arguments.names)]
    if arguments.list:
        print("\n".join(m.name for m in chosen))
        return 0
    if not arguments.names and (failed := _failure(sorted({test for m in chosen for test in m.tests}))):
        raise SetupError(f"a test fails without any mutant: {failed}")
    survivors = []
    with ThreadPoolExecutor(arguments.jobs) as pool:
        for mutant, (test, seconds) in zip(chosen, pool.map(_timed, chosen), strict=True):
            print(f"{'caught  ' if test else 'SURVIVED'}  {seconds:5.1f} s  {mutant.name}", flush=True)
            if test not in (None, mutant.tests[0]):
                print(f"{'':20}{test}", flush=True)
            survivors += [] if test else [mutant.name]
    print(
        f"caught {len(chosen) - len(survivors)} of {len(chosen)}",
        *(f"survived: {name}" for name in survivors),
        sep="\n",
    )
    return 1 if survivors else 0


def _timed(mutant: Mutant | PythonMutant) -> tuple[str | None, float]:
    began = time.monotonic()
    return noticed_by(mutant), time.monotonic() - began


if __name__ == "__main__":
    run_main(main)
