"""A model's weights in kernel memory: their addresses, and the list of what to load where."""

from __future__ import annotations

import struct

from .linear import Lin, Parts
from .models import Model, find_all
from .ops import Norm, Scalar
from .program.records import BARRIER, RECORD_BYTES, encode, padded_rows
from .program.symbols import Number, Symbol, Vector, Weight
from .runtime import Kernels, LoadItem, Segment
from .table import TableRef


class Weights:
    """Everything of a model that is streamed from memory for each token: linear weights, norms, scalars.

    Tables are not here: they stay on the host, or are loaded plain by `load_table`.
    """

    def __init__(self, kernels: Kernels, model: Model) -> None:
        """Allocates memory for all weights; `items` then tells what to load. Raises KernelError if it does not fit."""
        self._kernels = kernels
        self._matrices: dict[str, tuple[int, int]] = {}
        self._vectors: dict[str, int] = {}
        self.items: list[LoadItem] = []
        self.bytes = 0
        """Bytes of kernel memory that weights take."""
        lins = {lin.name: lin for lin in find_all(model, Lin)}
        vectors = {norm.weight.name: norm.weight for norm in find_all(model, Norm) if norm.weight}
        self._scalars = {s.value.name: s.value for s in find_all(model, Scalar)}
        vectors |= self._scalars
        repacks = kernels.alloc(RECORD_BYTES * len(lins))
        for i, lin in enumerate(lins.values()):
            self._add_matrix(lin, repacks + i * RECORD_BYTES)
        for ref in vectors.values():
            self._vectors[ref.name] = self._alloc(ref.nbytes)
            self.items.append(LoadItem(ref.name, _segments(((0, ref),), self._vectors[ref.name])))
        self.streamed_bytes = sum(lin.bytes for lin in lins.values()) + sum(ref.nbytes for ref in vectors.values())
        """Bytes that one decoded token reads from memory."""

    def places(self) -> dict[Symbol, float]:
        """Where programs find them, and, once all is loaded, what the scalars are."""
        out: dict[Symbol, float] = {Vector(name): addr for name, addr in self._vectors.items()}
        for name, (values, scales) in self._matrices.items():
            out |= {Weight(name, "values"): values, Weight(name, "scales"): scales}
        for name in self._scalars:
            bits = int.from_bytes(self._kernels.read(self._vectors[name], 2), "little")
            (out[Number(name)],) = struct.unpack("<f", struct.pack("<I", bits << 16))
        return out

    def load_table(self, table: TableRef) -> tuple[int, int]:
        """Allocate a table that is to be kept as plain rows, and add it to `items`: addresses of values, scales."""
        values = self._alloc(table.rows * table.row_bytes)
        scales = self._alloc(table.rows * table.scale_bytes) if table.scales else 0
        segments = _segments(table.values, values) + _segments(table.scales, scales)
        self.items.append(LoadItem(table.name, segments))
        return values, scales

    def _add_matrix(self, lin: Lin, repack: int) -> None:
        pad = padded_rows(lin.n_out)
        row_bytes, scale_bytes = (
            sum(ref.nbytes for _, ref in parts) // lin.n_out for parts in (lin.values, lin.scales)
        )
        values = self._alloc(pad * row_bytes)
        scales = self._alloc(pad * scale_bytes) if lin.scales else 0
        self._matrices[lin.name] = values, scales
        record = encode("REPACK", BARRIER, values=values, scales=scales, rows=lin.n_out, cols=lin.n_in, quant=lin.quant)
        self._kernels.write(repack, record)
        self.items.append(LoadItem(lin.name, _segments(lin.values, values) + _segments(lin.scales, scales), repack))

    def _alloc(self, nbytes: int) -> int:
        self.bytes += nbytes
        return self._kernels.alloc(nbytes)


def _segments(parts: Parts, addr: int) -> tuple[Segment, ...]:
    out = []
    for _, ref in parts:
        out.append(Segment(ref.file, ref.offset, ref.nbytes, addr))
        addr += ref.nbytes
    return tuple(out)
