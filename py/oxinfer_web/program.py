"""A model recorded as a program, and the backend that replays it.

`Recorder` is the other implementation of `ops.Ops`: instead of computing, it writes op records (`records.py`) with the
addresses of weights and activation buffers. Recording happens once a model; a step then sets a few words of state and
makes one call. Buffers are planned by lifetime, so activations take the memory of the few that live at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from .config import RopeSpec
from .linear import Lin
from .models import Model
from .ops import Norm, Scalar
from .records import (
    BARRIER,
    LAST,
    RECORDS,
    Act,
    Bind,
    KVType,
    Quant,
    encode,
    quantized_bytes,
)
from .runtime import Runtime
from .table import TableRef
from .weights import Weights

_CAN_QUANTIZE = ("NORM", "GATED", "ACT_MUL")
"""Records that can leave a quantized copy (dst_q) beside their f32 result, or instead of it."""


@dataclass(eq=False)
class Buffer:
    """An activation [tokens, n] f32, or, as `quantized`, its int8 copy. Its address is known once the plan is made."""

    nbytes: int
    n: int
    single: bool
    """One row (the last token's) instead of one a token."""
    maker: int
    """The record that writes it first."""
    quantizer: int = -1
    """The record that can leave its quantized copy, if one can."""
    address: int = 0
    pinned: bool = False
    """Kept to the end: read by the caller after the step."""
    quantized: Buffer | None = None
    last_use: int = -1


Operand = float | Buffer
_KINDS = {"LINEAR": "linear", "GATED": "linear", "HEADS": "attention", "ATTENTION": "attention"}
_KINDS |= {"ATTENTION_MERGE": "attention", "TOPK": "head", "TOPK_MERGE": "head", "SOFTCAP": "head"}


@dataclass
class _Entry:
    name: str
    flags: int
    operands: dict[str, Operand]


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
        self._entries: list[_Entry] = []
        self._buffers: list[Buffer] = []
        self._ropes: dict[RopeSpec, Buffer] = {}
        self._traced: dict[str, Buffer] = {}
        self._body: int | None = None
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
        return self._emit("NORM", a.n, src=b, residual=a, n=a.n, rows=1, norm=0, scale=1.0)

    def linear(self, x: Buffer, lin: Lin) -> Buffer:
        """See Ops."""
        return self.linear_multi(x, lin)[0]

    def linear_multi(self, x: Buffer, *lins: Lin) -> list[Buffer]:
        """See Ops."""
        operands = self._inputs(x, lins)
        outs = []
        for i, lin in enumerate(lins):
            values, scales = self._weights.matrix(lin)
            outs.append(self._new(lin.n_out, x.single))
            operands |= {f"values{i}": values, f"scales{i}": scales, f"dst{i}": outs[-1], f"n_out{i}": lin.n_out}
            operands[f"quant{i}"] = lin.quant
        self._record("LINEAR", x.single, {**operands, "n_in": lins[0].n_in, "count": len(lins)})
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
        return self._emit("GATED", gate.n_out, x.single, **operands)

    def act_mul(self, gate: Buffer, up: Buffer, column: int, act: Act) -> Buffer:
        """See Ops."""
        out = self._emit("ACT_MUL", gate.n, gate.single, gate=gate, up=up, n=gate.n, up_stride=up.n, act=act)
        self._entries[-1].operands["up_column"] = column
        return out

    def queries(self, x: Buffer, heads: int, head_dim: int, norm: Norm | None, rope: RopeSpec, scale: float) -> Buffer:
        """See Ops."""
        operands = self._heads(x, heads, head_dim, norm, rope, Bind.BUFFER) | {"scale": scale}
        return self._emit("HEADS", heads * head_dim, x.single, **operands)

    def append(
        self, layer: int, k: Buffer, v: Buffer, k_norm: Norm | None, v_norm: Norm | None, rope: RopeSpec
    ) -> None:
        """See Ops."""
        cfg = self._model.config
        for x, norm, turn, bind in ((k, k_norm, rope, Bind.KEY), (v, v_norm, None, Bind.VALUE)):
            operands = self._heads(x, cfg.layer_n_kv(layer), cfg.layer_head_dim(layer), norm, turn, bind)
            self._record("HEADS", x.single, operands | {"cache": self._arena.caches[layer]})

    def attention(self, q: Buffer, layer: int, window: int) -> Buffer:
        """See Ops."""
        cfg = self._model.config
        out = self._new(q.n, q.single)
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
        self._record("ATTENTION", q.single, dict(operands))
        out.quantizer = len(self._entries)
        self._record("ATTENTION_MERGE", q.single, operands)
        return out

    def last(self, x: Buffer) -> Buffer:
        """See Ops."""
        if self._every or x.single:
            return x
        if self._body is None:
            self._body = len(self._entries)
        return self._emit("SELECT_LAST", x.n, True, src=x, n=x.n)

    def trace(self, name: str, x: Buffer) -> None:
        """See Ops."""
        if self._keep:
            self._traced[name] = x
            x.pinned = True

    def head(self, x: Buffer, lin: Lin, softcap: float) -> Buffer:
        """See Ops."""
        logits = self.linear(x, lin)
        if softcap:
            self._record("SOFTCAP", x.single, {"x": logits, "n": logits.n, "cap": softcap})
        return logits

    # What is recorded around a model.

    def input(self, n: int) -> Buffer:
        """A buffer [tokens, n] that the caller fills before the step; the first of the recording."""
        self._input = self._new(n, False)
        return self._input

    def top_k(self, logits: Buffer, k: int, scratch: int, dst: int) -> None:
        """The k largest logits of each row to address dst, as TOPK_MERGE lays them out."""
        operands: dict[str, Operand] = {"logits": logits, "n": logits.n, "k": k, "scratch": scratch, "dst": dst}
        self._record("TOPK", logits.single, dict(operands))
        self._record("TOPK_MERGE", logits.single, operands)

    def finish(self, runtime: Runtime, output: Buffer, buffers: int | None = None) -> Recording:
        """Plan the buffers, write the records into kernel memory, and give back what is needed to run them.

        buffers: address of memory for the activation buffers, `planned_bytes` at least; by default new memory.
        """
        output.pinned = True
        total = _plan(self._entries, self._buffers)
        base = runtime.alloc(total) if buffers is None else buffers
        for b in self._buffers:
            b.address += base
        barriers = _barriers(self._entries)
        data = b"".join(
            encode(e.name, e.flags | barrier, **_resolve(e)) for e, barrier in zip(self._entries, barriers, strict=True)
        )
        address = runtime.alloc(len(data))
        runtime.write(address, data)
        return Recording(
            address,
            len(self._entries) if self._body is None else self._body,
            len(self._entries),
            self._input.address if self._input else 0,
            output.address,
            [e.name for e in self._entries],
            {name: (b.address, b.n) for name, b in self._traced.items()},
        )

    def planned_bytes(self, output: Buffer) -> int:
        """Bytes of activation buffers that `finish` will want."""
        output.pinned = True
        return _plan(self._entries, self._buffers)

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
            # Always for all tokens: a LAST op reads row T - 1 of it.
            table = self._emit("ROPE_TABLE", 2 * pairs, False, inv_freq=self._weights.inv_freq(rope), pairs=pairs)
            self._ropes[rope] = table
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
            rows = 1 if x.single else self._arena.chunk
            x.quantized = Buffer(rows * quantized_bytes(x.n), x.n, x.single, x.quantizer)
            self._buffers.append(x.quantized)
            if x.quantizer >= 0:
                self._entries[x.quantizer].operands["dst_q"] = x.quantized
            else:
                x.quantized.maker = len(self._entries)
                operands: dict[str, Operand] = {"dst_q": x.quantized, "src": x, "n": x.n, "rows": 1, "scale": 1.0}
                self._record("NORM", x.single, operands)
        return x.quantized

    def _new(self, n: int, single: bool) -> Buffer:
        b = Buffer((1 if single else self._arena.chunk) * n * 4, n, single, len(self._entries))
        self._buffers.append(b)
        return b

    def _emit(self, name: str, width: int, single: bool | None = None, **operands: Operand) -> Buffer:
        if single is None:
            single = isinstance(src := operands.get("src"), Buffer) and src.single
        out = self._new(width, single)
        if name in _CAN_QUANTIZE:
            out.quantizer = len(self._entries)
        self._record(name, single, {"dst": out, **operands})
        return out

    def _record(self, name: str, single: bool, operands: dict[str, Operand]) -> None:
        self._entries.append(_Entry(name, LAST if single else 0, operands))


def _resolve(entry: _Entry) -> dict[str, float]:
    operands = {k: v.address if isinstance(v, Buffer) else v for k, v in entry.operands.items()}
    if "up_column" in operands:
        operands["up"] += 4 * operands.pop("up_column")
    return operands


def _barriers(entries: Sequence[_Entry]) -> list[int]:
    """BARRIER for each record unless the next one works on the same share of the step.

    Ops split by token follow each other without one, if both run for all tokens or both for the last; and so do the
    HEADS of one layer, which do not read each other's results.
    """
    out = []
    for a, b in zip(entries, [*entries[1:], None], strict=True):
        free = b is not None and (
            (RECORDS[a.name].split == RECORDS[b.name].split == "token" and a.flags == b.flags)
            or (a.name == b.name == "HEADS" and a.operands.get("dst") is not b.operands["src"])
        )
        out.append(0 if free else BARRIER)
    return out


def _plan(entries: Sequence[_Entry], buffers: Sequence[Buffer]) -> int:
    """Give every buffer an offset so that those that live at the same time do not overlap; returns bytes in all.

    First the f32 results that nobody reads are dropped. Then each buffer, in order of first write, takes the first gap
    among those alive with it.
    """
    end = len(entries)
    for b in buffers:
        b.last_use = end if b.pinned else -1
    for i, e in enumerate(entries):
        reads = (v for k, v in e.operands.items() if isinstance(v, Buffer) and not k.startswith("dst"))
        for b in reads:
            b.last_use = max(b.last_use, i)
    for i, e in enumerate(entries):
        dst = e.operands.get("dst")
        if isinstance(dst, Buffer) and dst.last_use < i:
            if e.name in _CAN_QUANTIZE and "dst_q" in e.operands:
                e.operands["dst"] = 0
            else:
                dst.last_use = i
    placed: list[Buffer] = []
    total = 0
    # Neighbours split by token run without a barrier: a buffer outlives its last reader by the ops that may overlap.
    grace = _grace(entries)
    for b in sorted((b for b in buffers if b.last_use >= 0), key=lambda b: b.maker):
        start = max(b.maker, 0)
        start = grace.first[start] if start < end else start
        live = sorted(
            (p for p in placed if (end if p.last_use >= end else grace.last[p.last_use]) >= start),
            key=lambda p: p.address,
        )
        at = 0
        for p in live:
            if at + b.nbytes <= p.address:
                break
            at = max(at, p.address + (p.nbytes + 63) // 64 * 64)
        b.address = at
        total = max(total, at + b.nbytes)
        placed.append(b)
    return total


@dataclass
class _Grace:
    first: list[int]
    last: list[int]


def _grace(entries: Sequence[_Entry]) -> _Grace:
    """For each record, the first and the last record that may run beside it: no barrier lies between them."""
    barriers = _barriers(entries)
    first, last = list(range(len(entries))), list(range(len(entries)))
    for i in range(1, len(entries)):
        if not barriers[i - 1]:
            first[i] = first[i - 1]
    for i in range(len(entries) - 2, -1, -1):
        if not barriers[i]:
            last[i] = last[i + 1]
    return _Grace(first, last)
