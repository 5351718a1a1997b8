"""The block formats, against ggml's own quantizer (the gguf package) and exact arithmetic."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from oxinfer_web.quant import dequantize_q4, dequantize_q8, from_bf16, quantize_q4, quantize_q8, to_bf16, unpack_q4

MATRICES = array_shapes(min_dims=2, max_dims=2, max_side=5).flatmap(
    lambda s: arrays(np.float32, (s[0], s[1] * 32), elements=st.floats(-1000, 1000, width=32))
)


def split_q4_0(raw: np.ndarray, cols: int) -> tuple[np.ndarray, np.ndarray]:
    """GGUF Q4_0 blocks (f16 scale, 16 bytes) as our two tensors."""
    blocks = raw.reshape(raw.shape[0], -1, 18)
    return blocks[..., 2:].reshape(len(raw), cols // 2), blocks[..., :2].copy().view(np.float16)[..., 0]


def test_q4_without_search_is_ggufs_q4_0() -> None:
    w = np.random.default_rng(0).normal(size=(7, 96)).astype(np.float32)
    values, scales = split_q4_0(gguf.quants.quantize(w, gguf.GGMLQuantizationType.Q4_0), 96)
    packed, s = quantize_q4(w, search=False)
    assert (s == scales).all()
    # gguf rounds half away after adding 8.5, we round half to even: only exact halves may differ.
    assert (unpack_q4(packed) != unpack_q4(values)).mean() < 0.01
    assert (
        dequantize_q4(values, scales)
        == gguf.quants.dequantize(
            gguf.quants.quantize(w, gguf.GGMLQuantizationType.Q4_0), gguf.GGMLQuantizationType.Q4_0
        )
    ).all()


def test_q8_is_close_to_ggufs_q8_0() -> None:
    w = np.random.default_rng(1).normal(size=(5, 64)).astype(np.float32)
    theirs = gguf.quants.dequantize(
        gguf.quants.quantize(w, gguf.GGMLQuantizationType.Q8_0), gguf.GGMLQuantizationType.Q8_0
    )
    # Theirs rounds the scale to f16: a relative 2^-11 more.
    assert np.abs(dequantize_q8(*quantize_q8(w)) - theirs).max() < np.abs(w).max() * 2**-10


def test_the_search_lowers_the_error() -> None:
    w = np.random.default_rng(2).normal(size=(64, 256)).astype(np.float32)
    plain, best = (float(((dequantize_q4(*quantize_q4(w, search=s)) - w) ** 2).sum()) for s in (False, True))
    assert best < 0.9 * plain


@given(MATRICES)
@settings(max_examples=50)
def test_q8_error_is_within_half_a_step(w: np.ndarray) -> None:
    q, s = quantize_q8(w)
    assert q.dtype == np.int8 and s.dtype == np.float32 and s.shape == (w.shape[0], w.shape[1] // 32)
    error = np.abs(dequantize_q8(q, s) - w).reshape(*s.shape, 32)
    assert (error <= s[..., None] * 0.5001 + 1e-37).all()


@given(MATRICES)
@settings(max_examples=50)
def test_q4_search_never_loses(w: np.ndarray) -> None:
    packed, s = quantize_q4(w)
    assert packed.dtype == np.uint8 and s.dtype == np.float16
    error, plain = (
        ((dequantize_q4(*stored).astype(np.float64) - w) ** 2).reshape(*s.shape, 32).sum(-1)
        for stored in ((packed, s), quantize_q4(w, search=False))
    )
    assert (error <= plain * (1 + 1e-5) + 1e-9).all()


@given(arrays(np.float32, 8, elements=st.floats(width=32)))
def test_bf16_rounds_to_nearest_even(x: np.ndarray) -> None:
    got = from_bf16(to_bf16(x))
    assert (np.isnan(got) == np.isnan(x)).all()
    bits = x.view(np.uint32).astype(np.uint64)
    exact = ~np.isnan(x)
    low, high = bits & ~np.uint64(0xFFFF), (bits & ~np.uint64(0xFFFF)) + np.uint64(0x10000)
    rest = bits - low
    up = (rest > 0x8000) | ((rest == 0x8000) & ((low >> np.uint64(16)) % np.uint64(2) == 1))
    want = np.where(up, high, low).astype(np.uint32).view(np.float32)
    assert (got[exact] == want[exact]).all()


@pytest.mark.parametrize("shape", [(4,), (2, 31), (2, 3, 32)])
def test_shapes_that_have_no_blocks(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="multiple of 32"):
        quantize_q8(np.zeros(shape, np.float32))


@st.composite
def grids(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    """Integers [4, 64] of some 4-bit levels, and a scale [4, 2, 1] a block: any f16 that is no subnormal, or f32."""
    levels = draw(st.lists(st.integers(-8, 7), min_size=1, max_size=16, unique=True))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    q = rng.choice(levels, (4, 64))
    q[rng.random(q.shape) < draw(st.sampled_from([0, 0.5, 0.95]))] = 0
    scales = np.exp2(rng.uniform(-13, 12, (4, 2, 1))) * rng.choice([-1, 1], (4, 2, 1))
    return q.astype(np.float32), scales.astype(np.float32)


def times(q: np.ndarray, scales: np.ndarray) -> np.ndarray:
    return (q.reshape(4, 2, 32) * scales).reshape(4, 64)


@given(grids())
@settings(max_examples=200, deadline=None)
def test_a_4_bit_grid_is_kept(grid: tuple[np.ndarray, np.ndarray]) -> None:
    """Exactly where f16 can hold the step, to the step's rounding where not, whatever steps are used."""
    q, scales = grid
    half = scales.astype(np.float16).astype(np.float32)
    np.testing.assert_array_equal(dequantize_q4(*quantize_q4(times(q, half))), times(q, half))
    w = times(q, scales)
    np.testing.assert_allclose(dequantize_q4(*quantize_q4(w)), w, rtol=2**-10, atol=0)


@given(grids())
@settings(max_examples=200, deadline=None)
def test_a_4_bit_grid_is_found_behind_bf16(grid: tuple[np.ndarray, np.ndarray]) -> None:
    """Every value comes back as the integer that it was, within what bf16 did to the values."""
    q, scales = grid
    w = from_bf16(to_bf16(times(q, scales)))
    np.testing.assert_allclose(dequantize_q4(*quantize_q4(w)), times(q, scales), rtol=2**-7, atol=0)


def test_grids_beside_other_blocks() -> None:
    """The blocks of one row do not disturb each other: zero, one level, a grid, and noise as without the rest."""
    rng = np.random.default_rng(3)
    step = np.float32(0.0123).astype(np.float16).astype(np.float32)
    noise = rng.normal(size=(5, 32)).astype(np.float32)
    grid = rng.integers(-5, 6, (5, 32)).astype(np.float32) * step
    level = np.where(rng.random((5, 32)) < 0.5, 0, 3 * step).astype(np.float32)
    w = np.concatenate([np.zeros_like(noise), noise, grid, level, -level], axis=1)
    got = dequantize_q4(*quantize_q4(w))
    np.testing.assert_array_equal(got[:, :32], 0)
    np.testing.assert_array_equal(got[:, 32:64], dequantize_q4(*quantize_q4(noise)))
    np.testing.assert_array_equal(got[:, 64:], w[:, 64:])


def test_a_grid_that_was_lost() -> None:
    """7 steps at most: the scale of plain Q4_0 is 7/8 of a step, and the search began at 0.76 to 1.06 of that."""
    q = np.array([7, -7, 6, -5, 4, -3, 2, -1] * 4, np.float32)[None]
    w = q * np.float32(0.5)
    plain = np.abs(dequantize_q4(*quantize_q4(w, search=False)) - w).max() / 0.5
    assert plain > 0.4
    np.testing.assert_array_equal(dequantize_q4(*quantize_q4(w)), w)
