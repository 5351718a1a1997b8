"""What runs a program: kernels with a memory of their own. One protocol; `native` for CPython, `browser` for Pyodide.

A runtime is made for one checkpoint source (a folder or a URL), because loading is its work: it alone knows how to get
file bytes into kernel memory without a copy on the way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from .checkpoint import TensorRef

Progress = Callable[[int, int], None]
"""Called as progress(bytes done, bytes in all)."""


@dataclass(frozen=True)
class Segment:
    """Bytes [offset, offset + nbytes) of a checkpoint file that go to address `addr` of kernel memory."""

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


class Runtime(Protocol):
    """Kernel memory, the kernels, and the way checkpoint bytes get there."""

    kernel: str
    """The build in use: "relaxed" or "simd"."""
    threads: int

    def alloc(self, nbytes: int, align: int = 64) -> int:
        """Address of nbytes of zeroed memory that lives as long as the runtime. Raises KernelError beyond 4 GiB."""

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
        """Prepare the step of a single token, which is what decoding repeats: its rows to their places (tables: rows,
        address of values, address of scales), its position to `state`, and records [0, last) run."""

    def kernel_seconds(self) -> float:
        """Seconds spent in the kernels since the start."""

    async def load(self, items: Sequence[LoadItem], progress: Progress | None = None) -> None:
        """Bring tensors into kernel memory. Raises HostError or CheckpointError, naming the file."""

    def open_rows(self, table: HostTable) -> Rows:
        """The rows of a table on the same source."""

    def host_stats(self) -> dict[str, int]:
        """Since the start, for host rows: requests, bytes, rows (rows fetched, not those found in the cache)."""
