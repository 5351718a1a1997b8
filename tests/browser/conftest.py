"""Chromium on the built site (web/dist); a test fails if a page reports an error or asks another origin for a file."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import BrowserContext, Page, expect

from .host import Host

ROOT = Path(__file__).resolve().parents[2]
DIST = ROOT / "web" / "dist"
FLAGS = [
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync"),
]
LOAD_MS = 120_000

expect.set_options(timeout=LOAD_MS)


def chromium() -> str:
    names = (os.environ.get("OXINFER_CHROMIUM", ""), "chromium", "chromium-browser", "google-chrome")
    found = next((path for name in names if name and (path := shutil.which(name))), None)
    if found is None:
        pytest.fail("no chromium is here; install it, or set OXINFER_CHROMIUM")
    return found


@pytest.fixture(scope="session")
def browser_type_launch_args() -> dict[str, Any]:
    return {"executable_path": chromium(), "args": FLAGS}


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where tests put models of their own; served under made/."""
    return tmp_path_factory.mktemp("made")


@pytest.fixture(scope="session")
def started(folders: Path) -> Iterator[Host]:
    if not (DIST / "pyodide" / "pyodide-lock.json").exists():
        pytest.fail("web/dist is not built; run ./build.sh web")
    host = Host({"": DIST, "made": folders, "tiny": ROOT / "tests" / "fixtures"})
    server = host.start()
    yield host
    server.shutdown()


@pytest.fixture
def host(started: Host) -> Host:
    started.reset()
    return started


@pytest.fixture
def complaints(context: BrowserContext, host: Host) -> list[str]:
    """What pages report: errors and warnings of the console, uncaught errors, requests to another origin.

    A test that provokes some removes them.
    """
    said: list[str] = []

    def watch(page: Page) -> None:
        page.on("console", lambda m: said.append(m.text) if m.type in ("error", "warning") else None)
        page.on("pageerror", lambda e: said.append(str(e)))

    context.on("page", watch)
    context.on("request", lambda r: None if r.url.startswith((host.url, "data:", "blob:")) else said.append(r.url))
    return said


@pytest.fixture
def page(context: BrowserContext, complaints: list[str]) -> Iterator[Page]:
    page = context.new_page()
    page.set_default_timeout(LOAD_MS)
    yield page
    assert complaints == []


@pytest.fixture
def bench(page: Page, host: Host) -> Page:
    """The page that offers window.oxinfer."""
    page.goto(host.url + "bench.html")
    page.wait_for_function("window.ready")
    return page
