"""Loading a model in a page on which many tests load theirs, and what became of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from oxinfer_web.checkpoint import INDEX
from playwright.sync_api import Page

from .conftest import DIST

IDS = [1, 2, 3, 4, 5]
SHARDS = 11
SHARD = f"model-00001-of-{SHARDS:05}.safetensors"
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
