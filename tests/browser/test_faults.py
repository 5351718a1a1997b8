"""What can be wrong with a host, a model or a browser: each gives one clear message on the page."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from oxinfer_web.checkpoint import INDEX, SINGLE
from oxinfer_web.convert import convert
from playwright.sync_api import Error, Page, Playwright, expect
from support import FIXTURES

from .conftest import DIST, FLAGS, chromium
from .host import Host
from .models import TOKENIZER

Fault = Callable[[Path, Host], None]


def shards(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.safetensors"))


def ignore_ranges(folder: Path, host: Host) -> None:
    host.whole |= {path.name for path in shards(folder)}


def lose_shard(folder: Path, host: Host) -> None:
    host.missing.add(shards(folder)[1].name)


def cut_shard(folder: Path, host: Host) -> None:
    path = shards(folder)[1]
    path.write_bytes(path.read_bytes()[:-1000])


def cut_header(folder: Path, host: Host) -> None:
    path = shards(folder)[1]
    path.write_bytes(path.read_bytes()[:5])
    set_size(folder, path.name, 5)


def set_size(folder: Path, file: str, size: int) -> None:
    index = json.loads((folder / INDEX).read_text())
    index["metadata"]["shards"][file]["size"] = size
    (folder / INDEX).write_text(json.dumps(index))


def edit_config(**changes: object) -> Fault:
    def edit(folder: Path, host: Host) -> None:
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | changes))

    return edit


def edit_header(old: bytes, new: bytes) -> Fault:
    """Change the first such words of every shard's header, its length kept."""
    assert len(old) == len(new)

    def edit(folder: Path, host: Host) -> None:
        for path in shards(folder):
            path.write_bytes(path.read_bytes().replace(old, new, 1))

    return edit


def lose_index(folder: Path, host: Host) -> None:
    host.missing.add(INDEX)


def lose_config(folder: Path, host: Host) -> None:
    host.missing.add("config.json")


def break_index(folder: Path, host: Host) -> None:
    (folder / INDEX).write_text("{")


def lose_tensor(folder: Path, host: Host) -> None:
    index = json.loads((folder / INDEX).read_text())
    index["weight_map"]["model.norm.weight"] = shards(folder)[-1].name
    (folder / INDEX).write_text(json.dumps(index))


FAULTS: dict[str, tuple[Fault, str]] = {
    "ranges ignored": (ignore_ranges, r"model-\S+: the server ignores byte ranges .*oxinfer-web serve"),
    "shard missing": (lose_shard, r"model-00002\S+: not found at .*\(404\); is the model's folder complete"),
    "shard short": (cut_shard, r"model-00002\S+: \d+ bytes, \S+ says \d+; download the file again"),
    "shard empty": (cut_header, r"model-00002\S+: 5 bytes is too short for a safetensors file"),
    "wrong shape": (edit_config(intermediate_size=96), r"model-\S+: tensor \S+ has the shape .*the model needs"),
    "wrong dtype": (edit_header(b'"BF16"', b'"U16" '), r"model-\S+: tensor \S+ is U16, the model needs BF16"),
    "unknown model": (edit_config(model_type="mamba9"), r"config.json: .*mamba9"),
    "unknown quantization": (edit_header(b'"oxinfer_quant":"q8"', b'"oxinfer_quant":"q3"'), r"q3"),
    "index missing": (lose_index, rf"{re.escape(SINGLE)}: not found .*{re.escape(INDEX)} is not there either"),
    "index broken": (break_index, rf"{re.escape(INDEX)}: not a safetensors index"),
    "config missing": (lose_config, r"config.json: not in .*made/bad/; is this a model's folder"),
    "tensor elsewhere": (lose_tensor, r"model-\S+: \S+ says tensor model.norm.weight is here, but it is not"),
}


@pytest.fixture(scope="module")
def good(folders: Path) -> Path:
    """A model without faults, in several shards."""
    folder = folders / "good"
    convert(FIXTURES / "llama", folder, quant="q8", shard_size=150_000)
    # The tiny models have no tokenizer; the page reads one, if only to run into the fault.
    (folder / "tokenizer.json").write_text(json.dumps(TOKENIZER))
    (folder / "tokenizer_config.json").write_text("{}")
    return folder


@pytest.mark.parametrize("fault", FAULTS)
def test_fault(page: Page, host: Host, good: Path, complaints: list[str], fault: str) -> None:
    folder = good.with_name("bad")
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(good, folder)
    break_it, message = FAULTS[fault]
    break_it(folder, host)
    page.goto(host.url + "?model=made/bad/")
    expect(page.get_by_role("alert")).to_contain_text(re.compile(message))
    expect(page.get_by_role("button", name="Generate")).to_be_disabled()
    # Chromium itself reports a missing file; nothing else may be reported.
    complaints[:] = [c for c in complaints if "404" not in c]


def test_good(page: Page, host: Host, good: Path) -> None:
    """The same model without a fault loads; and after a fault, another address may be tried on the same page."""
    page.goto(host.url + "?model=made/good/")
    expect(page.get_by_role("button", name="Generate")).to_be_enabled()
    expect(page.get_by_role("alert")).to_be_hidden()


DEAD_THREADS = {
    "deaf": (
        b"onmessage = () => navigator.locks.request(name, () => (postMessage('ready'), new Promise(() => {})));",
        "a kernel thread has stopped answering; load the model again, or use one thread",
    ),
    "gone": (
        b"onmessage = () => { postMessage('ready'); close(); }",
        "the kernel thread is gone.*load the model again",
    ),
}


@pytest.mark.parametrize("how", DEAD_THREADS)
def test_dead_thread(page: Page, host: Host, good: Path, how: str) -> None:
    """A kernel thread that hangs is missed at the next barrier, after some seconds; one that is gone, by its lock."""
    (script,) = (DIST / "assets").glob("thread-*.js")
    host.instead[script.name], message = DEAD_THREADS[how]
    page.goto(host.url + "bench.html")
    page.wait_for_function("window.ready")
    with pytest.raises(Error, match=message):
        page.evaluate("window.oxinfer.probe({ model: 'made/good', ids: [1, 2, 3], threads: 2 })")


def test_without_simd(playwright: Playwright, host: Host, good: Path) -> None:
    # V8 has SIMD only where the processor has SSE 4.1.
    flags = [*FLAGS, "--js-flags=--no-enable-sse4-1 --no-enable-ssse3"]
    browser = playwright.chromium.launch(executable_path=chromium(), args=flags)
    try:
        page = browser.new_page()
        page.goto(host.url + "?model=made/good/")
        expect(page.get_by_role("alert")).to_contain_text(
            "this browser has no WebAssembly SIMD, which the kernels need; use a current browser"
        )
    finally:
        browser.close()
