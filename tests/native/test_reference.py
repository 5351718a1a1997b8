"""The reference against float64 arithmetic of another hand, on prompts far longer than the golden ones."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import oxinfer_web as ox
import pytest
from support import FIXTURES
from test_convert import weights


def llama_by_hand(folder: Path, ids: list[int]) -> np.ndarray:
    """Every position's logits of a Llama in float64, written from its definition, [T, vocab].

    The angles of the rotary embedding alone are float32, as models are trained: what a weight has learned to undo.
    """
    config = json.loads((folder / "config.json").read_text())
    w = {name.removeprefix("model."): a.astype(np.float64) for name, a in weights(folder).items()}
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    size, eps = config["head_dim"], config["rms_norm_eps"]
    theta = config["rope_parameters"]["rope_theta"]
    inv_freq = (theta ** -(np.arange(0, size, 2) / size)).astype(np.float32)
    angles = np.outer(np.arange(len(ids), dtype=np.float32), inv_freq)
    turns = np.exp(1j * angles.astype(np.float64))[:, None]

    def norm(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
        return x * weight / np.sqrt((x**2).mean(-1, keepdims=True) + eps)

    def turn(x: np.ndarray) -> np.ndarray:
        z = (x[..., : size // 2] + 1j * x[..., size // 2 :]) * turns
        return np.concatenate([z.real, z.imag], -1)

    x = w["embed_tokens.weight"][ids]
    hidden_from = np.triu(np.full((len(ids), len(ids)), -np.inf), 1)
    for i in range(config["num_hidden_layers"]):
        layer = {name.removeprefix(f"layers.{i}."): a for name, a in w.items() if name.startswith(f"layers.{i}.")}
        h = norm(x, layer["input_layernorm.weight"])
        q, k, v = (h @ layer[f"self_attn.{p}_proj.weight"].T for p in "qkv")
        q, k = turn(q.reshape(len(ids), heads, size)), turn(k.reshape(len(ids), kv_heads, size))
        v = v.reshape(len(ids), kv_heads, size)
        out = []
        for head in range(heads):
            group = head // (heads // kv_heads)
            scores = q[:, head] @ k[:, group].T / np.sqrt(size) + hidden_from
            p = np.exp(scores - scores.max(-1, keepdims=True))
            out.append(p / p.sum(-1, keepdims=True) @ v[:, group])
        x = x + np.concatenate(out, -1) @ layer["self_attn.o_proj.weight"].T
        h = norm(x, layer["post_attention_layernorm.weight"])
        gate, up = (h @ layer[f"mlp.{p}_proj.weight"].T for p in ("gate", "up"))
        x = x + (gate / (1 + np.exp(-gate)) * up) @ layer["mlp.down_proj.weight"].T
    return norm(x, w["norm.weight"]) @ w["embed_tokens.weight"].T


@pytest.mark.parametrize("tokens", [256, 1000])
def test_a_long_prompt_is_as_exact_as_a_short_one(tokens: int) -> None:
    """The rounding of float32 is 1e-4 at any length; angles in float64 would be 2e-4 and 9e-4 off."""
    folder, ids = FIXTURES / "llama", np.random.default_rng(7).integers(0, 512, tokens).tolist()
    want = llama_by_hand(folder, ids)
    for load in (ox.load_reference, ox.load):
        session = ox.Session(load(folder))
        got = np.asarray(session.logits(session.forward_hidden(ids)))
        assert np.abs(got - want).max() < 2e-4
