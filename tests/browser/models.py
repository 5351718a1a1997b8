"""Making models for browser tests, and running them natively to compare with."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import oxinfer_web
from oxinfer_web.checkpoint import INDEX, Checkpoint
from support import FIXTURES, safetensors_bytes

TOKENIZER = {
    "version": "1.0",
    "added_tokens": [],
    "normalizer": None,
    "pre_tokenizer": None,
    "post_processor": None,
    "decoder": None,
    "model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []},
}
"""The tiny models have none of their own; this one has two tokens."""
VOCABULARY = {chr(0x4E00 + i): i for i in range(512)}
"""A token for each of the tiny models' ids, so that every answer can be read."""


def native(folder: Path, ids: list[int], generate: int = 0, kernel: str = "simd") -> tuple[np.ndarray, list[int]]:
    """Logits after ids, and the greedy continuation, by wasmtime."""

    session = oxinfer_web.Session(oxinfer_web.load(folder, kernel=kernel, max_context=1024))
    session.forward(ids)
    logits = np.array(session.logits())
    session.truncate(0)
    return logits, list(oxinfer_web.generate_sync(session, ids, max_tokens=generate, stop=()))


def write_shards(folder: Path, shards: dict[str, list[str]], source: Path) -> None:
    """Write the tensors of checkpoint `source` into the given shards of `folder`, with their index."""
    checkpoint = Checkpoint.open(source)
    folder.mkdir()
    shutil.copy(source / "config.json", folder)
    weight_map = {name: file for file, names in shards.items() for name in names}
    sizes = {}
    for file, names in shards.items():
        refs = {name: checkpoint.tensor(name) for name in names}
        data = {
            name: (r.dtype, list(r.shape), (source / r.file).read_bytes()[r.offset : r.offset + r.nbytes])
            for name, r in refs.items()
        }
        (folder / file).write_bytes(safetensors_bytes(data, checkpoint.metadata))
        sizes[file] = {"size": (folder / file).stat().st_size}
    (folder / INDEX).write_text(json.dumps({"metadata": {"shards": sizes}, "weight_map": weight_map}))


def part_scales(source: Path, folder: Path) -> None:
    """Write checkpoint `source` again with all scales in another shard than the values."""
    names = list(Checkpoint.open(source))
    scales = [name for name in names if name.partition("@")[0].endswith((".q8s", ".q4s"))]
    values = [name for name in names if name not in scales]
    write_shards(folder, {"values.safetensors": values, "scales.safetensors": scales}, source)


def endless(folder: Path, source: str = "llama") -> None:
    """A tiny model with a tokenizer whose answers have no end."""
    shutil.copytree(FIXTURES / source, folder)
    config = json.loads((folder / "config.json").read_text())
    text = config.get("text_config", config)
    text["eos_token_id"] = config["eos_token_id"] = []
    text["max_position_embeddings"] = 100_000
    (folder / "config.json").write_text(json.dumps(config))
    tokenizer = TOKENIZER | {"model": {"type": "BPE", "vocab": VOCABULARY, "merges": []}}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "tokenizer_config.json").write_text("{}")
