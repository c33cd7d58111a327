"""The histories of the actors: one JSON object a line, in a file for each process, which outlives `kill -9`."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any


class History:
    """Appends to the file of one process, each entry with one write of the system."""

    def __init__(self, file: Path) -> None:
        self.folder = file.parent
        self._file = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def write(self, kind: str, **entry: Any) -> None:
        """Append an entry with the time."""
        text = json.dumps({"kind": kind, "at": round(time.time(), 3), **entry}, separators=(",", ":"))
        os.write(self._file, f"{text}\n".encode())


def read(directory: Path) -> Iterator[dict[str, Any]]:
    """Return the entries of all processes; the last line of one that was killed may be cut off."""
    for file in sorted(directory.glob("*.jsonl")):
        for line in file.read_text().splitlines():
            if line.endswith("}"):
                yield json.loads(line)
