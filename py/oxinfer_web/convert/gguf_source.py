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

from ..errors import CheckpointError
from ..quant import F32, Array
from .gguf_config import Metadata, make_config
from .gguf_tokenizer import write_tokenizer

_GLOBAL = {
    "token_embd": "embed_tokens",
    "output_norm": "norm",
    "per_layer_token_embd": "embed_tokens_per_layer",
    "per_layer_model_proj": "per_layer_model_projection",
    "per_layer_proj_norm": "per_layer_projection_norm",
}
_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_LLAMA_LAYER = _LAYER | {"ffn_norm": "post_attention_layernorm"}
_GEMMA_LAYER = _LAYER | {
    "ffn_norm": "pre_feedforward_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
    "inp_gate": "per_layer_input_gate",
    "proj": "per_layer_projection",
    "post_norm": "post_per_layer_input_norm",
}


@dataclass(frozen=True)
class _Tensor:
    """A tensor of the file: raw rows [rows, bytes or items], or [items] of a vector; shape as the output has it."""

    data: Array
    type: gguf.GGMLQuantizationType
    shape: tuple[int, ...]


class GgufSource:
    """A GGUF file, memory-mapped. Gemma 3's norms and Llama's q and k rows are turned back to what they were."""

    def __init__(self, path: Path) -> None:
        """Read the metadata. Raises CheckpointError for a file that is not GGUF or is one of several parts."""
        try:
            self._reader = gguf.GGUFReader(path)
        except (ValueError, IndexError, KeyError, OverflowError, UnicodeDecodeError, EOFError) as e:
            raise CheckpointError(f"{path.name}: not a readable GGUF file ({e}); download it again") from None
        self._path = path
        self._meta = Metadata(path.name, {name: field.contents for name, field in self._reader.fields.items()})
        if self._meta.get("split.count", 1) > 1:
            raise CheckpointError(f"{path.name}: one of several parts; join them first (llama-gguf-split --merge)")
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
            if part == "layer_output_scale":
                return f"model.layers.{layer}.layer_scalar"
            names = _LLAMA_LAYER if self._meta.arch == "llama" else _GEMMA_LAYER
            return f"model.layers.{layer}.{names.get(part, part)}.{leaf}"
        part, _, leaf = name.partition(".")
        return f"model.{_GLOBAL.get(part, part)}.{leaf}"

    @cached_property
    def config(self) -> Mapping[str, Any]:
        """A config.json made from the metadata. Raises ConfigError."""
        rope_freqs = next((t for t in self._reader.tensors if t.name == "rope_freqs.weight"), None)
        return make_config(self._meta, self.shapes, None if rope_freqs is None else np.array(rope_freqs.data))

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """The tensors and their shapes."""
        return {name: t.shape for name, t in self._tensors.items()}

    def read(self, name: str, first: int, last: int) -> F32:
        """Rows [first, last) of a tensor as f32. Raises CheckpointError for a type the gguf package cannot undo."""
        t = self._tensors[name]
        rows: slice | Array = slice(first, last)
        if self._meta.arch == "llama" and name.endswith(("q_proj.weight", "k_proj.weight")):
            rows = self._halves(name, t.shape[0])[first:last]
        try:
            w = gguf.quants.dequantize(np.ascontiguousarray(t.data[rows]), t.type)
        except NotImplementedError:
            raise CheckpointError(
                f"{self._path.name}: {name} is {t.type.name}, which the gguf package cannot read; take another one"
            ) from None
        # Gemma 3 multiplies by 1 + w; GGUF stores the sum.
        shift = 1.0 if self._meta.arch == "gemma3" and name.endswith("norm.weight") else 0.0
        return np.asarray(w, np.float32).reshape(-1, *t.shape[1:]) - np.float32(shift)

    def _halves(self, name: str, rows: int) -> Array:
        """Which row of the file each row of the output is.

        Rotary pairs lie side by side in a Llama GGUF, and half a head apart in Hugging Face's order.
        """
        heads = self.config["num_attention_heads" if name.endswith("q_proj.weight") else "num_key_value_heads"]
        if rows % (2 * heads):
            raise CheckpointError(f"{self._path.name}: {name} has {rows} rows for {heads} heads; download it again")
        return np.arange(rows).reshape(heads, -1, 2).swapaxes(1, 2).reshape(-1)

    def write_tokenizer(self, folder: Path) -> list[str]:
        """Make the tokenizer's files from the metadata. Raises CheckpointError for a kind that is not supported."""
        return write_tokenizer(self._meta, self.config, folder)
