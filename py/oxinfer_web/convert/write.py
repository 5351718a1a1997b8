"""Write the shards and their index, streaming: a slab of rows at a time is read, quantized and written."""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from ..checkpoint import INDEX
from ..errors import CheckpointError
from ..quant import Array, quantize_q4, quantize_q8, to_bf16
from ..runtime import Progress
from .jsonfile import dump_json
from .original import Original
from .shards import Out, Precision, RowRange, Shard

_SLAB = 1 << 21
"""Elements quantized at a time: 8 MiB of f32."""
_ALIGN = 64
"""Where a shard's data starts: on a multiple of this many bytes."""
_LISTED = ("tokenizer.json",)
"""Files beside the shards that the index lists with their sums: they are large, and belong to these very weights. Pages
keep what is listed, and check it; the other small files are read anew, so that they may be edited."""

Blocks = Callable[[Out], Iterator[Array]]
"""Gives a tensor's data in row order, C-contiguous."""


def write_shards(
    blocks: Blocks, shards: Sequence[Shard], folder: Path, quant: Precision, progress: Progress | None = None
) -> int:
    """Write every shard and then the index into an existing folder; returns the bytes of tensor data.

    The tokenizer has to be there already: the index lists it too.
    blocks: where the data comes from, asked for in file order; quant: the linear weights' precision, recorded in each
    shard's metadata. Raises OSError, and what blocks raises.
    """
    total = sum(t.nbytes for shard in shards for t in shard.tensors)
    done = 0
    weight_map: dict[str, str] = {}
    about: dict[str, dict[str, int | str]] = {}
    for i, shard in enumerate(shards, 1):
        file = f"model-{i:05}-of-{len(shards):05}.safetensors"
        digest, size = hashlib.sha256(), 0
        with (folder / file).open("wb") as f:
            for block in _shard_bytes(shard.ordered(), quant, blocks):
                f.write(block)
                digest.update(block)
                size += len(block)
                if progress is not None:
                    progress(min(done + size, total), total)
        done += sum(t.nbytes for t in shard.tensors)
        weight_map |= {t.name: file for t in shard.tensors}
        about[file] = {"size": size, "sha256": digest.hexdigest()}
    if progress is not None:
        progress(total, total)
    files = {name: _about((folder / name).read_bytes()) for name in _LISTED if (folder / name).exists()}
    metadata = {"total_size": total, "shards": about, "files": files}
    index = {"metadata": metadata, "weight_map": dict(sorted(weight_map.items()))}
    dump_json(folder / INDEX, index, indent=1)
    return total


def _about(data: bytes) -> dict[str, int | str]:
    return {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def _shard_bytes(tensors: Sequence[Out], quant: Precision, blocks: Blocks) -> Iterator[bytes | memoryview]:
    """One shard's bytes: the header, then the data."""
    entries: dict[str, object] = {"__metadata__": {"format": "pt", "oxinfer_quant": quant}}
    at = 0
    for t in tensors:
        entries[t.name] = {"dtype": t.dtype, "shape": t.shape, "data_offsets": [at, at + t.nbytes]}
        at += t.nbytes
    header = json.dumps(entries, separators=(",", ":")).encode()
    header += b" " * (-(8 + len(header)) % _ALIGN)
    yield struct.pack("<Q", len(header)) + header
    for t in tensors:
        for array in blocks(t):
            yield array.data.cast("B")


class Quantizer:
    """Reads and quantizes rows on a pool of threads (numpy lets them run side by side).

    Values and scales come from one pass: whichever tensor of the two is written first makes both, the other waits here.
    """

    def __init__(self, original: Original) -> None:
        self._original, self._pool = original, ThreadPoolExecutor(os.cpu_count())
        self._waiting: dict[tuple[RowRange, int], list[Array]] = {}

    def __enter__(self) -> Quantizer:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def blocks(self, t: Out) -> Iterator[Array]:
        """A tensor's data in row order, C-contiguous."""
        if (t.rows, t.part) in self._waiting:
            yield from self._waiting.pop((t.rows, t.part))
            return
        others: list[list[Array]] = [[] for _ in t.rows.tensors]
        for arrays in self._pool.map(lambda span: self._quantize(t.rows, *span), _slabs(t.rows)):
            for part, array in enumerate(arrays):
                if part != t.part:
                    others[part].append(array)
            yield arrays[t.part]
        for part, waiting in enumerate(others):
            if part != t.part:
                self._waiting[t.rows, part] = waiting

    def _quantize(self, rows: RowRange, first: int, last: int) -> tuple[Array, ...]:
        w = self._original.read(rows.store.original, first, last)
        if not np.isfinite(w).all():
            raise CheckpointError(
                f"{rows.store.original}: has numbers that are NaN or infinite; the model is damaged, download it again"
            )
        if rows.store.quant == "q8":
            return quantize_q8(w)
        if rows.store.quant == "q4":
            return quantize_q4(w)
        return (to_bf16(w),)


def _slabs(rows: RowRange) -> list[tuple[int, int]]:
    cols = rows.store.shape[1] if len(rows.store.shape) > 1 else 1
    step = max(1, _SLAB // cols)
    return [(r, min(r + step, rows.last)) for r in range(rows.first, rows.last, step)]
