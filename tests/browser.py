"""A real browser without a window, driven by its own protocol: a few lines instead of a driver."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from tornado.websocket import WebSocketClientConnection, websocket_connect

from tests.waiting import GUARD, eventually

_NAMES = ("chromium", "chromium-browser", "google-chrome")
_OPTIONS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--remote-debugging-port=0",
    "--remote-allow-origins=*",
]


def executable() -> str:
    """The browser's path; the test is left out where there is none, and it is said."""
    found = next(filter(None, map(shutil.which, _NAMES)), None)
    return found or pytest.skip(f"no browser: none of {', '.join(_NAMES)} is installed")


class Page:
    """An open page: what it logs and loads, and a way to ask its scripts."""

    def __init__(self, socket: WebSocketClientConnection, session: str) -> None:
        self._socket = socket
        self._session = session
        self._number = 0
        self.trouble: list[str] = []
        self.requests: list[str] = []

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Ask the browser, and note what it says meanwhile."""
        self._number += 1
        number = self._number
        asked = {"id": number, "method": method, "params": params, "sessionId": self._session}
        if not self._session:
            del asked["sessionId"]
        await self._socket.write_message(json.dumps(asked))
        while True:
            answer = await asyncio.wait_for(self._socket.read_message(), GUARD)
            assert answer is not None, "the browser has gone"
            said = json.loads(answer)
            if said.get("id") == number:
                assert "error" not in said, said
                result: dict[str, Any] = said["result"]
                return result
            self._note(said.get("method"), said.get("params", {}))

    def _note(self, method: str | None, params: dict[str, Any]) -> None:
        if method == "Runtime.exceptionThrown":
            self.trouble.append(json.dumps(params["exceptionDetails"])[:2000])
        elif method == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.trouble.append(params["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"][:200])

    async def ask(self, expression: str) -> Any:
        """Return what an expression of JavaScript is."""
        result = await self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    async def emulate(self, dark: bool, width: int) -> None:
        """Show the page to a user with these settings, and a window of this width."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.call("Emulation.setEmulatedMedia", features=[scheme])
        await self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=900, deviceScaleFactor=1, mobile=False,
        )  # fmt: skip

    async def until(self, expression: str) -> Any:
        """Wait until an expression is true."""
        deadline = time.monotonic() + GUARD
        while not (value := await self.ask(expression)):
            assert time.monotonic() < deadline, f"not {expression}; {self.trouble}"
            await asyncio.sleep(0.05)
        return value


@contextmanager
def browser(profile: Path) -> Iterator[str]:
    """Run a browser, and give the address that it listens at."""
    command = [executable(), *_OPTIONS, f"--user-data-dir={profile}", "about:blank"]
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        port = profile / "DevToolsActivePort"
        eventually(
            lambda: (
                process.poll() is not None
                or (port.exists() and len(port.read_text().splitlines()) == 2)
            ),
            what="the browser listens",
        )
        assert process.poll() is None, "the browser did not start"
        number, path = port.read_text().splitlines()
        yield f"ws://127.0.0.1:{number}{path}"
    finally:
        process.terminate()
        process.wait(GUARD)


@asynccontextmanager
async def open_page(
    address: str, url: str, *, dark: bool = False, width: int = 1200
) -> AsyncIterator[Page]:
    """Open a page in a tab that no test has, and give it when it is loaded."""
    socket = await websocket_connect(address, max_message_size=2**27)
    try:
        first = Page(socket, "")
        # A new tab is a new process, which compiles all scripts anew.
        tabs = (await first.call("Target.getTargets"))["targetInfos"]
        free = [one for one in tabs if one["type"] == "page" and not one["attached"]]
        target = free[0] if free else await first.call("Target.createTarget", url="about:blank")
        attached = await first.call(
            "Target.attachToTarget", targetId=target["targetId"], flatten=True
        )
        page = Page(socket, attached["sessionId"])
        page._number = 1000
        for domain in ("Runtime", "Log", "Network", "Page"):
            await page.call(f"{domain}.enable")
        # Another one was before it: what is not seen is not drawn.
        await page.call("Page.bringToFront")
        await page.emulate(dark, width)
        await page.call("Page.navigate", url=url)
        await page.until(
            f"location.href === {json.dumps(url)} && document.readyState === 'complete'"
        )
        yield page
        await page.call("Page.navigate", url="about:blank")
    finally:
        socket.close()
        while await asyncio.wait_for(socket.read_message(), GUARD) is not None:
            pass
