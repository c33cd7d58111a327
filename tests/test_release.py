"""A tag says what the changelog says, or is not made; the workflows run what people run."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from tools import ROOT, SetupError
from tools.release import newest, tag

CHANGELOG = """# Changelog

## [Unreleased]

## 1.2.0 - 2026-12-01

### Added

- A thing.

## 1.1.0 - 2026-11-01

- Older.
"""


def git(repository: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=Somebody", "-c", "user.email=somebody@example.com"]
    return subprocess.run(
        ["git", *identity, *arguments], cwd=repository, check=True, capture_output=True, text=True
    ).stdout


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for role in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{role}_NAME", "Somebody")
        monkeypatch.setenv(f"GIT_{role}_EMAIL", "somebody@example.com")
    git(tmp_path, "init", "--quiet")
    (tmp_path / "CHANGELOG.md").write_text(CHANGELOG)
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "--message", "Begin")
    return tmp_path


def test_the_tag_has_the_notes_of_its_version(repository: Path) -> None:
    assert tag(repository, "1.2.0") == "v1.2.0"
    message = git(repository, "tag", "--list", "--format=%(contents)", "v1.2.0")
    assert message.strip() == "v1.2.0\n\n### Added\n\n- A thing."


@pytest.mark.parametrize("version", ["1.3.0", "1.1.0"])
def test_another_version_than_the_newest_is_refused(repository: Path, version: str) -> None:
    with pytest.raises(SetupError, match=r"newest in CHANGELOG.md is 1.2.0"):
        tag(repository, version)


def test_a_version_without_a_date_is_refused(repository: Path) -> None:
    (repository / "CHANGELOG.md").write_text(CHANGELOG.replace("2026-12-01", "unreleased"))
    with pytest.raises(SetupError, match="no date"):
        tag(repository, "1.2.0")


def test_what_is_not_committed_is_refused(repository: Path) -> None:
    (repository / "new").touch()
    with pytest.raises(SetupError, match="not committed"):
        tag(repository, "1.2.0")


def test_a_tag_that_exists_is_refused(repository: Path) -> None:
    tag(repository, "1.2.0")
    with pytest.raises(SetupError, match=r"v1.2.0 exists"):
        tag(repository, "1.2.0")


def test_the_newest_release_is_the_last_tag_before_the_checkout(repository: Path) -> None:
    assert newest(repository) is None
    tag(repository, "1.2.0")
    git(repository, "tag", "nightly")
    git(repository, "commit", "--quiet", "--allow-empty", "--message", "Go on")
    assert newest(repository) == "v1.2.0"
    git(repository, "checkout", "--quiet", "-b", "aside")
    git(repository, "commit", "--quiet", "--allow-empty", "--message", "Not before it")
    git(repository, "tag", "v1.3.0rc1")
    git(repository, "checkout", "--quiet", "HEAD~1")
    assert newest(repository) == "v1.2.0"


def workflow(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((ROOT / ".github" / "workflows" / f"{name}.yml").read_text())
    return found


def test_the_workflows_and_hooks_call_make_targets_that_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    steps = [
        step
        for name in ("ci", "release", "nightly")
        for job in workflow(name)["jobs"].values()
        for step in job["steps"]
    ]
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    commands = [step["run"] for step in steps if "run" in step] + [hook["entry"] for hook in hooks]
    called = {word for command in commands if command.startswith("make ") for word in command.split()[1:]}
    assert {"check", "docs", "test-fast", "dist"} <= called
    assert {word for word in called if "=" not in word} - targets == set()
    assert "bash .ci/run" in commands


@pytest.mark.parametrize(("name", "least"), [("ci", 4), ("release", 4), ("nightly", 1)])
def test_each_action_is_pinned_by_its_commit_and_says_which_version_that_is(name: str, least: int) -> None:
    used = re.findall(r"uses: (.*)", (ROOT / ".github" / "workflows" / f"{name}.yml").read_text())
    assert len(used) >= least
    assert [action for action in used if not re.fullmatch(r"[\w/-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", action)] == []


def test_each_python_of_the_classifiers_is_tested() -> None:
    classifiers = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["classifiers"]
    named = re.findall(r"Python :: (3\.\d+)", "\n".join(classifiers))
    assert workflow("ci")["jobs"]["fast"]["strategy"]["matrix"]["python"] == named


def test_both_halves_of_pyspark_have_one_version() -> None:
    """They share a directory: of two versions pip would make a mixture."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    given = [*project["project"]["optional-dependencies"]["spark"], *project["dependency-groups"]["dev"]]
    halves = [each.partition("==") for each in given if str(each).startswith("pyspark")]
    assert sorted(name for name, _, _ in halves) == 2 * ["pyspark"] + 2 * ["pyspark-client"]
    assert len({version for _, _, version in halves}) == 1
