"""Tables in memory and on the host give the same rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import oxinfer_web as ox
import pytest
from oxinfer_web.checkpoint import INDEX, Checkpoint
from oxinfer_web.generate import finish as result_of
from oxinfer_web.native.files import FolderFiles
from oxinfer_web.native.kernels import WasmtimeKernels
from oxinfer_web.quant import dequantize_q4, dequantize_q8, from_bf16, quantize_q4, quantize_q8, to_bf16
from oxinfer_web.table import Table, find_table
from support import safetensors_bytes

ROWS, COLS = 11, 96
W = np.random.default_rng(0).normal(size=(ROWS, COLS)).astype(np.float32)


def stored(quant: str) -> tuple[dict[str, tuple[str, np.ndarray]], np.ndarray]:
    """A table's tensors, and the exact values they stand for."""
    if quant == "bf16":
        bits = to_bf16(W)
        return {"t": ("BF16", bits)}, from_bf16(bits)
    if quant == "q8":
        q, s = quantize_q8(W)
        return {"t.q8": ("I8", q), "t.q8s": ("F32", s)}, dequantize_q8(q, s)
    p, s4 = quantize_q4(W)
    return {"t.q4": ("U8", p), "t.q4s": ("F16", s4)}, dequantize_q4(p, s4)


def write(folder: Path, quant: str, split: list[int], separate: bool) -> np.ndarray:
    """A checkpoint of one table, its rows split at `split`, values and scales in one shard or in different ones."""
    import json

    tensors, exact = stored(quant)
    shards: dict[str, dict[str, tuple[str, list[int], bytes]]] = {}
    for i, (name, (dtype, data)) in enumerate(tensors.items()):
        for j, (a, b) in enumerate(zip([0, *split], [*split, ROWS], strict=True)):
            file = f"{i if separate else 0}-{j}.safetensors"
            part = data[a:b]
            full = f"{name}@{a}" if split else name
            shards.setdefault(file, {})[full] = (dtype, list(part.shape), part.tobytes())
    for file, content in shards.items():
        (folder / file).write_bytes(safetensors_bytes(content, {"oxinfer_quant": quant}))
    weight_map = {name: file for file, content in shards.items() for name in content}
    (folder / INDEX).write_text(json.dumps({"weight_map": weight_map}))
    return exact


@pytest.mark.parametrize("quant", ["bf16", "q8", "q4"])
@pytest.mark.parametrize("split", [[], [4], [1, 2, 10]])
@pytest.mark.parametrize("separate", [False, True])
def test_rows(tmp_path: Path, quant: str, split: list[int], separate: bool) -> None:
    exact = write(tmp_path, quant, split, separate)
    ref = find_table(Checkpoint.open(tmp_path), "t", ROWS, COLS)
    resident = Table.load(ref, tmp_path)
    assert type(resident) is {"bf16": Table.Bf16, "q8": Table.Q8, "q4": Table.Q4}[quant]
    files = FolderFiles(tmp_path, WasmtimeKernels())
    host = Table.Host(ref, files.open_rows(ref.on_host()))
    result_of(host.rows.fetch(range(ROWS)))
    for r in range(ROWS):
        assert (resident.row(r) == exact[r]).all() and (host.row(r) == exact[r]).all()
    assert resident.bytes == ref.bytes and host.bytes == 0
    for table in (resident, host):
        with pytest.raises(IndexError, match="no row 11"):
            table.row(ROWS)


def test_an_unknown_quantization_is_named(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(
        safetensors_bytes({"t": ("U8", [1, 1], b"x")}, {"oxinfer_quant": "q3"})
    )
    with pytest.raises(
        ox.CheckpointError, match=r"model\.safetensors: quantization 'q3' .* supported are bf16, q8, q4"
    ):
        find_table(Checkpoint.open(tmp_path), "t", 1, 32)
