"""Wasmtime kernels and a folder's files: memory, loading, host rows, and what it says when something is wrong."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from oxinfer_web.checkpoint import TensorRef
from oxinfer_web.enums import Quant
from oxinfer_web.errors import CheckpointError, HostError, KernelError
from oxinfer_web.generate import finish as result_of
from oxinfer_web.native.files import FolderFiles
from oxinfer_web.native.kernels import WasmtimeKernels, find_kernels
from oxinfer_web.program.records import BARRIER, encode, padded_rows
from oxinfer_web.runtime import HostTable, LoadItem, Segment


@pytest.fixture
def kernels() -> WasmtimeKernels:
    return WasmtimeKernels("simd")


@pytest.fixture
def files(tmp_path: Path, kernels: WasmtimeKernels) -> FolderFiles:
    """Of a folder with one file, of the bytes 0 to 199."""
    (tmp_path / "a.safetensors").write_bytes(bytes(range(200)))
    return FolderFiles(tmp_path, kernels)


def test_memory(kernels: WasmtimeKernels) -> None:
    """Aligned, zeroed, apart from each other, and kept when memory grows."""
    small, aligned = kernels.alloc(3), kernels.alloc(8, align=4096)
    assert aligned % 4096 == 0 and aligned >= small + 3
    kernels.write(small, b"abc")
    large = kernels.alloc(100 << 20)
    assert kernels.read(small, 3) == b"abc"
    assert kernels.read(large + (100 << 20) - 8, 8) == bytes(8)
    kernels.write(large, np.arange(4, dtype=np.uint32).data)
    kernels.copy(large + 4, large, 12)
    assert np.frombuffer(kernels.read(large, 16), np.uint32).tolist() == [0, 0, 1, 2]


def test_memory_ends(kernels: WasmtimeKernels) -> None:
    high = kernels.alloc(3 << 30)
    kernels.write(high + (3 << 30) - 4, b"last")  # beyond 2 GiB
    kernels.copy(high, high + (3 << 30) - 4, 4)
    assert kernels.read(high, 4) == b"last"
    with pytest.raises(KernelError, match="left in kernel memory"):
        kernels.alloc(1 << 30)
    with pytest.raises(KernelError, match="outside kernel memory"):
        kernels.read(0xFFFFFFF0, 32)


@pytest.mark.parametrize("threads", [1, 2])
def test_load(tmp_path: Path, threads: int) -> None:
    """Segments from two files, then the finishing record."""
    values = np.random.default_rng(0).integers(0, 1 << 16, (5, 3), dtype=np.uint16)
    (tmp_path / "one").write_bytes(b"junk" + values[:2].tobytes())
    (tmp_path / "two").write_bytes(values[2:].tobytes())
    kernels = WasmtimeKernels("relaxed", threads)
    addr = kernels.alloc(padded_rows(5) * 6)
    record = encode("REPACK", BARRIER, values=addr, rows=5, cols=3, quant=Quant.BF16)
    finish = kernels.alloc(len(record))
    kernels.write(finish, record)
    item = LoadItem("w", (Segment("one", 4, 12, addr), Segment("two", 0, 18, addr + 12)), finish)
    seen: list[tuple[int, int]] = []
    result_of(FolderFiles(tmp_path, kernels).load([item], lambda done, total: seen.append((done, total))))
    assert seen == [(12, 30), (30, 30)]
    repacked = np.frombuffer(kernels.read(addr, 96), np.uint16).reshape(3, 16)
    rows = repacked.T
    assert np.array_equal(rows[:5], values) and not rows[5:].any()


def test_load_names_the_file(kernels: WasmtimeKernels, files: FolderFiles) -> None:
    addr = kernels.alloc(300)
    for segment, message in (
        (Segment("a.safetensors", 150, 100, addr), "a.safetensors: bytes up to 250 are needed, it ends at 200"),
        (Segment("b.safetensors", 0, 1, addr), "b.safetensors: cannot be opened"),
    ):
        with pytest.raises(CheckpointError, match=message):
            result_of(files.load([LoadItem("t", (segment,))]))


def test_rows(kernels: WasmtimeKernels, files: FolderFiles) -> None:
    """A table split by rows, its values and scales in different places."""

    def part(offset: int, rows: int, width: int) -> TensorRef:
        return TensorRef("t", "a.safetensors", offset, rows * width, "U8", (rows, width))

    values, scales = ((0, part(0, 3, 16)), (3, part(100, 2, 16))), ((0, part(60, 5, 2)),)
    rows = files.open_rows(HostTable("t", 5, 16, 2, values, scales))
    result_of(rows.fetch([4, 0]))
    assert rows.row(2) == (bytes(range(32, 48)), bytes([64, 65]))
    at, scale_at = kernels.alloc(48), kernels.alloc(6)
    rows.stage([4, 0, 4], at, scale_at)
    assert kernels.read(at, 48) == bytes([*range(116, 132), *range(16), *range(116, 132)])
    assert kernels.read(scale_at, 6) == bytes([68, 69, 60, 61, 68, 69])
    assert files.stats() == {"requests": 8, "bytes": 4 * 18, "rows": 4}
    with pytest.raises(HostError, match="no row 5"):
        result_of(rows.fetch([5]))


def test_rows_without_scales(files: FolderFiles) -> None:
    ref = TensorRef("t", "a.safetensors", 10, 40, "BF16", (5, 4))
    rows = files.open_rows(HostTable("t", 5, 8, 0, ((0, ref),), ()))
    assert rows.row(1) == (bytes(range(18, 26)), b"")


def test_find_kernels(tmp_path: Path) -> None:
    assert find_kernels("relaxed").name == "relaxed-single.wasm"
    with pytest.raises(KernelError, match=r"run \./build\.sh kernels"):
        find_kernels("relaxed", tmp_path)
    with pytest.raises(KernelError, match="no kernel build is called 'fast'"):
        find_kernels("fast")
    with pytest.raises(KernelError, match="17 threads"):
        WasmtimeKernels("simd", threads=17)


def test_an_unknown_op_stops_the_kernels(kernels: WasmtimeKernels) -> None:
    with pytest.raises(KernelError, match="the kernels stopped in run"):
        kernels.run(kernels.alloc(128), 0, 1, kernels.alloc(64))
