"""How a conversion lays a model out: which precision each tensor gets, and which shard each piece of it goes to.

Made from shapes alone, so that the writing can stream: no tensor is ever whole in memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from ..errors import CheckpointError
from ..linear import QBLOCK
from .tensors import Kind, Wanted

Precision = Literal["bf16", "q8", "q4"]
PRECISIONS: tuple[Precision, ...] = ("bf16", "q8", "q4")
_TABLES = (Kind.TABLE, Kind.MORE_TABLE)
_DTYPES = {"bf16": ("BF16",), "q8": ("I8", "F32"), "q4": ("U8", "F16")}
_ITEM = {"BF16": 2, "I8": 1, "F32": 4, "U8": 1, "F16": 2}


@dataclass(frozen=True)
class Precisions:
    """The precision of each part of a model; None follows `quant`."""

    quant: Precision
    table: Precision | None = None
    head: Precision | None = None

    def of(self, kind: Kind) -> Precision:
        """The precision of a tensor's kind."""
        if kind is Kind.VECTOR:
            return "bf16"
        if kind in _TABLES:
            return self.table or self.quant
        if kind in (Kind.HEAD, Kind.TIED):
            return self.head or self.quant
        return "q8" if kind is Kind.LINEAR_8_BITS and self.quant == "q4" else self.quant


@dataclass(frozen=True)
class Stored:
    """A tensor and how it is stored: `name` in the output, `original` where it is read from."""

    name: str
    original: str
    shape: tuple[int, ...]
    kind: Kind
    quant: Precision

    @property
    def row_bytes(self) -> int:
        """Bytes of one row, values and scales."""
        return sum(math.prod(shape) * _ITEM[dtype] for _, dtype, shape in self.pieces(0, 1, whole=False))

    def pieces(self, first: int, last: int, whole: bool) -> Iterator[tuple[str, str, tuple[int, ...]]]:
        """The output tensors of rows [first, last): name, dtype, shape; `whole` if those are all rows."""
        at = "" if whole else f"@{first}"
        if self.quant == "bf16":
            yield self.name + at, "BF16", (last - first, *self.shape[1:])
            return
        values, scales = _DTYPES[self.quant]
        cols = self.shape[1]
        yield f"{self.name}.{self.quant}{at}", values, (last - first, cols if self.quant == "q8" else cols // 2)
        yield f"{self.name}.{self.quant}s{at}", scales, (last - first, cols // QBLOCK)


@dataclass(frozen=True)
class RowRange:
    """Rows [first, last) of a stored tensor: what is quantized in one go."""

    store: Stored
    first: int
    last: int

    @property
    def tensors(self) -> list[tuple[str, str, tuple[int, ...]]]:
        """The output tensors, values before scales: name, dtype, shape."""
        whole = self.first == 0 and self.last == self.store.shape[0]
        return list(self.store.pieces(self.first, self.last, whole))


@dataclass(frozen=True)
class Out:
    """One tensor of a shard: piece `part` (0 values, 1 scales) of some rows."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    rows: RowRange
    part: int

    @property
    def nbytes(self) -> int:
        """Bytes of data."""
        return math.prod(self.shape) * _ITEM[self.dtype]

    @property
    def alignment(self) -> int:
        """The largest power of two up to 64 that divides the size."""
        return math.gcd(self.nbytes, 64)


@dataclass
class Shard:
    """The tensors of one file."""

    tensors: list[Out] = field(default_factory=list)
    nbytes: int = 0
    """At most this many bytes of file."""

    def ordered(self) -> list[Out]:
        """The tensors in file order: the roundest sizes first, so that every offset is aligned for its dtype."""
        return sorted(self.tensors, key=lambda t: -t.alignment)


def choose(wanted: Sequence[Wanted], precisions: Precisions) -> tuple[list[Stored], list[str]]:
    """How each tensor is stored, and notes on those that could not be quantized."""
    stores: list[Stored] = []
    notes: list[str] = []
    for w in wanted:
        quant = precisions.of(w.kind)
        table, head = precisions.table, precisions.head
        if w.kind is Kind.TIED and table and head and table != head:
            # One tensor cannot have two precisions: the table keeps its name, the head gets one of its own.
            stores.append(Stored("lm_head.weight", w.name, w.shape, Kind.HEAD, head))
            w, quant = Wanted(w.name, w.shape, Kind.TABLE), table
        if quant != "bf16" and w.shape[1] % QBLOCK:
            notes.append(f"{w.name} stays bf16: its {w.shape[1]} columns are not a multiple of {QBLOCK}")
            quant = "bf16"
        stores.append(Stored(w.name, w.name, w.shape, w.kind, quant))
    return sorted(stores, key=lambda s: s.kind in _TABLES), notes


def fill_shards(stores: Sequence[Stored], shard_size: int) -> list[Shard]:
    """Put every tensor into shards of at most shard_size bytes, header included, in the given order.

    A tensor that is too large for one shard is split by rows, its values and scales at the same rows. Tables that stay
    on the host share no shard with weights that are loaded. Raises CheckpointError if not even one row fits.
    """
    shards: list[Shard] = []
    group: Kind | None = None
    for store in stores:
        this = store.kind if store.kind in _TABLES else None
        if not shards or this != group:
            shards.append(Shard(nbytes=_EMPTY_HEADER))
            group = this
        for rows in _split(store, shard_size):
            tensors = [Out(*t, rows, part) for part, t in enumerate(rows.tensors)]
            nbytes = sum(t.nbytes + _entry_bytes(t.name) for t in tensors)
            if shards[-1].tensors and shards[-1].nbytes + nbytes > shard_size:
                shards.append(Shard(nbytes=_EMPTY_HEADER))
            shards[-1].tensors += tensors
            shards[-1].nbytes += nbytes
    return shards


_EMPTY_HEADER = 200
"""No less than a header's length, its padding and `__metadata__`."""


def _entry_bytes(name: str) -> int:
    """No less than what a tensor adds to a header: its name, and up to two sizes and two offsets of 12 digits."""
    return len(name.encode()) + 100


def _split(store: Stored, shard_size: int) -> Iterator[RowRange]:
    n = store.shape[0]
    room = shard_size - _EMPTY_HEADER - 2 * _entry_bytes(f"{store.name}.q8s@{n}")
    per_shard = room // store.row_bytes
    if n <= per_shard:
        yield RowRange(store, 0, n)
        return
    if per_shard < 1:
        raise CheckpointError(
            f"one row of {store.name} takes {store.row_bytes} bytes, more than a shard of {shard_size}; "
            "choose a larger --shard-size"
        )
    # Whole groups of rows where that is possible: kernels interleave 16 rows.
    step = next(per_shard // m * m for m in (64, 16, 1) if per_shard >= m)
    for first in range(0, n, step):
        yield RowRange(store, first, min(first + step, n))
