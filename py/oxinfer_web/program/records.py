"""The program's op records: the one description of them that both the Python and the C side are made from.

A program is an array of records. A record is `RECORD_WORDS` little-endian 32-bit words: the op code, the flags, then
the op's operands in the order listed here, the rest zero. `c_header` makes the C header
`wasm_kernels/records.h` of it, one struct an op.

Conventions, all sizes in elements unless named bytes:

* An address is a byte offset in kernel memory; 0 means "none".
* T is the number of tokens of the step (`State.n_tokens`). Activation buffers are f32 [T, n], row-major, dense.
* A record with the flag LAST runs for the step's last token only: its buffers have one row, its position is
  `pos + T - 1`, and the rope table, which always has T rows, is read at row T - 1.
* A record with the flag BARRIER ends with a barrier between threads. `split` says how threads share an op: by token
  (thread i takes a contiguous range of tokens), by head, or in the kernel's own way. Consecutive ops split by token
  need no barrier between them, nor do those split by head that do not read each other's results.
* A quantized copy of an activation row (`*_q` operands) is int8 values with one f32 scale for each 32 columns, laid
  out as the kernel build likes; it takes `quantized_bytes(n)` bytes a token.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum

from ..enums import Act, KVType, Quant

RECORD_WORDS = 32
RECORD_BYTES = RECORD_WORDS * 4
PAGE = 128
"""Positions in one page of a KV cache."""
SKIP_ROW = 0xFFFFFFFF
"""In EMBED's ids: leave this row of dst as it is (the caller has written an embedding there)."""
NO_ID = 0xFFFFFFFF
"""The id of a candidate that is none: every one of a row with a NaN, or with no largest finite logit."""
MAX_TOP_K = 256
"""The most candidates that TOPK gives."""

BARRIER = 1
LAST = 2


class Bind(IntEnum):
    """What HEADS does with its result."""

    BUFFER = 0
    KEY = 1
    VALUE = 2


@dataclass(frozen=True)
class Record:
    """One kind of op, and all that is true of it.

    operands: (name, mark) in order. A mark says what an operand is:
      ""       a whole number, or the address of something that is no activation
      "f32"    a number
      "in"     an activation that it reads
      "all"    one that it reads all T rows of, even when it runs for the last token only
      "out"    an activation that it writes; "out?": one that it need not write (address 0)
      "inout"  one that it changes in place
      "fills"  a layer's state that it adds to, where given

    kind: what the time it takes counts as: linear, attention, rows, head or load.
    split: how threads share it: by token, by head, or in a way of the kernel's own.
    """

    name: str
    code: int
    kind: str
    split: str
    operands: tuple[tuple[str, str], ...]
    doc: str

    def words(self) -> list[tuple[str, str]]:
        """The operands as (name, C type)."""
        return [(name, "float" if mark == "f32" else "uint32_t") for name, mark in self.operands]

    def may_omit(self, operand: str) -> bool:
        """Whether it has this output and need not write it."""
        return (operand, "out?") in self.operands


def _records(*rows: tuple[str, str, str, str, str]) -> dict[str, Record]:
    out: dict[str, Record] = {}
    for code, (name, kind, split, operands, doc) in enumerate(rows, start=1):
        parts = (operand.partition(":") for operand in operands.split())
        record = Record(name, code, kind, split, tuple((field, mark) for field, _, mark in parts), doc)
        assert len(record.operands) <= RECORD_WORDS - 2, name
        out[name] = record
    return out


RECORDS = _records(
    (
        "EMBED",
        "rows",
        "token",
        "dst:out values scales ids cols quant scale:f32",
        "dst[t] = dequantize(row ids[t] of values/scales) * scale, f32 [T, cols]. ids: u32 [T]; SKIP_ROW: no change.",
    ),
    (
        "ROPE_TABLE",
        "rows",
        "token",
        "dst:out inv_freq pairs",
        "dst[t] = cos(p * inv_freq) then sin(p * inv_freq), f32 [T, 2 * pairs], p = pos + t. inv_freq: f32 [pairs].",
    ),
    (
        "NORM",
        "rows",
        "token",
        "dst:out? dst_q:out? src:in residual:in weight n rows norm eps:f32 offset:f32 scale:f32",
        "For each of `rows` rows of n in a token: y = src; if norm: y /= sqrt(mean(y^2) + eps), times weight + offset "
        "where weight (bf16 [n]) is given; dst = (residual + y) * scale. residual, dst and dst_q may be 0; dst may be "
        "src or residual. dst_q covers the token's rows * n columns.",
    ),
    (
        "LINEAR",
        "linear",
        "kernel",
        "src:in src_q:in n_in count values0 scales0 dst0:out n_out0 quant0 "
        "values1 scales1 dst1:out n_out1 quant1 values2 scales2 dst2:out n_out2 quant2",
        "dst_i = src W_i^T for count (1 to 3) repacked weights; bf16 weights read src (f32), Q8 and Q4 read src_q.",
    ),
    (
        "GATED",
        "linear",
        "kernel",
        "src:in src_q:in n_in n_out gate_values gate_scales up_values up_scales quant act dst:out? dst_q:out?",
        "dst = act(src G^T) * (src U^T), f32 [T, n_out]; dst or dst_q may be 0 (dst_q needs n_out % 32 == 0).",
    ),
    (
        "HEADS",
        "attention",
        "head",
        "dst:out cache:fills src:in bind heads head_dim weight norm rope:all eps:f32 offset:f32 scale:f32 kv",
        "For each head of src f32 [T, heads * head_dim]: rms norm over head_dim if norm (weight bf16 [head_dim] or 0), "
        "rope by the table if rope, times scale; to dst (bind BUFFER; may be src) or into the cache as key or value at "
        "position pos + t.",
    ),
    (
        "ATTENTION",
        "attention",
        "kernel",
        "dst:out dst_q q:in cache scratch heads kv_heads head_dim window kv",
        "dst = softmax(q K^T) V, causal, for f32 q [T, heads * head_dim] (already scaled); window > 0: only the last "
        "`window` positions, the token's own included. Few tokens: partial results by SPLIT positions.",
    ),
    (
        "ATTENTION_MERGE",
        "attention",
        "kernel",
        "dst:out dst_q:out? q:in cache scratch heads kv_heads head_dim window kv",
        "Joins the partial results of the ATTENTION before it, and writes dst_q.",
    ),
    (
        "ACT_MUL",
        "rows",
        "token",
        "dst:out? dst_q:out? gate:in up:in n up_stride act",
        "dst[t] = act(gate[t]) * up[t], rows of n; up's rows are up_stride apart.",
    ),
    ("SELECT_LAST", "rows", "kernel", "dst:out src:all n", "dst[0] = src[T - 1], rows of n."),
    ("SOFTCAP", "head", "kernel", "x:inout n cap:f32", "x = tanh(x / cap) * cap in place, f32 [T, n]."),
    (
        "TOPK",
        "head",
        "kernel",
        "logits:in n k scratch dst",
        "The k largest of each row of logits f32 [T, n], by value, ties by lower index; partial results in scratch.",
    ),
    (
        "TOPK_MERGE",
        "head",
        "kernel",
        "logits:in n k scratch dst",
        "dst[t] = u32 ids[k], f32 values[k] in falling order, f32 max, f32 log(sum(exp(row))); NO_ID and NaN in all of "
        "them where the row has a NaN or no finite largest.",
    ),
    (
        "REPACK",
        "load",
        "kernel",
        "values scales rows cols quant",
        "Turns a weight's plain rows into the layout of LINEAR and GATED, in place, with room for padded_rows(rows).",
    ),
)


class State:
    """What changes from step to step, read by ops: u32 words n_tokens (T) and pos (position of the first token)."""

    WORDS = 16
    BYTES = WORDS * 4


class CacheDescriptor:
    """A layer's KV cache, as ops see it: u32 words `table` and `pages`.

    Position p is in page `p // PAGE`, whose address is `u32 table[(p // PAGE) % pages]`. A page holds its keys, then
    its values, `page_bytes` in all. A ring of pages serves a sliding layer; a full layer's table never wraps.
    """

    WORDS = 4
    BYTES = WORDS * 4


def padded_rows(rows: int) -> int:
    """Rows that a repacked weight takes: a multiple of 16, whole panels."""
    return (rows + 15) // 16 * 16


def quantized_bytes(n: int) -> int:
    """Bytes of the quantized copy of one row of n columns, for any build and machine: see quantize.h."""
    return (n + 31) // 32 * 108


def page_bytes(kv_heads: int, head_dim: int, kv: KVType) -> int:
    """Bytes of one KV page, keys and values."""
    return 2 * PAGE * kv_heads * head_dim * (4 if kv == KVType.F32 else 2)


SPLIT = 128
"""Positions in one partial result of ATTENTION."""
SPLIT_TOKENS = 4
"""ATTENTION splits a step of up to this many tokens over positions as well as heads."""


def attention_scratch_bytes(heads: int, head_dim: int, positions: int) -> int:
    """Bytes of ATTENTION's partial results over a cache of `positions`: per token, head and split, head_dim + 2 f32."""
    return SPLIT_TOKENS * heads * ((positions + SPLIT - 1) // SPLIT + 1) * (head_dim + 4) * 4


MAX_THREADS = 16


def topk_scratch_bytes(k: int, rows: int) -> int:
    """Bytes of TOPK's partial results: per row and thread, k (id, value) pairs, a maximum and a sum."""
    return rows * MAX_THREADS * (k + 2) * 8


def encode(name: str, flags: int = 0, **operands: float) -> bytes:
    """One record as bytes. Missing operands are 0; raises KeyError for an operand the op does not have."""
    record = RECORDS[name]
    words = [struct.pack("<II", record.code, flags)]
    for field, ctype in record.words():
        value = operands.pop(field, 0)
        words.append(struct.pack("<f", value) if ctype == "float" else struct.pack("<I", int(value)))
    if operands:
        raise KeyError(f"{name} has no operand {', '.join(operands)}")
    return b"".join(words).ljust(RECORD_BYTES, b"\0")


def c_header() -> str:
    """The C header of the records, from the same table."""
    out = [
        "// Made from py/oxinfer_web/program/records.py by the Makefile; do not edit.",
        "#pragma once",
        "#include <stdint.h>",
        "",
        *(
            f"#define {k} {v}u"
            for k, v in {
                "RECORD_WORDS": RECORD_WORDS,
                "PAGE": PAGE,
                "SPLIT": SPLIT,
                "SPLIT_TOKENS": SPLIT_TOKENS,
                "SKIP_ROW": SKIP_ROW,
                "NO_ID": NO_ID,
                "MAX_TOP_K": MAX_TOP_K,
                "MAX_THREADS": MAX_THREADS,
                "FLAG_BARRIER": BARRIER,
                "FLAG_LAST": LAST,
            }.items()
        ),
        "",
    ]
    for prefix, enum in (("QUANT", Quant), ("ACT", Act), ("KV", KVType), ("BIND", Bind)):
        out.append(f"enum {{ {', '.join(f'{prefix}_{m.name} = {m.value}' for m in enum)} }};")
    out.append(f"enum {{ {', '.join(f'OP_{r.name} = {r.code}' for r in RECORDS.values())} }};")
    for r in RECORDS.values():
        out += ["", *_comment(r.doc), "typedef struct {", "  uint32_t code, flags;"]
        out += [f"  {ctype} {name};" for name, ctype in r.words()]
        out.append(f"}} {r.name.title().replace('_', '')}Op;")
    return "\n".join(out) + "\n"


def _comment(text: str, width: int = 116) -> list[str]:
    lines, line = [], "//"
    for word in text.split():
        if len(line) + 1 + len(word) > width:
            lines.append(line)
            line = "//"
        line += " " + word
    return [*lines, line]
