"""Gemma 3: norms before and after each branch (stored as weight - 1), normed q and k, sliding and full layers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..checkpoint import Checkpoint
from ..config import (
    FULL,
    SLIDING,
    RopeSpec,
    TextConfig,
    common_fields,
    read_activation,
    reject,
    ropes_by_type,
    sliding_pattern,
)
from ..errors import ConfigError
from ..linear import Lin, load_lin
from ..ops import KVPages, Norm, Ops, X, load_norm
from ..table import TableRef
from .base import Family, activation, embeddings, kv_pages, nesting
from .gguf import (
    FOUR_NORMS,
    LAYER,
    GgufFormat,
    Metadata,
    RopeFreqs,
    Shapes,
    linear_scaling,
    one_size,
    rounded,
    sliding_config,
)


@dataclass(frozen=True)
class Layer:
    """The weights of one decoder layer, named as in the checkpoint."""

    input_layernorm: Norm
    q_proj: Lin
    k_proj: Lin
    v_proj: Lin
    q_norm: Norm
    k_norm: Norm
    o_proj: Lin
    post_attention_layernorm: Norm
    pre_feedforward_layernorm: Norm
    gate_proj: Lin
    up_proj: Lin
    down_proj: Lin
    post_feedforward_layernorm: Norm
    rope: RopeSpec
    cache: KVPages


@dataclass(frozen=True)
class Gemma3:
    """A Gemma 3 text decoder."""

    config: TextConfig
    embed_tokens: TableRef
    layers: tuple[Layer, ...]
    norm: Norm
    head: Lin

    @property
    def embed_scale(self) -> float:
        """sqrt(hidden)."""
        return float(self.config.hidden_size**0.5)

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
    q = ops.queries(q, cfg.num_attention_heads, cfg.head_dim, w.q_norm, w.rope, cfg.attention_scale)
    ops.append(w.cache, k, v, w.k_norm, None, w.rope)
    attn = ops.linear(ops.attention(q, w.cache), w.o_proj)
    x = ops.norm(attn, w.post_attention_layernorm, residual=x)
    h = ops.norm(x, w.pre_feedforward_layernorm)
    h = ops.linear(ops.gated(h, w.gate_proj, w.up_proj, activation(cfg)), w.down_proj)
    return ops.norm(h, w.post_feedforward_layernorm, residual=x)


def load(ckpt: Checkpoint, cfg: TextConfig) -> Gemma3:
    """The weights of a Gemma 3 checkpoint. Raises CheckpointError for what is missing or of another shape."""
    prefix, _ = nesting(ckpt)
    d = cfg.hidden_size
    q, kv = cfg.num_attention_heads * cfg.head_dim, cfg.num_key_value_heads * cfg.head_dim

    def norm(name: str, n: int = d) -> Norm:
        return load_norm(ckpt, f"{prefix}{name}.weight", n, cfg.rms_norm_eps, offset=1.0)

    def layer(i: int) -> Layer:
        at = f"layers.{i}."
        weights = f"{prefix}{at}"
        return Layer(
            input_layernorm=norm(at + "input_layernorm"),
            q_proj=load_lin(ckpt, weights + "self_attn.q_proj.weight", q, d),
            k_proj=load_lin(ckpt, weights + "self_attn.k_proj.weight", kv, d),
            v_proj=load_lin(ckpt, weights + "self_attn.v_proj.weight", kv, d),
            q_norm=norm(at + "self_attn.q_norm", cfg.head_dim),
            k_norm=norm(at + "self_attn.k_norm", cfg.head_dim),
            o_proj=load_lin(ckpt, weights + "self_attn.o_proj.weight", d, q),
            post_attention_layernorm=norm(at + "post_attention_layernorm"),
            pre_feedforward_layernorm=norm(at + "pre_feedforward_layernorm"),
            gate_proj=load_lin(ckpt, weights + "mlp.gate_proj.weight", cfg.intermediate_size, d),
            up_proj=load_lin(ckpt, weights + "mlp.up_proj.weight", cfg.intermediate_size, d),
            down_proj=load_lin(ckpt, weights + "mlp.down_proj.weight", d, cfg.intermediate_size),
            post_feedforward_layernorm=norm(at + "post_feedforward_layernorm"),
            rope=cfg.rope_spec(i),
            cache=kv_pages(cfg, i),
        )

    table, head = embeddings(ckpt, cfg)
    last = norm("norm")
    return Gemma3(cfg, table, tuple(layer(i) for i in range(cfg.num_hidden_layers)), last, head)


_DEFAULTS = {
    "vocab_size": 262208,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "sliding_window": 4096,
}
"""What the hub's multimodal configs leave out of `text_config`."""


def read_config(text: Mapping[str, Any]) -> TextConfig:
    """The shape, from config.json. Raises ConfigError for features that no op has."""
    text = _DEFAULTS | dict(text)
    reject(text, "attention_bias", "attn_logit_softcapping", "use_bidirectional_attention")
    common = common_fields(text) | {"layer_types": sliding_pattern(text, 6)}
    scalar = float(text.get("query_pre_attn_scalar") or common["head_dim"])
    return TextConfig(
        family="gemma3",
        **common,
        tie_word_embeddings=bool(text.get("tie_word_embeddings", True)),
        rope_parameters=ropes_by_type(text, {"rope_theta": 1e6, "rope_type": "default"}),
        sliding_window=int(text.get("sliding_window") or 0),
        attention_scale=scalar**-0.5,
        final_logit_softcapping=float(text.get("final_logit_softcapping") or 0),
        hidden_activation=read_activation(text, "hidden_activation", "gelu_pytorch_tanh"),
    )


def _gguf_config(meta: Metadata, shapes: Shapes, rope_freqs: RopeFreqs) -> dict[str, Any]:
    if rope_freqs is not None:
        raise ConfigError(f"{meta.file}: rope_freqs.weight is not expected in a gemma3 file; convert from safetensors")
    config = sliding_config(meta, shapes, 6)
    head_dim = int(meta.need("attention.key_length"))
    # The 27B model alone scales its queries by the hidden size over the heads instead of by the head's size.
    large = config["num_hidden_layers"] == 62
    full = {"rope_type": "default", "rope_theta": rounded(meta.of_arch("rope.freq_base", 1e6))} | linear_scaling(meta)
    sliding = {"rope_type": "default", "rope_theta": rounded(meta.of_arch("rope.freq_base_swa", 10000.0))}
    return config | {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "intermediate_size": one_size(meta, "feed_forward_length"),
        "num_key_value_heads": one_size(meta, "attention.head_count_kv"),
        "head_dim": head_dim,
        "query_pre_attn_scalar": config["hidden_size"] // config["num_attention_heads"] if large else head_dim,
        "rope_parameters": {FULL: full, SLIDING: sliding},
    }


FAMILY = Family(
    name="gemma3",
    model_types=("gemma3", "gemma3_text"),
    read_config=read_config,
    load=load,
    gguf=GgufFormat(arch="gemma3", config=_gguf_config, layer=LAYER | FOUR_NORMS, norm_offset=1.0),
)
