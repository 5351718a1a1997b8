"""What the operands of a recorded program stand for. A symbol becomes an address, or a number, when the program is
encoded for one memory (`encode.py`); until then a program is the same for every player.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum

from ..config import RopeSpec
from ..ops import LayerState
from .records import RECORDS, Record, quantized_bytes


@dataclass(frozen=True)
class Weight:
    """Part of a linear weight, repacked. part: "values" or "scales" (none where the weight has none)."""

    name: str
    part: str


@dataclass(frozen=True)
class Vector:
    """The weight of a norm, bf16."""

    name: str


@dataclass(frozen=True)
class Number:
    """A bf16 number of the checkpoint; it is read when the program is encoded."""

    name: str


@dataclass(frozen=True)
class Frequencies:
    """A rope's inverse frequencies, f32."""

    rope: RopeSpec


@dataclass(frozen=True)
class TablePart:
    """Part of a table that is looked up by token.

    part: "values" or "scales" of the rows, or "slots", which row is each token's, u32 [chunk].
    """

    name: str
    part: str


class Area(Enum):
    """Memory that the programs of a model share."""

    SCRATCH = "scratch"
    """Partial results of an op, read by the op after it: the largest `Program.scratch_bytes`."""
    CANDIDATES = "candidates"
    """Where TOPK_MERGE leaves its result."""


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
    offset: int = 0
    """Where it lies among the buffers, once the program is planned."""


Symbol = Weight | Vector | Number | Frequencies | TablePart | LayerState | Area
"""A `LayerState` stands for its descriptor, which says where it lies for the session that is running."""
Operand = float | Symbol | Buffer


@dataclass(eq=False)
class Entry:
    """One op of a recorded program. Operands that are left out are 0."""

    name: str
    operands: dict[str, Operand]
    shifts: dict[str, int] = field(default_factory=dict)
    """Bytes from a buffer's beginning to where an operand reads it."""
    last: bool = False
    """Run for the step's last token only."""

    @property
    def record(self) -> Record:
        """The op's row in the table."""
        return RECORDS[self.name]

    def buffers(self, *marks: str) -> Iterator[Buffer]:
        """The activations among operands with one of these marks."""
        for name, mark in self.record.operands:
            operand = self.operands.get(name)
            if mark in marks and isinstance(operand, Buffer):
                yield operand

    def reads(self) -> Iterator[Buffer]:
        """The activations that it reads."""
        return self.buffers("in", "all", "inout")

    def writes(self) -> Iterator[Buffer]:
        """The activations that it writes."""
        return self.buffers("out", "out?", "inout")

    @property
    def fills_state(self) -> bool:
        """Whether it adds to what a layer keeps between steps."""
        return any(mark == "fills" and name in self.operands for name, mark in self.record.operands)


def buffer(columns: int) -> Buffer:
    """An f32 activation."""
    return Buffer(columns, 4 * columns)


def quantized_buffer(columns: int) -> Buffer:
    """A quantized copy of one."""
    return Buffer(columns, quantized_bytes(columns))
