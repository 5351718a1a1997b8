"""HEADS, ROPE_TABLE, ATTENTION and ATTENTION_MERGE."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from oxinfer_web.enums import KVType
from oxinfer_web.program.records import LAST, Bind, encode, quantized_bytes

from . import counterparts as numpy_ops
from .machine import F32, Cache, Machine

bounded = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


@pytest.mark.parametrize("pos", [0, 1000, 131000])
def test_rope_table(machine: Machine, pos: int) -> None:
    inv_freq = np.concatenate([1e4 ** -(np.arange(37) / 37), [0, 1]]).astype(np.float32)
    dst = machine.room(5 * 2 * 39 * 4)
    machine.play(encode("ROPE_TABLE", dst=dst, inv_freq=machine.put(inv_freq), pairs=39), tokens=5, pos=pos)
    angle = ((pos + np.arange(5, dtype=np.float32))[:, None] * inv_freq).astype(np.float64)
    np.testing.assert_allclose(machine.get(dst, (5, 78)), np.hstack([np.cos(angle), np.sin(angle)]), atol=1e-7)


@bounded
@given(
    tokens=st.integers(1, 6),
    heads=st.integers(1, 3),
    quads=st.integers(1, 20),
    norm=st.sampled_from(["none", "plain", "weight"]),
    rope=st.booleans(),
    last=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_heads(
    machine: Machine, tokens: int, heads: int, quads: int, norm: str, rope: bool, last: bool, seed: int
) -> None:
    machine.reset()
    d = quads * 4
    rng = np.random.default_rng(seed)
    rows = 1 if last else tokens
    x = rng.normal(size=(rows, heads * d)).astype(np.float32)
    weight = numpy_ops.bf16(rng.normal(size=d))
    table = rng.normal(size=(tokens, d)).astype(np.float32)
    src = machine.put(x)
    record = encode(
        "HEADS",
        LAST if last else 0,
        dst=src,
        src=src,
        bind=Bind.BUFFER,
        heads=heads,
        head_dim=d,
        weight=machine.put(weight) if norm == "weight" else 0,
        norm=norm != "none",
        rope=machine.put(table) if rope else 0,
        eps=1e-6,
        offset=1.0,
        scale=0.5,
    )
    machine.play(record, tokens=tokens)
    y = x.reshape(rows, heads, d).astype(np.float64)
    if norm != "none":
        y = numpy_ops.rmsnorm(y, 1e-6, numpy_ops.from_bf16(weight) if norm == "weight" else None, 1.0)
    if rope:
        cos, sin = np.split(table[-rows:, None].astype(np.float64), 2, axis=2)
        a, b = np.split(y, 2, axis=2)
        y = np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=2)
    np.testing.assert_allclose(machine.get(src, x.shape), (y * 0.5).reshape(x.shape), atol=3e-6, rtol=3e-6)


def keys_and_values(rng: np.random.Generator, positions: int, width: int, kv: KVType) -> tuple[F32, F32]:
    """Random keys and values that the cache's type holds exactly."""
    k, v = (rng.normal(size=(positions, width)).astype(np.float32) for _ in range(2))
    if kv == KVType.F16:
        k, v = (a.astype(np.float16).astype(np.float32) for a in (k, v))
    return k, v


@bounded
@given(
    tokens=st.integers(1, 9),
    pos=st.sampled_from([0, 1, 3, 100, 127, 128, 255, 256, 600]),
    kv_heads=st.integers(1, 3),
    group=st.sampled_from([1, 2, 3, 4, 5, 8]),
    eights=st.integers(1, 8),
    window=st.sampled_from([0, 1, 5, 100, 128, 300]),
    kv=st.sampled_from(list(KVType)),
    seed=st.integers(0, 2**32),
)
def test_attention(
    machine: Machine, tokens: int, pos: int, kv_heads: int, group: int, eights: int, window: int, kv: KVType, seed: int
) -> None:
    machine.reset()
    rng = np.random.default_rng(seed)
    d, heads = eights * 8, kv_heads * group
    k, v = keys_and_values(rng, pos + tokens, kv_heads * d, kv)
    q = (rng.normal(size=(tokens, heads * d)) * 2 / np.sqrt(d)).astype(np.float32)
    cache = Cache(machine, kv_heads, d, kv, pages=6)
    cache.append(k, v, 0)
    got, _ = cache.attend(q, heads, pos, window)
    np.testing.assert_allclose(got, numpy_ops.attention(q, k, v, heads, kv_heads, pos, window), atol=5e-6, rtol=1e-5)


@pytest.mark.parametrize("tokens", [1, 7])
def test_ring(machine: Machine, tokens: int) -> None:
    """A sliding layer's cache holds fewer pages than there are positions."""
    rng = np.random.default_rng(3)
    k, v = keys_and_values(rng, 900 + tokens, 2 * 16, KVType.F32)
    q = rng.normal(size=(tokens, 4 * 16)).astype(np.float32)
    cache = Cache(machine, 2, 16, KVType.F32, pages=3)
    for at in range(0, len(k), 50):
        cache.append(k[at : at + 50], v[at : at + 50], at)
    got, _ = cache.attend(q, 4, 900, window=200)
    np.testing.assert_allclose(got, numpy_ops.attention(q, k, v, 4, 2, 900, 200), atol=5e-6, rtol=1e-5)


@pytest.mark.parametrize("head_dim", [8, 64, 512])
@pytest.mark.parametrize("tokens", [1, 6])
def test_attention_quantizes_its_result(machine: Machine, tokens: int, head_dim: int) -> None:
    rng = np.random.default_rng(4)
    k, v = keys_and_values(rng, 300 + tokens, head_dim, KVType.F16)
    q = rng.normal(size=(tokens, 4 * head_dim)).astype(np.float32)
    cache = Cache(machine, 1, head_dim, KVType.F16, pages=3)
    cache.append(k, v, 0)
    got, got_q = cache.attend(q, 4, 300, quantized=True)
    size = tokens * quantized_bytes(4 * head_dim)
    assert machine.kernels.read(got_q, size) == machine.kernels.read(machine.quantized(got), size)


def test_last_token_alone(machine: Machine) -> None:
    """With the flag LAST, attention runs for the step's last token: the same result as a step of that token."""
    rng = np.random.default_rng(5)
    k, v = keys_and_values(rng, 304, 32, KVType.F32)
    q = rng.normal(size=(1, 2 * 32)).astype(np.float32)
    cache = Cache(machine, 1, 32, KVType.F32, pages=3)
    cache.append(k, v, 0)
    alone, _ = cache.attend(q, 2, 303)
    flagged, _ = cache.attend(q, 2, 300, flags=LAST)
    assert np.array_equal(alone, flagged)


def test_f16_rounds_to_nearest(machine: Machine) -> None:
    """An f16 cache holds numpy's f16, subnormals included, clamped to the largest: seen through one position."""
    x = np.array([1, -1, 1 + 2**-11, 1 + 3 * 2**-11, 6e-8, 3e-8, -5e-6, 65504, 1e6, -1e6, 0, 2.0**-14], np.float32)
    cache = Cache(machine, 1, len(x), KVType.F16, pages=1)
    cache.append(np.zeros((1, len(x)), np.float32), x[None], 0)
    got, _ = cache.attend(np.zeros((1, len(x)), np.float32), 1, 0)
    assert np.array_equal(got[0], np.clip(x, -65504, 65504).astype(np.float16).astype(np.float32))
