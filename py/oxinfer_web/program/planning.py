"""What is worked out about a recorded program before it is encoded: which ops need only the last token, which results
nobody reads, where threads must meet, and where each activation buffer lies.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .records import BARRIER, RECORDS, Bind, quantized_bytes


@dataclass(eq=False)
class Buffer:
    """An activation [tokens, columns]: f32, or, as another's `quantized`, its int8 copy."""

    columns: int
    row_bytes: int
    quantizer: Entry | None = None
    """The entry that can leave a quantized copy beside this f32 result."""
    quantized: Buffer | None = None
    pinned: bool = False
    """Kept to the end: read by the caller after the step."""
    single: bool = False
    """One row, the last token's, instead of one a token."""
    address: int = 0
    """An offset among the buffers, once placed; then an address."""


Operand = float | Buffer


@dataclass(eq=False)
class Entry:
    """One op of a program being recorded. Operands named dst... are written, the others read."""

    name: str
    operands: dict[str, Operand]
    last: bool = False
    """Run for the step's last token only."""

    def reads(self) -> Iterator[Buffer]:
        """The buffers that it reads."""
        return (v for k, v in self.operands.items() if isinstance(v, Buffer) and not k.startswith("dst"))

    def writes(self) -> Iterator[Buffer]:
        """The buffers that it writes."""
        return (v for k, v in self.operands.items() if isinstance(v, Buffer) and (k.startswith("dst") or k == "x"))


def buffer(columns: int) -> Buffer:
    """An f32 activation."""
    return Buffer(columns, 4 * columns)


def quantized_buffer(columns: int) -> Buffer:
    """A quantized copy of one."""
    return Buffer(columns, quantized_bytes(columns))


def narrow(entries: Sequence[Entry]) -> tuple[list[Entry], int]:
    """Let every op that no KV cache depends on run for the last token alone.

    What a later token will read of this step is in the KV caches: only keys, values and what they are computed from are
    needed for all tokens. Where an op for the last token reads a buffer of all, a SELECT_LAST goes before it. Returns
    the entries, and how many of them fill the caches: a prompt's earlier chunks stop there.
    """
    needed: set[Buffer] = set()
    for e in reversed(entries):
        fills_cache = e.name == "HEADS" and e.operands["bind"] != Bind.BUFFER
        # A rope table always has all rows: ops for the last token read its last.
        e.last = not (fills_cache or e.name == "ROPE_TABLE" or any(b in needed for b in e.writes()))
        if not e.last:
            needed.update(e.reads(), e.writes())
    out: list[Entry] = []
    rows: dict[Buffer, Buffer] = {}
    body = 0
    for e in entries:
        if e.last:
            for b in e.writes():
                b.single = True
            for key, operand in e.operands.items():
                if isinstance(operand, Buffer) and operand in needed and key != "rope":
                    if operand not in rows:
                        row = rows[operand] = Buffer(operand.columns, operand.row_bytes, single=True)
                        out.append(
                            Entry("SELECT_LAST", {"dst": row, "src": operand, "n": row.row_bytes // 4}, last=True)
                        )
                    e.operands[key] = rows[operand]
        out.append(e)
        if not e.last and e.name != "ROPE_TABLE":
            body = len(out)
    return out, body


def drop_unread(entries: Sequence[Entry], optional: Sequence[str]) -> None:
    """Leave out the f32 result of ops named in `optional` where only the quantized copy is read."""
    read = {b for e in entries for b in e.reads()}
    for e in entries:
        dst = e.operands.get("dst")
        unread = isinstance(dst, Buffer) and not dst.pinned and dst not in read
        if unread and e.name in optional and "dst_q" in e.operands:
            e.operands["dst"] = 0


def barriers(entries: Sequence[Entry]) -> list[int]:
    """BARRIER for each record unless the next one works on the same share of the step.

    Ops split by token follow each other without one, if both run for all tokens or both for the last; and so do the
    HEADS of one layer, which do not read each other's results.
    """
    out = []
    for a, b in zip(entries, [*entries[1:], None], strict=True):
        free = b is not None and (
            (RECORDS[a.name].split == RECORDS[b.name].split == "token" and a.last == b.last)
            or (a.name == b.name == "HEADS" and a.operands.get("dst") is not b.operands["src"])
        )
        out.append(0 if free else BARRIER)
    return out


def stages(entries: Sequence[Entry]) -> list[int]:
    """The number of barriers before each entry: those of one stage may run at the same time."""
    out, stage = [], 0
    for barrier in barriers(entries):
        out.append(stage)
        stage += barrier == BARRIER
    return out


def place(entries: Sequence[Entry], chunk: int) -> int:
    """Give every buffer an offset so that those alive in one stage do not overlap; returns bytes in all.

    chunk: rows of a buffer that has one a token. In order of first write, each takes the first gap among those alive
    with it.
    """
    lives: dict[Buffer, tuple[int, int]] = {}
    numbers = stages(entries)
    for e, stage in zip(entries, numbers, strict=True):
        for b in (*e.writes(), *e.reads()):
            first, _ = lives.get(b, (stage, stage))
            lives[b] = first, stage
    end = numbers[-1]
    placed: list[tuple[Buffer, int]] = []
    total = 0
    for b, (first, last) in lives.items():
        nbytes = _rounded(b, chunk)
        at = 0
        for other in sorted((p for p, until in placed if until >= first), key=lambda p: p.address):
            if at + nbytes <= other.address:
                break
            at = max(at, other.address + _rounded(other, chunk))
        b.address = at
        total = max(total, at + nbytes)
        placed.append((b, end if b.pinned else last))
    return total


def _rounded(b: Buffer, chunk: int) -> int:
    return ((1 if b.single else chunk) * b.row_bytes + 63) // 64 * 64
