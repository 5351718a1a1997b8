"""Gemma 4 text: per-layer embeddings, layers that share KV, full layers with their own head size, a scalar a layer.

Norms are stored as they multiply; the attention scale is 1 because q is normed.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..checkpoint import Checkpoint
from ..config import RopeSpec, TextConfig
from ..linear import Lin, load_lin
from ..ops import Norm, Ops, Scalar, X, load_norm, load_scalar
from ..table import TableRef, find_table
from .base import activation, embeddings, text_prefix


@dataclass(frozen=True)
class Attention:
    """One layer's attention. Layers that share KV have no k and v of their own; k_eq_v layers have no v."""

    q_proj: Lin
    q_norm: Norm
    k_proj: Lin | None
    k_norm: Norm | None
    v_proj: Lin | None
    v_norm: Norm
    o_proj: Lin
    rope: RopeSpec
    head_dim: int
    window: int
    kv_source: int


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
    def more_tables(self) -> tuple[TableRef, ...]:
        """The per-layer embeddings, where the model has them."""
        return (self.per_layer_inputs.embed_tokens_per_layer,) if self.per_layer_inputs else ()

    def decode(self, ops: Ops[X]) -> X:
        """Hidden states after the final norm: [T, hidden]."""
        cfg = self.config
        x = ops.embed(self.embed_tokens, cfg.hidden_size**0.5)
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
    attn = _attention(ops, cfg, i, w.self_attn, ops.norm(x, w.input_layernorm))
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


def _attention(ops: Ops[X], cfg: TextConfig, i: int, w: Attention, h: X) -> X:
    if w.k_proj is None:
        q = ops.linear(h, w.q_proj)
    else:
        q, k, *v = ops.linear_multi(h, w.q_proj, w.k_proj, *([] if w.v_proj is None else [w.v_proj]))
        ops.append(i, k, v[0] if v else k, w.k_norm, w.v_norm, w.rope)
    q = ops.queries(q, cfg.num_attention_heads, w.head_dim, w.q_norm, w.rope, cfg.attention_scale)
    return ops.linear(ops.attention(q, w.kv_source, w.window), w.o_proj)


def load(ckpt: Checkpoint, cfg: TextConfig) -> Gemma4:
    """The weights of a Gemma 4 checkpoint. Raises CheckpointError for what is missing or of another shape."""
    prefix = text_prefix(ckpt)
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
            q_norm=norm(at + "q_norm", hd),
            k_proj=lin(at + "k_proj", kv, d) if own else None,
            k_norm=norm(at + "k_norm", hd) if own else None,
            v_proj=lin(at + "v_proj", kv, d) if own and not cfg.layer_k_eq_v(i) else None,
            v_norm=Norm(hd, eps),
            o_proj=lin(at + "o_proj", d, q),
            rope=cfg.rope_spec(i),
            head_dim=hd,
            window=cfg.sliding_window if cfg.is_sliding(i) else 0,
            kv_source=cfg.kv_source(i),
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

    inputs = None
    if cfg.has_ple:
        columns = cfg.num_hidden_layers * p
        inputs = PerLayerInputs(
            find_table(ckpt, prefix + "embed_tokens_per_layer.weight", cfg.vocab_size_per_layer_input, columns),
            lin("per_layer_model_projection", columns, d),
            # The projection is scaled by 1/sqrt(hidden) before this norm; scaling eps instead gives the same result.
            load_norm(ckpt, prefix + "per_layer_projection_norm.weight", p, eps * d),
        )
    table, head = embeddings(ckpt, prefix, cfg)
    layers = tuple(layer(i) for i in range(cfg.num_hidden_layers))
    return Gemma4(cfg, table, inputs, layers, norm("norm"), head)
