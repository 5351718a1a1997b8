"""Write a checkpoint of a real model's shape with random Q4 weights, for what cannot be downloaded: speed and memory.

Usage: make_shape.py CONFIG OUT     (CONFIG: a config.json, such as tests/fixtures/hub_config_e2b.json)

Weights are noise of the size that keeps activations in range; only their shapes, precision and layout are the model's.
The per-layer table is sharded as a converted model's is.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from oxinfer_web.convert.folder import new_model_folder
from oxinfer_web.convert.shards import Out, Precisions, choose, fill_shards
from oxinfer_web.convert.tensors import wanted_tensors
from oxinfer_web.convert.write import write_shards
from oxinfer_web.models import read_config
from rich import progress

_SLAB = 1 << 24


class Noise:
    """Random tensors: one pool of random bytes, read from changing places, as fast as the disk takes them."""

    def __init__(self, seed: int = 0) -> None:
        self._rng = np.random.default_rng(seed)
        self._pool = self._rng.integers(0, 256, 2 * _SLAB, np.uint8)

    def blocks(self, t: Out) -> Iterator[np.ndarray]:
        """A tensor's data: random nibbles or int8, scales for a spread of 1/sqrt(columns), norms and scalars of 1."""
        cols = t.rows.store.shape[-1]
        if t.dtype == "BF16":
            yield np.full(t.nbytes // 2, 0x3F80, np.uint16)
            return
        if t.dtype in ("F16", "F32"):
            spread = {"F16": 4.6, "F32": 74.0}[t.dtype]  # of a random nibble - 8, and of a random int8
            dtype = np.float16 if t.dtype == "F16" else np.float32
            yield np.full(t.nbytes // np.dtype(dtype).itemsize, 1 / (spread * cols**0.5), dtype)
            return
        for at in range(0, t.nbytes, _SLAB):
            n = min(_SLAB, t.nbytes - at)
            start = int(self._rng.integers(0, _SLAB))
            yield self._pool[start : start + n]


def make_shape(config: Path, out: Path) -> None:
    """Write the checkpoint."""
    data = json.loads(config.read_text())
    stores, _ = choose(wanted_tensors(read_config(data)), Precisions("q4"))
    with (
        new_model_folder(out) as folder,
        progress.Progress(
            "{task.description}", progress.BarColumn(), progress.DownloadColumn(), progress.TimeRemainingColumn()
        ) as bar,
    ):
        task = bar.add_task(out.name)
        (folder / "config.json").write_text(json.dumps(data))
        write_shards(
            Noise().blocks,
            fill_shards(stores, 32 << 20),
            folder,
            "q4",
            lambda done, total: bar.update(task, completed=done, total=total),
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path)
    parser.add_argument("out", type=Path)
    args = parser.parse_args()
    make_shape(args.config, args.out)
