"""Convert from a GGUF file: any quantization that the gguf package can undo."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from ..errors import CheckpointError, ConfigError
from ..models import FAMILIES
from ..models.gguf import GgufFormat, Metadata
from ..quant import F32, Array
from .gguf_tokenizer import write_tokenizer


@dataclass(frozen=True)
class _Tensor:
    """A tensor of the file: raw rows [rows, bytes or items], or [items] of a vector; shape as the output has it."""

    data: Array
    type: gguf.GGMLQuantizationType
    shape: tuple[int, ...]


class GgufFile:
    """A GGUF file, memory-mapped. What llama.cpp's converter did to a family's weights is undone (`GgufFormat`)."""

    def __init__(self, path: Path) -> None:
        """Read the metadata. Raises CheckpointError for a file that is not GGUF or is one of several parts, and
        ConfigError for an architecture or a feature this version does not run."""
        try:
            self._reader = gguf.GGUFReader(path)
        except (ValueError, IndexError, KeyError, OverflowError, UnicodeDecodeError, EOFError) as e:
            raise CheckpointError(f"{path.name}: not a readable GGUF file ({e}); download it again") from None
        self._path = path
        self._meta = Metadata(path.name, {name: field.contents for name, field in self._reader.fields.items()})
        if self._meta.get("split.count", 1) > 1:
            raise CheckpointError(f"{path.name}: one of several parts; join them first (llama-gguf-split --merge)")
        self._format = _format_of(self._meta)
        self._tensors: dict[str, _Tensor] = {}
        for t in self._reader.tensors:
            name = self._name(t.name)
            if name is not None:
                shape = tuple(int(n) for n in reversed(t.shape))
                self._tensors[name] = _Tensor(t.data, t.tensor_type, shape)

    def _name(self, name: str) -> str | None:
        """A GGUF tensor's name as Hugging Face spells it; None for what is not a weight."""
        if name == "output.weight":
            return "lm_head.weight"
        if name.startswith("rope_freqs"):
            return None
        if found := re.fullmatch(r"blk\.(\d+)\.(\w+)\.(\w+)", name):
            layer, part, leaf = found.groups()
            names = self._format.layer
            return f"model.layers.{layer}." + (names.get(f"{part}.{leaf}") or f"{names.get(part, part)}.{leaf}")
        part, _, leaf = name.partition(".")
        return f"model.{self._format.top.get(part, part)}.{leaf}"

    @cached_property
    def config(self) -> Mapping[str, Any]:
        """A config.json made from the metadata. Raises ConfigError."""
        rope_freqs = next((t for t in self._reader.tensors if t.name == "rope_freqs.weight"), None)
        divisors = None if rope_freqs is None else [float(d) for d in rope_freqs.data.ravel()]
        return self._format.config(self._meta, self.shapes, divisors)

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """The tensors and their shapes."""
        return {name: t.shape for name, t in self._tensors.items()}

    def read(self, name: str, first: int, last: int) -> F32:
        """Rows [first, last) of a tensor as f32. Raises CheckpointError for a type the gguf package cannot undo."""
        t = self._tensors[name]
        rows: slice | Array = slice(first, last)
        for end, heads in self._format.interleaved.items():
            if name.endswith(end):
                rows = self._halves(name, t.shape[0], self.config[heads])[first:last]
        try:
            w = gguf.quants.dequantize(np.ascontiguousarray(t.data[rows]), t.type)
        except NotImplementedError:
            raise CheckpointError(
                f"{self._path.name}: {name} is {t.type.name}, which the gguf package cannot read; take another one"
            ) from None
        shift = self._format.norm_offset if name.endswith("norm.weight") else 0.0
        return np.asarray(w, np.float32).reshape(-1, *t.shape[1:]) - np.float32(shift)

    def _halves(self, name: str, rows: int, heads: int) -> Array:
        """Which row of the file, where rotary pairs lie side by side, each row of the output is."""
        if rows % (2 * heads):
            raise CheckpointError(f"{self._path.name}: {name} has {rows} rows for {heads} heads; download it again")
        return np.arange(rows).reshape(heads, -1, 2).swapaxes(1, 2).reshape(-1)

    def write_tokenizer(self, folder: Path) -> list[str]:
        """Make the tokenizer's files from the metadata. Raises CheckpointError for a kind that is not supported."""
        return write_tokenizer(self._meta, self.config, folder)


def _format_of(meta: Metadata) -> GgufFormat:
    formats = {family.gguf.arch: family.gguf for family in FAMILIES.values() if family.gguf is not None}
    if meta.arch not in formats:
        raise ConfigError(
            f"{meta.file}: architecture {meta.arch!r} is not supported; supported are {', '.join(sorted(formats))}"
        )
    if meta.of_arch("expert_count"):
        raise ConfigError(f"{meta.file}: a mixture of experts is not supported by this version")
    return formats[meta.arch]
