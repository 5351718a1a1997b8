"""A model recorded as a program, and the backend that replays it.

`Recorder` is the other implementation of `ops.Ops`: instead of computing, it writes op records (`records.py`) with the
addresses of weights and activation buffers. Recording happens once a model; a step then sets a few words of state and
makes one call. `planning.py` works out what of it runs for the last token only, and where buffers lie.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ..config import RopeSpec
from ..linear import Lin
from ..models import Model
from ..ops import Norm, Scalar
from ..runtime import Kernels
from ..table import TableRef
from ..weights import Weights
from .planning import Buffer, Entry, Operand, barriers, buffer, drop_unread, narrow, place, quantized_buffer
from .records import LAST, Act, Bind, KVType, Quant, encode

_CAN_QUANTIZE = ("NORM", "GATED", "ACT_MUL")
"""Records that can leave a quantized copy (dst_q) beside their f32 result, or instead of it."""
_KINDS = {"LINEAR": "linear", "GATED": "linear", "HEADS": "attention", "ATTENTION": "attention"}
_KINDS |= {"ATTENTION_MERGE": "attention", "TOPK": "head", "TOPK_MERGE": "head", "SOFTCAP": "head"}


@dataclass
class Recording:
    """A finished program: records at `address`, of which [0, body) fill the KV caches and [body, length) do the rest.

    output: address of the result of what was recorded.
    """

    address: int
    body: int
    length: int
    input: int
    """Where the input embeddings are written first; the caller puts given embeddings here before the step."""
    output: int
    names: list[str]
    traced: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Kept activations by name: (address, columns)."""

    @property
    def groups(self) -> list[tuple[int, int, str]]:
        """Runs of records of one kind, for timing: (first, last + 1, kind)."""
        kinds = [_KINDS.get(name, "rows") for name in self.names]
        cuts = [i for i in range(len(kinds)) if i == 0 or kinds[i] != kinds[i - 1]]
        return [(a, b, kinds[a]) for a, b in zip(cuts, [*cuts[1:], len(kinds)], strict=True)]


@dataclass
class Arena:
    """Addresses that recordings share: the step's state and ids, the staged rows, the cache descriptors."""

    chunk: int
    state: int
    slots: int
    """u32 [chunk]: row of the staged (or resident) input table for each token."""
    ple_slots: int
    """The same for the per-layer table."""
    tables: dict[str, tuple[int, int]]
    """Addresses of values and scales (staged or resident) by table."""
    caches: dict[int, int]
    """Address of each owning layer's cache descriptor."""
    scratch: int
    """ATTENTION's partial results."""


class Recorder:
    """Writes down what a model does. Implements `ops.Ops`; an activation is a `Buffer`."""

    def __init__(
        self, model: Model, weights: Weights, arena: Arena, kv: KVType, every: bool, trace: bool = False
    ) -> None:
        """every: compute all positions to the end (hidden states), not the last one's alone; trace: keep what the model
        marks with `Ops.trace`."""
        self._model, self._weights, self._arena, self._kv = model, weights, arena, kv
        self._every, self._keep = every, trace
        self._entries: list[Entry] = []
        self._ropes: dict[RopeSpec, Buffer] = {}
        self._traced: dict[str, Buffer] = {}
        self._body = 0
        self._input: Buffer | None = None

    # Ops.

    def embed(self, table: TableRef, scale: float) -> Buffer:
        """See Ops."""
        values, scales = self._arena.tables[table.name]
        is_input = table is self._model.embed_tokens
        ids = self._arena.slots if is_input else self._arena.ple_slots
        out = self._emit(
            "EMBED", table.cols, values=values, scales=scales, ids=ids, cols=table.cols, quant=table.quant, scale=scale
        )
        if is_input:
            self._input = out
        return out

    def norm(
        self, x: Buffer, norm: Norm, residual: Buffer | None = None, scale: float | Scalar = 1.0, rows: int = 1
    ) -> Buffer:
        """See Ops."""
        return self._emit(
            "NORM",
            rows * norm.n,
            src=x,
            residual=residual or 0,
            weight=self._weights.address(norm.weight) if norm.weight else 0,
            n=norm.n,
            rows=rows,
            norm=1,
            eps=norm.eps,
            offset=norm.offset,
            scale=self._weights.number(scale) if isinstance(scale, Scalar) else scale,
        )

    def add(self, a: Buffer, b: Buffer) -> Buffer:
        """See Ops."""
        return self._emit("NORM", a.columns, src=b, residual=a, n=a.columns, rows=1, norm=0, scale=1.0)

    def linear(self, x: Buffer, lin: Lin) -> Buffer:
        """See Ops."""
        return self.linear_multi(x, lin)[0]

    def linear_multi(self, x: Buffer, *lins: Lin) -> list[Buffer]:
        """See Ops."""
        operands = self._inputs(x, lins)
        outs = []
        for i, lin in enumerate(lins):
            values, scales = self._weights.matrix(lin)
            outs.append(buffer(lin.n_out))
            operands |= {f"values{i}": values, f"scales{i}": scales, f"dst{i}": outs[-1], f"n_out{i}": lin.n_out}
            operands[f"quant{i}"] = lin.quant
        self._record("LINEAR", {**operands, "n_in": lins[0].n_in, "count": len(lins)})
        return outs

    def gated(self, x: Buffer, gate: Lin, up: Lin, act: Act) -> Buffer:
        """See Ops."""
        if gate.quant != up.quant:
            return self.act_mul(self.linear(x, gate), self.linear(x, up), 0, act)
        (gv, gs), (uv, us) = self._weights.matrix(gate), self._weights.matrix(up)
        operands = self._inputs(x, (gate, up)) | {
            "gate_values": gv,
            "gate_scales": gs,
            "up_values": uv,
            "up_scales": us,
        }
        operands |= {"n_in": gate.n_in, "n_out": gate.n_out, "quant": gate.quant, "act": act}
        return self._emit("GATED", gate.n_out, **operands)

    def act_mul(self, gate: Buffer, up: Buffer, column: int, act: Act) -> Buffer:
        """See Ops."""
        out = self._emit("ACT_MUL", gate.columns, gate=gate, up=up, n=gate.columns, up_stride=up.columns, act=act)
        self._entries[-1].operands["up_column"] = column
        return out

    def queries(self, x: Buffer, heads: int, head_dim: int, norm: Norm | None, rope: RopeSpec, scale: float) -> Buffer:
        """See Ops."""
        operands = self._heads(x, heads, head_dim, norm, rope, Bind.BUFFER) | {"scale": scale}
        return self._emit("HEADS", heads * head_dim, **operands)

    def append(
        self, layer: int, k: Buffer, v: Buffer, k_norm: Norm | None, v_norm: Norm | None, rope: RopeSpec
    ) -> None:
        """See Ops."""
        cfg = self._model.config
        for x, norm, turn, bind in ((k, k_norm, rope, Bind.KEY), (v, v_norm, None, Bind.VALUE)):
            operands = self._heads(x, cfg.layer_n_kv(layer), cfg.layer_head_dim(layer), norm, turn, bind)
            self._record("HEADS", operands | {"cache": self._arena.caches[layer]})

    def attention(self, q: Buffer, layer: int, window: int) -> Buffer:
        """See Ops."""
        cfg = self._model.config
        out = buffer(q.columns)
        operands: dict[str, Operand] = {
            "dst": out,
            "q": q,
            "cache": self._arena.caches[layer],
            "scratch": self._arena.scratch,
            "heads": cfg.num_attention_heads,
            "kv_heads": cfg.layer_n_kv(layer),
            "head_dim": cfg.layer_head_dim(layer),
            "window": window,
            "kv": self._kv,
        }
        self._record("ATTENTION", dict(operands))
        out.quantizer = self._record("ATTENTION_MERGE", operands)
        return out

    def trace(self, name: str, x: Buffer) -> None:
        """See Ops."""
        if self._keep:
            self._traced[name] = x
            x.pinned = True

    def head(self, x: Buffer, lin: Lin, softcap: float) -> Buffer:
        """See Ops."""
        logits = self.linear(x, lin)
        if softcap:
            self._record("SOFTCAP", {"x": logits, "n": logits.columns, "cap": softcap})
        return logits

    # What is recorded around a model.

    def input(self, n: int) -> Buffer:
        """A buffer [tokens, n] that the caller fills before the step; the first of the recording."""
        self._input = buffer(n)
        return self._input

    def top_k(self, logits: Buffer, k: int, scratch: int, dst: int) -> None:
        """The k largest logits of each row to address dst, as TOPK_MERGE lays them out."""
        operands: dict[str, Operand] = {"logits": logits, "n": logits.columns, "k": k, "scratch": scratch, "dst": dst}
        self._record("TOPK", dict(operands))
        self._record("TOPK_MERGE", operands)

    def plan(self, output: Buffer) -> int:
        """Work out the plan (see planning.py); returns the bytes of activation buffers that `finish` will want."""
        output.pinned = True
        if not self._every:
            self._entries, self._body = narrow(self._entries)
        drop_unread(self._entries, _CAN_QUANTIZE)
        return place(self._entries, self._arena.chunk)

    def finish(self, kernels: Kernels, output: Buffer, base: int) -> Recording:
        """Write the planned records into kernel memory, activation buffers at address base."""
        buffers = {b for e in self._entries for b in (*e.reads(), *e.writes())}
        for b in buffers:
            b.address += base
        data = b"".join(
            encode(e.name, barrier | (LAST if e.last else 0), **_resolve(e))
            for e, barrier in zip(self._entries, barriers(self._entries), strict=True)
        )
        address = kernels.alloc(len(data))
        kernels.write(address, data)
        return Recording(
            address,
            len(self._entries) if self._every else self._body,
            len(self._entries),
            self._input.address if self._input else 0,
            output.address,
            [e.name for e in self._entries],
            {name: (b.address, b.columns) for name, b in self._traced.items()},
        )

    def _heads(
        self, x: Buffer, heads: int, head_dim: int, norm: Norm | None, rope: RopeSpec | None, bind: Bind
    ) -> dict[str, Operand]:
        return {
            "src": x,
            "bind": bind,
            "heads": heads,
            "head_dim": head_dim,
            "norm": norm is not None,
            "weight": self._weights.address(norm.weight) if norm and norm.weight else 0,
            "eps": norm.eps if norm else 0.0,
            "offset": norm.offset if norm else 0.0,
            "rope": self._rope(rope) if rope else 0,
            "scale": 1.0,
            "kv": self._kv,
        }

    def _rope(self, rope: RopeSpec) -> Buffer:
        """The step's table of cosines and sines, made once a step at its first use and kept to its end."""
        if rope not in self._ropes:
            pairs = len(rope.inv_freq)
            self._ropes[rope] = self._emit("ROPE_TABLE", 2 * pairs, inv_freq=self._weights.inv_freq(rope), pairs=pairs)
        return self._ropes[rope]

    def _inputs(self, x: Buffer, lins: Sequence[Lin]) -> dict[str, Operand]:
        """The operands by which linear ops read x: f32 for bf16 weights, the quantized copy for the others."""
        quants = {lin.quant for lin in lins}
        out: dict[str, Operand] = {}
        if Quant.BF16 in quants:
            out["src"] = x
        if quants - {Quant.BF16}:
            out["src_q"] = self._quantized(x)
        return out

    def _quantized(self, x: Buffer) -> Buffer:
        if x.quantized is None:
            x.quantized = quantized_buffer(x.columns)
            if x.quantizer:
                x.quantizer.operands["dst_q"] = x.quantized
            else:
                self._record("NORM", {"dst_q": x.quantized, "src": x, "n": x.columns, "rows": 1, "scale": 1.0})
        return x.quantized

    def _emit(self, name: str, columns: int, **operands: Operand) -> Buffer:
        out = buffer(columns)
        entry = self._record(name, {"dst": out, **operands})
        if name in _CAN_QUANTIZE:
            out.quantizer = entry
        return out

    def _record(self, name: str, operands: dict[str, Operand]) -> Entry:
        self._entries.append(Entry(name, operands))
        return self._entries[-1]


def _resolve(entry: Entry) -> dict[str, float]:
    operands = {k: v.address if isinstance(v, Buffer) else v for k, v in entry.operands.items()}
    if "up_column" in operands:
        operands["up"] += 4 * operands.pop("up_column")
    return operands
