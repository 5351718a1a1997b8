"""A model in a local folder, for the kernels of the same process."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path

from ..checkpoint import Checkpoint, TensorRef
from ..errors import CheckpointError, HostError
from ..program.records import State
from ..runtime import HostTable, LoadItem, Progress
from .kernels import WasmtimeKernels


class FolderFiles:
    """One local folder; implements `runtime.Files`."""

    def __init__(self, folder: str | Path, kernels: WasmtimeKernels) -> None:
        """kernels: into whose memory tensors and rows go."""
        self.folder = str(folder)
        self._folder, self._kernels = Path(folder), kernels
        self._stats = {"requests": 0, "bytes": 0, "rows": 0}

    async def text(self, file: str) -> str | None:
        """See Files. Raises HostError for what is not UTF-8."""
        path = self._folder / file
        try:
            return path.read_text(encoding="utf-8") if path.exists() else None
        except (OSError, UnicodeDecodeError) as e:
            raise HostError(f"{file}: cannot be read in {self._folder} ({e}); download it again") from None

    async def checkpoint(self) -> Checkpoint:
        """See Files. Raises CheckpointError."""
        return Checkpoint.open(self._folder)

    async def load(self, items: Sequence[LoadItem], progress: Progress | None = None) -> None:
        """Read tensors into kernel memory and run their finishing records. Raises CheckpointError, naming the file."""
        total = sum(s.nbytes for item in items for s in item.segments)
        state = self._kernels.alloc(State.BYTES)
        done = 0
        files = _Open(self._folder)
        try:
            for item in items:
                for s in item.segments:
                    files.read_into(s.file, s.offset, self._kernels.view(s.addr, s.nbytes))
                    done += s.nbytes
                    if progress:
                        progress(done, total)
                if item.finish:
                    self._kernels.run(item.finish, 0, 1, state)
        finally:
            files.close()

    def open_rows(self, table: HostTable) -> FolderRows:
        """The rows of a table in the same folder."""
        return FolderRows(self._kernels, table, self._folder, self._stats)

    def stats(self) -> dict[str, int]:
        """Since the start, for host rows: requests (reads of a file), bytes, rows."""
        return dict(self._stats)


class _Open:
    """Files of a folder, opened once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._open: dict[str, int] = {}

    def read_into(self, file: str, offset: int, view: memoryview) -> None:
        """Fill the view from `offset` of a file. Raises CheckpointError if the file is missing or ends before."""
        if file not in self._open:
            try:
                self._open[file] = os.open(self._folder / file, os.O_RDONLY)
            except OSError as e:
                raise CheckpointError(
                    f"{file}: cannot be opened in {self._folder} ({e.strerror}); download it"
                ) from None
        fd, at, wanted = self._open[file], offset, offset + view.nbytes
        while at < wanted:
            n = os.preadv(fd, [view[at - offset :]], at)
            if n == 0:
                size = os.fstat(fd).st_size
                raise CheckpointError(
                    f"{file}: bytes up to {wanted} are needed, it ends at {size}; it is cut short, download it again"
                )
            at += n

    def close(self) -> None:
        """Close what is open."""
        for fd in self._open.values():
            os.close(fd)
        self._open.clear()


class FolderRows:
    """The rows of a table in local files; implements `runtime.Rows`. Every row is at hand."""

    def __init__(self, kernels: WasmtimeKernels, table: HostTable, folder: Path, stats: dict[str, int]) -> None:
        """stats: the folder's, counted up here."""
        self._kernels = kernels
        self._table = table
        self._files = _Open(folder)
        self._stats = stats

    async def fetch(self, ids: Sequence[int]) -> None:
        """Check the rows. Raises HostError for one that the table does not have."""
        for row in ids:
            self._check(row)

    def stage(self, ids: Sequence[int], values: int, scales: int) -> None:
        """Read the rows, in order, into kernel memory at values + i * row_bytes and scales + i * scale_bytes."""
        for i, row in enumerate(ids):
            value, scale = self.row(row)
            self._kernels.write(values + i * self._table.row_bytes, value)
            if scale:
                self._kernels.write(scales + i * self._table.scale_bytes, scale)

    def row(self, row: int) -> tuple[bytes, bytes]:
        """The value and scale bytes of one row. Raises HostError for a row that the table does not have."""
        self._check(row)
        value = self._read(self._table.values, row, self._table.row_bytes)
        scale = self._read(self._table.scales, row, self._table.scale_bytes) if self._table.scales else b""
        self._stats["rows"] += 1
        return value, scale

    def _check(self, row: int) -> None:
        if not 0 <= row < self._table.rows:
            raise HostError(f"{self._table.name}: no row {row}, it has {self._table.rows}")

    def _read(self, parts: tuple[tuple[int, TensorRef], ...], row: int, nbytes: int) -> bytes:
        first, ref = parts[bisect_right(parts, row, key=lambda part: part[0]) - 1]
        data = bytearray(nbytes)
        self._files.read_into(ref.file, ref.offset + (row - first) * nbytes, memoryview(data))
        self._stats["requests"] += 1
        self._stats["bytes"] += nbytes
        return bytes(data)

    def __del__(self) -> None:
        self._files.close()
