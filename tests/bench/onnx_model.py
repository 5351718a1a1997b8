"""An ONNX file with one MatMulNBits node, written field by field: it needs no package for that."""

from __future__ import annotations

from pathlib import Path

import numpy as np

FLOAT, UINT8 = 1, 2
INT_ATTRIBUTE = 2
BLOCK = 32


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def _field(number: int, value: int | str | bytes) -> bytes:
    """One protobuf field: a number, or a text or message with its length."""
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    data = value.encode() if isinstance(value, str) else value
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _tensor(name: str, array: np.ndarray, kind: int) -> bytes:
    dims = b"".join(_field(1, n) for n in array.shape)
    return dims + _field(2, kind) + _field(8, name) + _field(9, array.tobytes())


def _value(name: str, *dims: int | str) -> bytes:
    """An f32 input or output; a dimension is a number or has a name."""
    shape = b"".join(_field(1, _field(1 if isinstance(n, int) else 2, n)) for n in dims)
    return _field(1, name) + _field(2, _field(1, _field(1, FLOAT) + _field(2, shape)))


def write_matmul_q4(path: Path, columns: int, rows: int) -> None:
    """y f32 [t, rows] = x f32 [t, columns] times a random Q4 matrix; int8 activations, as ours ("accuracy level 4")."""
    rng = np.random.default_rng(0)
    w = rng.integers(0, 256, (rows, columns // BLOCK, BLOCK // 2), np.uint8)
    s = (rng.random(rows * columns // BLOCK) * 0.01).astype(np.float32)
    attributes = {"K": columns, "N": rows, "bits": 4, "block_size": BLOCK, "accuracy_level": 4}
    node = b"".join(_field(1, name) for name in "xws") + _field(2, "y") + _field(4, "MatMulNBits")
    node += b"".join(_field(5, _field(1, k) + _field(3, v) + _field(20, INT_ATTRIBUTE)) for k, v in attributes.items())
    node += _field(7, "com.microsoft")
    graph = _field(1, node) + _field(2, "graph") + _field(5, _tensor("w", w, UINT8)) + _field(5, _tensor("s", s, FLOAT))
    graph += _field(11, _value("x", "t", columns)) + _field(12, _value("y", "t", rows))
    opsets = _field(8, _field(1, "") + _field(2, 21)) + _field(8, _field(1, "com.microsoft") + _field(2, 1))
    path.write_bytes(_field(1, 10) + _field(7, graph) + opsets)
