"""The text decoder's shape, of any family, from a Hugging Face config.json.

Gemma 4 comes in two spellings: the hub's (`global_head_dim`, `num_global_key_value_heads`, nested under `text_config`
in multimodal checkpoints) and transformers' newer `per_layer_config`. `TextConfig` reads both and answers what each
layer asks.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .errors import ConfigError

SLIDING, FULL = "sliding_attention", "full_attention"
FAMILIES = {
    "gemma4": "gemma4",
    "gemma4_text": "gemma4",
    "gemma4_unified": "gemma4",
    "gemma4_unified_text": "gemma4",
    "gemma3": "gemma3",
    "gemma3_text": "gemma3",
    "llama": "llama",
}
"""model_type -> the family that runs it."""


@dataclass(frozen=True)
class RopeSpec:
    """Rotary embedding of one layer type: `inv_freq[i]` is the angle per position of the pair (i, i + head_dim / 2)."""

    inv_freq: tuple[float, ...]


@dataclass(frozen=True)
class TextConfig:
    """A decoder's hyperparameters, named as in config.json. Per-layer questions have methods."""

    family: str
    """Which of `models` runs it."""
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

    @classmethod
    def from_folder(cls, folder: str | Path) -> TextConfig:
        """Read FOLDER/config.json. Raises ConfigError if it is missing, not JSON, or of a model this cannot run."""
        path = Path(folder) / "config.json"
        if not path.exists():
            raise ConfigError(f"config.json: not in {folder}; is this a model's folder?")
        return cls.from_json(path.read_bytes())

    @classmethod
    def from_json(cls, text: str | bytes) -> TextConfig:
        """Read the text of a config.json. Raises ConfigError as from_folder does."""
        try:
            data = json.loads(text)
        except (ValueError, RecursionError) as e:
            raise ConfigError(f"config.json: not JSON ({e}); download it again") from None
        if not isinstance(data, dict):
            raise ConfigError("config.json: not a JSON object; download it again")
        return cls.from_dict(data)

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> TextConfig:
        """A config.json as a dict, the text part nested under `text_config` or not.

        Raises ConfigError for a model_type or a feature this version does not run, and for missing or absurd sizes.
        """
        outer_type = config.get("model_type")
        text = dict(config.get("text_config") or config)
        text.setdefault("model_type", outer_type)
        for name in ("eos_token_id", "bos_token_id", "pad_token_id", "tie_word_embeddings"):
            if config.get(name) is not None:  # the outer config has the last word: E2B lists two eos ids there
                text[name] = config[name]
        family = FAMILIES.get(str(text["model_type"])) or FAMILIES.get(str(outer_type))
        if family is None:
            raise ConfigError(
                f"config.json: model_type {text['model_type']!r} is not supported; "
                f"supported are {', '.join(sorted(FAMILIES))}"
            )
        try:
            cfg = _READERS[family](text)
        except KeyError as e:
            raise ConfigError(f"config.json: {e.args[0]} is missing; download it again") from None
        except (TypeError, ValueError, AttributeError) as e:
            raise ConfigError(f"config.json: {e}; download it again") from None
        cfg._check()
        return cfg

    def _check(self) -> None:
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


def _common(text: Mapping[str, Any], family: str) -> dict[str, Any]:
    eos = text.get("eos_token_id")
    layers, heads = int(text["num_hidden_layers"]), int(text["num_attention_heads"])
    return {
        "family": family,
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


def _sliding_pattern(text: Mapping[str, Any], every: int) -> list[str]:
    every = int(text.get("_sliding_window_pattern") or text.get("sliding_window_pattern") or every)
    return [SLIDING if (i + 1) % every else FULL for i in range(int(text["num_hidden_layers"]))]


def _gemma_ropes(text: Mapping[str, Any], full_default: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
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


def _reject(text: Mapping[str, Any], *names: str) -> None:
    for name in names:
        if text.get(name):
            raise ConfigError(f"config.json: {name} = {text[name]!r} is not supported by this version")


def _gemma4(text: Mapping[str, Any]) -> TextConfig:
    _reject(text, "enable_moe_block", "attention_bias")
    if text.get("use_bidirectional_attention") == "all":
        _reject(text, "use_bidirectional_attention")
    common = _common(text, "gemma4")
    kinds = text.get("layer_types") or _sliding_pattern(text, 6)
    common["layer_types"] = tuple(kinds)
    overrides: dict[int, dict[str, int]] = {}
    for i, kind in enumerate(kinds):
        if kind == FULL:
            pairs = (("head_dim", "global_head_dim"), ("num_key_value_heads", "num_global_key_value_heads"))
            overrides[i] = {ours: int(text[hub]) for ours, hub in pairs if text.get(hub)}
    for key, values in (text.get("per_layer_config") or {}).items():
        known = ("head_dim", "num_key_value_heads")
        overrides.setdefault(int(key), {}).update({k: int(values[k]) for k in known if values.get(k)})
    return TextConfig(
        **common,
        tie_word_embeddings=bool(text.get("tie_word_embeddings", True)),
        rope_parameters=_gemma_ropes(
            text, {"rope_theta": 1e6, "rope_type": "proportional", "partial_rotary_factor": 0.25}
        ),
        sliding_window=int(text.get("sliding_window") or 0),
        final_logit_softcapping=float(text.get("final_logit_softcapping") or 0),
        hidden_activation=_activation(text, "hidden_activation"),
        hidden_size_per_layer_input=int(text.get("hidden_size_per_layer_input") or 0),
        vocab_size_per_layer_input=int(text.get("vocab_size_per_layer_input") or text["vocab_size"]),
        num_kv_shared_layers=int(text.get("num_kv_shared_layers") or 0),
        use_double_wide_mlp=bool(text.get("use_double_wide_mlp")),
        attention_k_eq_v=bool(text.get("attention_k_eq_v")),
        layer_overrides=overrides,
    )


_GEMMA3_DEFAULTS = {
    "vocab_size": 262208,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "sliding_window": 4096,
}
"""What the hub's multimodal Gemma 3 configs leave out of `text_config`."""


def _gemma3(text: Mapping[str, Any]) -> TextConfig:
    text = _GEMMA3_DEFAULTS | dict(text)
    _reject(text, "attention_bias", "attn_logit_softcapping", "use_bidirectional_attention")
    common = _common(text, "gemma3")
    common["layer_types"] = tuple(text.get("layer_types") or _sliding_pattern(text, 6))
    scalar = float(text.get("query_pre_attn_scalar") or common["head_dim"])
    return TextConfig(
        **common,
        tie_word_embeddings=bool(text.get("tie_word_embeddings", True)),
        rope_parameters=_gemma_ropes(text, {"rope_theta": 1e6, "rope_type": "default"}),
        sliding_window=int(text.get("sliding_window") or 0),
        attention_scale=scalar**-0.5,
        final_logit_softcapping=float(text.get("final_logit_softcapping") or 0),
        hidden_activation=_activation(text, "hidden_activation"),
    )


def _llama(text: Mapping[str, Any]) -> TextConfig:
    _reject(text, "attention_bias", "mlp_bias")
    common = _common(text, "llama")
    rope = {"rope_theta": float(text.get("rope_theta") or 10000.0)}
    rope |= dict(text.get("rope_scaling") or {}) | dict(text.get("rope_parameters") or {})
    return TextConfig(
        **common,
        tie_word_embeddings=bool(text.get("tie_word_embeddings", False)),
        rope_parameters={FULL: rope, SLIDING: rope},
        attention_scale=common["head_dim"] ** -0.5,
        hidden_activation=_activation(text, "hidden_act"),
    )


def _activation(text: Mapping[str, Any], name: str) -> str:
    act = str(text.get(name) or ("silu" if name == "hidden_act" else "gelu_pytorch_tanh"))
    if act not in ("silu", "gelu_pytorch_tanh"):
        raise ConfigError(f"config.json: {name} {act!r} is not supported (silu and gelu_pytorch_tanh are)")
    return act


_READERS = {"gemma4": _gemma4, "gemma3": _gemma3, "llama": _llama}
