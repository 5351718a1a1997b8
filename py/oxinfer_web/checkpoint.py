"""Safetensors checkpoints: the shard index, the headers, and where each tensor lies. No tensor data is read here.

The format is Hugging Face's: an 8-byte little-endian header length, a JSON header of `name -> {dtype, shape,
data_offsets}`, then the data. `model.safetensors.index.json` maps names to shards; ours adds each shard's size and
sha256 under `metadata.shards`, and the tokenizer's under `metadata.files`.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .errors import CheckpointError

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
MAX_HEADER = 100_000_000
"""Bytes; the limit of the safetensors format."""
DTYPE_BYTES = {"F64": 8, "I64": 8, "U64": 8, "F32": 4, "I32": 4, "U32": 4, "F16": 2, "BF16": 2, "I16": 2, "U16": 2}
DTYPE_BYTES |= {"I8": 1, "U8": 1, "BOOL": 1, "F8_E4M3": 1, "F8_E5M2": 1}


@dataclass(frozen=True)
class TensorRef:
    """Where a tensor is: `nbytes` bytes at `offset` of `file`, of a dtype as safetensors spells it."""

    name: str
    file: str
    offset: int
    nbytes: int
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Shard:
    """One safetensors file: its tensors and its `__metadata__`."""

    file: str
    size: int
    tensors: Mapping[str, TensorRef]
    metadata: Mapping[str, str] = field(default_factory=dict)


def header_length(prefix: bytes, file: str, size: int) -> int:
    """Bytes of the JSON header, from a file's first 8 bytes; raises CheckpointError if it cannot be one."""
    if len(prefix) < 8:
        raise CheckpointError(f"{file}: {size} bytes is too short for a safetensors file; download it again")
    (n,) = struct.unpack("<Q", prefix[:8])
    if n > MAX_HEADER or 8 + n > size:
        raise CheckpointError(
            f"{file}: its header claims {n} bytes of a file of {size}; it is cut short or not safetensors, "
            "download it again"
        )
    return int(n)


def parse_header(header: bytes, file: str, size: int) -> Shard:
    """Check and read one shard's JSON header.

    header: the JSON bytes alone; size: bytes of the whole file. Raises CheckpointError for anything that is not a
    well-formed header, for tensors that overlap, that lie outside the file, or whose bytes do not fit their shape.
    """
    try:
        entries = json.loads(header)
    except (ValueError, RecursionError) as e:
        raise CheckpointError(f"{file}: the safetensors header is not JSON ({e}); download the file again") from None
    if not isinstance(entries, dict):
        raise CheckpointError(f"{file}: the safetensors header is not a JSON object; download the file again")
    metadata = entries.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise CheckpointError(f"{file}: __metadata__ is not a map of strings; convert the model again")
    start = 8 + len(header)
    tensors = {name: _tensor(name, entry, file, start, size) for name, entry in entries.items()}
    at = start
    for ref in sorted(tensors.values(), key=lambda r: r.offset):
        if ref.offset < at:
            raise CheckpointError(f"{file}: tensor {ref.name} overlaps another; the file is damaged, convert it again")
        at = ref.offset + ref.nbytes
    return Shard(file, size, tensors, metadata)


def _tensor(name: str, entry: Any, file: str, start: int, size: int) -> TensorRef:
    where = f"{file}: tensor {name}"
    if not isinstance(entry, dict):
        raise CheckpointError(f"{where} has no description in the header; convert the model again")
    dtype: Any = entry.get("dtype")
    shape: Any = entry.get("shape")
    offsets: Any = entry.get("data_offsets")
    if dtype not in DTYPE_BYTES:
        raise CheckpointError(f"{where} has the unknown dtype {dtype!r}; convert the model again")
    if not _is_sizes(shape):
        raise CheckpointError(f"{where} has the shape {shape!r}, not a list of sizes; convert the model again")
    if not _is_sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise CheckpointError(f"{where} has the data_offsets {offsets!r}; convert the model again")
    nbytes = math.prod(shape) * DTYPE_BYTES[dtype]
    if offsets[1] - offsets[0] != nbytes:
        raise CheckpointError(
            f"{where}: {dtype} {list(shape)} takes {nbytes} bytes, the header gives it {offsets[1] - offsets[0]}; "
            "convert the model again"
        )
    if start + offsets[1] > size:
        raise CheckpointError(
            f"{where} ends at byte {start + offsets[1]}, the file at {size}; it is cut short, download it again"
        )
    return TensorRef(name, file, start + offsets[0], nbytes, dtype, tuple(shape))


def _is_sizes(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(v, int) and not isinstance(v, bool) and v >= 0 for v in value)


@dataclass(frozen=True)
class Index:
    """What `model.safetensors.index.json` says: each tensor's shard and, where given, each shard's size in bytes."""

    weight_map: Mapping[str, str]
    sizes: Mapping[str, int]

    @property
    def files(self) -> list[str]:
        """Every shard, in order of name."""
        return sorted(set(self.weight_map.values()))


def parse_index(text: str | bytes) -> Index:
    """Read an index. Raises CheckpointError if it is not one, or if a shard's name leaves the checkpoint's folder."""
    try:
        data = json.loads(text)
        weight_map = data["weight_map"]
        shards = (data.get("metadata") or {}).get("shards") or {}
        sizes = {str(file): int(entry["size"]) for file, entry in shards.items()}
        names = {str(k): str(v) for k, v in weight_map.items()}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as e:
        raise CheckpointError(f"{INDEX}: not a safetensors index ({e!r}); convert the model again") from None
    for file in set(names.values()):
        if "/" in file or "\\" in file or file.startswith("."):
            raise CheckpointError(f"{INDEX}: shard {file!r} is not a plain file name; convert the model again")
    return Index(names, sizes)


class Checkpoint:
    """Tensors by name over one or many shards.

    A tensor `T` split by rows is stored as `T@0`, `T@16384`, ...; `parts` gives the pieces in order, or the one tensor.
    """

    def __init__(self, shards: Mapping[str, Shard], index: Index | None = None) -> None:
        """shards by file name. Raises CheckpointError where the index and the shards contradict each other."""
        self.shards = dict(shards)
        self._tensors: dict[str, TensorRef] = {}
        for shard in self.shards.values():
            for name, ref in shard.tensors.items():
                if index is not None and index.weight_map.get(name) != shard.file:
                    continue
                if name in self._tensors:
                    raise CheckpointError(f"{shard.file}: tensor {name} is also in {self._tensors[name].file}")
                self._tensors[name] = ref
        if index is not None:
            for name, file in index.weight_map.items():
                if name not in self._tensors:
                    raise CheckpointError(f"{file}: {INDEX} says tensor {name} is here, but it is not; convert again")
        self._parts: dict[str, list[tuple[int, str]]] = {}
        for name in self._tensors:
            base, at, first = name.rpartition("@")
            if at and first.isdigit():
                self._parts.setdefault(base, []).append((int(first), name))

    @classmethod
    def open(cls, folder: str | Path) -> Checkpoint:
        """The checkpoint in a local folder: with an index, or a single `model.safetensors`."""
        folder = Path(folder)
        if (folder / INDEX).exists():
            index = parse_index((folder / INDEX).read_bytes())
            shards = {f: read_shard(folder / f, index.sizes.get(f)) for f in index.files}
            return cls(shards, index)
        if (folder / SINGLE).exists():
            return cls({SINGLE: read_shard(folder / SINGLE)})
        raise CheckpointError(f"{folder}: neither {INDEX} nor {SINGLE} is here; is this a model's folder?")

    def __contains__(self, name: str) -> bool:
        return name in self._tensors or name in self._parts

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def tensor(self, name: str) -> TensorRef:
        """One tensor. Raises CheckpointError if it is not there."""
        if name not in self._tensors:
            raise CheckpointError(
                f"{self._where()}: no tensor {name}; the checkpoint is not complete, convert it again"
            )
        return self._tensors[name]

    def parts(self, name: str, dtype: str, shape: tuple[int, ...]) -> tuple[tuple[int, TensorRef], ...]:
        """The pieces of a tensor as (first row, piece), checked to be `dtype` and to make up `shape`.

        One piece at row 0 for an unsplit tensor. Raises CheckpointError for a missing tensor, another dtype, another
        shape, or pieces that leave a gap or overlap.
        """
        if name in self._tensors:
            pieces = [(0, self._tensors[name])]
        elif name in self._parts:
            pieces = [(first, self._tensors[full]) for first, full in sorted(self._parts[name])]
        else:
            self.tensor(name)
            raise AssertionError
        at = 0
        for first, ref in pieces:
            where = f"{ref.file}: tensor {ref.name}"
            if ref.dtype != dtype:
                raise CheckpointError(f"{where} is {ref.dtype}, the model needs {dtype}; convert the model again")
            if ref.shape[1:] != shape[1:] or not ref.shape or (len(pieces) == 1 and ref.shape != shape):
                raise CheckpointError(
                    f"{where} has the shape {list(ref.shape)}, the model needs {list(shape)}; "
                    "config.json belongs to another checkpoint, or the conversion went wrong"
                )
            if first != at:
                raise CheckpointError(f"{where}: rows {at} to {first} are missing or doubled; convert the model again")
            at += ref.shape[0]
        if at != shape[0]:
            raise CheckpointError(
                f"{pieces[-1][1].file}: {name} has {at} rows, the model needs {shape[0]}; convert again"
            )
        return tuple(pieces)

    @property
    def metadata(self) -> dict[str, str]:
        """The `__metadata__` of all shards together."""
        out: dict[str, str] = {}
        for shard in self.shards.values():
            out |= shard.metadata
        return out

    def _where(self) -> str:
        return INDEX if len(self.shards) > 1 else next(iter(self.shards), INDEX)


def read_shard(path: Path, expected_size: int | None = None) -> Shard:
    """Read one local shard's header. expected_size: bytes as the index has it."""
    if not path.exists():
        raise CheckpointError(f"{path.name}: {INDEX} names this shard, but it is not in {path.parent}; download it")
    size = path.stat().st_size
    check_size(path.name, size, expected_size)
    with path.open("rb") as f:
        n = header_length(f.read(8), path.name, size)
        return parse_header(f.read(n), path.name, size)


def check_size(file: str, size: int, expected: int | None) -> None:
    """Raise CheckpointError if a shard is not as long as the index says (None: it does not say)."""
    if expected is not None and size != expected:
        raise CheckpointError(f"{file}: {size} bytes, {INDEX} says {expected}; download the file again")
