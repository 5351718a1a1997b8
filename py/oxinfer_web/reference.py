"""The ops in numpy, eagerly, in float32: the answer that the kernels are compared with. Weights are dequantized, so a
Q8 or Q4 checkpoint gives its weight-only figure here.

`Reference` is a backend as `engine.Engine` is: `Session` runs on either.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from .backend import Candidates, Want
from .checkpoint import TensorRef
from .config import RopeSpec
from .enums import Act
from .errors import NumericError
from .linear import Lin
from .models import Model
from .ops import KVPages, Norm, Scalar
from .quant import F32, dequantize, from_bf16, read_parts
from .table import Table, TableRef
from .tokens import check_count


@dataclass
class NumpyCache:
    """Keys and values by the layer that fills them, [positions, kv_heads, head_dim] f32 each."""

    keys: dict[int, F32] = field(default_factory=dict)
    values: dict[int, F32] = field(default_factory=dict)


class Reference:
    """A model on numpy. Implements `backend.Backend` and `ops.Ops`."""

    chunk = 1 << 30
    """Tokens in one step: no limit here."""

    def __init__(self, model: Model, folder: str | Path, max_context: int | None = None) -> None:
        """folder: where the model's checkpoint is; max_context: at most the config's, and by default that. Raises
        SessionError for one that is none."""
        if max_context is not None:
            check_count("max_context", max_context, 1)
        self.model, self.config, self._folder = model, model.config, Path(folder)
        self.max_context = min(
            max_context or model.config.max_position_embeddings, model.config.max_position_embeddings
        )
        self.traced: dict[str, F32] = {}
        """What the model marked in the last step, by name."""
        self._weights: dict[str, F32] = {}
        self._tables: dict[str, Table] = {}
        self._logits: F32 = np.empty((0, 0), np.float32)

    # What a session asks for.

    def new_cache(self) -> NumpyCache:
        """An empty cache."""
        return NumpyCache()

    def clone_cache(self, cache: NumpyCache, position: int) -> NumpyCache:
        """A cache with the same first `position` positions."""
        return NumpyCache(*({i: a[:position].copy() for i, a in part.items()} for part in (cache.keys, cache.values)))

    def free_cache(self, cache: NumpyCache) -> None:
        """Nothing to do: numpy frees its arrays."""

    def rewind(self, cache: NumpyCache, position: int) -> int:
        """See Backend: numpy keeps all positions, and `append` cuts what is behind."""
        return position

    async def fetch(self, ids: Sequence[int]) -> None:
        """Nothing to do: tables are local files."""

    def step(self, cache: NumpyCache, ids: Sequence[int], pos: int, want: Want, given: Mapping[int, F32]) -> None:
        """Run the tokens `ids` at positions pos, pos + 1, ... given: embeddings by index into ids."""
        self._cache, self._ids, self._pos, self._given = cache, list(ids), pos, given
        with np.errstate(invalid="ignore", over="ignore"):  # what comes of it is looked at in the logits
            self._hidden = self.model.decode(self)
        self.traced["hidden_last"] = self._hidden
        if want == Want.LOGITS:
            self._logits = self.logits_of(self._hidden[-1:])

    def advance(self, cache: NumpyCache, token: int, pos: int) -> bool:
        """See Backend."""
        self.step(cache, [token], pos, Want.LOGITS, {})
        return True

    def hidden(self, n: int) -> F32:
        """The last step's hidden states, [n, hidden] f32. Needs Want.HIDDEN."""
        return self._hidden

    def logits(self) -> F32:
        """The last step's logits, f32 [vocab]."""
        out: F32 = self._logits[0]
        return out

    def logits_of(self, hidden: F32) -> F32:
        """Logits of hidden states [n, hidden]: [n, vocab]."""
        with np.errstate(invalid="ignore", over="ignore"):
            return self.head(hidden, self.model.head, self.config.final_logit_softcapping)

    def candidates(self, k: int) -> Candidates:
        """The k likeliest next tokens of the last step."""
        return candidates_of(self._logits[0], k)

    def likeliest(self) -> int:
        """See Backend."""
        token = int(self._logits[0].argmax())
        if not math.isfinite(self._logits[0, token]):
            raise NumericError
        return token

    def nll_of(self, hidden: F32, targets: Sequence[int]) -> list[float]:
        """See Backend."""
        return [
            log_sum_exp(row) - float(row[target])
            for h, target in zip(hidden, targets, strict=False)
            for row in self.logits_of(h[None])
        ]

    def embed_scaled(self, token: int) -> F32:
        """The scaled input embedding of a token, f32 [hidden]."""
        return self._table(self.model.embed_tokens).row(token) * np.float32(self.model.embed_scale)

    # The ops.

    def embed(self, table: TableRef, scale: float) -> F32:
        """See Ops."""
        rows = self._table(table)
        out = np.empty((len(self._ids), table.cols), np.float32)
        for i, token in enumerate(self._ids):
            if i in self._given and table.given_row is None:
                out[i] = self._given[i]
            else:
                row = table.given_row if i in self._given and table.given_row is not None else token
                out[i] = rows.row(row) * np.float32(scale)
        return out

    def norm(self, x: F32, norm: Norm, residual: F32 | None = None, scale: float | Scalar = 1.0, rows: int = 1) -> F32:
        """See Ops."""
        y = self._rms(x.reshape(len(x), rows, norm.n), norm).reshape(len(x), -1)
        if residual is not None:
            y = residual + y
        factor = float(self._vector(scale.value)[0]) if isinstance(scale, Scalar) else scale
        return y * np.float32(factor)

    def add(self, a: F32, b: F32) -> F32:
        """See Ops."""
        return a + b

    def linear(self, x: F32, lin: Lin) -> F32:
        """See Ops."""
        return x @ self._matrix(lin).T

    def linear_multi(self, x: F32, *lins: Lin) -> list[F32]:
        """See Ops."""
        return [self.linear(x, lin) for lin in lins]

    def gated(self, x: F32, gate: Lin, up: Lin, act: Act) -> F32:
        """See Ops."""
        return activate(self.linear(x, gate), act) * self.linear(x, up)

    def act_mul(self, gate: F32, up: F32, column: int, act: Act) -> F32:
        """See Ops."""
        return activate(gate, act) * up[:, column : column + gate.shape[1]]

    def queries(self, x: F32, heads: int, head_dim: int, norm: Norm | None, rope: RopeSpec, scale: float) -> F32:
        """See Ops."""
        q = x.reshape(len(x), heads, head_dim)
        q = self._rope(self._rms(q, norm), rope, self._pos)
        return q.reshape(len(x), -1) * np.float32(scale)

    def append(self, cache: KVPages, k: F32, v: F32, k_norm: Norm | None, v_norm: Norm | None, rope: RopeSpec) -> None:
        """See Ops."""
        k, v = (a.reshape(len(a), cache.heads, cache.head_dim) for a in (k, v))
        k = self._rope(self._rms(k, k_norm), rope, self._pos)
        for store, new in ((self._cache.keys, k), (self._cache.values, self._rms(v, v_norm))):
            old = store.get(cache.layer, new[:0])[: self._pos]
            store[cache.layer] = np.concatenate([old, new])

    def attention(self, q: F32, cache: KVPages) -> F32:
        """See Ops."""
        keys, values, window = self._cache.keys[cache.layer], self._cache.values[cache.layer], cache.window
        n, (positions, kv_heads, head_dim) = len(q), keys.shape
        q = q.reshape(n, kv_heads, -1, head_dim)
        at, key = np.arange(positions - n, positions)[:, None], np.arange(positions)[None]
        visible = (key <= at) & (key > at - window if window else True)
        scores = np.einsum("tkgd,pkd->tkgp", q, keys)
        scores = np.where(visible[:, None, None], scores, -np.inf)
        p = np.exp(scores - scores.max(-1, keepdims=True))
        p /= p.sum(-1, keepdims=True)
        out: F32 = np.einsum("tkgp,pkd->tkgd", p, values).reshape(n, -1)
        return out

    def trace(self, name: str, x: F32) -> None:
        """See Ops."""
        self.traced[name] = x

    def head(self, x: F32, lin: Lin, softcap: float) -> F32:
        """See Ops."""
        logits = self.linear(x, lin)
        return np.tanh(logits / np.float32(softcap)) * np.float32(softcap) if softcap else logits

    def _rms(self, x: F32, norm: Norm | None) -> F32:
        if norm is None:
            return x
        y = x / np.sqrt(np.mean(x * x, -1, keepdims=True) + np.float32(norm.eps))
        out: F32 = y if norm.weight is None else y * (self._vector(norm.weight) + np.float32(norm.offset))
        return out

    def _rope(self, x: F32, rope: RopeSpec, pos: int) -> F32:
        # Angles are f32, as models are trained: in f64 they differ by up to 1e-5 at a position of some hundreds.
        angles = np.arange(pos, pos + len(x), dtype=np.float32)[:, None] * np.array(rope.inv_freq, np.float32)
        cos, sin = (f(angles.astype(np.float64)).astype(np.float32)[:, None] for f in (np.cos, np.sin))
        a, b = np.split(x, 2, -1)
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)

    def _matrix(self, lin: Lin) -> F32:
        if lin.name not in self._weights:
            self._weights[lin.name] = dequantize(lin.quant, *read_parts(self._folder, lin.values, lin.scales))
        return self._weights[lin.name]

    def _vector(self, ref: TensorRef) -> F32:
        if ref.name not in self._weights:
            self._weights[ref.name] = from_bf16(*read_parts(self._folder, ((0, ref),)))
        return self._weights[ref.name]

    def _table(self, ref: TableRef) -> Table:
        if ref.name not in self._tables:
            self._tables[ref.name] = Table.load(ref, self._folder)
        return self._tables[ref.name]


def activate(x: F32, act: Act) -> F32:
    """GELU (tanh form) or SiLU of x."""
    if act == Act.SILU:
        out: F32 = x / (1 + np.exp(-x))
    else:
        out = 0.5 * x * (1 + np.tanh(np.float32(math.sqrt(2 / math.pi)) * (x + np.float32(0.044715) * x**3)))
    return out


def log_sum_exp(row: F32) -> float:
    """log(sum(exp(row))). Raises NumericError where the row has a NaN or no largest."""
    top = float(row.max())
    if not math.isfinite(top):
        raise NumericError
    return top + math.log(float(np.exp((row - top).astype(np.float64)).sum()))


def candidates_of(row: F32, k: int) -> Candidates:
    """The k largest of one row of logits, ties by lower index. Raises NumericError as log_sum_exp does."""
    ids = np.argsort(-row, kind="stable")[:k]
    return Candidates(ids.tolist(), row[ids].tolist(), log_sum_exp(row))
