"""Keys as they are pressed, without Enter."""

from __future__ import annotations

import os
import re
import select
import sys
from collections.abc import Iterator
from typing import Any, Final, Self

_NAMES: Final = {"A": "up", "B": "down", "C": "right", "D": "left", "5~": "pageup", "6~": "pagedown"}
_KEY: Final = re.compile(r"\x1b[\[O]([A-D]|[0-9]~)|(.)", re.S)


class Keyboard:
    """Reads single keys of the terminal at standard input, which is as it was before when the block ends."""

    def __enter__(self) -> Self:
        import termios
        import tty

        self._file = sys.stdin.fileno()
        self._before: list[Any] = termios.tcgetattr(self._file)
        tty.setcbreak(self._file)
        return self

    def __exit__(self, *error: object) -> None:
        import termios

        termios.tcsetattr(self._file, termios.TCSADRAIN, self._before)

    def pressed(self, seconds: float) -> Iterator[str]:
        """Wait at most so long for keys, and yield those that were pressed; arrows by name."""
        if select.select([self._file], [], [], seconds)[0]:
            for found in _KEY.finditer(os.read(self._file, 1024).decode(errors="replace")):
                yield _NAMES.get(found[1], "") if found[1] else found[2]
