"""REPACK, LINEAR, GATED and the quantized copy of activations."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from oxinfer_web.enums import Act, Quant
from oxinfer_web.program.records import encode, quantized_bytes

from . import counterparts as numpy_ops
from .machine import F32, Array, Machine

bounded = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
QUANTS = st.sampled_from(list(Quant))


def linear(machine: Machine, x: F32, weights: list[tuple[Quant, Array, Array | None]]) -> list[F32]:
    """LINEAR of up to 3 weights."""
    tokens, n_in = x.shape
    operands = {"src": machine.put(x), "src_q": machine.quantized(x) if n_in % 32 == 0 else 0, "n_in": n_in}
    shapes = []
    for i, (quant, values, scales) in enumerate(weights):
        operands |= {f"{k}{i}": v for k, v in machine.weight(quant, values, scales).items()}
        operands |= {f"n_out{i}": len(values), f"dst{i}": machine.room(tokens * len(values) * 4)}
        shapes.append((operands[f"dst{i}"], (tokens, len(values))))
    machine.play(encode("LINEAR", count=len(weights), **operands), tokens=tokens)
    return [machine.get(dst, shape) for dst, shape in shapes]


def assert_rounded(got: Array, exact: Array, magnitude: Array, terms: int) -> None:
    """got is exact to what f32 rounding of a sum of `terms` terms of this magnitude may do."""
    assert np.all(np.abs(got - exact) <= magnitude * (terms + 4) * 2**-24 + 1e-30)


@bounded
@given(
    data=st.data(),
    quants=st.lists(QUANTS, min_size=1, max_size=3),
    tokens=st.integers(1, 11),
    seed=st.integers(0, 2**32),
)
def test_linear(machine: Machine, data: st.DataObject, quants: list[Quant], tokens: int, seed: int) -> None:
    machine.reset()
    rng = np.random.default_rng(seed)
    n_in = data.draw(st.integers(1, 70) if set(quants) == {Quant.BF16} else st.integers(1, 6).map(lambda b: 32 * b))
    x = rng.normal(size=(tokens, n_in)).astype(np.float32) * np.float32(data.draw(st.sampled_from([1e-3, 1, 1e4])))
    weights = [(q, *numpy_ops.random_weight(rng, q, data.draw(st.integers(1, 45)), n_in)) for q in quants]
    for got, weight in zip(linear(machine, x, weights), weights, strict=True):
        assert_rounded(got, *numpy_ops.matmul(x, *weight), terms=n_in)


@pytest.mark.parametrize("quant", list(Quant))
def test_tokens_do_not_change_results(machine: Machine, quant: Quant) -> None:
    """One token at a time, and 70 at once (more than a block of tokens): the same bits."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(70, 96)).astype(np.float32)
    weight = (quant, *numpy_ops.random_weight(rng, quant, 61, 96))
    (together,) = linear(machine, x, [weight])
    for t in range(70):
        (alone,) = linear(machine, x[t : t + 1], [weight])
        assert np.array_equal(alone[0], together[t])


@pytest.mark.parametrize("quant", list(Quant))
def test_extremes(machine: Machine, quant: Quant) -> None:
    """The largest weights and activations of either sign, and blocks of zeros: integer sums must not wrap."""
    x = np.concatenate([np.ones((1, 64)), -np.ones((1, 64)), np.zeros((1, 64))]).astype(np.float32)
    x[1, 32:] = 0
    if quant == Quant.BF16:
        values, scales = numpy_ops.bf16(np.full((9, 64), -255.0)), None
    elif quant == Quant.Q8:
        values, scales = (
            np.where(np.arange(9)[:, None] % 2, -128, 127).repeat(64, 1).astype(np.int8),
            np.ones((9, 2), np.float32),
        )
    else:
        values, scales = (
            np.where(np.arange(9)[:, None] % 2, 0, 255).repeat(32, 1).astype(np.uint8),
            np.ones((9, 2), np.float16),
        )
        scales[0] = 6e-8, 65504  # the smallest subnormal, the largest
    (got,) = linear(machine, x, [(quant, values, scales)])
    exact, magnitude = numpy_ops.matmul(x, quant, values, scales)
    assert_rounded(got, exact, magnitude, 64)
    assert np.all(got[2] == 0)


@bounded
@given(
    quant=QUANTS,
    act=st.sampled_from(list(Act)),
    tokens=st.integers(1, 9),
    n_out=st.integers(1, 100),
    blocks=st.integers(1, 4),
    seed=st.integers(0, 2**32),
)
def test_gated(machine: Machine, quant: Quant, act: Act, tokens: int, n_out: int, blocks: int, seed: int) -> None:
    machine.reset()
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(tokens, 32 * blocks)).astype(np.float32)
    gate, up = (numpy_ops.random_weight(rng, quant, n_out, 32 * blocks) for _ in range(2))
    g, u = machine.weight(quant, *gate), machine.weight(quant, *up)
    dst = machine.room(tokens * n_out * 4)
    record = encode(
        "GATED",
        src=machine.put(x),
        src_q=machine.quantized(x),
        n_in=32 * blocks,
        n_out=n_out,
        gate_values=g["values"],
        gate_scales=g["scales"],
        up_values=u["values"],
        up_scales=u["scales"],
        quant=quant,
        act=act,
        dst=dst,
    )
    machine.play(record, tokens=tokens)
    (g_exact, g_size), (u_exact, u_size) = (numpy_ops.matmul(x, quant, *w) for w in (gate, up))
    exact = numpy_ops.activate(g_exact, act) * u_exact
    rounding = (32 * blocks + 20) * 2.0**-22
    assert np.all(np.abs(machine.get(dst, exact.shape) - exact) <= rounding * (1 + g_size) * (1 + u_size))


@pytest.mark.parametrize("tokens", [1, 66])
def test_gated_quantizes_its_result(machine: Machine, tokens: int) -> None:
    """dst_q of GATED is what quantizing its dst gives, with and without dst."""
    rng = np.random.default_rng(2)
    x = rng.normal(size=(tokens, 64)).astype(np.float32)
    weights = [machine.weight(Quant.Q8, *numpy_ops.random_weight(rng, Quant.Q8, 96, 64)) for _ in range(2)]
    operands = {"src_q": machine.quantized(x), "n_in": 64, "n_out": 96, "quant": Quant.Q8}
    operands |= {
        f"{name}_{k}": w[k] for name, w in zip(("gate", "up"), weights, strict=True) for k in ("values", "scales")
    }
    dst, size = machine.room(tokens * 96 * 4), tokens * quantized_bytes(96)
    both, only = machine.room(size), machine.room(size)
    machine.play(encode("GATED", dst=dst, dst_q=both, **operands), tokens=tokens)
    machine.play(encode("GATED", dst_q=only, **operands), tokens=tokens)
    expected = machine.kernels.read(machine.quantized(machine.get(dst, (tokens, 96))), size)
    assert machine.kernels.read(both, size) == machine.kernels.read(only, size) == expected


@bounded
@given(
    quant=QUANTS,
    ids=st.lists(st.integers(0, 9) | st.just(0xFFFFFFFF), min_size=1, max_size=7),
    blocks=st.integers(1, 3),
    seed=st.integers(0, 2**32),
)
def test_embed(machine: Machine, quant: Quant, ids: list[int], blocks: int, seed: int) -> None:
    machine.reset()
    values, scales = numpy_ops.random_weight(np.random.default_rng(seed), quant, 10, 32 * blocks)
    before = np.full((len(ids), 32 * blocks), 7, np.float32)
    dst = machine.put(before)
    record = encode(
        "EMBED",
        dst=dst,
        values=machine.put(values),
        scales=0 if scales is None else machine.put(scales),
        ids=machine.put(np.array(ids, np.uint32)),
        cols=32 * blocks,
        quant=quant,
        scale=2.5,
    )
    machine.play(record, tokens=len(ids))
    table = numpy_ops.dequantize(quant, values, scales) * np.float32(2.5)
    expected = [before[t] if id_ == 0xFFFFFFFF else table[id_] for t, id_ in enumerate(ids)]
    np.testing.assert_allclose(machine.get(dst, before.shape), expected, rtol=1e-6)


@pytest.mark.parametrize("quant", [Quant.Q8, Quant.Q4])
@pytest.mark.parametrize("at", [0, 37, 63])
def test_a_nan_is_not_lost(machine: Machine, quant: Quant, at: int) -> None:
    """One NaN makes its block's scale NaN, and so every result of its token; other tokens are as ever."""
    rng = np.random.default_rng(at)
    x = rng.normal(size=(6, 64)).astype(np.float32)
    weight = (quant, *numpy_ops.random_weight(rng, quant, 40, 64))
    [clean] = linear(machine, x, [weight])
    x[4, at] = np.nan
    [got] = linear(machine, x, [weight])
    assert np.all(np.isnan(got[4]))
    np.testing.assert_array_equal(np.delete(got, 4, 0), np.delete(clean, 4, 0))
