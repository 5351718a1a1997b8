"""Chromium on the built site (web/dist); a test fails if a page reports an error or asks another origin for a file."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from oxinfer_web.convert import convert
from playwright.sync_api import Browser, BrowserContext, Page, expect
from support import FIXTURES

from .host import Host
from .models import TOKENIZER

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


@pytest.fixture(scope="session")
def served(folders: Path) -> Path:
    """A model in several shards, one of them of tables, with a tokenizer that its index lists."""
    source = folders / "hosts-source"
    shutil.copytree(FIXTURES / "gemma4_e2b", source)
    (source / "tokenizer.json").write_text(json.dumps(TOKENIZER))
    (source / "tokenizer_config.json").write_text("{}")
    convert(source, folders / "hosts", quant="q8", shard_size=200_000)
    shutil.copytree(FIXTURES / "llama", folders / "hosts-single")
    return folders / "hosts"


@pytest.fixture(scope="session")
def tab(browser: Browser, started: Host, served: Path) -> Iterator[Page]:
    """One page for many tests; its console is not looked at, as the browser complains of most faults by itself."""
    context = browser.new_context()
    page = context.new_page()
    page.set_default_timeout(LOAD_MS)
    page.goto(started.url + "bench.html")
    page.wait_for_function("window.ready")
    yield page
    started.move()
    context.close()


@pytest.fixture
def other(host: Host) -> Iterator[Host]:
    """The same folders from another site."""
    other = Host(host.mounts)
    server = other.start()
    yield other
    other.move()
    server.shutdown()
