"""The text decoder's shape, of any family: what `models.read_config` makes of a Hugging Face config.json.

Families are not known here. Each reads its own config.json, with the helpers below for what several spell alike.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .errors import ConfigError

SLIDING, FULL = "sliding_attention", "full_attention"


@dataclass(frozen=True)
class RopeSpec:
    """Rotary embedding of one layer type: `inv_freq[i]` is the angle per position of the pair (i, i + head_dim / 2)."""

    inv_freq: tuple[float, ...]


@dataclass(frozen=True)
class TextConfig:
    """A decoder's hyperparameters, named as in config.json. Per-layer questions have methods.

    A family that needs others subclasses it in its own file.
    """

    family: str
    """The name of the family that runs it."""
    model_type: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float
    max_position_embeddings: int
    tie_word_embeddings: bool
    layer_types: tuple[str, ...]
    rope_parameters: Mapping[str, Mapping[str, Any]]
    """By layer type: rope_theta, rope_type, and what the type needs."""
    sliding_window: int = 0
    attention_scale: float = 1.0
    final_logit_softcapping: float = 0.0
    hidden_activation: str = "gelu_pytorch_tanh"
    hidden_size_per_layer_input: int = 0
    vocab_size_per_layer_input: int = 0
    num_kv_shared_layers: int = 0
    use_double_wide_mlp: bool = False
    attention_k_eq_v: bool = False
    layer_overrides: Mapping[int, Mapping[str, int]] = field(default_factory=dict)
    """By layer: head_dim and num_key_value_heads where they differ."""
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    pad_token_id: int = 0
    sampling: Mapping[str, float] = field(default_factory=dict)
    """What generation_config.json says, as far as it does: temperature (0 is greedy), top_k, top_p, min_p and
    max_new_tokens."""

    def check(self) -> None:
        """Raise ConfigError for absurd sizes and for what no op can do."""
        for name in (
            *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
            *("num_key_value_heads", "head_dim", "max_position_embeddings"),
        ):
            if getattr(self, name) < 1:
                raise ConfigError(f"config.json: {name} is {getattr(self, name)}, not a size; download it again")
        if len(self.layer_types) != self.num_hidden_layers:
            raise ConfigError(
                f"config.json: {len(self.layer_types)} layer_types for {self.num_hidden_layers} layers; "
                "download it again"
            )
        for kind in set(self.layer_types):
            if kind not in (SLIDING, FULL):
                raise ConfigError(f"config.json: layer type {kind!r} is not supported (only {SLIDING} and {FULL})")
        if SLIDING in self.layer_types and self.sliding_window < 1:
            raise ConfigError("config.json: sliding layers need a sliding_window; download it again")
        for i in range(self.num_hidden_layers):
            if self.layer_head_dim(i) % 8 or self.num_attention_heads % self.layer_n_kv(i):
                raise ConfigError(
                    f"config.json: layer {i} has head_dim {self.layer_head_dim(i)}, {self.num_attention_heads} heads "
                    f"and {self.layer_n_kv(i)} KV heads; "
                    "head_dim must be a multiple of 8, and the KV heads divide the heads"
                )
            self.rope_spec(i)
            self.kv_source(i)

    def is_sliding(self, i: int) -> bool:
        """Whether layer i attends only to the last `sliding_window` positions."""
        return self.layer_types[i] == SLIDING

    def layer_head_dim(self, i: int) -> int:
        """Columns of one head of layer i."""
        return self.layer_overrides.get(i, {}).get("head_dim", self.head_dim)

    def layer_n_kv(self, i: int) -> int:
        """Key/value heads of layer i."""
        return self.layer_overrides.get(i, {}).get("num_key_value_heads", self.num_key_value_heads)

    def layer_k_eq_v(self, i: int) -> bool:
        """Whether layer i has no v projection and uses the k projection's output, before its norm, as v."""
        return self.attention_k_eq_v and not self.is_sliding(i)

    def layer_intermediate(self, i: int) -> int:
        """Width of layer i's MLP."""
        return self.intermediate_size * (2 if self.use_double_wide_mlp and self.is_kv_shared(i) else 1)

    def is_kv_shared(self, i: int) -> bool:
        """Whether layer i reads another layer's KV cache and writes none."""
        return i >= self.num_hidden_layers - self.num_kv_shared_layers

    def kv_source(self, i: int) -> int:
        """The layer whose KV cache layer i reads: itself, or the last layer of its type that owns one."""
        if not self.is_kv_shared(i):
            return i
        for j in range(self.num_hidden_layers - self.num_kv_shared_layers - 1, -1, -1):
            if self.layer_types[j] == self.layer_types[i]:
                return j
        raise ConfigError(f"config.json: layer {i} shares KV, but no earlier {self.layer_types[i]} layer owns any")

    @property
    def has_ple(self) -> bool:
        """Whether the model has per-layer embeddings."""
        return self.hidden_size_per_layer_input > 0

    def rope_spec(self, i: int) -> RopeSpec:
        """Layer i's rotary embedding. Raises ConfigError for a rope_type this version does not know."""
        return _rope(self.rope_parameters[self.layer_types[i]], self.layer_head_dim(i))


def _rope(p: Mapping[str, Any], head_dim: int) -> RopeSpec:
    kind = p.get("rope_type") or p.get("type") or "default"
    theta = float(p["rope_theta"])
    half = head_dim // 2
    inv_freq = [theta ** (-2 * j / head_dim) for j in range(half)]
    if kind == "linear":
        inv_freq = [f / float(p["factor"]) for f in inv_freq]
    elif kind == "proportional":  # Gemma 4's full layers: the first pairs turn, the rest stay
        turning = int(float(p.get("partial_rotary_factor", 1.0)) * head_dim // 2)
        inv_freq = [f / float(p.get("factor") or 1.0) for f in inv_freq[:turning]] + [0.0] * (half - turning)
    elif kind == "llama3":
        inv_freq = [_llama3(f, p) for f in inv_freq]
    elif kind != "default":
        raise ConfigError(
            f"config.json: rope_type {kind!r} is not supported (default, linear, proportional, llama3 are)"
        )
    return RopeSpec(tuple(inv_freq))


def _llama3(f: float, p: Mapping[str, Any]) -> float:
    """Llama 3.1's scaling: long wavelengths are stretched by `factor`, short ones kept, those between blended."""
    factor, low, high = float(p["factor"]), float(p["low_freq_factor"]), float(p["high_freq_factor"])
    turns = float(p["original_max_position_embeddings"]) * f / (2 * math.pi)
    keep = min(max((turns - low) / (high - low), 0.0), 1.0)
    return f * (keep + (1 - keep) / factor)


def common_fields(text: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of TextConfig that every config.json spells alike. Raises KeyError for a size that is missing."""
    eos = text.get("eos_token_id")
    layers, heads = int(text["num_hidden_layers"]), int(text["num_attention_heads"])
    return {
        "model_type": str(text["model_type"]),
        "vocab_size": int(text["vocab_size"]),
        "hidden_size": int(text["hidden_size"]),
        "intermediate_size": int(text["intermediate_size"]),
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": int(text.get("num_key_value_heads") or heads),
        "head_dim": int(text.get("head_dim") or int(text["hidden_size"]) // heads),
        "rms_norm_eps": float(text.get("rms_norm_eps", 1e-6)),
        "max_position_embeddings": int(text.get("max_position_embeddings", 131072)),
        "layer_types": tuple(text.get("layer_types") or [FULL] * layers),
        "bos_token_id": text.get("bos_token_id"),
        "eos_token_ids": tuple(eos) if isinstance(eos, list) else () if eos is None else (int(eos),),
        "pad_token_id": int(text.get("pad_token_id") or 0),
    }


def sliding_pattern(text: Mapping[str, Any], every: int) -> tuple[str, ...]:
    """Each layer's type where every so-manieth is full and the others slide, unless `layer_types` lists them."""
    if text.get("layer_types"):
        return tuple(text["layer_types"])
    every = int(text.get("_sliding_window_pattern") or text.get("sliding_window_pattern") or every)
    return tuple(SLIDING if (i + 1) % every else FULL for i in range(int(text["num_hidden_layers"])))


def ropes_by_type(text: Mapping[str, Any], full_default: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """`rope_parameters` where sliding and full layers turn differently, in its newer spelling, by type, or the older.

    full_default: what full layers have where the config does not say; sliding ones have a theta of 10000.
    """
    given = text.get("rope_parameters") or {}
    if SLIDING in given or FULL in given:
        return {
            SLIDING: {"rope_theta": 10000.0} | dict(given.get(SLIDING, {})),
            FULL: {**full_default, **given.get(FULL, {})},
        }
    full = {**full_default, **(text.get("rope_scaling") or {}), **given}
    if text.get("rope_theta"):
        full["rope_theta"] = text["rope_theta"]
    return {SLIDING: {"rope_theta": float(text.get("rope_local_base_freq") or 10000.0)}, FULL: full}


def reject(text: Mapping[str, Any], *names: str) -> None:
    """Raise ConfigError for features that are on but that this version does not have."""
    for name in names:
        if text.get(name):
            raise ConfigError(f"config.json: {name} = {text[name]!r} is not supported by this version")


def read_activation(text: Mapping[str, Any], name: str, default: str) -> str:
    """The MLP's activation, `name` in the config. Raises ConfigError for one that is no op here."""
    act = str(text.get(name) or default)
    if act not in ("silu", "gelu_pytorch_tanh"):
        raise ConfigError(f"config.json: {name} {act!r} is not supported (silu and gelu_pytorch_tanh are)")
    return act
