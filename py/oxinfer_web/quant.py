"""The Q8 and Q4 block formats: layouts, quantize, dequantize. Needs numpy.

A block is `QBLOCK` (32) consecutive columns of one row with one scale.

* Q8: values int8 [rows, cols], scales float32 [rows, cols / 32]; value = q * scale, q in -127..127.
* Q4: values uint8 [rows, cols / 2], scales float16 [rows, cols / 32]. Byte j of a block holds column j in its low
  nibble and column j + 16 in its high nibble; value = (nibble - 8) * scale. This is the block of GGUF's Q4_0 (ggml's
  `block_q4_0`) with the scales in a tensor of their own.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from .enums import Quant
from .linear import QBLOCK, Parts

Array = npt.NDArray[Any]
F32 = npt.NDArray[Any]
"""An array of float32."""

_CANDIDATES = np.linspace(0.76, 1.06, 12, dtype=np.float32)
"""Scales tried for a Q4 block, as factors of the plain one (largest value over -8), each with both signs."""


def _blocks(w: Array) -> F32:
    if w.ndim != 2 or w.shape[1] % QBLOCK:
        raise ValueError(f"shape {list(w.shape)}: block formats take [rows, cols] with cols a multiple of {QBLOCK}")
    return np.ascontiguousarray(w, np.float32).reshape(w.shape[0], -1, QBLOCK)


def quantize_q8(w: Array) -> tuple[npt.NDArray[np.int8], F32]:
    """Round w [rows, cols] to Q8: (int8 [rows, cols], float32 [rows, cols / 32]). cols must be a multiple of 32."""
    blocks = _blocks(w)
    scales = np.abs(blocks).max(-1) / np.float32(127)
    steps = np.divide(blocks, scales[..., None], out=np.zeros_like(blocks), where=scales[..., None] > 0)
    q = np.clip(np.rint(steps), -127, 127).astype(np.int8)
    return q.reshape(w.shape), scales


def dequantize_q8(q: Array, scales: Array) -> F32:
    """The float32 [rows, cols] that Q8 values and scales stand for."""
    return (_blocks(q) * scales.astype(np.float32)[..., None]).reshape(q.shape)


def quantize_q4(w: Array, search: bool = True) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.float16]]:
    """Round w [rows, cols] to Q4: (uint8 [rows, cols / 2], float16 [rows, cols / 32]). cols must be a multiple of 32.

    search: where a block's values lie on a 4-bit grid, keep it (exactly, if an f16 scale can); else choose the block's
    scale among 24 candidates, refined by least squares, for the smallest squared error. Without: the plain Q4_0 scale,
    the value of largest magnitude over -8. The search costs about 15 times the time and takes a tenth to a fifth off
    the loss that Q4 adds on small models.
    """
    blocks = _blocks(w)
    # Rows are independent: go through them in slabs that stay in cache.
    slab = max(1, (1 << 18) // w.shape[1])
    packed = np.empty((w.shape[0], w.shape[1] // 2), np.uint8)
    scales = np.empty(blocks.shape[:2], np.float16)
    for r in range(0, len(blocks), slab):
        integers, scales[r : r + slab] = _q4_slab(blocks[r : r + slab], search)
        q = integers.astype(np.uint8)
        packed[r : r + slab] = (q[..., :16] | q[..., 16:] << 4).reshape(len(q), -1)
    return packed, scales


def _q4_slab(b: F32, search: bool) -> tuple[F32, npt.NDArray[np.float16]]:
    """Integers + 8 [rows, blocks, 32] and scales [rows, blocks] for blocks b [rows, blocks, 32]."""
    extreme = np.take_along_axis(b, np.abs(b).argmax(-1)[..., None], -1)[..., 0]
    scale = (extreme / np.float32(-8)).astype(np.float16)
    q = _q4_round(b, scale)
    if not search:
        return q, scale
    error = _q4_error(b, q, scale)
    on_grid = _q4_grids(b, extreme, q, scale, error)
    if not on_grid.any():
        _q4_search(b, extreme, q, scale, error)
    elif not on_grid.all():
        # The blocks that are left, as one row; what comes out goes back to their places.
        rest = ~on_grid
        part = [x[rest][None] for x in (b, extreme, q, scale, error)]
        _q4_search(*part)
        q[rest], scale[rest] = part[2][0], part[3][0]
    return q, scale


def _q4_grids(b: F32, extreme: F32, q: F32, scale: Array, error: F32) -> Array:
    """Find the blocks whose values are steps of one size already, as those of a model that was trained at 4 bits are.

    If the largest is k steps, the step is that over k. Puts their integers, scales and errors into q, scale and error;
    returns which blocks they are, bool [rows, blocks].
    """
    found = np.zeros(extreme.shape, np.bool_)
    with np.errstate(all="ignore"):  # what is no number here is no grid
        for k in range(1, 9):
            per_step = np.float32(-k) / extreme
            # Four values tell nearly every other block apart. bf16 may have moved each by 1/256, and the largest too.
            sample = b[..., :: QBLOCK // 4] * per_step[..., None]
            rows, blocks = np.nonzero((np.abs(sample - np.rint(sample)) < 0.07).all(-1))
            part = b[rows, blocks][None]
            steps = np.clip(np.rint(part * per_step[rows, blocks][None, :, None]), -8, 7)
            for new in ((1 / per_step[rows, blocks]).astype(np.float16)[None], _q4_fit(part, steps)):
                d = steps * new.astype(np.float32)[..., None] - part
                new_error = np.einsum("rbc,rbc->rb", d, d)
                fits = (np.abs(d) <= np.abs(part) * np.float32(2**-7)).all(-1)
                at = rows, blocks
                better = (fits & ((new_error < error[at]) | (~found[at] & (new_error == error[at]))))[0]
                to = rows[better], blocks[better]
                q[to], scale[to], error[to] = steps[0][better] + 8, new[0][better], new_error[0][better]
                found[to] = True
    return found


def _q4_search(b: F32, extreme: F32, q: F32, scale: Array, error: F32) -> None:
    """Improve q, scale and error, which hold a first answer, by the candidates' scales."""
    for factor in np.concatenate([_CANDIDATES, -_CANDIDATES]):
        # The scale that suits these integers best; then the integers that suit its f16 rounding.
        new = _q4_fit(b, _q4_round(b, extreme * (factor / np.float32(-8))) - 8)
        new_q = _q4_round(b, new)
        new_error = _q4_error(b, new_q, new)
        better = new_error < error
        q[better], scale[better], error[better] = new_q[better], new[better], new_error[better]


def _q4_fit(b: F32, q: F32) -> npt.NDArray[np.float16]:
    """The scales with which the integers q come closest to b, [rows, blocks]; 0 where all are 0."""
    out = np.zeros(b.shape[:-1], np.float32)
    np.divide((q * b).sum(-1), (q * q).sum(-1), out=out, where=(q != 0).any(-1))
    return out.astype(np.float16)


def _q4_round(b: F32, scale: Array) -> F32:
    s = scale.astype(np.float32)
    steps = np.divide(b, s[..., None], out=np.zeros_like(b), where=s[..., None] != 0)
    out: F32 = np.clip(np.rint(steps) + np.float32(8), 0, 15)
    return out


def _q4_error(b: F32, q: F32, scale: Array) -> F32:
    d = (q - 8) * scale.astype(np.float32)[..., None] - b
    out: F32 = np.einsum("rbc,rbc->rb", d, d)
    return out


def unpack_q4(packed: Array) -> npt.NDArray[np.int8]:
    """The integers nibble - 8, int8 [rows, cols], of Q4 values uint8 [rows, cols / 2]."""
    b = packed.reshape(packed.shape[0], -1, QBLOCK // 2)
    q = np.concatenate([b & 15, b >> 4], -1).astype(np.int8) - np.int8(8)
    return q.reshape(packed.shape[0], -1)


def dequantize_q4(packed: Array, scales: Array) -> F32:
    """The float32 [rows, cols] that Q4 values and scales stand for."""
    return dequantize_q8(unpack_q4(packed), scales)


def to_bf16(x: Array) -> npt.NDArray[np.uint16]:
    """float32 to bfloat16 bits, rounded to nearest even; NaN stays NaN."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(x), np.uint16(0x7FC0), rounded)


def from_bf16(bits: Array) -> F32:
    """bfloat16 bits (uint16) to float32, exactly."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def dequantize(quant: Quant, values: Array, scales: Array) -> F32:
    """float32 [rows, cols] from values and scales as stored (scales are ignored for bf16)."""
    if quant == Quant.BF16:
        return from_bf16(values)
    return dequantize_q8(values, scales) if quant == Quant.Q8 else dequantize_q4(values, scales)


def as_arrays(quant: Quant, values: bytes, scales: bytes, cols: int) -> tuple[Array, Array]:
    """Stored bytes as arrays: values [rows, ...] and scales [rows, cols / 32] ([rows, 0] for bf16)."""
    dtype, width, scale_dtype = {
        Quant.BF16: (np.uint16, cols, np.uint16),
        Quant.Q8: (np.int8, cols, np.float32),
        Quant.Q4: (np.uint8, cols // 2, np.float16),
    }[quant]
    v: Array = np.frombuffer(values, dtype).reshape(-1, width)
    return v, np.frombuffer(scales, scale_dtype).reshape(len(v), -1)


_NO_SCALES = np.empty((0, 0), np.float32)
_DTYPES: dict[str, type[np.generic]] = {
    "BF16": np.uint16,
    "I8": np.int8,
    "U8": np.uint8,
    "F32": np.float32,
    "F16": np.float16,
}


def read_parts(folder: str | Path, *parts: Parts) -> tuple[Array, ...]:
    """Tensors split by rows, read whole from a local checkpoint and joined; an empty array for no parts."""
    out: list[Array] = []
    for pieces in parts:
        arrays = [
            np.memmap(Path(folder) / ref.file, _DTYPES[ref.dtype], "r", ref.offset, ref.shape) for _, ref in pieces
        ]
        out.append(arrays[0] if len(arrays) == 1 else np.concatenate(arrays) if arrays else _NO_SCALES)
    return tuple(out)
