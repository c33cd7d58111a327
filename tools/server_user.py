"""The user that runs PostgreSQL, which refuses to run as root, and what that user can reach."""

from __future__ import annotations

import hashlib
import os
import pwd
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from tools import SetupError


@cache
def server_user() -> pwd.struct_passwd | None:
    """Return `postgres`, or `nobody` where there is no such user; None unless we are root."""
    if os.geteuid() != 0:
        return None
    try:
        return pwd.getpwnam("postgres")
    except KeyError:
        return pwd.getpwnam("nobody")


def arguments() -> dict[str, Any]:
    """Return the arguments that make `subprocess.run` run a program as that user."""
    user = server_user()
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []} if user else {}


def give(directory: Path) -> None:
    """Make that user the owner of a directory."""
    if user := server_user():
        os.chown(directory, user.pw_uid, user.pw_gid)


def reachable(directory: Path) -> Path:
    """Return the directory, or one under the system's temporary directory if that user cannot get there."""
    return directory if _can_reach(directory) else temporary(directory) / directory.name


def reachable_copy(*folders: Path) -> Path:
    """Return the parent of these folders, or of copies of those that exist that the user can reach."""
    parent = folders[0].parent
    if _can_reach(folders[0]):
        return parent
    copies = temporary(parent)
    make_directory(copies)
    for folder in filter(Path.exists, folders):
        if not (copies / folder.name).exists():
            unfinished = copies / f"{folder.name}.{os.getpid()}"
            shutil.copytree(folder, unfinished, symlinks=True)
            try:
                unfinished.rename(copies / folder.name)
            except OSError:  # another process was faster
                shutil.rmtree(unfinished)
    return copies


def temporary(path: Path) -> Path:
    """Return the name of a short directory that stands for `path`."""
    digest = hashlib.sha256(os.fsencode(path)).hexdigest()[:8]
    return Path(tempfile.gettempdir()) / f"pgqueue-{digest}"


def make_directory(directory: Path) -> None:
    """Make a directory unless it exists; SetupError if it belongs to another user."""
    directory.mkdir(mode=0o755, parents=True, exist_ok=True)
    user = server_user()
    if directory.stat().st_uid not in (os.geteuid(), user.pw_uid if user else os.geteuid()):
        raise SetupError(f"{directory} belongs to another user: remove it, or set TMPDIR to a directory of your own")


def _can_reach(path: Path) -> bool:
    if server_user() is None:
        return True
    nearest = next(parent for parent in (path, *path.parents) if parent.exists())
    return subprocess.run(["test", "-x", str(nearest)], cwd="/", **arguments()).returncode == 0
