"""The golden checkpoints in Chromium: the same numbers as wasmtime's, wherever the tables' bytes lie."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from oxinfer_web.checkpoint import Checkpoint
from oxinfer_web.convert import convert
from playwright.sync_api import Page, Playwright
from support import FIXTURES, TINY, expected

from .conftest import DIST, FLAGS, chromium
from .host import Host
from .models import native, part_scales

GREEDY = 24


def probe(page: Page, **options: Any) -> dict[str, Any]:
    answer: dict[str, Any] = page.evaluate("options => window.oxinfer.probe(options)", options)
    return answer


def prompt(case: str) -> list[int]:
    ids: list[int] = expected(case)["input_ids"].reshape(-1).tolist()
    return ids


@pytest.mark.parametrize("case", TINY)
@pytest.mark.parametrize("threads", [1, 2, 4])
@pytest.mark.parametrize("kernel", ["simd", "relaxed"])
def test_golden(bench: Page, case: str, kernel: str, threads: int) -> None:
    want = expected(case)
    got = probe(bench, model=f"tiny/{case}", ids=prompt(case), generate=GREEDY, kernel=kernel, threads=threads)
    assert (got["kernel"], got["threads"]) == (kernel, threads)
    np.testing.assert_allclose(got["logits"], want["logits"][-1], atol=2e-3)
    assert got["tokens"] == want["greedy"].tolist()


@pytest.mark.parametrize("quant", ["q8", "q4"])
def test_without_vnni(playwright: Playwright, host: Host, folders: Path, quant: str) -> None:
    """The relaxed build gives the same bits where the 8-bit dot product is made of several instructions."""
    folder = folders / f"pairs-{quant}"
    convert(FIXTURES / "gemma3", folder, quant=quant)
    flags = [*FLAGS, "--js-flags=--no-enable-avx-vnni --no-enable-avx-vnni-int8"]
    browser = playwright.chromium.launch(executable_path=chromium(), args=flags)
    try:
        page = browser.new_page()
        page.goto(host.url + "bench.html")
        page.wait_for_function("window.ready")
        got = probe(page, model=f"made/{folder.name}", ids=prompt("gemma3"), generate=GREEDY, kernel="relaxed")
    finally:
        browser.close()
    logits, greedy = native(folder, prompt("gemma3"), GREEDY)
    np.testing.assert_array_equal(np.float32(got["logits"]), logits)
    assert got["tokens"] == greedy


@pytest.mark.parametrize("quant", ["q8", "q4"])
@pytest.mark.parametrize("layout", ["whole", "split", "apart"])
def test_table_layouts(bench: Page, host: Host, folders: Path, layout: str, quant: str) -> None:
    """Tables whole, split by rows, or with their scales in another shard than their values."""
    folder = folders / f"{layout}-{quant}"
    convert(FIXTURES / "gemma4_e2b", folder, quant=quant, shard_size=12_000 if layout == "split" else 1 << 24)
    if layout == "apart":
        part_scales(folder, folders / f"apart-{quant}-2")
        folder = folders / f"apart-{quant}-2"
    assert any("@" in name for name in Checkpoint.open(folder)) == (layout == "split")

    logits, greedy = native(folder, prompt("gemma4_e2b"), GREEDY)
    got = probe(bench, model=f"made/{folder.name}", ids=prompt("gemma4_e2b"), generate=GREEDY, kernel="simd")
    # The plain-SIMD build is deterministic by specification, whoever runs it and on however many threads.
    np.testing.assert_array_equal(np.float32(got["logits"]), logits)
    assert got["tokens"] == greedy


def test_host_traffic(bench: Page, host: Host, folders: Path) -> None:
    """Only the rows that tokens need are asked for, adjacent ones together, and each of them once."""
    folder = folders / "traffic"
    convert(FIXTURES / "gemma4_e2b", folder, quant="q8")
    ids = [7, 8, 9, 40, 7, 100]
    got = probe(bench, model="made/traffic", ids=ids)
    pad = 0
    runs = 3 + (pad not in ids)  # 7-9, 40, 100, and the pad token in the per-layer table
    input_row, layer_row = (tensor_row(folder, name) for name in ("embed_tokens", "embed_tokens_per_layer"))
    assert got["host"] == {
        "requests": 2 * 3 + 2 * runs,
        "rows": 5 + 6,
        "bytes": 5 * input_row + 6 * layer_row,
    }
    assert got["memory"]["weights"] < sum(f.stat().st_size for f in folder.glob("*.safetensors"))


def tensor_row(folder: Path, table: str) -> int:
    """Bytes of one row of a Q8 table, its scales included."""
    checkpoint = Checkpoint.open(folder)
    name = f"model.{table}.weight"
    return sum(
        ref.nbytes // ref.shape[0] for ref in (checkpoint.tensor(f"{name}.q8"), checkpoint.tensor(f"{name}.q8s"))
    )


def test_single_file(bench: Page, host: Host) -> None:
    """A folder with one model.safetensors and no index: the index's absence is no error."""
    got = probe(bench, model="tiny/llama", ids=[1, 2, 3], generate=2)
    assert len(got["tokens"]) == 2
    assert all(path.endswith("model.safetensors") for path, _, _ in host.ranges)


def test_without_isolation(bench: Page, complaints: list[str]) -> None:
    """Where memory cannot be shared, one thread does the work."""
    alone = Host({"": DIST, "tiny": FIXTURES}, isolated=False)
    server = alone.start()
    try:
        bench.goto(alone.url + "bench.html")
        bench.wait_for_function("window.ready")
        assert bench.evaluate("crossOriginIsolated") is False
        got = probe(bench, model="tiny/gemma3", ids=prompt("gemma3"), threads=4)
        assert got["threads"] == 1
        np.testing.assert_allclose(got["logits"], expected("gemma3")["logits"][-1], atol=2e-3)
    finally:
        server.shutdown()
        # They went to this test's own host.
        complaints[:] = [c for c in complaints if not c.startswith(alone.url)]


def test_connection_drops(bench: Page, host: Host, folders: Path, complaints: list[str]) -> None:
    """A download that breaks off is taken up again where it stopped, and a busy server is asked again."""
    folder = folders / "drops"
    convert(FIXTURES / "gemma3", folder, quant="q8", shard_size=200_000)
    shard = sorted(path.name for path in folder.glob("*.safetensors"))[1]
    host.drop[shard] = 2
    host.busy["config.json"] = 1
    ids = [1, 2, 3, 4]
    got = probe(bench, model="made/drops", ids=ids, kernel="simd")
    np.testing.assert_array_equal(np.float32(got["logits"]), native(folder, ids)[0])
    assert host.drop[shard] == 0
    # Chromium may report the failed requests.
    complaints[:] = [c for c in complaints if "Failed to load resource" not in c]
