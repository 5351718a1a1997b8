"""A model's bytes on their way: transfers that stall, damaged and changed files, and what is kept."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from oxinfer_web.checkpoint import INDEX
from oxinfer_web.convert import convert
from playwright.sync_api import Page

from .host import Host
from .loading import IDS, SHARD, load, norm_shard, script, shard_of
from .models import TOKENIZER, native

Fault = Callable[[Host], object]
STALL_S = 1.0


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


def test_a_stalled_row_ends(tab: Page, host: Host, served: Path) -> None:
    table = shard_of("model.embed_tokens_per_layer.weight.q8", served)
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
    host.instead[table] = (served / table).read_bytes()[:-1] + b"\0"
    got = tab.evaluate(
        "() => window.open.call((e) => e.logits([90, 91])).then(String, (e) => `${e.name}: ${e.message}`)"
    )
    tab.evaluate("window.open.close()")
    assert got == f"HostError: {table}: the model on the host has changed since it was loaded; load it again"


def test_a_connection_that_stalls_once_goes_on(tab: Page, host: Host, served: Path) -> None:
    host.drop[norm_shard(served)] = 3
    assert load(tab, ids=IDS)["logits"] == native(served, IDS)[0].tolist()


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
def test_a_flipped_byte(tab: Page, host: Host, served: Path, folders: Path, place: str) -> None:
    """A shard of other bytes is downloaded once more; if it stays so it is an error, and nothing is kept."""
    folder = folders / f"flipped-{len(place)}"
    shutil.copytree(served, folder)
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


def test_a_flipped_byte_in_the_second_tab(tab: Page, host: Host, served: Path) -> None:
    """The second page has no store; it checks what it gets all the same."""
    tab.evaluate(
        """async () => {
          const { Oxinfer } = await import('/oxinfer-web.js');
          window.first = await Oxinfer.load('made/hosts', { threads: 1 });
        }"""
    )
    shard = norm_shard(served)
    host.tags = False
    host.instead[shard] = flipped(served / shard)
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
