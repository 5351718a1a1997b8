"""One Chromium on one site: the built pages, the models, and the peers beside them."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from oxinfer_web.cli.serve import start
from playwright.sync_api import BrowserContext, Page, sync_playwright

from tests.browser.conftest import FLAGS, chromium

ROOT = Path(__file__).resolve().parents[2]
DIST = ROOT / "web" / "dist"
BUILD = ROOT / "build" / "bench"
PAGES = Path(__file__).parent / "pages"
TIMEOUT_MS = 5 * 60 * 1000
CALL = """([argument, ms]) => Promise.race([
  window.FUNCTION(argument),
  new Promise((_, reject) => setTimeout(() => reject(new Error('FUNCTION does not answer')), ms)),
])"""
PAUSE_MS = 300
"""Threads of a peer keep looking for work for a while after a call; nothing is timed until they sleep."""


def fill_site(site: Path, dist: Path, links: dict[str, Path]) -> None:
    """Links to what is in dist, npm's packages, the pages of this folder, and `links`."""
    site.mkdir()
    places = {path.name: path for path in dist.iterdir() if not path.name.startswith(".")}
    places |= {"node_modules": ROOT / "web" / "node_modules", "pages": PAGES}
    for name, path in (places | links).items():
        (site / name).symlink_to(path.resolve())


def npm_name(package: str) -> str:
    """An npm package that is measured: its name, without its owner, and the version that is installed."""
    installed = json.loads((ROOT / "web" / "node_modules" / package / "package.json").read_text())
    return f"{package.rpartition('/')[2]} {installed['version']}"


class Browser:
    """A running Chromium whose storage is on disk, as a user's is, and empty at first."""

    def __init__(self, context: BrowserContext, url: str) -> None:
        self._context, self._url = context, url
        self._blank = context.pages[0]  # the last page's end would be the browser's
        self.version = str(self._blank.evaluate("navigator.userAgent")).rsplit("Chrome/", 1)[-1].split()[0]

    def rest(self, ms: float = PAUSE_MS) -> None:
        """Let the machine come to rest, with no page in front."""
        self._blank.bring_to_front()
        self._blank.wait_for_timeout(ms)

    def open(self, path: str) -> Tab:
        """A page of the site, ready."""
        page = self._context.new_page()
        page.set_default_timeout(TIMEOUT_MS)
        page.goto(self._url + path)
        page.wait_for_function("window.ready")
        return Tab(page)


class Tab:
    """A page whose functions can be called."""

    def __init__(self, page: Page) -> None:
        self._page = page

    def call(self, function: str, argument: Any = None) -> Any:
        """What the page's function answers. Raises playwright's Error with the page's message, or after TIMEOUT_MS."""
        return self._page.evaluate(CALL.replace("FUNCTION", function), [argument, TIMEOUT_MS])

    def pause(self, ms: float = PAUSE_MS) -> None:
        """Let the machine come to rest, and this page come to the front."""
        self._page.bring_to_front()
        self._page.wait_for_timeout(ms)

    def cpu_seconds(self) -> float:
        """CPU time that the page's process has used so far, all threads and workers together."""
        session = self._page.context.new_cdp_session(self._page)
        session.send("Performance.enable")
        metrics = {m["name"]: m["value"] for m in session.send("Performance.getMetrics")["metrics"]}
        session.detach()
        return float(metrics["ProcessTime"])

    def close(self) -> None:
        """End the page and its workers."""
        self._page.close()


@contextmanager
def browser(links: dict[str, Path], dist: Path = DIST) -> Iterator[Browser]:
    """Chromium on the site; ended, and its profile deleted, when done."""
    with tempfile.TemporaryDirectory(prefix="run-", dir=BUILD, ignore_cleanup_errors=True) as folder:
        site, profile = Path(folder) / "site", Path(folder) / "profile"
        fill_site(site, dist, links)
        url, stop = start(site)
        try:
            with sync_playwright() as playwright:
                context = playwright.chromium.launch_persistent_context(profile, executable_path=chromium(), args=FLAGS)
                yield Browser(context, url)
                context.close()
        finally:
            stop()
