"""The one place where a program's symbols become addresses: records for one kernels' memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..runtime import Kernels
from .planning import barriers
from .recorder import Program
from .records import LAST, encode
from .symbols import Buffer, Entry, Symbol


@dataclass(frozen=True)
class Encoded:
    """A program in kernel memory: records at `address`, of which [0, body) fill the layers' states."""

    address: int
    body: int
    length: int
    input: int
    """Where the input embeddings are written first; the caller puts given ones here before the step."""
    output: int
    traced: dict[str, tuple[int, int]]
    """Kept activations by name: (address, columns)."""
    groups: list[tuple[int, int, str]]
    """Runs of records of one kind, for timing: (first, last + 1, kind)."""


def records_of(program: Program, places: Mapping[Symbol, float], base: int) -> bytes:
    """The records of a program. places: what each symbol stands for, an address or a number; base: address of the
    activation buffers. Raises KeyError for a symbol that has no place."""
    return b"".join(
        encode(e.name, barrier | (LAST if e.last else 0), **_resolve(e, places, base))
        for e, barrier in zip(program.entries, barriers(program.entries), strict=True)
    )


def write(kernels: Kernels, program: Program, places: Mapping[Symbol, float], base: int) -> Encoded:
    """Write a program's records into kernel memory; the rest as for `records_of`."""
    data = records_of(program, places, base)
    address = kernels.alloc(len(data))
    kernels.write(address, data)
    return Encoded(
        address,
        program.body,
        len(program.entries),
        base + program.input.offset if program.input else 0,
        base + program.output.offset,
        {name: (base + b.offset, b.columns) for name, b in program.traced.items()},
        _groups([e.record.kind for e in program.entries]),
    )


def _resolve(entry: Entry, places: Mapping[Symbol, float], base: int) -> dict[str, float]:
    out: dict[str, float] = {}
    for name, operand in entry.operands.items():
        if isinstance(operand, Buffer):
            out[name] = base + operand.offset + entry.shifts.get(name, 0)
        else:
            out[name] = operand if isinstance(operand, int | float) else places[operand]
    return out


def _groups(kinds: list[str]) -> list[tuple[int, int, str]]:
    cuts = [i for i in range(len(kinds)) if i == 0 or kinds[i] != kinds[i - 1]]
    return [(a, b, kinds[a]) for a, b in zip(cuts, [*cuts[1:], len(kinds)], strict=True)]
