"""One word for each thing: the tables of tests/words.md hold for SQL, Python and the documentation."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator, Sequence
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from tools import ROOT

PAGE = ROOT / "tests" / "words.md"
PATTERNS = (
    *("airflow_provider_pgqueue/**/*.py", "benchmarks/**/*.py", "dags_examples/*.py", "tools/**/*.py"),
    *("sql/**/*.sql", "sql/README.md", "docs/**/*.md", "README.md", "CONTRIBUTING.md"),
)
FILES = sorted({path for pattern in PATTERNS for path in ROOT.glob(pattern)} - {PAGE})
# Files that speak of the past, and those of others.
HISTORY = (
    "tests/words.md",
    "CHANGELOG.md",
    "docs/decisions/*",
    "benchmarks/results/*",
    "requirements.lock",
    "tools/airflow_versions/*",
)

_CODE = re.compile(r"`([^`]+)`")
_ENDINGS = r"(?:s|d|ed|ing)?"
_SQL_TEXT = re.compile(r"--[^\n]*|'(?:[^']|'')*'")


class Line(NamedTuple):
    place: str
    number: int
    text: str
    parts: str


def table(heading: str) -> list[list[str]]:
    """Return the cells of the table below a heading of the page, without its head."""
    rows = [
        line for line in PAGE.read_text().partition(heading)[2].partition("\n## ")[0].split("\n") if line[:1] == "|"
    ]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows[2:]]


def banned(column: int) -> dict[str, str]:
    """Return the words in code font in a column of the page, each with the word to say."""
    return {word: row[0] for row in table("# Words") for word in _CODE.findall(row[column])}


def meant_otherwise(word: str) -> list[str]:
    """Return the files and phrases in which the page lets a word stand."""
    return [place for row in table("## Where") if word in _CODE.findall(row[0]) for place in _CODE.findall(row[1])]


def parts(text: str) -> str:
    """Return the text with names taken apart at underscores and inner capitals, in small letters."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", text).replace("_", " ").replace("-", " ").lower()


def uses(word: str, text: str) -> bool:
    return re.search(rf"\b{re.escape(parts(word))}{_ENDINGS}\b", parts(text)) is not None


def violations(word: str, lines: Sequence[Line]) -> Iterator[str]:
    allowed = meant_otherwise(word)
    for line in lines:
        if parts(word) not in line.parts or any(fnmatch(line.place, one) for one in allowed):
            continue
        text = line.text
        for phrase in allowed:
            text = text.replace(phrase, "")
        if uses(word, text):
            yield f"{line.place}:{line.number}: {line.text.strip()[:100]}"


@cache
def all_lines() -> list[Line]:
    return [line_of(path, *line) for path in FILES for line in enumerate(path.read_text().splitlines(), 1)]


@cache
def all_names() -> list[Line]:
    return [line_of(path, *name) for path in FILES for name in names(path)]


def line_of(path: Path, number: int, text: str) -> Line:
    return Line(path.relative_to(ROOT).as_posix(), number, text, parts(text))


def names(path: Path) -> Iterator[tuple[int, str]]:
    if path.suffix == ".py":
        for node in ast.walk(ast.parse(path.read_text())):
            yield from ((node.lineno, name) for name in defined(node))
    elif path.suffix == ".sql":
        # What is neither a comment nor a string is a name or a keyword.
        for number, line in enumerate(_SQL_TEXT.sub(blank, path.read_text()).splitlines(), 1):
            yield from ((number, name) for name in re.findall(r"\w+(?:\.\w+)?", line))


def blank(found: re.Match[str]) -> str:
    return "\n" * found[0].count("\n")


def defined(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name) | ast.arg(arg=name):
            yield name
        case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
            yield name


@pytest.mark.parametrize(("word", "better"), banned(2).items())
def test_a_word_of_the_column_never_stands_nowhere(word: str, better: str) -> None:
    assert list(violations(word, all_lines())) == [], f"say {better}, or name the place on the page"


@pytest.mark.parametrize(("word", "better"), banned(3).items())
def test_a_word_of_the_last_column_is_part_of_no_name(word: str, better: str) -> None:
    assert list(violations(word, all_names())) == [], f"say {better}, or name the place on the page"


# Turns of other languages, each with what a native writer says.
TURNS = {
    r"\b(goes|went) on\b(?! the)": "continues",
    r"\bstays so\b": "stays as it is",
    r"\blooks? whether\b": "checks for",
    r"\bas long as it fails\b": "until it succeeds",
    r"\bby the gap\b": "by the length of the gap",
    r"\bdo(es)? not fit\b": "does not match",
    r"\bone after the other\b": "one at a time",
    r"\b(function|handler|callable) works\b": "runs",
    r"\bmay appear nowhere\b": "may not appear anywhere",
    r"\bis no (superuser|outcome|quota|fingerprint|object|class|table)\b": "is not a",
    r"\bare no (list|JSON)\b": "are not",
    r"\bwho decides about\b|\bdecides about it\b": "who decides on",
    r"\ba thousand million\b": "a billion",
    r"(?i)\bwithout further ado\b": "without more",
    r"\bby whom it may\b": "who may",
    r"\bof today\b": "current",
    r"\bhow many ended how\b": "how many had which end",
    r"\bhave to be there\b|\bhas to be there\b": "must exist",
}


@pytest.mark.parametrize(("turn", "better"), TURNS.items())
def test_a_turn_of_another_language_stands_nowhere(turn: str, better: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{text.count(chr(10), 0, match.start()) + 1}: {match[0]}"
        for path, text in prose().items()
        for match in re.finditer(turn, text)
    ]
    assert found == [], f"say: {better}"


@cache
def prose() -> dict[Path, str]:
    return {path: path.read_text() for path in FILES if "airflow_provider_pgqueue/spark/" not in path.as_posix()}


@pytest.mark.parametrize("text", ["def claim_next()", "it was Claimed", "claims", "reclaim or claim", "LeaseClaim"])
def test_a_word_is_found_in_each_form(text: str) -> None:
    assert uses("claim", text)


@pytest.mark.parametrize("text", ["declaim", "disclaimer", "lease"])
def test_a_word_is_not_found_inside_another(text: str) -> None:
    assert not uses("claim", text)


def test_the_page_bans_words_and_explains_only_those() -> None:
    words = {**banned(2), **banned(3)}
    assert len(words) > 20
    assert {word for row in table("## Where") for word in _CODE.findall(row[0])} <= set(words)


def test_what_is_gone_stands_nowhere() -> None:
    found = [
        f"{place}:{number}: {word}"
        for place, text in all_files().items()
        for word in gone()
        if word in text
        for number, line in enumerate(text.splitlines(), 1)
        if re.search(rf"(?<!\w){re.escape(word)}(?!\w)", line)
    ]
    assert found == [], "tests/words.md says what a user does instead"


def gone() -> list[str]:
    return [word for row in table("## Gone") for word in _CODE.findall(row[0])]


def all_files() -> dict[str, str]:
    """Return the text of each file of the repository that speaks of what there is today."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout.decode()
    places = [place for place in listed.split("\0") if place and not any(fnmatch(place, one) for one in HISTORY)]
    read = {place: ROOT / place for place in places if (ROOT / place).is_file()}
    return {place: path.read_text(errors="ignore") for place, path in read.items()}


def test_no_merge_left_its_marks() -> None:
    assert [str(path) for path in FILES if re.search(r"^(<{7}|>{7}) ", path.read_text(), re.MULTILINE)] == []
