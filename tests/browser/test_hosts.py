"""What hosts do, wrongly or in their own way: there is a model in the end, or an error that says what to change."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from oxinfer_web.checkpoint import INDEX, SINGLE
from oxinfer_web.convert import convert
from playwright.sync_api import Browser, Page, expect
from support import FIXTURES

from .conftest import DIST, LOAD_MS
from .host import Host
from .models import native
from .test_faults import TOKENIZER

Fault = Callable[[Host], object]
IDS = [1, 2, 3, 4, 5]
SHARDS = 11
SHARD = f"model-00001-of-{SHARDS:05}.safetensors"
STALL_S = 1.0
PATIENT = 30.0
"""Seconds that no test waits for."""

LOAD = """
async ({ url, ids, text, fresh, ...options }) => {
  const { Oxinfer } = await import('/oxinfer-web.js');
  const kept = fresh ? await navigator.storage.getDirectory() : undefined;
  // The last model's worker may take a moment to let its files go.
  for (let gone = !fresh; !gone; ) gone = await kept.removeEntry('oxinfer-models', { recursive: true }).then(
    () => true,
    (e) => e.name === 'NotFoundError',
  );
  let model;
  try {
    model = await Oxinfer.load(url, { threads: 1, ...options });
    if (text) return { ids: await model.encode(text) };
    return { logits: ids ? [...(await model.call((engine) => engine.logits(ids)))] : [] };
  } catch (e) {
    return { error: `${e.name}: ${e.message}` };
  } finally {
    model?.close();
  }
}
"""


@pytest.fixture(scope="module")
def model(folders: Path) -> Path:
    """A model in several shards, one of them of tables, with a tokenizer that its index lists."""
    source = folders / "hosts-source"
    shutil.copytree(FIXTURES / "gemma4_e2b", source)
    (source / "tokenizer.json").write_text(json.dumps(TOKENIZER))
    (source / "tokenizer_config.json").write_text("{}")
    made = convert(source, folders / "hosts", quant="q8", shard_size=200_000)
    assert made.shards == SHARDS
    shutil.copytree(FIXTURES / "llama", folders / "hosts-single")
    return folders / "hosts"


@pytest.fixture(scope="module")
def tab(browser: Browser, started: Host, model: Path) -> Iterator[Page]:
    """One page for all cases; its console is not looked at, as the browser complains of most faults by itself."""
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


def load(
    tab: Page, url: str = "made/hosts", stall: float = PATIENT, fresh: bool = True, **options: Any
) -> dict[str, Any]:
    """The logits after `ids`, or the error. fresh: as at the first visit."""
    answer: dict[str, Any] = tab.evaluate(LOAD, {"url": url, "stallSeconds": stall, "fresh": fresh, **options})
    return answer


def shard_of(tensor: str, folder: Path) -> str:
    name: str = json.loads((folder / INDEX).read_text())["weight_map"][tensor]
    return name


def norm_shard(folder: Path) -> str:
    return shard_of("model.norm.weight", folder)


def script(kind: str) -> Path:
    (path,) = (DIST / "assets").glob(f"{kind}-*.js")
    return path


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


STALLS = {
    "shard, half way": (SHARD, True),
    "tokenizer, half way": ("tokenizer.json", True),
    "kernels": ("relaxed-shared.wasm", False),
    "Pyodide, half way": ("pyodide.asm.wasm", True),
    "a module of Pyodide": ("pyodide.asm.mjs", False),
}


@pytest.mark.parametrize("case", STALLS)
def test_a_stalled_transfer_ends(tab: Page, host: Host, case: str) -> None:
    file, half = STALLS[case]
    host.tags = False  # nothing comes from the browser's cache
    host.stall(file, half=half)
    found = load(tab, stall=STALL_S)
    host.move()
    pattern = rf"HostError: (pyodide/|kernels/)?{re.escape(file)}: no byte has come for 1 s.*; check the connection"
    assert re.search(pattern, found["error"])


def test_a_stalled_row_ends(tab: Page, host: Host, model: Path) -> None:
    table = shard_of("model.embed_tokens_per_layer.weight.q8", model)
    got = tab.evaluate(
        """async ({ url }) => {
          const { Oxinfer } = await import('/oxinfer-web.js');
          window.open = await Oxinfer.load(url, { threads: 1, stallSeconds: 1 });
        }""",
        {"url": "made/hosts"},
    )
    host.stall(table, half=True)
    ask = "() => window.open.call((e) => e.logits([7, 8])).then(String, (e) => `${e.name}: ${e.message}`)"
    got = tab.evaluate(ask)
    host.move()
    assert re.match(rf"HostError: {table}: no byte has come for 1 s, 2 times", got)
    # The model is still there, and so is the host again.
    assert not tab.evaluate(ask).startswith("HostError")
    host.instead[table] = (model / table).read_bytes()[:-1] + b"\0"
    got = tab.evaluate(
        "() => window.open.call((e) => e.logits([90, 91])).then(String, (e) => `${e.name}: ${e.message}`)"
    )
    tab.evaluate("window.open.close()")
    assert got == f"HostError: {table}: the model on the host has changed since it was loaded; load it again"


def test_a_connection_that_stalls_once_goes_on(tab: Page, host: Host, model: Path) -> None:
    host.drop[norm_shard(model)] = 3
    assert load(tab, ids=IDS)["logits"] == native(model, IDS)[0].tolist()


def no_store(host: Host) -> None:
    worker = script("engine")
    host.instead[worker.name] = b"delete StorageManager.prototype.getDirectory;\n" + worker.read_bytes()


def no_tags(host: Host) -> None:
    host.tags = False


PLACES: dict[str, Fault] = {
    "kept": lambda host: None,
    "no store, as in a private window": no_store,
    "no tags": no_tags,
}


def flipped(path: Path) -> bytes:
    data = bytearray(path.read_bytes())
    data[-100] ^= 1
    return bytes(data)


@pytest.mark.parametrize("place", PLACES)
def test_a_flipped_byte(tab: Page, host: Host, model: Path, folders: Path, place: str) -> None:
    """A shard of other bytes is downloaded once more; if it stays so it is an error, and nothing is kept."""
    folder = folders / f"flipped-{len(place)}"
    shutil.copytree(model, folder)
    shard = norm_shard(folder)
    PLACES[place](host)
    host.tags = False  # with one, the host itself says that it has two versions
    host.instead[shard] = flipped(folder / shard)
    url = f"made/{folder.name}"
    assert re.match(rf"HostError: {shard}: its sha256 is not the index's, in two downloads", load(tab, url)["error"])
    right = native(folder, IDS)[0].tolist()
    # Wrong until the connection breaks: then what came first is wrong, and all of it comes once more.
    host.later[shard] = (folder / shard).read_bytes()
    assert load(tab, url, ids=IDS)["logits"] == right


def test_a_flipped_byte_in_the_second_tab(tab: Page, host: Host, model: Path) -> None:
    """The second page has no store; it checks what it gets all the same."""
    tab.evaluate(
        """async () => {
          const { Oxinfer } = await import('/oxinfer-web.js');
          window.first = await Oxinfer.load('made/hosts', { threads: 1 });
        }"""
    )
    shard = norm_shard(model)
    host.tags = False
    host.instead[shard] = flipped(model / shard)
    found = load(tab, fresh=False)
    tab.evaluate("window.first.close()")
    assert re.match(rf"HostError: {shard}: its sha256 is not the index's, in two downloads", found["error"])


CHANGES: dict[str, Callable[[bytes], bytes]] = {
    "other bytes": lambda data: data[:-1] + b"\7",
    "longer": lambda data: data + bytes(64),
    "shorter": lambda data: data[:-64],
}


@pytest.mark.parametrize(("change", "site"), [*((change, "this") for change in CHANGES), ("other bytes", "other")])
def test_a_change_in_mid_transfer(tab: Page, host: Host, other: Host, folders: Path, change: str, site: str) -> None:
    """Never two versions in one file: where the connection breaks and the file has changed meanwhile, that is said."""
    where = host if site == "this" else other
    where.cors = "all"
    folder = folders / f"change-{site}-{change.replace(' ', '-')}"
    shutil.copytree(folders / "hosts", folder)
    shard = norm_shard(folder)
    where.later[shard] = CHANGES[change]((folder / shard).read_bytes())
    found = load(tab, f"{where.url}made/{folder.name}")
    assert f"HostError: {shard}: the model on the host has changed since it was loaded; load it again" == found["error"]


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
def test_another_site(tab: Page, host: Host, other: Host, model: Path, case: str) -> None:
    prepare, message = OTHERS[case]
    found = load(tab, other.url + prepare(other), ids=IDS, tokenizer=False)
    if message is None:
        assert found.get("logits") == native(model, IDS)[0].tolist(), found
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
def test_compression(tab: Page, host: Host, model: Path, case: str) -> None:
    pack, message = PACKED[case]
    pack(host)
    found = load(tab, ids=IDS)
    if message is None:
        assert found.get("logits") == native(model, IDS)[0].tolist(), found
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


def test_the_tokenizer_is_kept(tab: Page, host: Host, folders: Path) -> None:
    """It comes once; another one, in a model that was converted again, is noticed."""
    url = "made/kept-tokenizer"
    source = folders / "kept-source"
    shutil.copytree(folders / "hosts-source", source)

    def encode() -> list[int]:
        ids: list[int] = load(tab, url, fresh=False, text="ab")["ids"]
        return ids

    def asked() -> list[int]:
        statuses = [status for path, status in host.log if path == f"{url}/tokenizer.json"]
        host.log.clear()
        return statuses

    convert(source, folders / "kept-tokenizer", quant="q8")
    assert (encode(), asked()) == ([0, 1], [200])
    assert (encode(), asked()) == ([0, 1], [])
    tokenizer = json.loads(json.dumps(TOKENIZER))
    tokenizer["model"]["vocab"] = {"b": 0, "a": 1}
    (source / "tokenizer.json").write_text(json.dumps(tokenizer))
    convert(source, folders / "kept-tokenizer", quant="q8")
    assert (encode(), asked()) == ([1, 0], [200])
    # A folder whose index does not list it: the browser asks whether it has changed.
    index = json.loads((folders / "kept-tokenizer" / INDEX).read_text())
    del index["metadata"]["files"]
    (folders / "kept-tokenizer" / INDEX).write_text(json.dumps(index))
    assert (encode(), asked()) == ([1, 0], [304])
    (folders / "kept-tokenizer" / "tokenizer.json").write_text(json.dumps(TOKENIZER) + "\n")
    assert (encode(), asked()) == ([0, 1], [200])


def test_a_wrong_tokenizer_is_noticed(tab: Page, host: Host) -> None:
    host.instead["tokenizer.json"] = json.dumps(TOKENIZER).encode() + b"\n"
    found = load(tab)
    assert found["error"].startswith("HostError: tokenizer.json: its sha256 is not the index's, in two downloads")
