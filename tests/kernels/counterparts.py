"""The ops in numpy: f64 where a kernel may round as it likes, integers where it may not."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from oxinfer_web.enums import Act, Quant

F32 = NDArray[np.float32]
Array = NDArray[Any]


def bf16(x: Array) -> NDArray[np.uint16]:
    """The upper halves of f32."""
    return (np.ascontiguousarray(x, np.float32).view(np.uint32) >> 16).astype(np.uint16)


def from_bf16(x: NDArray[np.uint16]) -> F32:
    """bf16 as f32."""
    return (x.astype(np.uint32) << 16).view(np.float32)


def random_weight(rng: np.random.Generator, quant: Quant, rows: int, cols: int) -> tuple[Array, Array | None]:
    """Values and scales as a checkpoint has them, every bit pattern possible."""
    if quant == Quant.BF16:
        return bf16(rng.normal(size=(rows, cols)) / np.sqrt(cols)), None
    scales = rng.normal(size=(rows, cols // 32)) / 100
    if quant == Quant.Q8:
        return rng.integers(-128, 128, (rows, cols), dtype=np.int8), scales.astype(np.float32)
    return rng.integers(0, 256, (rows, cols // 2), dtype=np.uint8), scales.astype(np.float16)


def integers(quant: Quant, values: Array) -> NDArray[np.int64]:
    """The integers of Q8 or Q4 values, [rows, cols]."""
    if quant == Quant.Q8:
        return values.astype(np.int64)
    blocks = values.reshape(len(values), -1, 16)
    return np.concatenate([blocks & 15, blocks >> 4], axis=2).reshape(len(values), -1).astype(np.int64) - 8


def dequantize(quant: Quant, values: Array, scales: Array | None) -> F32:
    """A weight or table in f32, [rows, cols]."""
    if scales is None:
        return from_bf16(values)
    return (integers(quant, values) * np.repeat(scales.astype(np.float64), 32, axis=1)).astype(np.float32)


def quantize(x: F32) -> tuple[NDArray[np.int64], F32]:
    """Activations as the kernels quantize them: integers [T, n] and scales [T, n / 32], in f32 arithmetic."""
    blocks = x.astype(np.float32).reshape(len(x), -1, 32)
    top = np.abs(blocks).max(axis=2)
    with np.errstate(divide="ignore"):
        inverse = np.where(top > 1e-30, np.float32(127) / top, np.float32(0)).astype(np.float32)
    q = np.rint(blocks * inverse[:, :, None])
    return q.reshape(x.shape).astype(np.int64), top / np.float32(127)


def matmul(x: F32, quant: Quant, values: Array, scales: Array | None) -> tuple[Array, Array]:
    """x W^T as the kernels define it, in f64, and the sum of its terms' magnitudes, which bounds f32 rounding."""
    if scales is None:
        w = from_bf16(values).astype(np.float64)
        return x.astype(np.float64) @ w.T, np.abs(x).astype(np.float64) @ np.abs(w).T
    q, q_scales = quantize(x)
    qb, wb = q.reshape(len(x), -1, 32), integers(quant, values).reshape(len(values), -1, 32)
    terms = np.einsum("tbi,rbi->trb", qb, wb) * q_scales[:, None].astype(np.float64) * scales[None].astype(np.float64)
    return terms.sum(axis=2), np.abs(terms).sum(axis=2)


def activate(x: Array, act: Act) -> Array:
    """The gate's activation, in f64."""
    x = x.astype(np.float64)
    if act == Act.SILU:
        return np.asarray(x / (1 + np.exp(-x)))
    return np.asarray(0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))))


def rmsnorm(x: Array, eps: float, weight: Array | None, offset: float) -> Array:
    """Over the last axis, in f64."""
    x = x.astype(np.float64)
    y = x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + eps)
    return np.asarray(y if weight is None else y * (weight.astype(np.float64) + offset))


def attention(q: F32, k: F32, v: F32, heads: int, kv_heads: int, pos: int, window: int) -> Array:
    """q f32 [T, heads * d] at pos on, k and v [pos + T, kv_heads * d]; f64 [T, heads * d]."""
    tokens, positions = len(q), len(k)
    qh = q.reshape(tokens, heads, -1).astype(np.float64)
    kh, vh = (
        np.repeat(a.reshape(positions, kv_heads, -1), heads // kv_heads, axis=1).astype(np.float64) for a in (k, v)
    )
    scores = np.einsum("thd,phd->thp", qh, kh)
    here, there = pos + np.arange(tokens)[:, None], np.arange(positions)[None]
    seen = (there <= here) & ((there > here - window) if window else True)
    scores = np.where(seen[:, None], scores, -np.inf)
    p = np.exp(scores - scores.max(axis=2, keepdims=True))
    return np.asarray(np.einsum("thp,phd->thd", p / p.sum(axis=2, keepdims=True), vh)).reshape(q.shape)
