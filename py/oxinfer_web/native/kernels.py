"""The kernels under CPython, run by wasmtime, on a checkpoint in a local folder.

wasmtime's Python binding cannot give shared memory to a module, so that there is one real thread. With `threads` above
1 it plays the parts of all of them in turn, record by record, which gives what real threads give: records between two
barriers are split so that no thread reads what another writes.
"""

from __future__ import annotations

import ctypes
import os
import struct
import time
from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..checkpoint import TensorRef
from ..errors import CheckpointError, HostError, KernelError
from ..program.records import MAX_THREADS, State
from ..runtime import HostTable, LoadItem, OneToken, Progress, Rows

KERNELS = ("relaxed", "simd")
WASM_PAGE = 65536
MAX_PAGES = 65536
GROW_PAGES = 256
"""Kernel memory grows by at least this many WASM pages (16 MiB)."""


def find_kernels(kernel: str, folder: str | Path | None = None) -> Path:
    """The file of a kernel build for one thread.

    It is looked for in `folder` if given, else in the package, else in the `build/kernels` of a checkout. Raises
    KernelError if `kernel` is not the name of a build, or if it has not been built.
    """
    if kernel not in KERNELS:
        raise KernelError(f"no kernel build is called {kernel!r}; there are {' and '.join(KERNELS)}")
    name = f"{kernel}-single.wasm"
    package = Path(__file__).resolve().parents[1]
    # A checkout's own build comes first: the copy that the wheel is made from may be older.
    checkout = [package.parents[1] / "build" / "kernels"] if package.parent.name == "py" else []
    folders = [Path(folder)] if folder else [*checkout, package / "kernels"]
    for candidate in folders:
        if (candidate / name).is_file():
            return candidate / name
    where = folders[0] if folder else "the package or a checkout's build/kernels"
    raise KernelError(f"{name} is not in {where}; run ./build.sh kernels")


class WasmtimeRuntime:
    """Kernel memory and kernels in this process; implements the protocol `runtime.Runtime`."""

    def __init__(
        self,
        folder: str | Path,
        kernel: str = "relaxed",
        threads: int = 1,
        kernels_dir: str | Path | None = None,
        deterministic: bool = False,
    ) -> None:
        """folder: the checkpoint's; kernel: "relaxed" or "simd"; threads: 1 to MAX_THREADS, simulated above 1.

        deterministic: relaxed instructions do what WebAssembly's deterministic profile says, whatever the machine; the
        kernels then take another path to the same bits.
        Raises KernelError if wasmtime is not installed, the build is missing, or threads is out of range.
        """
        if not 1 <= threads <= MAX_THREADS:
            raise KernelError(f"{threads} threads: there can be 1 to {MAX_THREADS}")
        self.kernel = kernel
        self.threads = threads
        self._folder = Path(folder)
        self._stats = {"requests": 0, "bytes": 0, "rows": 0}
        self._seconds = 0.0
        path = find_kernels(kernel, kernels_dir)
        try:
            import wasmtime
        except ImportError:
            raise KernelError("wasmtime is not installed; pip install 'oxinfer-web[native]'") from None
        config = wasmtime.Config()
        config.wasm_relaxed_simd_deterministic = deterministic
        config.cranelift_opt_level = "speed"
        config.wasm_simd = True
        config.wasm_relaxed_simd = True
        self._store = wasmtime.Store(wasmtime.Engine(config))
        module = wasmtime.Module.from_file(self._store.engine, str(path))
        (memory_import,) = module.imports
        assert isinstance(memory_import.type, wasmtime.MemoryType)
        self._memory = wasmtime.Memory(self._store, memory_import.type)
        exports = wasmtime.Instance(self._store, module, [self._memory]).exports(self._store)
        self._trap: type[Exception] = wasmtime.Trap
        self._wasmtime_error: type[Exception] = wasmtime.WasmtimeError
        self._exports: dict[str, Any] = {name: exports[name] for name in ("run", "phase", "copy")}
        heap_base = exports["__heap_base"]
        assert isinstance(heap_base, wasmtime.Global)
        self._top = int(heap_base.value(self._store))

    # --- memory

    def alloc(self, nbytes: int, align: int = 64) -> int:
        """Address of nbytes of zeroed memory for the runtime's life. Raises KernelError when 4 GiB are used up."""
        addr = (self._top + align - 1) // align * align
        pages = self._memory.size(self._store)
        need = -(-(addr + nbytes) // WASM_PAGE) - pages
        if need > 0:
            step = min(max(need, GROW_PAGES), MAX_PAGES - pages)
            try:
                if step < need:
                    raise self._wasmtime_error("the limit of WebAssembly")
                self._memory.grow(self._store, step)
            except self._wasmtime_error:
                raise KernelError(
                    f"no {nbytes} bytes left in kernel memory ({addr >> 20} MiB of 4096 in use); "
                    "take a shorter context, a smaller model or a smaller quantization"
                ) from None
        self._top = addr + nbytes
        return addr

    def _view(self, addr: int, nbytes: int) -> memoryview:
        """Kernel memory as a writable view; it is valid until the memory grows. Raises KernelError outside of it."""
        if addr < 0 or nbytes < 0 or addr + nbytes > self._memory.data_len(self._store):
            raise KernelError(f"bytes {addr} to {addr + nbytes} are outside kernel memory")
        base = ctypes.addressof(self._memory.data_ptr(self._store).contents)
        return memoryview((ctypes.c_ubyte * nbytes).from_address(base + addr)).cast("B")

    def write(self, addr: int, data: bytes | bytearray | memoryview) -> None:
        """Copy data into kernel memory. Raises KernelError outside of it."""
        data = memoryview(data).cast("B")
        self._view(addr, data.nbytes)[:] = data

    def read(self, addr: int, nbytes: int) -> bytes:
        """A copy of kernel memory. Raises KernelError outside of it."""
        return bytes(self._view(addr, nbytes))

    def write_words(self, addr: int, a: int, b: int) -> None:
        """Write two u32 at addr."""
        self.write(addr, struct.pack("<II", a, b))

    def read_word(self, addr: int) -> int:
        """The u32 at addr."""
        return int.from_bytes(self.read(addr, 4), "little")

    def copy(self, dst: int, src: int, nbytes: int) -> None:
        """memmove inside kernel memory. Raises KernelError outside of it."""
        self._call("copy", dst, src, nbytes)

    # --- programs

    def run(self, ops: int, first: int, last: int, state: int) -> None:
        """Run records [first, last) of the program at address `ops`, on all threads. Raises KernelError for a trap."""
        start = time.perf_counter()
        if self.threads == 1:
            self._call("run", ops, first, last, state, 0, 1)
        else:
            for i in range(first, last):
                for tid in range(self.threads):
                    self._call("phase", ops, i, state, tid, self.threads)
        self._seconds += time.perf_counter() - start

    def one_token(self, tables: Sequence[tuple[Rows, int, int]], ops: int, last: int, state: int) -> OneToken:
        """See Runtime; rows are always at hand here."""

        def step(token: int, position: int) -> bool:
            for rows, values, scales in tables:
                rows.stage((token,), values, scales)
            self.write_words(state, 1, position)
            self.run(ops, 0, last, state)
            return True

        return step

    def kernel_seconds(self) -> float:
        """Seconds spent in the kernels since the start."""
        return self._seconds

    def _call(self, name: str, *args: int) -> None:
        try:
            # wasmtime takes i32 as signed
            self._exports[name](self._store, *(ctypes.c_int32(arg).value for arg in args))
        except (self._trap, self._wasmtime_error) as e:
            raise KernelError(f"the kernels stopped in {name}: {str(e).splitlines()[-1].strip()}") from e

    # --- the checkpoint

    async def load(self, items: Sequence[LoadItem], progress: Progress | None = None) -> None:
        """Read tensors into kernel memory and run their finishing records. Raises CheckpointError, naming the file."""
        total = sum(s.nbytes for item in items for s in item.segments)
        state = self.alloc(State.BYTES)
        done = 0
        files = _Files(self._folder)
        try:
            for item in items:
                for s in item.segments:
                    files.read_into(s.file, s.offset, self._view(s.addr, s.nbytes))
                    done += s.nbytes
                    if progress:
                        progress(done, total)
                if item.finish:
                    self.run(item.finish, 0, 1, state)
        finally:
            files.close()

    def open_rows(self, table: HostTable) -> FolderRows:
        """The rows of a table in the same folder."""
        return FolderRows(self, table, self._folder, self._stats)

    def host_stats(self) -> dict[str, int]:
        """Since the start, for host rows: requests (reads of a file), bytes, rows."""
        return dict(self._stats)


class _Files:
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

    def __init__(self, runtime: WasmtimeRuntime, table: HostTable, folder: Path, stats: dict[str, int]) -> None:
        """stats: the runtime's host_stats, counted up here."""
        self._runtime = runtime
        self._table = table
        self._files = _Files(folder)
        self._stats = stats

    async def fetch(self, ids: Sequence[int]) -> None:
        """Check the rows. Raises HostError for one that the table does not have."""
        for row in ids:
            self._check(row)

    def stage(self, ids: Sequence[int], values: int, scales: int) -> None:
        """Read the rows, in order, into kernel memory at values + i * row_bytes and scales + i * scale_bytes."""
        for i, row in enumerate(ids):
            value, scale = self.row(row)
            self._runtime.write(values + i * self._table.row_bytes, value)
            if scale:
                self._runtime.write(scales + i * self._table.scale_bytes, scale)

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
