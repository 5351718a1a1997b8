"""What the browser keeps of a model: the next visit reads it from disk, and nothing depends on it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from oxinfer_web.checkpoint import INDEX
from oxinfer_web.convert import convert
from playwright.sync_api import Error, Page
from support import FIXTURES

from .host import Host
from .models import native

IDS = [1, 2, 3, 4, 5]
HEADER = 16384
"""Bytes of a shard that are read in any case."""
TABLE = "model.embed_tokens_per_layer."
VISITS = 3
"""A busy browser may hold the last page's files for longer than the next page waits for them."""


@pytest.fixture
def model(folders: Path, request: pytest.FixtureRequest) -> Path:
    folder = folders / request.node.name.partition("[")[0]
    convert(FIXTURES / "gemma4_e2b", folder, quant="q8", shard_size=200_000)
    return folder


def probe(page: Page, model: Path) -> dict[str, Any]:
    answer: dict[str, Any] = page.evaluate(
        "options => window.oxinfer.probe(options)", {"model": f"made/{model.name}", "ids": IDS}
    )
    return answer


def downloads(host: Host) -> list[tuple[str, int, int]]:
    """What was read of shards besides their headers, since the last call."""
    out = [r for r in host.ranges if r[0].endswith(".safetensors") and (r[1] > 0 or r[2] > HEADER)]
    host.ranges.clear()
    return out


def test_the_next_visit_reads_from_disk(bench: Page, host: Host, model: Path) -> None:
    logits, _ = native(model, IDS)
    first = probe(bench, model)
    assert downloads(host)
    # The tables' own shards are not kept whole: their rows come from the host again.
    tables = {file for name, file in index(model)["weight_map"].items() if name.startswith(TABLE)}
    for _ in range(VISITS):
        bench.reload()
        bench.wait_for_function("window.ready")
        again = probe(bench, model)
        if {Path(path).name for path, _, _ in downloads(host)} <= tables:
            break
    else:
        pytest.fail("every visit downloads the model again")
    for got in (first, again):
        np.testing.assert_array_equal(np.float32(got["logits"]), logits)
    assert first["host"]["rows"] == again["host"]["rows"]


def index(folder: Path) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((folder / INDEX).read_text())
    return data


def test_a_changed_model_is_downloaded_again(bench: Page, host: Host, model: Path) -> None:
    probe(bench, model)
    convert(FIXTURES / "gemma4_e2b", model, quant="q4", shard_size=200_000)
    downloads(host)
    bench.reload()
    bench.wait_for_function("window.ready")
    np.testing.assert_array_equal(np.float32(probe(bench, model)["logits"]), native(model, IDS)[0])
    assert downloads(host)


def test_a_damaged_download_is_noticed(bench: Page, model: Path) -> None:
    data = index(model)
    file = data["weight_map"]["model.norm.weight"]
    data["metadata"]["shards"][file]["sha256"] = "0" * 64
    (model / INDEX).write_text(json.dumps(data))
    with pytest.raises(Error, match=f"{file}: its sha256 is not the index's"):
        probe(bench, model)


def test_a_full_disk_only_means_that_nothing_is_kept(bench: Page, host: Host, model: Path) -> None:
    session = bench.context.new_cdp_session(bench)
    session.send("Storage.overrideQuotaForOrigin", {"origin": host.url.rstrip("/"), "quotaSize": 1000})
    for _ in range(2):
        np.testing.assert_array_equal(np.float32(probe(bench, model)["logits"]), native(model, IDS)[0])
        assert downloads(host)


def test_two_pages_at_once(bench: Page, host: Host, model: Path) -> None:
    """A second tab with the same model works, though only one has the files."""
    probe(bench, model)
    other = bench.context.new_page()
    other.goto(host.url + "bench.html")
    other.wait_for_function("window.ready")
    call = "options => void (window.result = window.oxinfer.probe(options))"
    for page in (bench, other):
        page.evaluate(call, {"model": f"made/{model.name}", "ids": IDS})
    for page in (bench, other):
        got = page.evaluate("() => window.result")
        np.testing.assert_array_equal(np.float32(got["logits"]), native(model, IDS)[0])
