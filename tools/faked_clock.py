"""A plugin of pytest for `tools.clock`: time.sleep() fails under Debian's libfaketime, which select() does not."""

from __future__ import annotations

import select
import time
from typing import SupportsIndex


def _sleep(seconds: SupportsIndex | float, /) -> None:
    select.select([], [], [], float(seconds))


time.sleep = _sleep
