"""WasmtimeRuntime: memory, loading from a folder, host rows, and what it says when something is wrong."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from oxinfer_web.checkpoint import TensorRef
from oxinfer_web.errors import CheckpointError, HostError, KernelError
from oxinfer_web.generate import finish as result_of
from oxinfer_web.native.kernels import WasmtimeRuntime, find_kernels
from oxinfer_web.program.records import BARRIER, Quant, encode, padded_rows
from oxinfer_web.runtime import HostTable, LoadItem, Segment


@pytest.fixture
def runtime(tmp_path: Path) -> WasmtimeRuntime:
    """On a folder with one file, of the bytes 0 to 199."""
    (tmp_path / "a.safetensors").write_bytes(bytes(range(200)))
    return WasmtimeRuntime(tmp_path, "simd")


def test_memory(runtime: WasmtimeRuntime) -> None:
    """Aligned, zeroed, apart from each other, and kept when memory grows."""
    small, aligned = runtime.alloc(3), runtime.alloc(8, align=4096)
    assert aligned % 4096 == 0 and aligned >= small + 3
    runtime.write(small, b"abc")
    large = runtime.alloc(100 << 20)
    assert runtime.read(small, 3) == b"abc"
    assert runtime.read(large + (100 << 20) - 8, 8) == bytes(8)
    runtime.write(large, np.arange(4, dtype=np.uint32).data)
    runtime.copy(large + 4, large, 12)
    assert np.frombuffer(runtime.read(large, 16), np.uint32).tolist() == [0, 0, 1, 2]


def test_memory_ends(runtime: WasmtimeRuntime) -> None:
    high = runtime.alloc(3 << 30)
    runtime.write(high + (3 << 30) - 4, b"last")  # beyond 2 GiB
    runtime.copy(high, high + (3 << 30) - 4, 4)
    assert runtime.read(high, 4) == b"last"
    with pytest.raises(KernelError, match="left in kernel memory"):
        runtime.alloc(1 << 30)
    with pytest.raises(KernelError, match="outside kernel memory"):
        runtime.read(0xFFFFFFF0, 32)


@pytest.mark.parametrize("threads", [1, 2])
def test_load(tmp_path: Path, threads: int) -> None:
    """Segments from two files, then the finishing record."""
    values = np.random.default_rng(0).integers(0, 1 << 16, (5, 3), dtype=np.uint16)
    (tmp_path / "one").write_bytes(b"junk" + values[:2].tobytes())
    (tmp_path / "two").write_bytes(values[2:].tobytes())
    runtime = WasmtimeRuntime(tmp_path, "relaxed", threads)
    addr = runtime.alloc(padded_rows(5) * 6)
    record = encode("REPACK", BARRIER, values=addr, rows=5, cols=3, quant=Quant.BF16)
    finish = runtime.alloc(len(record))
    runtime.write(finish, record)
    item = LoadItem("w", (Segment("one", 4, 12, addr), Segment("two", 0, 18, addr + 12)), finish)
    seen: list[tuple[int, int]] = []
    result_of(runtime.load([item], lambda done, total: seen.append((done, total))))
    assert seen == [(12, 30), (30, 30)]
    repacked = np.frombuffer(runtime.read(addr, 96), np.uint16).reshape(3, 16)
    rows = repacked.T
    assert np.array_equal(rows[:5], values) and not rows[5:].any()


def test_load_names_the_file(runtime: WasmtimeRuntime) -> None:
    addr = runtime.alloc(300)
    for segment, message in (
        (Segment("a.safetensors", 150, 100, addr), "a.safetensors: bytes up to 250 are needed, it ends at 200"),
        (Segment("b.safetensors", 0, 1, addr), "b.safetensors: cannot be opened"),
    ):
        with pytest.raises(CheckpointError, match=message):
            result_of(runtime.load([LoadItem("t", (segment,))]))


def test_rows(runtime: WasmtimeRuntime) -> None:
    """A table split by rows, its values and scales in different places."""

    def part(offset: int, rows: int, width: int) -> TensorRef:
        return TensorRef("t", "a.safetensors", offset, rows * width, "U8", (rows, width))

    values, scales = ((0, part(0, 3, 16)), (3, part(100, 2, 16))), ((0, part(60, 5, 2)),)
    rows = runtime.open_rows(HostTable("t", 5, 16, 2, values, scales))
    result_of(rows.fetch([4, 0]))
    assert rows.row(2) == (bytes(range(32, 48)), bytes([64, 65]))
    at, scale_at = runtime.alloc(48), runtime.alloc(6)
    rows.stage([4, 0, 4], at, scale_at)
    assert runtime.read(at, 48) == bytes([*range(116, 132), *range(16), *range(116, 132)])
    assert runtime.read(scale_at, 6) == bytes([68, 69, 60, 61, 68, 69])
    assert runtime.host_stats() == {"requests": 8, "bytes": 4 * 18, "rows": 4}
    with pytest.raises(HostError, match="no row 5"):
        result_of(rows.fetch([5]))


def test_rows_without_scales(runtime: WasmtimeRuntime) -> None:
    ref = TensorRef("t", "a.safetensors", 10, 40, "BF16", (5, 4))
    rows = runtime.open_rows(HostTable("t", 5, 8, 0, ((0, ref),), ()))
    assert rows.row(1) == (bytes(range(18, 26)), b"")


def test_find_kernels(tmp_path: Path) -> None:
    assert find_kernels("relaxed").name == "relaxed-single.wasm"
    with pytest.raises(KernelError, match=r"run \./build\.sh kernels"):
        find_kernels("relaxed", tmp_path)
    with pytest.raises(KernelError, match="no kernel build is called 'fast'"):
        find_kernels("fast")
    with pytest.raises(KernelError, match="17 threads"):
        WasmtimeRuntime(tmp_path, "simd", threads=17)


def test_an_unknown_op_stops_the_kernels(runtime: WasmtimeRuntime) -> None:
    with pytest.raises(KernelError, match="the kernels stopped in run"):
        runtime.run(runtime.alloc(128), 0, 1, runtime.alloc(64))
