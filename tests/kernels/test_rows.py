"""NORM, ACT_MUL, SELECT_LAST, SOFTCAP, TOPK: and the header that the kernels are compiled with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from oxinfer_web.enums import Act
from oxinfer_web.program.records import BARRIER, LAST, NO_ID, c_header, encode, quantized_bytes, topk_scratch_bytes

from . import counterparts as numpy_ops
from .machine import Machine

bounded = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


def test_header_is_made_from_the_records() -> None:
    assert (Path(__file__).parents[2] / "wasm_kernels" / "records.h").read_text() == c_header()


@bounded
@given(
    tokens=st.integers(1, 7),
    rows=st.integers(1, 3),
    n=st.integers(1, 70),
    norm=st.booleans(),
    weight=st.booleans(),
    residual=st.sampled_from(["none", "other", "dst"]),
    seed=st.integers(0, 2**32),
)
def test_norm(
    machine: Machine, tokens: int, rows: int, n: int, norm: bool, weight: bool, residual: str, seed: int
) -> None:
    machine.reset()
    rng = np.random.default_rng(seed)
    x, r = (rng.normal(size=(tokens, rows, n)).astype(np.float32) for _ in range(2))
    w = numpy_ops.bf16(rng.normal(size=n))
    other = machine.put(r)
    dst = other if residual == "dst" else machine.room(x.nbytes)
    record = encode(
        "NORM",
        dst=dst,
        src=machine.put(x),
        residual=0 if residual == "none" else other,
        weight=machine.put(w) if weight else 0,
        n=n,
        rows=rows,
        norm=norm,
        eps=1e-6,
        offset=1.0,
        scale=0.25,
    )
    machine.play(record, tokens=tokens)
    y = numpy_ops.rmsnorm(x, 1e-6, numpy_ops.from_bf16(w) if weight else None, 1.0) if norm else x.astype(np.float64)
    y = (y + (0 if residual == "none" else r)) * 0.25
    np.testing.assert_allclose(machine.get(dst, x.shape), y, atol=2e-6, rtol=2e-6)


def test_norm_quantizes_its_result(machine: Machine) -> None:
    """With dst and without; a token's rows make one quantized row."""
    rng = np.random.default_rng(6)
    x = rng.normal(size=(5, 4 * 24)).astype(np.float32)
    dst, size = machine.room(x.nbytes), 5 * quantized_bytes(96)
    both, only = machine.room(size), machine.room(size)
    operands: dict[str, Any] = {"src": machine.put(x), "n": 24, "rows": 4, "norm": 1, "eps": 1e-6, "scale": 1.0}
    machine.play(encode("NORM", dst=dst, dst_q=both, **operands), encode("NORM", dst_q=only, **operands), tokens=5)
    expected = machine.kernels.read(machine.quantized(machine.get(dst, x.shape)), size)
    assert machine.kernels.read(both, size) == machine.kernels.read(only, size) == expected


@bounded
@given(
    act=st.sampled_from(list(Act)),
    tokens=st.integers(1, 5),
    n=st.integers(1, 70),
    gap=st.integers(0, 9),
    seed=st.integers(0, 9),
)
def test_act_mul(machine: Machine, act: Act, tokens: int, n: int, gap: int, seed: int) -> None:
    machine.reset()
    rng = np.random.default_rng(seed)
    gate = (rng.normal(size=(tokens, n)) * rng.choice([1e-3, 1, 30])).astype(np.float32)
    up = rng.normal(size=(tokens, n + gap)).astype(np.float32)
    dst = machine.room(gate.nbytes)
    record = encode("ACT_MUL", dst=dst, gate=machine.put(gate), up=machine.put(up), n=n, up_stride=n + gap, act=act)
    machine.play(record, tokens=tokens)
    np.testing.assert_allclose(
        machine.get(dst, gate.shape), numpy_ops.activate(gate, act) * up[:, :n], atol=1e-6, rtol=2e-6
    )


def test_act_mul_quantizes_its_result(machine: Machine) -> None:
    rng = np.random.default_rng(7)
    gate, up = (rng.normal(size=(3, 64)).astype(np.float32) for _ in range(2))
    dst, size = machine.room(gate.nbytes), 3 * quantized_bytes(64)
    dst_q, only = machine.room(size), machine.room(size)
    operands = {"gate": machine.put(gate), "up": machine.put(up), "n": 64, "up_stride": 64}
    machine.play(
        encode("ACT_MUL", dst=dst, dst_q=dst_q, **operands), encode("ACT_MUL", dst_q=only, **operands), tokens=3
    )
    expected = machine.kernels.read(machine.quantized(machine.get(dst, gate.shape)), size)
    assert machine.kernels.read(dst_q, size) == machine.kernels.read(only, size) == expected


@pytest.mark.parametrize("tokens", [1, 4])
@pytest.mark.parametrize("n", [1, 7, 64])
def test_select_last(machine: Machine, tokens: int, n: int) -> None:
    x = np.random.default_rng(8).normal(size=(tokens, n)).astype(np.float32)
    dst = machine.room(n * 4)
    machine.play(encode("SELECT_LAST", dst=dst, src=machine.put(x), n=n), tokens=tokens)
    assert np.array_equal(machine.get(dst, (n,)), x[-1])


def test_softcap(machine: Machine) -> None:
    """On the whole range, tiny values included: the error is relative to the value."""
    rng = np.random.default_rng(9)
    x = (rng.normal(size=(3, 501)) * 10.0 ** rng.integers(-6, 4, (3, 501))).astype(np.float32)
    src = machine.put(x)
    machine.play(encode("SOFTCAP", x=src, n=501, cap=30.0), tokens=3)
    np.testing.assert_allclose(machine.get(src, x.shape), np.tanh(x.astype(np.float64) / 30) * 30, rtol=5e-7)


@bounded
@given(
    tokens=st.integers(1, 3),
    n=st.integers(1, 3000),
    k=st.sampled_from([1, 2, 40, 256]),
    kind=st.sampled_from(["random", "ties", "rising", "infinite"]),
    last=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_topk(machine: Machine, tokens: int, n: int, k: int, kind: str, last: bool, seed: int) -> None:
    machine.reset()
    k = min(k, n)
    rng = np.random.default_rng(seed)
    rows = 1 if last else tokens
    x = rng.normal(size=(rows, n)).astype(np.float32) * 5
    if kind == "ties":
        x = np.rint(x)
    elif kind == "rising":
        x.sort(axis=1)
    elif kind == "infinite":
        x[:, 1:][rng.random((rows, n - 1)) < 0.7] = -np.inf
    dst = machine.room(rows * (2 * k + 2) * 4)
    operands = {
        "logits": machine.put(x),
        "n": n,
        "k": k,
        "scratch": machine.room(topk_scratch_bytes(k, rows)),
        "dst": dst,
    }
    flags = BARRIER | (LAST if last else 0)
    machine.play(encode("TOPK", flags, **operands), encode("TOPK_MERGE", flags, **operands), tokens=tokens)
    out = machine.get(dst, (rows, 2 * k + 2))
    order = np.argsort(-x, axis=1, kind="stable")[:, :k]
    assert np.array_equal(out[:, :k].view(np.uint32), order)
    assert np.array_equal(out[:, k : 2 * k], np.take_along_axis(x, order, axis=1))
    assert np.array_equal(out[:, 2 * k], x.max(axis=1))
    exact = x.max(axis=1) + np.log(np.exp(x.astype(np.float64) - x.max(axis=1, keepdims=True)).sum(axis=1))
    np.testing.assert_allclose(out[:, 2 * k + 1], exact, atol=2e-6, rtol=1e-6)


@pytest.mark.parametrize("n", [1, 9, 3000])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_topk_of_a_row_without_a_largest(machine: Machine, bad: float, n: int) -> None:
    """Every candidate of it is none; other rows are as ever. Of -inf, one alone is nothing special."""
    rng = np.random.default_rng(n)
    x = rng.normal(size=(3, n)).astype(np.float32)
    x[1, rng.integers(n)] = bad
    x[2] = np.nan if np.isnan(bad) else bad
    k = min(n, 4)
    dst = machine.room(3 * (2 * k + 2) * 4)
    operands = {"logits": machine.put(x), "n": n, "k": k, "scratch": machine.room(topk_scratch_bytes(k, 3)), "dst": dst}
    machine.play(encode("TOPK", BARRIER, **operands), encode("TOPK_MERGE", BARRIER, **operands), tokens=3)
    out = machine.get(dst, (3, 2 * k + 2))
    spoiled = [False, bad != -np.inf or n == 1, True]
    for row, none in zip(out, spoiled, strict=True):
        assert np.all((row[:k].view(np.uint32) == NO_ID) == none)
        assert np.all(np.isnan(row[k:]) == none)
