"""Safetensors headers and indexes, good and hostile."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from oxinfer_web import Checkpoint, CheckpointError
from oxinfer_web.checkpoint import INDEX, header_length, parse_header, parse_index
from support import safetensors_bytes

F32 = st.lists(st.integers(0, 5), min_size=0, max_size=3)
NAMES = st.text(st.characters(codec="utf-8", exclude_characters="@"), min_size=1, max_size=20)


@given(st.dictionaries(NAMES.filter(lambda n: n != "__metadata__"), F32, max_size=5))
def test_what_is_written_is_read(shapes: dict[str, list[int]]) -> None:
    def size(shape: list[int]) -> int:
        n = 4
        for s in shape:
            n *= s
        return n

    data = safetensors_bytes({name: ("F32", shape, bytes(size(shape))) for name, shape in shapes.items()})
    n = header_length(data[:8], "f", len(data))
    shard = parse_header(data[8 : 8 + n], "f", len(data))
    assert {name: list(ref.shape) for name, ref in shard.tensors.items()} == shapes
    for name, ref in shard.tensors.items():
        assert ref.nbytes == size(shapes[name]) and ref.offset + ref.nbytes <= len(data)


@given(st.binary(max_size=200), st.integers(0, 300))
def test_any_bytes_are_read_or_refused(header: bytes, size: int) -> None:
    try:
        parse_header(header, "f", size)
    except CheckpointError as e:
        assert str(e).startswith("f: ")


@given(st.recursive(st.none() | st.integers() | st.text(), lambda s: st.lists(s) | st.dictionaries(st.text(), s)))
def test_any_json_is_an_index_or_refused(value: object) -> None:
    try:
        parse_index(json.dumps(value))
    except CheckpointError as e:
        assert INDEX in str(e)


def entry(**change: object) -> bytes:
    return json.dumps({"t": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]} | change}).encode()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"dtype": "F4"}, "unknown dtype 'F4'"),
        ({"shape": [2, -3]}, "not a list of sizes"),
        ({"shape": "2x3"}, "not a list of sizes"),
        ({"shape": [2, True]}, "not a list of sizes"),
        ({"data_offsets": [0]}, "data_offsets"),
        ({"data_offsets": [24, 0]}, "data_offsets"),
        ({"data_offsets": [0, 20]}, "takes 24 bytes, the header gives it 20"),
        ({"shape": [1 << 40, 1 << 40], "data_offsets": [0, 24]}, "takes"),
        ({"data_offsets": [1000, 1024]}, "cut short"),
    ],
)
def test_a_tensor_that_cannot_be_is_named(change: dict[str, object], says: str) -> None:
    header = entry(**change)
    with pytest.raises(CheckpointError, match=says) as e:
        parse_header(header, "model-1.safetensors", 8 + len(header) + 24)
    assert str(e.value).startswith("model-1.safetensors: tensor t")


def test_overlapping_tensors() -> None:
    one = {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}
    header = json.dumps({"a": one, "b": one | {"data_offsets": [3, 7]}}).encode()
    with pytest.raises(CheckpointError, match="overlaps"):
        parse_header(header, "f", 8 + len(header) + 7)


@pytest.mark.parametrize(("prefix", "size"), [(b"", 0), (b"1234", 4), (struct.pack("<Q", 1 << 60), 100)])
def test_not_safetensors(prefix: bytes, size: int) -> None:
    with pytest.raises(CheckpointError, match="f: "):
        header_length(prefix, "f", size)


def write(folder: Path, **shards: dict[str, tuple[str, list[int], bytes]]) -> None:
    weight_map, sizes = {}, {}
    for file, tensors in shards.items():
        data = safetensors_bytes(tensors)
        (folder / f"{file}.safetensors").write_bytes(data)
        sizes[f"{file}.safetensors"] = {"size": len(data), "sha256": ""}
        weight_map |= dict.fromkeys(tensors, f"{file}.safetensors")
    (folder / INDEX).write_text(json.dumps({"metadata": {"shards": sizes}, "weight_map": weight_map}))


def row(n: int, cols: int = 2) -> tuple[str, list[int], bytes]:
    return "U8", [n, cols], bytes(n * cols)


def test_rows_split_over_shards(tmp_path: Path) -> None:
    write(tmp_path, a={"t@4": row(3), "u": row(1)}, b={"t@0": row(4)})
    ckpt = Checkpoint.open(tmp_path)
    parts = ckpt.parts("t", "U8", (7, 2))
    assert [(first, ref.file) for first, ref in parts] == [(0, "b.safetensors"), (4, "a.safetensors")]
    assert "t" in ckpt and "u" in ckpt and "v" not in ckpt


@pytest.mark.parametrize(
    ("dtype", "shape", "says"),
    [
        ("I8", (7, 2), "is U8, the model needs I8"),
        ("U8", (7, 3), r"the model needs \[7, 3\]"),
        ("U8", (9, 2), "has 7 rows, the model needs 9"),
    ],
)
def test_a_wrong_dtype_or_shape_is_named(tmp_path: Path, dtype: str, shape: tuple[int, ...], says: str) -> None:
    write(tmp_path, a={"t@4": row(3)}, b={"t@0": row(4)})
    with pytest.raises(CheckpointError, match=says) as e:
        Checkpoint.open(tmp_path).parts("t", dtype, shape)
    assert ".safetensors" in str(e.value)


def test_a_gap_between_pieces(tmp_path: Path) -> None:
    write(tmp_path, a={"t@5": row(3)}, b={"t@0": row(4)})
    with pytest.raises(CheckpointError, match="rows 4 to 5 are missing"):
        Checkpoint.open(tmp_path).parts("t", "U8", (8, 2))


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    write(tmp_path, a={"t": row(3)}, b={"u": row(4)})
    (tmp_path / "b.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"b\.safetensors: .*not in"):
        Checkpoint.open(tmp_path)


def test_a_short_shard_is_named(tmp_path: Path) -> None:
    write(tmp_path, a={"t": row(3)})
    data = (tmp_path / "a.safetensors").read_bytes()
    (tmp_path / "a.safetensors").write_bytes(data[:-1])
    with pytest.raises(CheckpointError, match=r"a\.safetensors: \d+ bytes, .* says \d+; download"):
        Checkpoint.open(tmp_path)


def test_an_index_that_promises_too_much(tmp_path: Path) -> None:
    write(tmp_path, a={"t": row(3)})
    index = json.loads((tmp_path / INDEX).read_text())
    index["weight_map"]["u"] = "a.safetensors"
    (tmp_path / INDEX).write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match="says tensor u is here"):
        Checkpoint.open(tmp_path)


@pytest.mark.parametrize("file", ["../up.safetensors", "sub/x.safetensors", ".hidden", "a\\b"])
def test_shards_stay_in_their_folder(file: str) -> None:
    with pytest.raises(CheckpointError, match="plain file name"):
        parse_index(json.dumps({"weight_map": {"t": file}}))


def test_an_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="is this a model's folder"):
        Checkpoint.open(tmp_path)
