"""Gemma 4 text: per-layer embeddings, layers that share KV, full layers with their own head size, a scalar a layer.

Norms are stored as they multiply; the attention scale is 1 because q is normed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
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
from ..ops import KVPages, Norm, Ops, Scalar, X, load_norm, load_scalar
from ..table import TableRef, find_table
from .base import Family, activation, embeddings, kv_pages, nesting
from .gguf import FOUR_NORMS, LAYER, TOP, GgufFormat, Metadata, RopeFreqs, Shapes, rounded, sliding_config


@dataclass(frozen=True)
class Attention:
    """One layer's attention. Layers that share KV have another's cache, and no k and v; k_eq_v layers have no v."""

    q_proj: Lin
    k_proj: Lin | None
    v_proj: Lin | None
    q_norm: Norm
    k_norm: Norm | None
    v_norm: Norm
    o_proj: Lin
    rope: RopeSpec
    cache: KVPages


@dataclass(frozen=True)
class PerLayer:
    """One layer's use of its per-layer embedding."""

    per_layer_input_gate: Lin
    per_layer_projection: Lin
    post_per_layer_input_norm: Norm


@dataclass(frozen=True)
class Layer:
    """The weights of one decoder layer, named as in the checkpoint."""

    input_layernorm: Norm
    self_attn: Attention
    post_attention_layernorm: Norm
    pre_feedforward_layernorm: Norm
    gate_proj: Lin
    up_proj: Lin
    down_proj: Lin
    post_feedforward_layernorm: Norm
    per_layer: PerLayer | None
    layer_scalar: Scalar


@dataclass(frozen=True)
class PerLayerInputs:
    """Where the per-layer embeddings come from: a table row and a projection of the token's embedding."""

    embed_tokens_per_layer: TableRef
    per_layer_model_projection: Lin
    per_layer_projection_norm: Norm


@dataclass(frozen=True)
class Gemma4:
    """A Gemma 4 text decoder."""

    config: TextConfig
    embed_tokens: TableRef
    per_layer_inputs: PerLayerInputs | None
    layers: tuple[Layer, ...]
    norm: Norm
    head: Lin

    @property
    def embed_scale(self) -> float:
        """sqrt(hidden)."""
        return float(self.config.hidden_size**0.5)

    def decode(self, ops: Ops[X]) -> X:
        """Hidden states after the final norm: [T, hidden]."""
        cfg = self.config
        x = ops.embed(self.embed_tokens, self.embed_scale)
        ple = _per_layer_inputs(ops, cfg, self.per_layer_inputs, x) if self.per_layer_inputs else None
        for i, layer in enumerate(self.layers):
            ops.trace(f"hidden_{i}", x)
            x = _layer(ops, cfg, i, layer, x, ple)
        return ops.norm(x, self.norm)


def _per_layer_inputs(ops: Ops[X], cfg: TextConfig, w: PerLayerInputs, x: X) -> X:
    """All layers' inputs at once, [T, layers * p]: (norm(projection of x) + table row * sqrt(p)) / sqrt(2)."""
    rows = ops.embed(w.embed_tokens_per_layer, cfg.hidden_size_per_layer_input**0.5)
    projected = ops.linear(x, w.per_layer_model_projection)
    return ops.norm(projected, w.per_layer_projection_norm, rows, 2**-0.5, rows=cfg.num_hidden_layers)


def _layer(ops: Ops[X], cfg: TextConfig, i: int, w: Layer, x: X, ple: X | None) -> X:
    attn = _attention(ops, cfg, w.self_attn, ops.norm(x, w.input_layernorm))
    x = ops.norm(attn, w.post_attention_layernorm, residual=x)
    h = ops.norm(x, w.pre_feedforward_layernorm)
    h = ops.linear(ops.gated(h, w.gate_proj, w.up_proj, activation(cfg)), w.down_proj)
    if w.per_layer is None or ple is None:
        return ops.norm(h, w.post_feedforward_layernorm, residual=x, scale=w.layer_scalar)
    x = ops.norm(h, w.post_feedforward_layernorm, residual=x)
    gate = ops.linear(x, w.per_layer.per_layer_input_gate)
    h = ops.act_mul(gate, ple, i * cfg.hidden_size_per_layer_input, activation(cfg))
    h = ops.linear(h, w.per_layer.per_layer_projection)
    return ops.norm(h, w.per_layer.post_per_layer_input_norm, residual=x, scale=w.layer_scalar)


def _attention(ops: Ops[X], cfg: TextConfig, w: Attention, h: X) -> X:
    if w.k_proj is None:
        q = ops.linear(h, w.q_proj)
    else:
        q, k, *v = ops.linear_multi(h, w.q_proj, w.k_proj, *([] if w.v_proj is None else [w.v_proj]))
        ops.append(w.cache, k, v[0] if v else k, w.k_norm, w.v_norm, w.rope)
    q = ops.queries(q, cfg.num_attention_heads, w.cache.head_dim, w.q_norm, w.rope, cfg.attention_scale)
    return ops.linear(ops.attention(q, w.cache), w.o_proj)


def load(ckpt: Checkpoint, cfg: TextConfig) -> Gemma4:
    """The weights of a Gemma 4 checkpoint. Raises CheckpointError for what is missing or of another shape."""
    prefix, _ = nesting(ckpt)
    d, p, eps = cfg.hidden_size, cfg.hidden_size_per_layer_input, cfg.rms_norm_eps

    def lin(name: str, n_out: int, n_in: int) -> Lin:
        return load_lin(ckpt, f"{prefix}{name}.weight", n_out, n_in)

    def norm(name: str, n: int = d) -> Norm:
        return load_norm(ckpt, f"{prefix}{name}.weight", n, eps)

    def attention(i: int) -> Attention:
        at, hd = f"layers.{i}.self_attn.", cfg.layer_head_dim(i)
        q, kv = cfg.num_attention_heads * hd, cfg.layer_n_kv(i) * hd
        own = not cfg.is_kv_shared(i)
        return Attention(
            q_proj=lin(at + "q_proj", q, d),
            k_proj=lin(at + "k_proj", kv, d) if own else None,
            v_proj=lin(at + "v_proj", kv, d) if own and not cfg.layer_k_eq_v(i) else None,
            q_norm=norm(at + "q_norm", hd),
            k_norm=norm(at + "k_norm", hd) if own else None,
            v_norm=Norm(hd, eps),
            o_proj=lin(at + "o_proj", d, q),
            rope=cfg.rope_spec(i),
            cache=kv_pages(cfg, i),
        )

    def per_layer(at: str) -> PerLayer:
        return PerLayer(
            lin(at + "per_layer_input_gate", p, d),
            lin(at + "per_layer_projection", d, p),
            norm(at + "post_per_layer_input_norm"),
        )

    def layer(i: int) -> Layer:
        at, width = f"layers.{i}.", cfg.layer_intermediate(i)
        return Layer(
            input_layernorm=norm(at + "input_layernorm"),
            self_attn=attention(i),
            post_attention_layernorm=norm(at + "post_attention_layernorm"),
            pre_feedforward_layernorm=norm(at + "pre_feedforward_layernorm"),
            gate_proj=lin(at + "mlp.gate_proj", width, d),
            up_proj=lin(at + "mlp.up_proj", width, d),
            down_proj=lin(at + "mlp.down_proj", d, width),
            post_feedforward_layernorm=norm(at + "post_feedforward_layernorm"),
            per_layer=per_layer(at) if cfg.has_ple else None,
            layer_scalar=load_scalar(ckpt, f"{prefix}{at}layer_scalar"),
        )

    table, head = embeddings(ckpt, cfg)
    last, inputs = norm("norm"), None
    if cfg.has_ple:
        columns = cfg.num_hidden_layers * p
        inputs = PerLayerInputs(
            find_table(
                ckpt,
                prefix + "embed_tokens_per_layer.weight",
                cfg.vocab_size_per_layer_input,
                columns,
                given_row=cfg.pad_token_id,
            ),
            # It is small, and every layer's input comes from it: not worth 4 bits.
            replace(lin("per_layer_model_projection", columns, d), needs_8_bits=True),
            # The projection is scaled by 1/sqrt(hidden) before this norm; scaling eps instead gives the same result.
            load_norm(ckpt, prefix + "per_layer_projection_norm.weight", p, eps * d),
        )
    layers = tuple(layer(i) for i in range(cfg.num_hidden_layers))
    return Gemma4(cfg, table, inputs, layers, last, head)


def read_config(text: Mapping[str, Any]) -> TextConfig:
    """The shape, from config.json in either spelling: the hub's (`global_head_dim`, `num_global_key_value_heads`), or
    transformers' newer `per_layer_config`. Raises ConfigError for features that no op has."""
    reject(text, "enable_moe_block", "attention_bias")
    if text.get("use_bidirectional_attention") == "all":
        reject(text, "use_bidirectional_attention")
    common = common_fields(text) | {"layer_types": sliding_pattern(text, 6)}
    overrides: dict[int, dict[str, int]] = {}
    for i, kind in enumerate(common["layer_types"]):
        if kind == FULL:
            pairs = (("head_dim", "global_head_dim"), ("num_key_value_heads", "num_global_key_value_heads"))
            overrides[i] = {ours: int(text[hub]) for ours, hub in pairs if text.get(hub)}
    for key, values in (text.get("per_layer_config") or {}).items():
        known = ("head_dim", "num_key_value_heads")
        overrides.setdefault(int(key), {}).update({k: int(values[k]) for k in known if values.get(k)})
    rope = {"rope_theta": 1e6, "rope_type": "proportional", "partial_rotary_factor": 0.25}
    return TextConfig(
        family="gemma4",
        **common,
        tie_word_embeddings=bool(text.get("tie_word_embeddings", True)),
        rope_parameters=ropes_by_type(text, rope),
        sliding_window=int(text.get("sliding_window") or 0),
        final_logit_softcapping=float(text.get("final_logit_softcapping") or 0),
        hidden_activation=read_activation(text, "hidden_activation", "gelu_pytorch_tanh"),
        hidden_size_per_layer_input=int(text.get("hidden_size_per_layer_input") or 0),
        vocab_size_per_layer_input=int(text.get("vocab_size_per_layer_input") or text["vocab_size"]),
        num_kv_shared_layers=int(text.get("num_kv_shared_layers") or 0),
        use_double_wide_mlp=bool(text.get("use_double_wide_mlp")),
        attention_k_eq_v=bool(text.get("attention_k_eq_v")),
        layer_overrides=overrides,
    )


def _gguf_config(meta: Metadata, shapes: Shapes, rope_freqs: RopeFreqs) -> dict[str, Any]:
    config = sliding_config(meta, shapes, 6)
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
                "rope_theta": rounded(meta.of_arch("rope.freq_base", 1e6)),
                "partial_rotary_factor": _turning_part(meta, global_dim, rope_freqs),
            },
            SLIDING: {"rope_type": "default", "rope_theta": rounded(meta.of_arch("rope.freq_base_swa", 10000.0))},
        },
    }
    if per_layer and "model.embed_tokens_per_layer.weight" in shapes:
        config["vocab_size_per_layer_input"] = shapes["model.embed_tokens_per_layer.weight"][0]
    return config


def _turning_part(meta: Metadata, head_dim: int, divisors: RopeFreqs) -> float:
    """The share of a full layer's pairs that turn: those with the divisor 1; the rest have a huge one."""
    if divisors is None:
        return 1.0
    turning = sum(d == 1 for d in divisors)
    plain = all(d == 1 for d in divisors[:turning]) and all(d > 1e20 for d in divisors[turning:])
    if len(divisors) != head_dim // 2 or not plain:
        raise ConfigError(f"{meta.file}: rope_freqs.weight is not Gemma 4's partial rotation; convert from safetensors")
    return 2 * turning / head_dim


FAMILY = Family(
    name="gemma4",
    model_types=("gemma4", "gemma4_text", "gemma4_unified", "gemma4_unified_text"),
    read_config=read_config,
    load=load,
    gguf=GgufFormat(
        arch="gemma4",
        config=_gguf_config,
        layer={
            **LAYER,
            **FOUR_NORMS,
            "inp_gate": "per_layer_input_gate",
            "proj": "per_layer_projection",
            "post_norm": "post_per_layer_input_norm",
            "layer_output_scale.weight": "layer_scalar",
        },
        top={
            **TOP,
            "per_layer_token_embd": "embed_tokens_per_layer",
            "per_layer_model_proj": "per_layer_model_projection",
            "per_layer_proj_norm": "per_layer_projection_norm",
        },
    ),
)
