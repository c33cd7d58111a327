"""`make tag`: makes the tag of a release, with the changelog's section of this version as its message."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Final

from airflow_provider_pgqueue import __version__
from tools import ROOT, SetupError

_SECTION: Final = re.compile(r"^## \[?(?P<version>\d[^\]\s]*)\]? - (?P<date>.+)\n(?P<notes>(?:(?!^## ).*\n?)*)", re.M)

_TAGS: Final = "v[0-9]*"


def tag(root: Path = ROOT, version: str = __version__) -> str:
    """Tag the commit that is checked out as this version and return the name of the tag.

    Raises SetupError, and tags nothing, if the newest version of the changelog is another or has no date, if something
    is not committed, or if the tag exists.
    """
    notes = release_notes((root / "CHANGELOG.md").read_text(), version)
    if _git(root, "status", "--porcelain"):
        raise SetupError("something is not committed; commit it, then tag")
    name = f"v{version}"
    if _git(root, "tag", "--list", name):
        raise SetupError(f"the tag {name} exists; a new release needs a new version in the package and the changelog")
    # Lines of the changelog begin with #, which git would take for comments.
    _git(root, "tag", "--annotate", "--cleanup=verbatim", "--message", f"{name}\n\n{notes}", name)
    return name


def newest(root: Path = ROOT) -> str | None:
    """Return the newest tag of a release before the commit that is checked out; None if there is none, or no git."""
    # A container has the checkout of another user, which git would refuse.
    git = ["-c", f"safe.directory={root}"]
    if not (root / ".git").exists() or not _git(root, *git, "tag", "--list", _TAGS, "--merged"):
        return None
    return _git(root, *git, "describe", "--tags", "--abbrev=0", "--match", _TAGS)


def release_notes(changelog: str, version: str) -> str:
    """Return the section of the changelog's newest version, which must be this one and have its date."""
    newest = _SECTION.search(changelog)
    if newest is None or newest["version"] != version:
        found = newest["version"] if newest else "none"
        raise SetupError(f"the package is version {version}, the newest in CHANGELOG.md is {found}")
    if not re.fullmatch(r"\d{4}-\d\d-\d\d", newest["date"]):
        raise SetupError(f"version {version} has no date in CHANGELOG.md yet, but {newest['date']!r}")
    return newest["notes"].strip() + "\n"


def _git(root: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SetupError(f"git {arguments[0]}: {done.stderr.strip()}")
    return done.stdout.strip()


def main() -> None:
    try:
        name = tag()
    except SetupError as error:
        raise SystemExit(f"error: {error}") from None
    print(f"{name} made; `git push origin {name}` publishes it")


if __name__ == "__main__":
    main()
