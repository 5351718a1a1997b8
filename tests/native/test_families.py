"""A family is one file: this one defines a toy, enters it in the registry, converts it, and runs it everywhere."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import oxinfer_web as ox
import pytest
from oxinfer_web.checkpoint import Checkpoint
from oxinfer_web.config import FULL, TextConfig, common_fields
from oxinfer_web.convert import convert
from oxinfer_web.convert.tensors import Kind, tensors_of, wanted_tensors
from oxinfer_web.enums import Quant
from oxinfer_web.linear import Lin, load_lin
from oxinfer_web.models import FAMILIES, Family, config_from_folder, load_model
from oxinfer_web.models.base import embeddings, kv_pages, nesting
from oxinfer_web.models.gguf import GgufFormat, Metadata, RopeFreqs, Shapes, common_config, one_size
from oxinfer_web.ops import KVPages, Norm, Ops, X, load_norm
from oxinfer_web.table import TableRef
from support import FIXTURES, TINY
from test_convert import weights, write_model


@dataclass(frozen=True)
class ToyConfig(TextConfig):
    """A number that no other family has."""

    branch_scale: float = 1.0


@dataclass(frozen=True)
class Layer:
    q: Lin
    k: Lin
    v: Lin
    o: Lin
    mix: Lin
    cache: KVPages


@dataclass(frozen=True)
class Toy:
    """Attention and one square matrix a layer, no norms but the last, embeddings scaled by three."""

    config: ToyConfig
    embed_tokens: TableRef
    head: Lin
    norm: Norm
    layers: tuple[Layer, ...]
    embed_scale: float = 3.0

    def decode(self, ops: Ops[X]) -> X:
        cfg = self.config
        x = ops.embed(self.embed_tokens, self.embed_scale)
        for i, w in enumerate(self.layers):
            q, k, v = ops.linear_multi(x, w.q, w.k, w.v)
            rope = cfg.rope_spec(i)
            q = ops.queries(q, cfg.num_attention_heads, cfg.head_dim, None, rope, cfg.attention_scale)
            ops.append(w.cache, k, v, None, None, rope)
            x = ops.add(x, ops.linear(ops.attention(q, w.cache), w.o))
            x = ops.norm(ops.linear(x, w.mix), self.norm, residual=x, scale=cfg.branch_scale)
        return ops.norm(x, self.norm)


def load_toy(ckpt: Checkpoint, cfg: TextConfig) -> Toy:
    assert isinstance(cfg, ToyConfig)
    prefix, _ = nesting(ckpt)
    d, kv = cfg.hidden_size, cfg.num_key_value_heads * cfg.head_dim

    def layer(i: int) -> Layer:
        at = f"{prefix}layers.{i}."
        sizes = {"q": d, "k": kv, "v": kv, "o": d, "mix": d}
        lins = {name: load_lin(ckpt, f"{at}{name}.weight", n, d) for name, n in sizes.items()}
        return Layer(**lins, cache=kv_pages(cfg, i))

    table, head = embeddings(ckpt, cfg)
    norm = load_norm(ckpt, prefix + "norm.weight", d, cfg.rms_norm_eps)
    return Toy(cfg, table, head, norm, tuple(layer(i) for i in range(cfg.num_hidden_layers)))


def read_toy(text: Mapping[str, Any]) -> ToyConfig:
    common = common_fields(text)
    return ToyConfig(
        family="toy",
        **common,
        tie_word_embeddings=True,
        rope_parameters={FULL: {"rope_theta": 100.0}},
        attention_scale=common["head_dim"] ** -0.5,
        branch_scale=float(text["branch_scale"]),
    )


def toy_from_gguf(meta: Metadata, shapes: Shapes, _: RopeFreqs) -> dict[str, Any]:
    sizes = {"intermediate_size": 1, "num_key_value_heads": one_size(meta, "attention.head_count_kv")}
    return common_config(meta, shapes) | sizes | {"model_type": "toy_text", "branch_scale": 0.5}


LAYER = {"attn_q": "q", "attn_k": "k", "attn_v": "v", "attn_output": "o", "ffn_up": "mix"}
TOY = Family("toy", ("toy_text",), read_toy, load_toy, GgufFormat("toy", toy_from_gguf, LAYER))
CONFIG: dict[str, Any] = {
    **{"model_type": "toy_text", "vocab_size": 96, "hidden_size": 64, "intermediate_size": 1, "branch_scale": 0.5},
    **{"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "rms_norm_eps": 1e-6},
    **{"max_position_embeddings": 256, "eos_token_id": 95},
}


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The toy's family in the registry, and a checkpoint of it as Hugging Face would have it."""
    monkeypatch.setitem(FAMILIES, TOY.name, TOY)
    rng = np.random.default_rng(5)
    shapes = {"embed_tokens": (96, 64), "norm": (64,)}
    for i in range(2):
        shapes |= {f"layers.{i}.{name}": (32 if name in "kv" else 64, 64) for name in ("q", "k", "v", "o", "mix")}
    tensors = {
        f"model.{name}.weight": rng.standard_normal(shape).astype(np.float32) / 8 for name, shape in shapes.items()
    }
    return write_model(tmp_path / "toy", tensors, CONFIG)


def by_hand(folder: Path, ids: list[int]) -> np.ndarray:
    """The toy's last logits in float64, by another road than the ops: one token's attention after the other."""
    w = {name.removeprefix("model."): a.astype(np.float64) for name, a in weights(folder).items()}

    def norm(x: np.ndarray) -> np.ndarray:
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6) * w["norm.weight"]

    def turn(x: np.ndarray, at: int) -> np.ndarray:
        z = (x[:, :8] + 1j * x[:, 8:]) * np.exp(1j * at * 100.0 ** (-np.arange(8) / 8))
        return np.concatenate([z.real, z.imag], -1)

    xs = [3 * w["embed_tokens.weight"][i] for i in ids]
    for i in range(2):
        q, k, v, o, mix = (w[f"layers.{i}.{name}.weight"] for name in ("q", "k", "v", "o", "mix"))
        keys = [turn((k @ x).reshape(2, 16), at) for at, x in enumerate(xs)]
        values = [(v @ x).reshape(2, 16) for x in xs]
        out = []
        for at, x in enumerate(xs):
            heads = []
            for h, query in enumerate(turn((q @ x).reshape(4, 16), at)):
                p = np.exp([query @ keys[j][h // 2] / 4 for j in range(at + 1)])
                heads.append(sum(a * values[j][h // 2] for j, a in enumerate(p / p.sum())))
            y = x + o @ np.concatenate(heads)
            out.append((y + norm(mix @ y)) * 0.5)
        xs = out
    return w["embed_tokens.weight"] @ norm(xs[-1])


def test_a_toy_family_runs_everywhere(toy: Path, tmp_path: Path) -> None:
    ids = [5, 17, 80, 3, 44]
    convert(toy, tmp_path / "bf16", "bf16")
    convert(toy, tmp_path / "q8", "q8")
    want = by_hand(toy, ids)
    reference = ox.Session(ox.load_reference(tmp_path / "bf16"))
    reference.forward(ids)
    np.testing.assert_allclose(reference.logits(), want, atol=1e-4)
    greedy = {}
    for name in ("bf16", "q8"):
        session = ox.Session(ox.load(tmp_path / name, max_context=64))
        greedy[name] = list(ox.generate_sync(session, ids, max_tokens=8))
        session.truncate(0)
        session.forward(ids)
        np.testing.assert_allclose(session.logits(), want, atol=0.05 * np.abs(want).max())
        np.testing.assert_allclose(session.embed_scaled(7), reference.embed_scaled(7), atol=1e-2)
    reference.truncate(0)
    assert greedy["bf16"][0] == want.argmax() and len(greedy["q8"]) == 8
    assert list(ox.generate_sync(reference, ids, max_tokens=1)) == [want.argmax()]


def test_a_toy_family_from_gguf(toy: Path, tmp_path: Path) -> None:
    names = {f"model.layers.{i}.{ours}": f"blk.{i}.{theirs}" for i in range(2) for theirs, ours in LAYER.items()}
    names |= {"model.embed_tokens": "token_embd", "model.norm": "output_norm"}
    w = gguf.GGUFWriter(tmp_path / "toy.gguf", "toy")
    w.add_context_length(256)
    w.add_embedding_length(64)
    w.add_block_count(2)
    w.add_head_count(4)
    w.add_head_count_kv(2)
    w.add_layer_norm_rms_eps(1e-6)
    w.add_eos_token_id(95)
    for name, data in weights(toy).items():
        w.add_tensor(names[name.removesuffix(".weight")] + ".weight", data)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    convert(tmp_path / "toy.gguf", tmp_path / "a", "q4")
    convert(toy, tmp_path / "b", "q4")
    [shard] = [path.name for path in (tmp_path / "a").glob("*.safetensors")]
    assert (tmp_path / "a" / shard).read_bytes() == (tmp_path / "b" / shard).read_bytes()


@pytest.mark.parametrize("case", TINY)
def test_a_model_asks_for_what_its_checkpoint_has(case: str) -> None:
    """The list that a conversion fills, made without a checkpoint, is a real one's names and shapes."""
    config = config_from_folder(FIXTURES / case)
    wanted = {w.name: w.shape for w in wanted_tensors(config)}
    assert wanted == {name: a.shape for name, a in weights(FIXTURES / case).items()}


def test_what_a_tensor_is_for() -> None:
    kinds = {w.name: w.kind for w in wanted_tensors(config_from_folder(FIXTURES / "gemma4_e2b"))}
    assert kinds["model.embed_tokens.weight"] is Kind.TIED
    assert kinds["model.embed_tokens_per_layer.weight"] is Kind.MORE_TABLE
    assert kinds["model.per_layer_model_projection.weight"] is Kind.LINEAR_8_BITS
    assert kinds["model.layers.0.layer_scalar"] is kinds["model.norm.weight"] is Kind.VECTOR
    assert kinds["model.layers.0.mlp.up_proj.weight"] is Kind.LINEAR


def test_kinds_of_a_split_quantized_model(tmp_path: Path) -> None:
    """Every stored tensor of a model belongs to one of its parts."""
    out = tmp_path / "out"
    convert(FIXTURES / "gemma4_e2b", out, "q4", table_quant="q8", head_quant="bf16", shard_size=20_000)
    checkpoint = Checkpoint.open(out)
    model = load_model(checkpoint, config_from_folder(out))
    stored = [ref.name for _, _, parts in tensors_of(model) for _, ref in parts]
    assert sorted(stored) == sorted(checkpoint)
    assert model.head.quant == Quant.BF16 and model.embed_tokens.quant == Quant.Q8


def test_families_need_no_numpy() -> None:
    """A page has none."""
    code = "import sys; sys.modules['numpy'] = None; import oxinfer_web.models; print(*oxinfer_web.models.FAMILIES)"
    py = FIXTURES.parents[1] / "py"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=py, check=True)
    assert out.stdout.split() == ["gemma3", "gemma4", "llama"]
