"""What a model needs of the place it runs in, as two protocols: `Kernels`, a memory and what computes in it, and
`Files`, a model's folder. `native` has both for CPython, `browser` for Pyodide; `opening` chooses.

The files of a model are opened for one `Kernels`: how bytes get from a folder or a URL into kernel memory without a
copy on the way is known only where both are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from .checkpoint import Checkpoint, TensorRef

Progress = Callable[[int, int], None]
"""Called as progress(bytes done, bytes in all)."""


@dataclass(frozen=True)
class Segment:
    """Bytes [offset, offset + nbytes) of a model's file that go to address `addr` of kernel memory."""

    file: str
    offset: int
    nbytes: int
    addr: int


@dataclass(frozen=True)
class LoadItem:
    """One tensor to load: its segments, and the record (usually REPACK, at address `finish`) to run once all are there.

    `finish` is 0 where nothing is to be done.
    """

    name: str
    segments: tuple[Segment, ...]
    finish: int = 0


@dataclass(frozen=True)
class HostTable:
    """A table that stays on the host: row r is at `r - first_row` in the part of values, and of scales, that has it.

    values and scales: (first_row, tensor) in rising order, at least one each (scales is empty for bf16).
    """

    name: str
    rows: int
    row_bytes: int
    scale_bytes: int
    values: tuple[tuple[int, TensorRef], ...]
    scales: tuple[tuple[int, TensorRef], ...]


class Rows(Protocol):
    """The rows of one host table."""

    async def fetch(self, ids: Sequence[int]) -> None:
        """Make these rows available to `stage`: those not held are asked for in one batch, adjacent ranges merged."""

    def stage(self, ids: Sequence[int], values: int, scales: int) -> None:
        """Copy the rows, in order, to kernel memory: row i's value bytes at values + i * row_bytes, its scale bytes at
        scales + i * scale_bytes. Raises HostError for a row that has to be fetched first."""

    def row(self, row: int) -> tuple[bytes, bytes]:
        """The value and scale bytes of one row. Raises HostError for a row that has to be fetched first."""


OneToken = Callable[[int, int], bool]
"""Called as step(token, position): runs one token, or does nothing and says False if its rows have to be fetched."""


class Kernels(Protocol):
    """Kernel memory, and the kernels that run programs in it."""

    build: str
    """The build in use: "relaxed" or "simd"."""
    threads: int

    def alloc(self, nbytes: int, align: int = 64) -> int:
        """Address of nbytes of zeroed memory that lives as long as the kernels. Raises KernelError beyond 4 GiB."""

    def write(self, addr: int, data: bytes | bytearray | memoryview) -> None:
        """Copy data into kernel memory."""

    def read(self, addr: int, nbytes: int) -> bytes:
        """A copy of kernel memory."""

    def write_words(self, addr: int, a: int, b: int) -> None:
        """Write two u32 at addr: a step's state."""

    def read_word(self, addr: int) -> int:
        """The u32 at addr."""

    def copy(self, dst: int, src: int, nbytes: int) -> None:
        """memmove inside kernel memory."""

    def run(self, ops: int, first: int, last: int, state: int) -> None:
        """Run records [first, last) of the program at address `ops` on all threads; returns when all are done."""

    def one_token(self, tables: Sequence[tuple[Rows, int, int]], ops: int, last: int, state: int) -> OneToken:
        """Prepare the step of a single token, which is what decoding repeats: its rows to their places (tables: rows
        opened for these kernels, address of values, address of scales), its position to `state`, and records [0, last)
        run."""

    def seconds(self) -> float:
        """Seconds spent in the kernels since the start."""


class Files(Protocol):
    """One model's folder, and the way its bytes get into the memory of one `Kernels`."""

    folder: str
    """Its path or address, for messages."""

    async def text(self, file: str) -> str | None:
        """A small text file; None where the folder has none of that name. Raises HostError."""

    async def checkpoint(self) -> Checkpoint:
        """The tensors there are: the index and all shards' headers. Raises HostError or CheckpointError."""

    async def load(self, items: Sequence[LoadItem], progress: Progress | None = None) -> None:
        """Bring tensors into kernel memory. Raises HostError or CheckpointError, naming the file."""

    def open_rows(self, table: HostTable) -> Rows:
        """The rows of a table of the same folder."""

    def stats(self) -> dict[str, int]:
        """Since the start, for host rows: requests, bytes, rows (rows fetched, not those found in the cache)."""
