"""How GGUF files spell a family: the names of tensors, and the metadata that a config.json is made from. No numpy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..config import FULL, SLIDING
from ..errors import ConfigError

Shapes = Mapping[str, tuple[int, ...]]
"""A file's tensors by their Hugging Face names."""
RopeFreqs = Sequence[float] | None
"""The divisors of the rotary frequencies that some files carry."""

TOP = {"token_embd": "embed_tokens", "output_norm": "norm"}
"""GGUF's names outside the layers, that all families share, as Hugging Face has them."""
LAYER = {
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
"""The same inside a layer."""
FOUR_NORMS = {
    "ffn_norm": "pre_feedforward_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
"""The norms of layers that have one before and one after each branch."""


class Metadata:
    """The key-value pairs of a GGUF file; a value is read when it is asked for."""

    def __init__(self, file: str, fields: Mapping[str, Callable[[], Any]]) -> None:
        """file: the name for messages; fields: by key, what reads the value."""
        self.file, self._fields = file, fields
        self.arch = str(self.get("general.architecture", ""))

    def get(self, key: str, default: Any = None) -> Any:
        """The value of a key, or the default."""
        return self._fields[key]() if key in self._fields else default

    def of_arch(self, key: str, default: Any = None) -> Any:
        """The value of a key of the architecture's own."""
        return self.get(f"{self.arch}.{key}", default)

    def need(self, key: str) -> Any:
        """The value of a key of the architecture's own. Raises ConfigError if it is not there."""
        value = self.of_arch(key)
        if value is None:
            raise ConfigError(f"{self.file}: no {self.arch}.{key} in the metadata; download the file again")
        return value


@dataclass(frozen=True)
class GgufFormat:
    """How GGUF files spell a family."""

    arch: str
    """general.architecture."""
    config: Callable[[Metadata, Shapes, RopeFreqs], dict[str, Any]]
    """Makes a config.json. Raises ConfigError for a feature this version does not run."""
    layer: Mapping[str, str]
    """Names inside a layer, as LAYER; one with its leaf, `a.weight`, stands for the whole name."""
    top: Mapping[str, str] = field(default_factory=lambda: TOP)
    """Names outside the layers, as TOP."""
    norm_offset: float = 0.0
    """What GGUF adds to the weights of norms."""
    interleaved: Mapping[str, str] = field(default_factory=dict)
    """Ends of the names of matrices whose rows have rotary pairs side by side (in Hugging Face's order they are half a
    head apart), and the config's name for the number of their heads."""


def common_config(meta: Metadata, shapes: Shapes) -> dict[str, Any]:
    """The part of a config.json that all families have. Raises ConfigError for what is missing."""
    if "model.embed_tokens.weight" not in shapes:
        raise ConfigError(f"{meta.file}: no token_embd.weight; this is not a whole language model")
    eos = [meta.get("tokenizer.ggml.eos_token_id"), *(meta.get(f"tokenizer.ggml.{t}_token_id") for t in ("eot", "eom"))]
    eos = list(dict.fromkeys(int(t) for t in eos if t is not None))
    return {
        "vocab_size": shapes["model.embed_tokens.weight"][0],
        "hidden_size": int(meta.need("embedding_length")),
        "num_hidden_layers": int(meta.need("block_count")),
        "num_attention_heads": int(meta.need("attention.head_count")),
        "max_position_embeddings": int(meta.need("context_length")),
        "rms_norm_eps": rounded(meta.need("attention.layer_norm_rms_epsilon")),
        "tie_word_embeddings": "lm_head.weight" not in shapes,
        "bos_token_id": meta.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": eos[0] if len(eos) == 1 else eos or None,
        "pad_token_id": meta.get("tokenizer.ggml.padding_token_id"),
    }


def sliding_config(meta: Metadata, shapes: Shapes, every: int) -> dict[str, Any]:
    """common_config, and what Gemma files have beside it: layers that slide but every so-manieth, and a softcap."""
    config = common_config(meta, shapes)
    softcap = meta.of_arch("final_logit_softcapping")
    return config | {
        "hidden_activation": "gelu_pytorch_tanh",
        "layer_types": _layer_types(meta, config["num_hidden_layers"], every),
        "sliding_window": int(meta.need("attention.sliding_window")),
        "final_logit_softcapping": None if softcap is None else rounded(softcap),
    }


def _layer_types(meta: Metadata, layers: int, default: int) -> list[str]:
    """Which layers slide: a flag for each, or the period whose last layer is full."""
    pattern = meta.of_arch("attention.sliding_window_pattern", default)
    if isinstance(pattern, list):
        return [SLIDING if slides else FULL for slides in pattern]
    return [FULL if (i + 1) % int(pattern) == 0 else SLIDING for i in range(layers)]


def rounded(value: float) -> float:
    """A float32 of the metadata as the short decimal it was before."""
    return float(f"{value:.7g}")


def one_size(meta: Metadata, key: str, default: int | None = None) -> int:
    """A size that is the same in every layer, given once or for each. Raises ConfigError where layers differ."""
    value = meta.need(key) if default is None else meta.of_arch(key, default)
    values = set(value) if isinstance(value, list) else {value}
    if len(values) != 1:
        raise ConfigError(f"{meta.file}: {meta.arch}.{key} differs from layer to layer, which is not supported")
    return int(values.pop())


def linear_scaling(meta: Metadata) -> dict[str, Any]:
    """`rope_parameters` of a file with linear rope scaling or none. Raises ConfigError for another one."""
    kind = meta.of_arch("rope.scaling.type")
    if kind in (None, "none"):
        return {}
    if kind != "linear":
        raise ConfigError(f"{meta.file}: rope scaling {kind!r} is not supported (linear and Llama 3's are)")
    return {"rope_type": "linear", "factor": rounded(meta.need("rope.scaling.factor"))}
