"""Tabs of browsers, and a static host whose pages they open."""

import json
import mimetypes
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Protocol

from factorcell.service.demo_page import DEVICE_POLICY, FOLDER
from tests.firefox import ELEMENT, ENTER, Firefox

TIMEOUT = 60_000  # milliseconds
WAIT = "const end = performance.now() + 30000; while (!({})) {{ \
if (performance.now() > end) throw new Error('never'); await new Promise((resolve) => setTimeout(resolve, 20)); }}"


class DeviceError(Exception):
    """A completer of a device failed."""


class Site:
    """A static host: it sends the files of folders with the policy of a device, and logs the paths of requests."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self.folders, self.requests, self.url = [*folders, Path(__file__).parent, FOLDER], list[str](), ""

    def content(self, path: str) -> bytes | None:
        name = path.partition("?")[0].lstrip("/")
        name += "index.html" if name.endswith("/") or not name else ""
        self.requests.append(name)
        return next(((folder / name).read_bytes() for folder in self.folders if (folder / name).is_file()), None)


@contextmanager
def serving(*folders: Path) -> Iterator[Site]:
    """Serve folders, and the pages and the run time for tests, on a port of its own, which is an origin of its own."""
    site = Site(folders)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            content = site.content(self.path)
            media_type = mimetypes.guess_type(self.path)[0] or "text/html"
            self.send_response(404 if content is None else 200)
            headers = {"Content-Type": media_type, "Cache-Control": "no-store"}
            headers |= {"Content-Security-Policy": DEVICE_POLICY, "Content-Length": str(len(content or b""))}
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content or b"")

        def log_message(self, *_: object) -> None:
            pass

    mimetypes.add_type("application/wasm", ".wasm")
    mimetypes.add_type("text/javascript", ".mjs")
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        site.url = f"http://127.0.0.1:{server.server_port}/"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield site
        finally:
            server.shutdown()
            thread.join()


class Tab(Protocol):
    """A tab of a browser."""

    def open(self, url: str) -> None: ...

    def run(self, body: str, *values: Any) -> Any:
        """Return the result of an asynchronous function of JavaScript with a body that reads `values`."""

    def type(self, selector: str, keys: str) -> None:
        """Press keys in an element; a line feed is the key Enter."""


OpenTab = Callable[[], Tab]  # the fixture `open_tab`
Play = Callable[[Path, Any], list[Any]]  # the fixture `play`


class ChromiumTab:
    """A tab of Chromium; `window` is a context of Playwright."""

    def __init__(self, window: Any) -> None:
        self.page = window.new_page()
        self.page.set_default_timeout(TIMEOUT)

    def open(self, url: str) -> None:
        self.page.goto(url)

    def run(self, body: str, *values: Any) -> Any:
        return self.page.evaluate(f"async (values) => {{ {body} }}", [*values])

    def type(self, selector: str, keys: str) -> None:
        self.page.locator(selector).press_sequentially(keys)


class FirefoxTab:
    """A tab of Firefox."""

    def __init__(self, firefox: Firefox) -> None:
        self.firefox, self.handle = firefox, firefox.send("NewWindow", type="tab")["handle"]

    def open(self, url: str) -> None:
        self._send("Navigate", url=url)

    def run(self, body: str, *values: Any) -> Any:
        script = f"const [values, done] = arguments; (async () => {{ {body} }})().then((result) => ({{ result }}), "
        script += "(error) => ({ error: `${error}` })).then((answer) => done(JSON.stringify(answer)))"
        answer = json.loads(self._send("ExecuteAsyncScript", script=script, args=[[*values]])["value"])
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer.get("result")

    def type(self, selector: str, keys: str) -> None:
        element = self._send("FindElement", using="css selector", value=selector)["value"][ELEMENT]
        self._send("ElementSendKeys", id=element, text=keys.replace("\n", ENTER))

    def _send(self, command: str, **parameters: Any) -> Any:
        self.firefox.send("SwitchToWindow", handle=self.handle)
        return self.firefox.send(command, **parameters)


def play_in_tab(tab: Tab, site: Site, script: Any) -> list[Any]:
    """Play a script with the model of a site, and return the results."""
    tab.open(f"{site.url}tab.html")
    answer = json.loads(tab.run("return window.play(values[0]);", json.dumps(script)))
    if "error" in answer:
        raise DeviceError(answer["error"])
    results: list[Any] = answer["results"]
    return results


def wait_until(tab: Tab, condition: str) -> None:
    """Wait until an expression of JavaScript is true."""
    tab.run(WAIT.format(condition))
