"""The demo models in Chromium: against wasmtime, against the golden numbers, and through the page."""

from __future__ import annotations

import functools
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import oxinfer_web
import pytest
from playwright.sync_api import Page, expect
from support import FIXTURES

from .conftest import DIST
from .host import Host
from .models import native

pytestmark = pytest.mark.realmodel

MODELS = {
    "smollm2-135m-q8": "real_smollm2_135m.json",
    "gemma3-270m-q8": "real_gemma3_270m.json",
    "gemma3-270m-q4": "real_gemma3_270m.json",
}
GREEDY = 32


def folder(model: str) -> Path:
    path = DIST / "models" / model
    if not (path / "config.json").exists():
        pytest.fail(f"{path} is not there; run ./build.sh demo")
    return path


def reference(model: str) -> dict[str, Any]:
    text: dict[str, Any] = json.loads((FIXTURES / MODELS[model]).read_text())
    return text


def probe(page: Page, **options: Any) -> dict[str, Any]:
    answer: dict[str, Any] = page.evaluate("options => window.oxinfer.probe(options)", options)
    return answer


RUNS = [(model, kernel, 2) for model in MODELS for kernel in ("relaxed", "simd")]
RUNS += [("smollm2-135m-q8", kernel, threads) for kernel in ("relaxed", "simd") for threads in (1, 4)]


@functools.cache
def natively(model: str) -> tuple[np.ndarray, list[int], float]:
    """What wasmtime's plain-SIMD run gives: logits, the greedy continuation, and the mean NLL."""
    path, ids = folder(model), reference(model)["input_ids"]
    losses = oxinfer_web.Session(oxinfer_web.load(path, kernel="simd")).nll(ids)
    return *native(path, ids, GREEDY), sum(losses) / len(losses)


@pytest.mark.parametrize(("model", "kernel", "threads"), RUNS)
def test_same_as_wasmtime(bench: Page, model: str, kernel: str, threads: int) -> None:
    """Both builds, on any number of threads, give what wasmtime gives, to the last bit."""
    path, ids = folder(model), reference(model)["input_ids"]
    logits, greedy, nll = natively(model)
    got = probe(bench, model=f"models/{model}", ids=ids, generate=GREEDY, kernel=kernel, threads=threads)
    assert (got["kernel"], got["threads"]) == (kernel, threads)
    assert got["tokens"] == greedy
    np.testing.assert_array_equal(np.float32(got["logits"]), logits)
    assert got["nll"] == pytest.approx(nll, rel=1e-6)
    if model.endswith("q8"):
        assert got["nll"] == pytest.approx(reference(model)["nll_f32"], rel=5e-3)
    check_host(path, got, len({*ids, *greedy[:-1]}))


def check_host(path: Path, got: dict[str, Any], rows: int) -> None:
    """The embedding table stays on the host: what was read there is `rows` rows, and memory holds the head alone."""
    config = json.loads((path / "config.json").read_text())
    row = config["hidden_size"] // (2 if path.name.endswith("q4") else 1)
    scales = config["hidden_size"] // 32 * (2 if path.name.endswith("q4") else 4)
    assert got["host"]["rows"] == rows
    assert got["host"]["bytes"] == rows * (row + scales)
    assert got["host"]["requests"] <= 2 * rows
    # The head is in memory, as it is a linear weight; the table that tokens are looked up in is not there as well.
    assert got["memory"]["weights"] < 1.01 * sum(f.stat().st_size for f in path.glob("*.safetensors"))


def test_bench(bench: Page) -> None:
    options = {"model": "models/smollm2-135m-q8", "promptTokens": 40, "generate": 8, "threads": 1}
    got = bench.evaluate("options => window.oxinfer.bench(options)", options)
    assert got["model"] == options["model"]
    assert (got["threads"], got["prompt_tokens"], got["generated_tokens"]) == (1, 40, 8)
    assert len(got["tokens"]) == 8
    assert min(got["load_ms"], got["prefill_tok_s"], got["decode_tok_s"]) > 0
    assert got["memory"].keys() == {"weights", "kv", "buffers", "total"}
    assert got["host"].keys() == {"requests", "bytes", "rows"}


def test_page(page: Page, host: Host) -> None:
    """Load a model, ask, read the answer, stop another one, and go on."""
    page.goto(host.url)
    page.get_by_role("combobox", name="Model").select_option("smollm2-135m-q8")
    page.get_by_role("button", name="Load").click()
    expect(page.get_by_role("progressbar")).to_be_visible()
    generate, stop = page.get_by_role("button", name="Generate"), page.get_by_role("button", name="Stop")
    expect(generate).to_be_enabled()
    output = page.locator("#output")

    page.get_by_label("Temperature").fill("0")
    page.get_by_label("Tokens").fill("24")
    page.get_by_label("Prompt").fill("Explain in one sentence why the sky is blue.")
    generate.click()
    expect(output).to_contain_text("blue")
    expect(stop).to_be_disabled()
    expect(page.locator("#speed")).to_have_text(re.compile(r"\d+ tokens, [\d.]+ tokens/s, first after [\d.]+ s"))

    page.get_by_label("Answer as a chat").uncheck()
    page.get_by_label("Tokens").fill("500")
    page.get_by_label("Prompt").fill("Once upon a time")
    generate.click()
    expect(output).to_have_text(re.compile("^Once upon a time.{20}", re.DOTALL))
    stop.click()
    expect(generate).to_be_enabled()
    stopped = output.inner_text()
    page.wait_for_timeout(500)
    assert output.inner_text() == stopped
    expect(page.get_by_role("alert")).to_be_hidden()


def test_page_on_a_phone(page: Page, host: Host) -> None:
    """Nothing is wider than the screen."""
    page.set_viewport_size({"width": 360, "height": 700})
    page.goto(host.url)
    expect(page.get_by_role("combobox", name="Model").locator("option")).to_have_count(len(MODELS) + 1)
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
