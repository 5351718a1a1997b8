"""A Hugging Face config.json from GGUF metadata."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ..config import FULL, SLIDING
from ..errors import ConfigError
from ..quant import Array

Shapes = Mapping[str, tuple[int, ...]]


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


def make_config(meta: Metadata, shapes: Shapes, rope_freqs: Array | None) -> dict[str, Any]:
    """A config.json for the architecture of a GGUF file.

    shapes: the tensors by their Hugging Face names; rope_freqs: f32, the divisors of the rotary frequencies that some
    files carry. Raises ConfigError for an architecture or a feature this version does not run.
    """
    makers = {"llama": _llama, "gemma3": _gemma3, "gemma4": _gemma4}
    if meta.arch not in makers:
        raise ConfigError(
            f"{meta.file}: architecture {meta.arch!r} is not supported; supported are {', '.join(sorted(makers))}"
        )
    if meta.of_arch("expert_count"):
        raise ConfigError(f"{meta.file}: a mixture of experts is not supported by this version")
    return makers[meta.arch](meta, shapes, rope_freqs)


def _common(meta: Metadata, shapes: Shapes) -> dict[str, Any]:
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
        "rms_norm_eps": _round(meta.need("attention.layer_norm_rms_epsilon")),
        "tie_word_embeddings": "lm_head.weight" not in shapes,
        "bos_token_id": meta.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": eos[0] if len(eos) == 1 else eos or None,
        "pad_token_id": meta.get("tokenizer.ggml.padding_token_id"),
    }


def _round(value: float) -> float:
    """A float32 of the metadata as the short decimal it was before."""
    return float(f"{value:.7g}")


def _one(meta: Metadata, key: str, default: int | None = None) -> int:
    """A size that is the same in every layer, given once or for each."""
    value = meta.need(key) if default is None else meta.of_arch(key, default)
    values = set(value) if isinstance(value, list) else {value}
    if len(values) != 1:
        raise ConfigError(f"{meta.file}: {meta.arch}.{key} differs from layer to layer, which is not supported")
    return int(values.pop())


def _llama(meta: Metadata, shapes: Shapes, rope_freqs: Array | None) -> dict[str, Any]:
    config = _common(meta, shapes)
    heads = config["num_attention_heads"]
    head_dim = int(meta.of_arch("attention.key_length") or config["hidden_size"] // heads)
    if meta.of_arch("rope.dimension_count", head_dim) != head_dim:
        raise ConfigError(f"{meta.file}: rotary embeddings of a part of each head are not supported for llama")
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": _round(meta.of_arch("rope.freq_base", 10000.0))}
    if rope_freqs is not None:
        rope |= _llama3_scaling(meta, rope["rope_theta"], head_dim, rope_freqs)
    else:
        rope |= _linear_scaling(meta)
    return config | {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "intermediate_size": _one(meta, "feed_forward_length"),
        "num_key_value_heads": _one(meta, "attention.head_count_kv", heads),
        "head_dim": head_dim,
        "rope_parameters": rope,
    }


def _linear_scaling(meta: Metadata) -> dict[str, Any]:
    kind = meta.of_arch("rope.scaling.type")
    if kind in (None, "none"):
        return {}
    if kind != "linear":
        raise ConfigError(f"{meta.file}: rope scaling {kind!r} is not supported (linear and Llama 3's are)")
    return {"rope_type": "linear", "factor": _round(meta.need("rope.scaling.factor"))}


def _llama3_scaling(meta: Metadata, theta: float, head_dim: int, divisors: Array) -> dict[str, Any]:
    """Llama 3's scaling, of which a GGUF file keeps only the resulting divisors.

    The parameters are the published ones of Llama 3.1 to 3.3; the divisors they give must be the file's.
    """
    factor, low, high, original = _round(float(divisors.max())), 1.0, 4.0, 8192
    turns = original * theta ** (-2 * np.arange(head_dim // 2) / head_dim) / (2 * math.pi)
    keep = np.clip((turns - low) / (high - low), 0, 1)
    expected = 1 / (keep + (1 - keep) / factor)
    if divisors.shape != expected.shape or not np.allclose(divisors, expected, rtol=1e-3):
        raise ConfigError(f"{meta.file}: rope_freqs.weight is not Llama 3.1's to 3.3's; convert from safetensors")
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": low,
        "high_freq_factor": high,
        "original_max_position_embeddings": original,
    }


def _layer_types(meta: Metadata, layers: int, default: int) -> list[str]:
    """Which layers slide: a flag for each, or the period whose last layer is full."""
    pattern = meta.of_arch("attention.sliding_window_pattern", default)
    if isinstance(pattern, list):
        return [SLIDING if slides else FULL for slides in pattern]
    return [FULL if (i + 1) % int(pattern) == 0 else SLIDING for i in range(layers)]


def _gemma(meta: Metadata, shapes: Shapes, pattern: int) -> dict[str, Any]:
    config = _common(meta, shapes)
    softcap = meta.of_arch("final_logit_softcapping")
    return config | {
        "hidden_activation": "gelu_pytorch_tanh",
        "layer_types": _layer_types(meta, config["num_hidden_layers"], pattern),
        "sliding_window": int(meta.need("attention.sliding_window")),
        "final_logit_softcapping": None if softcap is None else _round(softcap),
    }


def _gemma3(meta: Metadata, shapes: Shapes, rope_freqs: Array | None) -> dict[str, Any]:
    if rope_freqs is not None:
        raise ConfigError(f"{meta.file}: rope_freqs.weight is not expected in a gemma3 file; convert from safetensors")
    config = _gemma(meta, shapes, 6)
    head_dim = int(meta.need("attention.key_length"))
    # The 27B model alone scales its queries by the hidden size over the heads instead of by the head's size.
    large = config["num_hidden_layers"] == 62
    full = {"rope_type": "default", "rope_theta": _round(meta.of_arch("rope.freq_base", 1e6))} | _linear_scaling(meta)
    sliding = {"rope_type": "default", "rope_theta": _round(meta.of_arch("rope.freq_base_swa", 10000.0))}
    return config | {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "intermediate_size": _one(meta, "feed_forward_length"),
        "num_key_value_heads": _one(meta, "attention.head_count_kv"),
        "head_dim": head_dim,
        "query_pre_attn_scalar": config["hidden_size"] // config["num_attention_heads"] if large else head_dim,
        "rope_parameters": {FULL: full, SLIDING: sliding},
    }


def _gemma4(meta: Metadata, shapes: Shapes, rope_freqs: Array | None) -> dict[str, Any]:
    config = _gemma(meta, shapes, 6)
    kinds, layers = config["layer_types"], config["num_hidden_layers"]
    global_dim = int(meta.need("attention.key_length"))
    head_dim = int(meta.of_arch("attention.key_length_swa", global_dim))
    kv = meta.need("attention.head_count_kv")
    kv = kv if isinstance(kv, list) else [kv] * layers
    widths = meta.need("feed_forward_length")
    widths = widths if isinstance(widths, list) else [widths] * layers
    shared = int(meta.of_arch("attention.shared_kv_layers", 0))
    per_layer = int(meta.of_arch("embedding_length_per_layer_input", 0))
    own_full = [i for i in range(layers - shared) if kinds[i] == FULL]
    config |= {
        "architectures": ["Gemma4ForCausalLM"],
        "model_type": "gemma4_text",
        "intermediate_size": int(widths[0]),
        "use_double_wide_mlp": widths[-1] == 2 * widths[0],
        "num_key_value_heads": int(next((n for n, kind in zip(kv, kinds, strict=True) if kind == SLIDING), kv[0])),
        "num_global_key_value_heads": int(kv[own_full[-1]]) if own_full else None,
        "head_dim": head_dim,
        "global_head_dim": global_dim,
        "num_kv_shared_layers": shared,
        "attention_k_eq_v": any(f"model.layers.{i}.self_attn.v_proj.weight" not in shapes for i in own_full),
        "hidden_size_per_layer_input": per_layer,
        "rope_parameters": {
            FULL: {
                "rope_type": "proportional",
                "rope_theta": _round(meta.of_arch("rope.freq_base", 1e6)),
                "partial_rotary_factor": _turning_part(meta, global_dim, rope_freqs),
            },
            SLIDING: {"rope_type": "default", "rope_theta": _round(meta.of_arch("rope.freq_base_swa", 10000.0))},
        },
    }
    if per_layer and "model.embed_tokens_per_layer.weight" in shapes:
        config["vocab_size_per_layer_input"] = shapes["model.embed_tokens_per_layer.weight"][0]
    return config


def _turning_part(meta: Metadata, head_dim: int, divisors: Array | None) -> float:
    """The share of a full layer's pairs that turn: those with the divisor 1; the rest have a huge one."""
    if divisors is None:
        return 1.0
    turning = int((divisors == 1).sum())
    plain = (divisors[:turning] == 1).all() and (divisors[turning:] > 1e20).all()
    if divisors.shape != (head_dim // 2,) or not plain:
        raise ConfigError(f"{meta.file}: rope_freqs.weight is not Gemma 4's partial rotation; convert from safetensors")
    return 2 * turning / head_dim
