"""Debian's Chromium without a window, driven through its DevTools pipe; no package is needed for it."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_FLAGS = [
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-extensions",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
]


def chromium() -> str | None:
    """Where it is, if it is there."""
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Browser:
    """One tab. Everything it complains about, and every address it asks for, is kept."""

    def __init__(self, to_browser: int, from_browser: int, timeout: float) -> None:
        self._to, self._from, self._timeout = to_browser, from_browser, timeout
        self._buffer, self._number, self._session = b"", 0, ""
        self.complaints: list[str] = []
        self.requested: list[str] = []
        self._loaded = False
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._call(f"{domain}.enable")

    def show(self, page: Path, width: int, height: int = 900, dark: bool = False) -> None:
        """Load a file in a window of that size."""
        self._call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._call("Emulation.setEmulatedMedia", features=[scheme])
        self._loaded = False
        self._call("Page.navigate", url=page.resolve().as_uri())
        ends = time.monotonic() + self._timeout
        while not self._loaded:
            self._hear(ends)

    def value(self, expression: str) -> Any:
        """What a JavaScript expression gives."""
        return self._call("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get("value")

    def screenshot(self) -> bytes:
        """The whole page as PNG."""
        height = self.value("document.documentElement.scrollHeight")
        width = self.value("window.innerWidth")
        clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
        shot = self._call("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)
        return base64.b64decode(shot["data"])

    def pdf(self) -> bytes:
        """The page as it prints on A4."""
        options = {"printBackground": True, "paperWidth": 8.27, "paperHeight": 11.69}
        return base64.b64decode(self._call("Page.printToPDF", **options)["data"])

    def _call(self, method: str, **params: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        ends = time.monotonic() + self._timeout
        while True:
            answer = self._hear(ends)
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                result: dict[str, Any] = answer["result"]
                return result

    def _hear(self, ends: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._from], [], [], max(0.0, ends - time.monotonic()))
            if not ready:
                raise TimeoutError("chromium did not answer")
            piece = os.read(self._from, 1 << 20)
            if not piece:
                raise RuntimeError("chromium ended")
            self._buffer += piece
        line, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        method, params = message.get("method"), message.get("params", {})
        if method == "Page.loadEventFired":
            self._loaded = True
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(params["exceptionDetails"]["text"])
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.complaints.append(str(params["args"]))
        elif method == "Log.entryAdded":
            self.complaints.append(params["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requested.append(params["request"]["url"])
        return message


@contextmanager
def browser(profile: Path, timeout: float = 120.0) -> Iterator[Browser]:
    """A Chromium with a fresh profile in the folder `profile`, ended afterwards."""
    program = chromium()
    assert program is not None
    commands, to_browser = os.pipe()
    from_browser, answers = os.pipe()
    process = subprocess.Popen(
        ["bash", "-c", f'exec "$@" 3<&{commands} 4>&{answers}', "bash", program, *_FLAGS, f"--user-data-dir={profile}"],
        pass_fds=(commands, answers),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(commands)
    os.close(answers)
    try:
        yield Browser(to_browser, from_browser, timeout)
    finally:
        process.kill()
        process.wait(timeout=30)
        os.close(to_browser)
        os.close(from_browser)
