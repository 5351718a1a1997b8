"""`Recorder`, the other implementation of `ops.Ops`: instead of computing, it writes down what a model does, once.

The result, a `Program`, has symbols for operands and knows no memory; `encode.py` gives it one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..config import RopeSpec
from ..enums import Act, KVType, Quant
from ..linear import Lin
from ..ops import KVPages, Norm, Scalar
from ..table import TableRef
from .planning import drop_unread, narrow, place
from .records import Bind, attention_scratch_bytes, topk_scratch_bytes
from .symbols import (
    Area,
    Buffer,
    Entry,
    Frequencies,
    Number,
    Operand,
    TablePart,
    Vector,
    Weight,
    buffer,
    quantized_buffer,
)


@dataclass(frozen=True)
class Program:
    """A recorded and planned program: of its entries [0, body) fill the layers' states, [body, length) do the rest."""

    entries: Sequence[Entry]
    body: int
    output: Buffer
    """The result of what was recorded."""
    input: Buffer | None
    """The input embeddings; the caller puts given ones here before the step."""
    buffer_bytes: int
    """Bytes that the activation buffers take."""
    scratch_bytes: int
    ropes: frozenset[RopeSpec]
    """Those whose inverse frequencies it reads."""
    traced: dict[str, Buffer]
    """Kept activations by name."""


class Recorder:
    """Writes down what a model does. Implements `ops.Ops`; an activation is a `Buffer`."""

    def __init__(self, *, chunk: int, positions: int, kv: KVType, every: bool, trace: bool = False) -> None:
        """chunk: the most tokens of a step; positions: the most of a session; every: compute all tokens to the end
        (hidden states), not the last one's alone; trace: keep what the model marks with `Ops.trace`."""
        self._chunk, self._positions, self._kv = chunk, positions, kv
        self._every, self._keep = every, trace
        self._entries: list[Entry] = []
        self._ropes: dict[RopeSpec, Buffer] = {}
        self._traced: dict[str, Buffer] = {}
        self._input: Buffer | None = None
        self._scratch = 0

    # Ops.

    def embed(self, table: TableRef, scale: float) -> Buffer:
        """See Ops."""
        out = self._emit(
            "EMBED",
            table.cols,
            values=TablePart(table.name, "values"),
            scales=TablePart(table.name, "scales") if table.scales else 0,
            ids=TablePart(table.name, "slots"),
            cols=table.cols,
            quant=table.quant,
            scale=scale,
        )
        if table.given_row is None:
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
            weight=Vector(norm.weight.name) if norm.weight else 0,
            n=norm.n,
            rows=rows,
            norm=1,
            eps=norm.eps,
            offset=norm.offset,
            scale=Number(scale.value.name) if isinstance(scale, Scalar) else scale,
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
            values, scales = _parts(lin)
            outs.append(buffer(lin.n_out))
            operands |= {f"values{i}": values, f"scales{i}": scales, f"dst{i}": outs[-1], f"n_out{i}": lin.n_out}
            operands[f"quant{i}"] = lin.quant
        self._record("LINEAR", {**operands, "n_in": lins[0].n_in, "count": len(lins)})
        return outs

    def gated(self, x: Buffer, gate: Lin, up: Lin, act: Act) -> Buffer:
        """See Ops."""
        if gate.quant != up.quant:
            return self.act_mul(self.linear(x, gate), self.linear(x, up), 0, act)
        (gv, gs), (uv, us) = _parts(gate), _parts(up)
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
        self._entries[-1].shifts["up"] = 4 * column
        return out

    def queries(self, x: Buffer, heads: int, head_dim: int, norm: Norm | None, rope: RopeSpec, scale: float) -> Buffer:
        """See Ops."""
        operands = self._heads(x, heads, head_dim, norm, rope, Bind.BUFFER) | {"scale": scale}
        return self._emit("HEADS", heads * head_dim, **operands)

    def append(
        self, cache: KVPages, k: Buffer, v: Buffer, k_norm: Norm | None, v_norm: Norm | None, rope: RopeSpec
    ) -> None:
        """See Ops."""
        for x, norm, turn, bind in ((k, k_norm, rope, Bind.KEY), (v, v_norm, None, Bind.VALUE)):
            operands = self._heads(x, cache.heads, cache.head_dim, norm, turn, bind)
            self._record("HEADS", operands | {"cache": cache})

    def attention(self, q: Buffer, cache: KVPages) -> Buffer:
        """See Ops."""
        heads, out = q.columns // cache.head_dim, buffer(q.columns)
        operands: dict[str, Operand] = {
            "dst": out,
            "q": q,
            "cache": cache,
            "scratch": Area.SCRATCH,
            "heads": heads,
            "kv_heads": cache.heads,
            "head_dim": cache.head_dim,
            "window": cache.window,
            "kv": self._kv,
        }
        self._scratch = max(self._scratch, attention_scratch_bytes(heads, cache.head_dim, self._positions))
        self._record("ATTENTION", dict(operands))
        self._record("ATTENTION_MERGE", operands)
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

    def top_k(self, logits: Buffer, k: int) -> None:
        """The k largest logits of each row to the candidates' area, as TOPK_MERGE lays them out."""
        operands: dict[str, Operand] = {
            "logits": logits,
            "n": logits.columns,
            "k": k,
            "scratch": Area.SCRATCH,
            "dst": Area.CANDIDATES,
        }
        self._scratch = max(self._scratch, topk_scratch_bytes(k, self._chunk if self._every else 1))
        self._record("TOPK", dict(operands))
        self._record("TOPK_MERGE", operands)

    def finish(self, output: Buffer) -> Program:
        """Plan what was recorded (see planning.py); output: the buffer that the caller reads."""
        output.pinned = True
        entries, body = (self._entries, len(self._entries)) if self._every else narrow(self._entries)
        drop_unread(entries)
        nbytes = place(entries, self._chunk)
        ropes = frozenset(self._ropes)
        return Program(entries, body, output, self._input, nbytes, self._scratch, ropes, self._traced)

    def _heads(
        self, x: Buffer, heads: int, head_dim: int, norm: Norm | None, rope: RopeSpec | None, bind: Bind
    ) -> dict[str, Operand]:
        return {
            "src": x,
            "bind": bind,
            "heads": heads,
            "head_dim": head_dim,
            "norm": norm is not None,
            "weight": Vector(norm.weight.name) if norm and norm.weight else 0,
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
            self._ropes[rope] = self._emit("ROPE_TABLE", 2 * pairs, inv_freq=Frequencies(rope), pairs=pairs)
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
        self._record(name, {"dst": out, **operands})
        return out

    def _record(self, name: str, operands: dict[str, Operand]) -> None:
        entry = Entry(name, operands)
        self._entries.append(entry)
        dst = operands.get("dst")
        if isinstance(dst, Buffer) and entry.record.may_omit("dst_q"):
            dst.quantizer = entry


def _parts(lin: Lin) -> tuple[Operand, Operand]:
    return Weight(lin.name, "values"), Weight(lin.name, "scales") if lin.scales else 0
