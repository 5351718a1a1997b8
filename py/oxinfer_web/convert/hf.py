"""Convert from a Hugging Face folder: safetensors in bf16, f16 or f32, one file or many."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ..checkpoint import Checkpoint, TensorRef
from ..errors import CheckpointError, ConfigError
from ..models import canonical_names
from ..quant import F32, from_bf16
from ..text.files import TokenizerConfig
from .jsonfile import dump_json, read_json

_NUMPY = {"BF16": np.uint16, "F16": np.float16, "F32": np.float32, "F64": np.float64}


class HuggingFaceFolder:
    """A folder with config.json and safetensors. The files are memory-mapped; rows are read as they are needed."""

    def __init__(self, folder: Path) -> None:
        """Read the headers. Raises CheckpointError for a folder that is no model, or one converted before."""
        self.folder = folder
        checkpoint = Checkpoint.open(folder)
        for name in checkpoint:
            if name.partition("@")[0].endswith((".q4", ".q4s", ".q8", ".q8s")):
                file = checkpoint.tensor(name).file
                raise CheckpointError(f"{file}: {name} is quantized already; convert from the original model")
        names = canonical_names(checkpoint)
        self._refs: dict[str, TensorRef] = {ours: checkpoint.tensor(name) for ours, name in names.items()}

    @cached_property
    def config(self) -> Mapping[str, Any]:
        """config.json as it is. Raises ConfigError."""
        path = self.folder / "config.json"
        if not path.exists():
            raise ConfigError(f"config.json: not in {self.folder}; a Hugging Face folder has one, download it")
        return read_json(path)

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """The text decoder's tensors and their shapes."""
        return {name: ref.shape for name, ref in self._refs.items()}

    def read(self, name: str, first: int, last: int) -> F32:
        """Rows [first, last) of a tensor as f32. Raises CheckpointError for a dtype that holds no plain weights."""
        ref = self._refs[name]
        if ref.dtype not in _NUMPY:
            raise CheckpointError(
                f"{ref.file}: {ref.name} is {ref.dtype}; only BF16, F16, F32 and F64 weights can be converted: "
                "take the model's unquantized checkpoint"
            )
        data = np.memmap(self.folder / ref.file, _NUMPY[ref.dtype], "r", ref.offset, ref.shape)[first:last]
        return from_bf16(np.asarray(data)) if ref.dtype == "BF16" else np.asarray(data, np.float32)

    def write_tokenizer(self, folder: Path) -> list[str]:
        """Copy the tokenizer, without indentation, and fold the files around it into tokenizer_config.json."""
        notes = []
        for name in ("tokenizer.json", "generation_config.json"):
            if (self.folder / name).exists():
                dump_json(folder / name, read_json(self.folder / name))
        if not (folder / "tokenizer.json").exists():
            notes.append(f"no tokenizer.json in {self.folder.name}: the result takes token ids, not text")
        else:
            dump_json(folder / "tokenizer_config.json", TokenizerConfig.read(self.folder).completed)
        return notes
