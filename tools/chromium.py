"""A Chromium without a window: it draws pictures, and uses the page for the tests, by Chromium's own protocol."""

from __future__ import annotations

import base64
import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tools import SetupError
from tools.binaries import program

_PATIENCE: Final = 120.0  # seconds, on a loaded machine
_KEYS: Final = {"Tab": (9, ""), "Enter": (13, "\r"), " ": (32, " ")}
# Its pipes are the files 3 and 4 of the program.
_START: Final = """
import os, sys
from fcntl import F_DUPFD, fcntl
for file, number in enumerate([fcntl(int(one), F_DUPFD, 10) for one in sys.argv[1:3]], 3):
    os.dup2(number, file)
os.execv(sys.argv[3], sys.argv[3:])
"""


def find() -> str | None:
    """Return the path of the program, after installing Debian's package if that is allowed and needed."""
    return program("chromium", "chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


@dataclass
class Browser:
    """One tab of a Chromium. Every method raises TimeoutError if the browser does not answer for two minutes."""

    commands: int
    replies: int
    session: str | None = None
    _last: int = 0
    _read: bytes = b""
    _events: list[str] = field(default_factory=list)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol and return its result."""
        self._last += 1
        command = {"id": self._last, "method": method, "params": parameters}
        if self.session:
            command["sessionId"] = self.session
        os.write(self.commands, json.dumps(command).encode() + b"\0")
        while (reply := self._next()).get("id") != self._last:
            self._events.append(_event(reply))
        if "error" in reply:
            raise RuntimeError(f"{method}: {reply['error']['message']}")
        result: dict[str, Any] = reply["result"]
        return result

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._read:
            if not select.select([self.replies], [], [], _PATIENCE)[0]:
                raise TimeoutError("Chromium does not answer")
            if not (some := os.read(self.replies, 1 << 20)):
                raise RuntimeError("Chromium ended")
            self._read += some
        text, _, self._read = self._read.partition(b"\0")
        reply: dict[str, Any] = json.loads(text)
        return reply

    def open(self, address: str) -> None:
        """Go to an address, and return when the page and its scripts are loaded."""
        self._events.clear()
        told = self.call("Page.navigate", url=address)
        if error := told.get("errorText"):
            raise RuntimeError(f"{address}: {error}")
        # What was still being loaded before ends too.
        self._wait_for(f"Page.frameNavigated {told['loaderId']}")
        self._wait_for("Page.loadEventFired")
        self._events.clear()

    def _wait_for(self, event: str) -> None:
        """Wait for an event, and forget what came before it."""
        while event not in self._events:
            self._events.append(_event(self._next()))
        del self._events[: self._events.index(event) + 1]

    def value(self, script: str) -> Any:
        """Return the value of an expression in the page, or what its promise gives."""
        told = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in told:
            raise RuntimeError(told["exceptionDetails"].get("exception", {}).get("description", "a script failed"))
        return told["result"].get("value")

    def until(self, script: str) -> Any:
        """Return the first true value of an expression in the page, which may be another page by then."""
        deadline = time.monotonic() + _PATIENCE
        while True:
            try:
                if found := self.value(script):
                    return found
            except RuntimeError as error:
                if "context" not in str(error) and "navigated" not in str(error):
                    raise
            if time.monotonic() > deadline:
                raise TimeoutError(f"waited for {script}")
            time.sleep(0.02)

    def press(self, key: str) -> None:
        """Press a key: Tab, Enter or the space bar."""
        code, text = _KEYS[key]
        known = {"key": key, "code": {" ": "Space"}.get(key, key), "windowsVirtualKeyCode": code}
        self.call("Input.dispatchKeyEvent", type="keyDown", **known, **({"text": text} if text else {}))
        self.call("Input.dispatchKeyEvent", type="keyUp", **known)

    def write(self, text: str) -> None:
        """Write into the field that has the focus."""
        self.call("Input.insertText", text=text)

    def resize(self, *, width: int, height: int, dark: bool = False) -> None:
        """Resize the window, and prefer light or dark colours."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        mode = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[mode])

    def draw(self, file: Path) -> None:
        """Write a picture of the window as PNG, when everything in it is drawn."""
        self.until(
            "[...document.querySelectorAll('pg-plot, pg-spark')].every("
            "(one) => one.shadowRoot?.querySelector('link')?.sheet && one.shadowRoot.querySelector('canvas'))"
        )
        self.value("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        picture = self.call("Page.captureScreenshot", format="png")
        file.write_bytes(base64.b64decode(picture["data"]))


def _event(reply: dict[str, Any]) -> str:
    """Return the name of an event, and of a page that begins also which one it is."""
    method = str(reply.get("method", ""))
    frame = reply.get("params", {}).get("frame", {})
    return f"{method} {frame['loaderId']}" if method == "Page.frameNavigated" else method


@contextmanager
def browser() -> Iterator[Browser]:
    """Start a Chromium and give a tab of it; end it after the block."""
    chromium = find()
    if chromium is None:
        raise SetupError("there is no Chromium. Install it as root: apt-get install chromium.")
    # The sandbox of Chromium refuses root, and the shared memory of a container is too small for it.
    options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"]
    quiet = ["--no-first-run", "--disable-extensions", "--disable-background-networking", "--disable-component-update"]
    theirs_in, commands = os.pipe()
    replies, theirs_out = os.pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = [chromium, *options, *quiet, "--remote-debugging-pipe", f"--user-data-dir={profile}", "about:blank"]
        start = [sys.executable, "-c", _START, str(theirs_in), str(theirs_out), *command]
        process = subprocess.Popen(start, pass_fds=(theirs_in, theirs_out), stderr=subprocess.DEVNULL)
        try:
            os.close(theirs_in)
            os.close(theirs_out)
            tab = Browser(commands, replies)
            (page,) = [one for one in tab.call("Target.getTargets")["targetInfos"] if one["type"] == "page"]
            tab.session = tab.call("Target.attachToTarget", targetId=page["targetId"], flatten=True)["sessionId"]
            tab.call("Page.enable")
            yield tab
        finally:
            process.terminate()
            process.wait(_PATIENCE)
            os.close(commands)
            os.close(replies)
