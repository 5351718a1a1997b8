"""The ops that models are written against. `reference.Reference` runs them at once in numpy, `program.recorder` writes
them down for the kernels; a model file cannot tell which.

An activation is [T, n] f32: T tokens of the step, n columns. Its type is the backend's own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeVar

from .checkpoint import Checkpoint, TensorRef
from .config import RopeSpec
from .enums import Act
from .linear import Lin
from .table import TableRef

X = TypeVar("X")


@dataclass(frozen=True)
class Norm:
    """An RMS norm over n columns: y = x / sqrt(mean(x^2) + eps) * (weight + offset).

    weight: bf16 [n], or None for a norm without one. Gemma 3 stores weight - 1, its offset is 1.
    """

    n: int
    eps: float
    weight: TensorRef | None = None
    offset: float = 0.0


@dataclass(frozen=True)
class Scalar:
    """A bf16 number of the checkpoint."""

    value: TensorRef


@dataclass(frozen=True)
class LayerState:
    """What a layer keeps between steps, in each session: `KVPages` or `FixedState`. A model's states are found in its
    tree as its weights are."""

    layer: int
    """The layer that fills it; others may read it."""


@dataclass(frozen=True)
class KVPages(LayerState):
    """Keys and values of past positions, `heads` of head_dim columns each.

    window: how many positions, its own included, a token looks at; 0: all before it.
    """

    heads: int
    head_dim: int
    window: int = 0


@dataclass(frozen=True)
class FixedState(LayerState):
    """Bytes that every token changes, zero before the first, as a recurrence has them: one cannot go back in it."""

    nbytes: int


def load_norm(ckpt: Checkpoint, name: str, n: int, eps: float, offset: float = 0.0) -> Norm:
    """The norm whose weight is tensor `name`, bf16 [n]. Raises CheckpointError for another shape or dtype."""
    ((_, ref),) = ckpt.parts(name, "BF16", (n,))
    return Norm(n, eps, ref, offset)


def load_scalar(ckpt: Checkpoint, name: str) -> Scalar:
    """The number in tensor `name`, bf16 [1]. Raises CheckpointError for another shape or dtype."""
    ((_, ref),) = ckpt.parts(name, "BF16", (1,))
    return Scalar(ref)


class Ops(Protocol[X]):
    """One step of T tokens at positions pos .. pos + T - 1."""

    def embed(self, table: TableRef, scale: float) -> X:
        """Rows of the step's tokens times scale: [T, cols]. Where the caller has given a token's embedding, that takes
        the row's place, or the table's `given_row` is looked up if it has one."""

    def norm(self, x: X, norm: Norm, residual: X | None = None, scale: float | Scalar = 1.0, rows: int = 1) -> X:
        """(residual + rms norm of each of `rows` rows of norm.n columns) * scale: [T, rows * n]."""

    def add(self, a: X, b: X) -> X:
        """a + b."""

    def linear(self, x: X, lin: Lin) -> X:
        """x W^T: [T, n_out]."""

    def linear_multi(self, x: X, *lins: Lin) -> list[X]:
        """Several weights on one input; the kernels quantize it once and share the work out over all weights."""

    def gated(self, x: X, gate: Lin, up: Lin, act: Act) -> X:
        """act(x G^T) * (x U^T): [T, n_out]."""

    def act_mul(self, gate: X, up: X, column: int, act: Act) -> X:
        """act(gate) * up[:, column : column + n], n the columns of gate: [T, n]."""

    def queries(self, x: X, heads: int, head_dim: int, norm: Norm | None, rope: RopeSpec, scale: float) -> X:
        """Each head normed, turned by its position, and scaled: [T, heads * head_dim]."""

    def append(self, cache: KVPages, k: X, v: X, k_norm: Norm | None, v_norm: Norm | None, rope: RopeSpec) -> None:
        """Put the step's keys (normed, turned) and values (normed) [T, cache.heads * head_dim] into the cache."""

    def attention(self, q: X, cache: KVPages) -> X:
        """Causal attention of q [T, heads * head_dim] over the cache, as far back as its window."""

    def trace(self, name: str, x: X) -> None:
        """Note x under a name, for comparing backends layer by layer."""

    def head(self, x: X, lin: Lin, softcap: float) -> X:
        """Logits: x W^T, then tanh(l / softcap) * softcap if softcap is not 0: [T, vocab]."""
