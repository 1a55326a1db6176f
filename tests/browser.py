"""A headless browser (Debian's chromium), driven through its debugging protocol."""

import json
import os
import signal
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import websocket

SECONDS = 300  # time limit of a page: a shared machine may be slow


class Browser:
    """One page. errors: the errors and warnings in its console."""

    def __init__(self, address: str):
        self.errors: list[str] = []
        self._socket = websocket.create_connection(address, timeout=SECONDS, suppress_origin=True)
        self._calls = 0
        for domain in ("Page", "Runtime", "Log"):
            self._call(f"{domain}.enable")

    def open(self, url: str, width: int = 1200) -> None:
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
        self._call("Emulation.setDeviceMetricsOverride", **size)
        self._call("Page.navigate", url="about:blank")  # an address that differs in its hash alone loads nothing
        self._call("Page.navigate", url=url)
        self.wait("location.href != 'about:blank' && document.readyState == 'complete'")

    def ask_for_less_motion(self) -> None:
        self._call("Emulation.setEmulatedMedia", features=[{"name": "prefers-reduced-motion", "value": "reduce"}])

    def value(self, expression: str):
        result = self._call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def wait(self, expression: str) -> None:
        end = time.monotonic() + SECONDS
        while not self.value(expression):
            assert time.monotonic() < end, f"not in {SECONDS} s: {expression}; {self.errors}"
            time.sleep(0.1)

    def _call(self, method: str, **parameters) -> dict:
        self._calls += 1
        self._socket.send(json.dumps({"id": self._calls, "method": method, "params": parameters}))
        while (message := json.loads(self._socket.recv())).get("id") != self._calls:
            self._note(message.get("method"), message.get("params", {}))
        assert "error" not in message, message
        return message["result"]

    def _note(self, event: str, details: dict) -> None:
        if event == "Runtime.exceptionThrown":
            self.errors.append(str(details["exceptionDetails"]))
        if event == "Runtime.consoleAPICalled" and details["type"] in ("error", "warning", "assert"):
            self.errors.append(str(details["args"]))
        if event == "Log.entryAdded" and details["entry"]["level"] in ("error", "warning"):
            self.errors.append(str(details["entry"]))


@contextmanager
def open_browser(profile: Path) -> Iterator[Browser]:
    options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0"]
    command = ["chromium", *options, f"--user-data-dir={profile}", "about:blank"]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        yield Browser(_address(profile / "DevToolsActivePort"))
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _address(written: Path) -> str:
    """The address of the first page, once the browser has written its port."""
    end = time.monotonic() + SECONDS
    while not (written.exists() and written.read_text().count("\n")):
        assert time.monotonic() < end, f"chromium has not started in {SECONDS} s"
        time.sleep(0.1)
    port = written.read_text().split()[0]
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/json/list") as pages:
        return next(page["webSocketDebuggerUrl"] for page in json.load(pages) if page["type"] == "page")
