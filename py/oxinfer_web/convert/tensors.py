"""Which tensors a text decoder has, by its config: the list that a conversion has to fill."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from ..config import TextConfig

NESTINGS = ("model.language_model.", "language_model.model.", "model.")
"""Where checkpoints keep the decoder, the multimodal ones first."""


class Kind(Enum):
    """What a tensor is for; it decides the tensor's precision and its place in the shards."""

    VECTOR = "norms and scalars"
    LINEAR = "linear layers"
    PROJECTION = "per-layer model projection"
    HEAD = "LM head"
    TIED = "embeddings and LM head (tied)"
    TABLE = "input embeddings"
    PER_LAYER_TABLE = "per-layer embeddings"


@dataclass(frozen=True)
class Wanted:
    """A tensor of the decoder under its name in the output: [n] for a vector, else [rows, cols]."""

    name: str
    shape: tuple[int, ...]
    kind: Kind


def canonical_name(name: str) -> str | None:
    """A Hugging Face tensor's name as the output spells it (`model.layers.0...`), or None outside the text decoder."""
    if name in ("lm_head.weight", "language_model.lm_head.weight"):
        return "lm_head.weight"
    for prefix in NESTINGS:
        if name.startswith(prefix):
            rest = name.removeprefix(prefix)
            top = rest.split(".")[0]
            known = {"layers", "norm", "embed_tokens", "embed_tokens_per_layer"}
            known |= {"per_layer_model_projection", "per_layer_projection_norm"}
            return f"model.{rest}" if top in known else None
    return None


def wanted_tensors(cfg: TextConfig) -> list[Wanted]:
    """Every tensor of the decoder, in the order of the output.

    The head comes first, so that the largest repacking overlaps the download of the rest; tables that stay on the
    host come last. Layers that share KV have no k and v, k_eq_v layers no v: a source that has them loses them.
    """
    d, p = cfg.hidden_size, cfg.hidden_size_per_layer_input
    embed = Wanted("model.embed_tokens.weight", (cfg.vocab_size, d), Kind.TIED)
    out = [embed if cfg.tie_word_embeddings else Wanted("lm_head.weight", embed.shape, Kind.HEAD)]
    out.append(Wanted("model.norm.weight", (d,), Kind.VECTOR))
    if cfg.has_ple:
        columns = cfg.num_hidden_layers * p
        out.append(Wanted("model.per_layer_model_projection.weight", (columns, d), Kind.PROJECTION))
        out.append(Wanted("model.per_layer_projection_norm.weight", (p,), Kind.VECTOR))
    for i in range(cfg.num_hidden_layers):
        out += _layer(cfg, i)
    if not cfg.tie_word_embeddings:
        out.append(Wanted(embed.name, embed.shape, Kind.TABLE))
    if cfg.has_ple:
        shape = (cfg.vocab_size_per_layer_input, columns)
        out.append(Wanted("model.embed_tokens_per_layer.weight", shape, Kind.PER_LAYER_TABLE))
    return out


def _layer(cfg: TextConfig, i: int) -> Iterator[Wanted]:
    at = f"model.layers.{i}."
    d, p, width = cfg.hidden_size, cfg.hidden_size_per_layer_input, cfg.layer_intermediate(i)
    head_dim = cfg.layer_head_dim(i)
    q, kv = cfg.num_attention_heads * head_dim, cfg.layer_n_kv(i) * head_dim
    gemma, own_kv = cfg.family != "llama", not cfg.is_kv_shared(i)

    def vector(name: str, n: int = d) -> Wanted:
        return Wanted(at + name, (n,), Kind.VECTOR)

    def linear(name: str, rows: int, cols: int) -> Wanted:
        return Wanted(f"{at}{name}.weight", (rows, cols), Kind.LINEAR)

    yield vector("input_layernorm.weight")
    yield linear("self_attn.q_proj", q, d)
    if own_kv:
        yield linear("self_attn.k_proj", kv, d)
        if not cfg.layer_k_eq_v(i):
            yield linear("self_attn.v_proj", kv, d)
    if gemma:
        yield vector("self_attn.q_norm.weight", head_dim)
        if own_kv:
            yield vector("self_attn.k_norm.weight", head_dim)
    yield linear("self_attn.o_proj", d, q)
    yield vector("post_attention_layernorm.weight")
    if gemma:
        yield vector("pre_feedforward_layernorm.weight")
    yield linear("mlp.gate_proj", width, d)
    yield linear("mlp.up_proj", width, d)
    yield linear("mlp.down_proj", d, width)
    if gemma:
        yield vector("post_feedforward_layernorm.weight")
    if cfg.has_ple:
        yield linear("per_layer_input_gate", p, d)
        yield linear("per_layer_projection", d, p)
        yield vector("post_per_layer_input_norm.weight")
    if cfg.family == "gemma4":
        yield vector("layer_scalar", 1)
