"""Llama: pre-norms only, SiLU, plain rope, no norms on q and k, an unscaled embedding."""

from __future__ import annotations

from dataclasses import dataclass

from ..checkpoint import Checkpoint
from ..config import RopeSpec, TextConfig
from ..linear import Lin, load_lin
from ..ops import Norm, Ops, X, load_norm
from ..table import TableRef
from .base import activation, embeddings, text_prefix


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


@dataclass(frozen=True)
class Llama:
    """A Llama decoder."""

    config: TextConfig
    embed_tokens: TableRef
    layers: tuple[Layer, ...]
    norm: Norm
    head: Lin

    @property
    def more_tables(self) -> tuple[TableRef, ...]:
        """None: the input table is the only one."""
        return ()

    def decode(self, ops: Ops[X]) -> X:
        """Hidden states after the final norm: [T, hidden]."""
        x = ops.embed(self.embed_tokens, 1.0)
        for i, layer in enumerate(self.layers):
            ops.trace(f"hidden_{i}", x)
            x = _layer(ops, self.config, i, layer, x)
        return ops.norm(x, self.norm)


def _layer(ops: Ops[X], cfg: TextConfig, i: int, w: Layer, x: X) -> X:
    h = ops.norm(x, w.input_layernorm)
    q, k, v = ops.linear_multi(h, w.q_proj, w.k_proj, w.v_proj)
    q = ops.queries(q, cfg.num_attention_heads, cfg.head_dim, None, w.rope, cfg.attention_scale)
    ops.append(i, k, v, None, None, w.rope)
    x = ops.add(x, ops.linear(ops.attention(q, i, 0), w.o_proj))
    h = ops.norm(x, w.post_attention_layernorm)
    return ops.add(x, ops.linear(ops.gated(h, w.gate_proj, w.up_proj, activation(cfg)), w.down_proj))


def load(ckpt: Checkpoint, cfg: TextConfig) -> Llama:
    """The weights of a Llama checkpoint. Raises CheckpointError for what is missing or of another shape."""
    prefix = text_prefix(ckpt)
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
        )

    table, head = embeddings(ckpt, prefix, cfg)
    norm = load_norm(ckpt, prefix + "norm.weight", d, eps)
    return Llama(cfg, table, tuple(layer(i) for i in range(cfg.num_hidden_layers)), norm, head)
