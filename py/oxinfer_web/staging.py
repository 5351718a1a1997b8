"""The table rows of a step's tokens, brought to where programs look them up."""

from __future__ import annotations

import struct
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from .program.records import SKIP_ROW
from .program.symbols import Symbol, TablePart
from .runtime import Files, Kernels, Rows
from .table import Table, TableRef
from .weights import Weights


@dataclass(frozen=True)
class _Place:
    """One table in kernel memory: addresses of values and scales, either of all rows or of one step's, and of the slots
    (which row is each token's, u32 [chunk])."""

    table: TableRef
    values: int
    scales: int
    slots: int
    rows: Rows | None
    """Where a step's rows come from; None for a table that is in memory whole."""


class Staging:
    """All tables of a model, for steps of at most `chunk` tokens."""

    def __init__(
        self, kernels: Kernels, files: Files, weights: Weights, tables: Sequence[TableRef], chunk: int, resident: bool
    ) -> None:
        """Takes the memory. resident: whole tables, which become a part of what `weights` loads."""
        self._kernels, self._chunk = kernels, chunk
        self.bytes = 0
        """Bytes of kernel memory for staged rows and slots."""
        self.tables: dict[str, Table] = {}
        """The tables that stay on the host, by name."""
        self._places = [self._place(files, weights, table, resident) for table in tables]
        self.reset()

    def places(self) -> dict[Symbol, float]:
        """Where programs find them."""
        return {
            TablePart(p.table.name, part): addr
            for p in self._places
            for part, addr in (("values", p.values), ("scales", p.scales), ("slots", p.slots))
        }

    def on_host(self) -> list[tuple[Rows, int, int]]:
        """The rows of tables that stay on the host, and where one token's values and scales go."""
        return [(p.rows, p.values, p.scales) for p in self._places if p.rows]

    async def fetch(self, ids: Sequence[int]) -> None:
        """Make the rows of these tokens available to `stage`. Raises HostError."""
        for p in self._places:
            if p.rows:
                given = p.table.given_row
                await p.rows.fetch(ids if given is None else [*ids, given])

    def stage(self, ids: Sequence[int], given: Collection[int] = ()) -> None:
        """Let token i's row be found at slot i. given: indices into ids of tokens whose embeddings the caller writes
        where the program has its input; `reset` is then due after the step."""
        for p in self._places:
            looked_up = ids
            if given and p.table.given_row is not None:
                looked_up = [p.table.given_row if i in given else t for i, t in enumerate(ids)]
            if p.rows:
                p.rows.stage(looked_up, p.values, p.scales)
            if given or not p.rows:
                slots = list(range(len(ids))) if p.rows else list(looked_up)
                for i in given if p.table.given_row is None else ():
                    slots[i] = SKIP_ROW
                self._kernels.write(p.slots, struct.pack(f"<{len(ids)}I", *slots))

    def reset(self) -> None:
        """Let token i look up staged row i. Slots of tables in memory are written at each step."""
        counted = struct.pack(f"<{self._chunk}I", *range(self._chunk))
        for p in self._places:
            self._kernels.write(p.slots, counted)

    def _place(self, files: Files, weights: Weights, table: TableRef, resident: bool) -> _Place:
        slots = self._alloc(4 * self._chunk)
        if resident:
            values, scales = weights.load_table(table)
            return _Place(table, values, scales, slots, None)
        rows = files.open_rows(table.on_host())
        self.tables[table.name] = Table.Host(table, rows)
        values, scales = self._alloc(self._chunk * table.row_bytes), self._alloc(self._chunk * table.scale_bytes)
        return _Place(table, values, scales, slots, rows)

    def _alloc(self, nbytes: int) -> int:
        self.bytes += nbytes
        return self._kernels.alloc(nbytes)
