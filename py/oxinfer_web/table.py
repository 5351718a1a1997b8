"""`Table`: an embedding table, looked up row by row. In memory at bf16, Q8 or Q4, or on the host.

`Table.Host` is what makes large per-layer embeddings cheap: nothing of the table is loaded, each token's row is read
from the checkpoint's files when it is needed.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from .checkpoint import Checkpoint
from .enums import Quant
from .linear import QBLOCK, Parts, find_matrix
from .runtime import HostTable, Rows

if TYPE_CHECKING:
    from .quant import F32, Array


@dataclass(frozen=True)
class TableRef:
    """Where a table [rows, cols] lies in a checkpoint and how it is stored; the same for every backend."""

    name: str
    rows: int
    cols: int
    quant: Quant
    values: Parts
    scales: Parts
    given_row: int | None = None
    """The row of a token whose embedding the caller has given; None: that embedding takes the row's place."""

    @property
    def row_bytes(self) -> int:
        """Bytes of one row's values."""
        return {Quant.BF16: self.cols * 2, Quant.Q8: self.cols, Quant.Q4: self.cols // 2}[self.quant]

    @property
    def scale_bytes(self) -> int:
        """Bytes of one row's scales."""
        return {Quant.BF16: 0, Quant.Q8: self.cols // QBLOCK * 4, Quant.Q4: self.cols // QBLOCK * 2}[self.quant]

    @property
    def bytes(self) -> int:
        """Bytes of the whole table."""
        return self.rows * (self.row_bytes + self.scale_bytes)

    def on_host(self) -> HostTable:
        """What `Files.open_rows` needs to read rows of it."""
        return HostTable(self.name, self.rows, self.row_bytes, self.scale_bytes, self.values, self.scales)


def find_table(ckpt: Checkpoint, name: str, rows: int, cols: int, given_row: int | None = None) -> TableRef:
    """The table `name` [rows, cols] of a checkpoint. Raises CheckpointError as `find_matrix` does."""
    return TableRef(name, rows, cols, *find_matrix(ckpt, name, rows, cols), given_row)


class Table:
    """A table with its rows at hand: `row(r)` is one row as f32 [cols]; `bytes` is what it keeps in memory."""

    Bf16: ClassVar[type[Table]]
    Q8: ClassVar[type[Table]]
    Q4: ClassVar[type[Table]]
    Host: ClassVar[type[_Host]]

    def __init__(self, ref: TableRef, values: Array, scales: Array) -> None:
        """values and scales: arrays as `TableRef.quant` stores them, all rows."""
        self.ref, self._values, self._scales = ref, values, scales

    @staticmethod
    def load(ref: TableRef, folder: str | Path) -> Table:
        """Read a whole table from a local checkpoint: a Table.Bf16, Table.Q8 or Table.Q4. Raises OSError."""
        from .quant import read_parts

        kind = {Quant.BF16: Table.Bf16, Quant.Q8: Table.Q8, Quant.Q4: Table.Q4}[ref.quant]
        return kind(ref, *read_parts(folder, ref.values, ref.scales))

    @property
    def bytes(self) -> int:
        """Bytes in memory."""
        return int(self._values.nbytes + self._scales.nbytes)

    def row(self, r: int) -> F32:
        """Row r as f32 [cols]. Raises IndexError outside 0 <= r < rows."""
        if not 0 <= r < self.ref.rows:
            raise IndexError(f"{self.ref.name} has no row {r}, only {self.ref.rows}")
        return self._dequantize(self._values[r : r + 1], self._scales[r : r + 1])

    def _dequantize(self, values: Array, scales: Array) -> F32:
        from .quant import dequantize

        out: F32 = dequantize(self.ref.quant, values, scales)[0]
        return out


class _Bf16(Table):
    """bf16 [rows, cols] in memory."""


class _Q8(Table):
    """int8 [rows, cols] with f32 scales [rows, cols / 32] in memory."""


class _Q4(Table):
    """uint8 [rows, cols / 2] with f16 scales [rows, cols / 32] in memory."""


class _Host(Table):
    """A table whose rows stay on the host and are read one by one, through `Rows`."""

    def __init__(self, ref: TableRef, rows: Rows) -> None:
        self.ref, self.rows = ref, rows

    @property
    def bytes(self) -> int:
        """0: nothing is in memory."""
        return 0

    def row(self, r: int) -> F32:
        """Row r as f32 [cols]. Raises IndexError outside the table, HostError if the row has to be fetched first."""
        from .quant import as_arrays

        if not 0 <= r < self.ref.rows:
            raise IndexError(f"{self.ref.name} has no row {r}, only {self.ref.rows}")
        return self._dequantize(*as_arrays(self.ref.quant, *self.rows.row(r), self.ref.cols))


Table.Bf16, Table.Q8, Table.Q4, Table.Host = _Bf16, _Q8, _Q4, _Host
