"""The kernels under CPython, run by wasmtime.

wasmtime's Python binding cannot give shared memory to a module, so that there is one real thread. With `threads` above
1 it plays the parts of all of them in turn, record by record, which gives what real threads give: records between two
barriers are split so that no thread reads what another writes.
"""

from __future__ import annotations

import ctypes
import struct
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..errors import KernelError
from ..program.records import MAX_THREADS
from ..runtime import OneToken, Rows

KERNELS = ("relaxed", "simd")
WASM_PAGE = 65536
MAXIMUM = 65536
GROW = 256
"""The most WASM pages that kernel memory can have, and how many (16 MiB) it grows by at least."""


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


class WasmtimeKernels:
    """Kernel memory and kernels in this process; implements `runtime.Kernels`."""

    def __init__(
        self,
        build: str = "relaxed",
        threads: int = 1,
        folder: str | Path | None = None,
        deterministic: bool = False,
    ) -> None:
        """build: "relaxed" or "simd"; threads: 1 to MAX_THREADS, simulated above 1; folder: as for `find_kernels`.

        deterministic: relaxed instructions do what WebAssembly's deterministic profile says, whatever the machine; the
        kernels then take another path to the same bits.
        Raises KernelError if wasmtime is not installed, the build is missing, or threads is out of range.
        """
        if not 1 <= threads <= MAX_THREADS:
            raise KernelError(f"{threads} threads: there can be 1 to {MAX_THREADS}")
        self.build = build
        self.threads = threads
        self._seconds = 0.0
        path = find_kernels(build, folder)
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
        """Address of nbytes of zeroed memory for the kernels' life. Raises KernelError when 4 GiB are used up."""
        addr = (self._top + align - 1) // align * align
        size = self._memory.size(self._store)
        need = -(-(addr + nbytes) // WASM_PAGE) - size
        if need > 0:
            step = min(max(need, GROW), MAXIMUM - size)
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

    def view(self, addr: int, nbytes: int) -> memoryview:
        """Kernel memory as a writable view; it is valid until the memory grows. Raises KernelError outside of it."""
        if addr < 0 or nbytes < 0 or addr + nbytes > self._memory.data_len(self._store):
            raise KernelError(f"bytes {addr} to {addr + nbytes} are outside kernel memory")
        base = ctypes.addressof(self._memory.data_ptr(self._store).contents)
        return memoryview((ctypes.c_ubyte * nbytes).from_address(base + addr)).cast("B")

    def write(self, addr: int, data: bytes | bytearray | memoryview) -> None:
        """Copy data into kernel memory. Raises KernelError outside of it."""
        data = memoryview(data).cast("B")
        self.view(addr, data.nbytes)[:] = data

    def read(self, addr: int, nbytes: int) -> bytes:
        """A copy of kernel memory. Raises KernelError outside of it."""
        return bytes(self.view(addr, nbytes))

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
        """See Kernels; rows are always at hand here."""

        def step(token: int, position: int) -> bool:
            for rows, values, scales in tables:
                rows.stage((token,), values, scales)
            self.write_words(state, 1, position)
            self.run(ops, 0, last, state)
            return True

        return step

    def seconds(self) -> float:
        """Seconds spent in the kernels since the start."""
        return self._seconds

    def _call(self, name: str, *args: int) -> None:
        try:
            # wasmtime takes i32 as signed
            self._exports[name](self._store, *(ctypes.c_int32(arg).value for arg in args))
        except (self._trap, self._wasmtime_error) as e:
            raise KernelError(f"the kernels stopped in {name}: {str(e).splitlines()[-1].strip()}") from e
