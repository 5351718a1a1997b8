"""What is worked out about a recorded program before it is encoded: which ops need only the last token, which results
nobody reads, where threads must meet, and where each activation buffer lies.
"""

from __future__ import annotations

from collections.abc import Sequence

from .records import BARRIER
from .symbols import Buffer, Entry


def narrow(entries: Sequence[Entry]) -> tuple[list[Entry], int]:
    """Let every op that no layer's state depends on run for the last token alone.

    What a later token will read of this step is in the layers' states: only what fills them, and what that is computed
    from, is needed for all tokens. Where an op for the last token reads a buffer of all, a SELECT_LAST goes before it,
    unless the op itself finds the last of its rows. Returns the entries, and how many of them fill the states: a
    prompt's earlier chunks stop there.
    """
    needed: set[Buffer] = set()
    for e in reversed(entries):
        e.last = not (e.fills_state or any(b in needed for b in e.writes()))
        needed.update(e.buffers("all") if e.last else (*e.reads(), *e.writes()))
    out: list[Entry] = []
    rows: dict[Buffer, Buffer] = {}
    body = 0
    for e in entries:
        if e.last:
            for b in e.writes():
                b.single = True
            for name, mark in e.record.operands:
                operand = e.operands.get(name)
                if isinstance(operand, Buffer) and operand in needed and mark != "all":
                    if operand not in rows:
                        row = rows[operand] = Buffer(operand.columns, operand.row_bytes, single=True)
                        out.append(
                            Entry("SELECT_LAST", {"dst": row, "src": operand, "n": row.row_bytes // 4}, last=True)
                        )
                    e.operands[name] = rows[operand]
        out.append(e)
        if e.fills_state:
            body = len(out)
    return out, body


def drop_unread(entries: Sequence[Entry]) -> None:
    """Leave out the f32 result of ops that can do without it, where only its quantized copy is read."""
    read = {b for e in entries for b in e.reads()}
    for e in entries:
        dst = e.operands.get("dst")
        unread = isinstance(dst, Buffer) and not dst.pinned and dst not in read
        if unread and e.record.may_omit("dst") and "dst_q" in e.operands:
            del e.operands["dst"]


def barriers(entries: Sequence[Entry]) -> list[int]:
    """BARRIER for each record unless the next one works on the same share of the step.

    Ops split by token follow each other without one, if both run for all tokens or both for the last; and so do ops
    split by head that do not read each other's results.
    """
    out = []
    for a, b in zip(entries, [*entries[1:], None], strict=True):
        free = b is not None and (
            (a.record.split == b.record.split == "token" and a.last == b.last)
            or (a.record.split == b.record.split == "head" and not set(a.writes()) & set(b.reads()))
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
        for other in sorted((p for p, until in placed if until >= first), key=lambda p: p.offset):
            if at + nbytes <= other.offset:
                break
            at = max(at, other.offset + _rounded(other, chunk))
        b.offset = at
        total = max(total, at + nbytes)
        placed.append((b, end if b.pinned else last))
    return total


def _rounded(b: Buffer, chunk: int) -> int:
    return ((1 if b.single else chunk) * b.row_bytes + 63) // 64 * 64
