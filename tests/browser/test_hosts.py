"""What hosts do, wrongly or in their own way: there is a model in the end, or an error that says what to change."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from oxinfer_web.checkpoint import INDEX, SINGLE
from playwright.sync_api import Browser, Page, expect

from .host import Host
from .loading import IDS, SHARD, load, script
from .models import native

Fault = Callable[[Host], object]
SITE = r"; put all of the built site on the server"
PAGE = r"the server answered with a web page \(HTML\) instead of the file"

MISSING = {
    "pyodide.asm.mjs": rf"pyodide/pyodide\.asm\.mjs: not found at \S+ \(404\){SITE}",
    "pyodide.asm.wasm": rf"pyodide/pyodide\.asm\.wasm: not found at \S+ \(404\){SITE}",
    "pyodide-lock.json": rf"pyodide/pyodide-lock\.json: not found at \S+ \(404\){SITE}",
    "oxinfer_web-0.1.0-py3-none-any.whl": rf"pyodide/oxinfer_web-\S+\.whl: not found at \S+ \(404\){SITE}",
    "relaxed-shared.wasm": rf"kernels/relaxed-shared\.wasm: not found at \S+ \(404\){SITE}",
    "tokenizer.json": r"tokenizer\.json: not found at \S+ \(404\); is the model's folder complete",
}


@pytest.mark.parametrize("file", MISSING)
def test_missing(tab: Page, host: Host, file: str) -> None:
    host.missing.add(file)
    assert re.search(MISSING[file], load(tab)["error"])


PAGES = {
    "config.json": r"config\.json: not in \S+/made/hosts/; is this a model's folder",
    INDEX: r"model\.safetensors: not found .*index\.json is not there either",
    "tokenizer.json": rf"tokenizer\.json: {PAGE}",
    SHARD: rf"model-\S+: {PAGE}",
    "pyodide.asm.wasm": rf"pyodide/pyodide\.asm\.wasm: {PAGE}.*{SITE}",
    "relaxed-shared.wasm": rf"kernels/relaxed-shared\.wasm: {PAGE}.*{SITE}",
}


@pytest.mark.parametrize("file", PAGES)
def test_a_web_page_instead(tab: Page, host: Host, file: str) -> None:
    host.pages.add(file)
    assert re.search(PAGES[file], load(tab)["error"])


NO_LIST = "the server answered with something else than a list of models"
LISTS: dict[str, tuple[Fault, str]] = {
    "web page": (lambda host: host.pages.add("index.json"), NO_LIST),
    "cut short": (lambda host: host.instead.update({"index.json": b'[{"id":'}), NO_LIST),
    "no list": (lambda host: host.instead.update({"index.json": b"{}"}), NO_LIST),
    "busy": (lambda host: host.busy.update({"index.json": 1}), "the server answered 503"),
}


@pytest.mark.parametrize("fault", LISTS)
def test_list_of_models(browser: Browser, host: Host, tmp_path: Path, fault: str) -> None:
    """An error that names the list; an address may still be entered."""
    (tmp_path / "index.json").write_text("[]")
    host.mounts["models"] = tmp_path
    break_it, message = LISTS[fault]
    break_it(host)
    page = browser.new_page()
    try:
        page.goto(host.url)
        expect(page.get_by_role("alert")).to_contain_text(f"models/index.json: {message}")
        expect(page.get_by_role("combobox", name="Model").locator("option")).to_have_text(["Another address…"])
    finally:
        page.close()
        del host.mounts["models"]


def hide_size(host: Host) -> str:
    host.cors = "read"
    return "made/hosts-single"


def plain_cors(host: Host) -> str:
    host.cors = "read"
    return "made/hosts"


def no_cors(host: Host) -> str:
    return "made/hosts"


OTHERS: dict[str, tuple[Callable[[Host], str], str | None]] = {
    "all headers hidden, sizes in the index": (plain_cors, None),
    "all headers hidden, no index": (
        hide_size,
        rf"{re.escape(SINGLE)}: .*Access-Control-Expose-Headers: Content-Range",
    ),
    "no CORS": (
        no_cors,
        r"nothing can be read from http://127\.0\.0\.1:\d+, a site other.*Access-Control-Allow-Origin",
    ),
}


@pytest.mark.parametrize("case", OTHERS)
def test_another_site(tab: Page, host: Host, other: Host, served: Path, case: str) -> None:
    prepare, message = OTHERS[case]
    found = load(tab, other.url + prepare(other), ids=IDS, tokenizer=False)
    if message is None:
        assert found.get("logits") == native(served, IDS)[0].tolist(), found
    else:
        assert re.search(message, found["error"])


def pack_shard(host: Host) -> None:
    host.packed.add(SHARD)
    host.whole.add(SHARD)


def pack_parts(host: Host) -> None:
    host.packed.add(SHARD)


def pack_text(host: Host) -> None:
    host.packed |= {"config.json", INDEX, "tokenizer.json", "python_stdlib.zip", "pyodide.asm.mjs"}


PACKED: dict[str, tuple[Fault, str | None]] = {
    "whole shards": (pack_shard, r"model-\S+: the server compresses the file .*turn compression off"),
    "parts of shards": (pack_parts, r"model-\S+: the server compresses the file .*turn compression off"),
    "texts, as is usual": (pack_text, None),
}


@pytest.mark.parametrize("case", PACKED)
def test_compression(tab: Page, host: Host, served: Path, case: str) -> None:
    pack, message = PACKED[case]
    pack(host)
    found = load(tab, ids=IDS)
    if message is None:
        assert found.get("logits") == native(served, IDS)[0].tolist(), found
    else:
        assert re.search(message, found["error"])


def before_engine(code: str) -> Fault:
    worker = script("engine")
    return lambda host: host.instead.update({worker.name: code.encode() + b"\n" + worker.read_bytes()})


NO_MEMORY = "RangeError('WebAssembly.instantiate(): Out of memory: Cannot allocate Wasm memory for new instance')"
FORBIDDEN = r"\S+: this page's Content-Security-Policy forbids WebAssembly; .*'wasm-unsafe-eval' in script-src"
POOR = r"\S+: this browser has no memory to start it \(.*\); close other tabs"
BROWSERS: dict[str, tuple[Fault, str]] = {
    "CSP without wasm": (lambda host: setattr(host, "csp", "script-src 'self'"), FORBIDDEN),
    "CSP with a default only": (lambda host: setattr(host, "csp", "default-src 'self'"), FORBIDDEN),
    "no memory to compile": (before_engine(f"WebAssembly.compile = async () => {{ throw new {NO_MEMORY}; }};"), POOR),
    "no memory for Python": (
        before_engine(f"WebAssembly.instantiateStreaming = async () => {{ throw new {NO_MEMORY}; }};"),
        r"pyodide/pyodide\.asm\.wasm: this browser has no memory to start it",
    ),
    "no memory at all": (
        before_engine("WebAssembly.Memory = class { constructor() { throw new RangeError('no'); } };"),
        r"this browser gives the page no memory; close other tabs",
    ),
}


@pytest.mark.parametrize("case", BROWSERS)
def test_browsers(tab: Page, host: Host, case: str) -> None:
    break_it, message = BROWSERS[case]
    break_it(host)
    assert re.search(message, load(tab)["error"])
