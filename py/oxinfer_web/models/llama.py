"""Llama: pre-norms only, SiLU, plain rope, no norms on q and k, an unscaled embedding."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..checkpoint import Checkpoint
from ..config import RopeSpec, TextConfig, common_fields, read_activation, reject
from ..errors import ConfigError
from ..linear import Lin, load_lin
from ..ops import KVPages, Norm, Ops, X, load_norm
from ..table import TableRef
from .base import Family, activation, embeddings, kv_pages, nesting
from .gguf import LAYER, GgufFormat, Metadata, RopeFreqs, Shapes, common_config, linear_scaling, one_size, rounded


@dataclass(frozen=True)
class Layer:
    """The weights of one decoder layer, named as in the checkpoint."""

    input_layernorm: Norm
    q_proj: Lin
    k_proj: Lin
    v_proj: Lin
    o_proj: Lin
    post_attention_layernorm: Norm
    gate_proj: Lin
    up_proj: Lin
    down_proj: Lin
    rope: RopeSpec
    cache: KVPages


@dataclass(frozen=True)
class Llama:
    """A Llama decoder."""

    config: TextConfig
    embed_tokens: TableRef
    layers: tuple[Layer, ...]
    norm: Norm
    head: Lin

    @property
    def embed_scale(self) -> float:
        """1: rows of the input table are taken as they are."""
        return 1.0

    def decode(self, ops: Ops[X]) -> X:
        """Hidden states after the final norm: [T, hidden]."""
        x = ops.embed(self.embed_tokens, self.embed_scale)
        for i, layer in enumerate(self.layers):
            ops.trace(f"hidden_{i}", x)
            x = _layer(ops, self.config, layer, x)
        return ops.norm(x, self.norm)


def _layer(ops: Ops[X], cfg: TextConfig, w: Layer, x: X) -> X:
    h = ops.norm(x, w.input_layernorm)
    q, k, v = ops.linear_multi(h, w.q_proj, w.k_proj, w.v_proj)
    q = ops.queries(q, cfg.num_attention_heads, cfg.head_dim, None, w.rope, cfg.attention_scale)
    ops.append(w.cache, k, v, None, None, w.rope)
    x = ops.add(x, ops.linear(ops.attention(q, w.cache), w.o_proj))
    h = ops.norm(x, w.post_attention_layernorm)
    return ops.add(x, ops.linear(ops.gated(h, w.gate_proj, w.up_proj, activation(cfg)), w.down_proj))


def load(ckpt: Checkpoint, cfg: TextConfig) -> Llama:
    """The weights of a Llama checkpoint. Raises CheckpointError for what is missing or of another shape."""
    prefix, _ = nesting(ckpt)
    d, eps = cfg.hidden_size, cfg.rms_norm_eps
    q, kv = cfg.num_attention_heads * cfg.head_dim, cfg.num_key_value_heads * cfg.head_dim

    def layer(i: int) -> Layer:
        at = f"{prefix}layers.{i}."
        return Layer(
            input_layernorm=load_norm(ckpt, at + "input_layernorm.weight", d, eps),
            q_proj=load_lin(ckpt, at + "self_attn.q_proj.weight", q, d),
            k_proj=load_lin(ckpt, at + "self_attn.k_proj.weight", kv, d),
            v_proj=load_lin(ckpt, at + "self_attn.v_proj.weight", kv, d),
            o_proj=load_lin(ckpt, at + "self_attn.o_proj.weight", d, q),
            post_attention_layernorm=load_norm(ckpt, at + "post_attention_layernorm.weight", d, eps),
            gate_proj=load_lin(ckpt, at + "mlp.gate_proj.weight", cfg.intermediate_size, d),
            up_proj=load_lin(ckpt, at + "mlp.up_proj.weight", cfg.intermediate_size, d),
            down_proj=load_lin(ckpt, at + "mlp.down_proj.weight", d, cfg.intermediate_size),
            rope=cfg.rope_spec(i),
            cache=kv_pages(cfg, i),
        )

    table, head = embeddings(ckpt, cfg)
    norm = load_norm(ckpt, prefix + "norm.weight", d, eps)
    return Llama(cfg, table, tuple(layer(i) for i in range(cfg.num_hidden_layers)), norm, head)


def read_config(text: Mapping[str, Any]) -> TextConfig:
    """The shape, from config.json. Raises ConfigError for biases and activations that no op has."""
    reject(text, "attention_bias", "mlp_bias")
    common = common_fields(text)
    rope = {"rope_theta": float(text.get("rope_theta") or 10000.0)}
    rope |= dict(text.get("rope_scaling") or {}) | dict(text.get("rope_parameters") or {})
    return TextConfig(
        family="llama",
        **common,
        tie_word_embeddings=bool(text.get("tie_word_embeddings", False)),
        rope_parameters=dict.fromkeys(common["layer_types"], rope),
        attention_scale=common["head_dim"] ** -0.5,
        hidden_activation=read_activation(text, "hidden_act", "silu"),
    )


def _gguf_config(meta: Metadata, shapes: Shapes, rope_freqs: RopeFreqs) -> dict[str, Any]:
    config = common_config(meta, shapes)
    heads = config["num_attention_heads"]
    head_dim = int(meta.of_arch("attention.key_length") or config["hidden_size"] // heads)
    if meta.of_arch("rope.dimension_count", head_dim) != head_dim:
        raise ConfigError(f"{meta.file}: rotary embeddings of a part of each head are not supported for llama")
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": rounded(meta.of_arch("rope.freq_base", 10000.0))}
    if rope_freqs is not None:
        rope |= _llama3_scaling(meta, rope["rope_theta"], head_dim, rope_freqs)
    else:
        rope |= linear_scaling(meta)
    return config | {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "intermediate_size": one_size(meta, "feed_forward_length"),
        "num_key_value_heads": one_size(meta, "attention.head_count_kv", heads),
        "head_dim": head_dim,
        "rope_parameters": rope,
    }


def _llama3_scaling(meta: Metadata, theta: float, head_dim: int, divisors: Sequence[float]) -> dict[str, Any]:
    """Llama 3's scaling, of which a GGUF file keeps only the resulting divisors.

    The parameters are the published ones of Llama 3.1 to 3.3; the divisors they give must be the file's.
    """
    factor, low, high, original = rounded(max(divisors)), 1.0, 4.0, 8192
    turns = [original * theta ** (-2 * i / head_dim) / (2 * math.pi) for i in range(head_dim // 2)]
    keep = [min(max((t - low) / (high - low), 0.0), 1.0) for t in turns]
    expected = [1 / (k + (1 - k) / factor) for k in keep]
    fits = len(divisors) == len(expected) and all(
        math.isclose(a, b, rel_tol=1e-3) for a, b in zip(divisors, expected, strict=True)
    )
    if not fits:
        raise ConfigError(f"{meta.file}: rope_freqs.weight is not Llama 3.1's to 3.3's; convert from safetensors")
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": low,
        "high_freq_factor": high,
        "original_max_position_embeddings": original,
    }


FAMILY = Family(
    name="llama",
    model_types=("llama",),
    read_config=read_config,
    load=load,
    gguf=GgufFormat(
        arch="llama",
        config=_gguf_config,
        layer=LAYER | {"ffn_norm": "post_attention_layernorm"},
        interleaved={"q_proj.weight": "num_attention_heads", "k_proj.weight": "num_key_value_heads"},
    ),
)
