"""Converting Hugging Face folders: every byte of the result against the original, and what must be refused."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from oxinfer_web.checkpoint import DTYPE_BYTES, INDEX, Checkpoint
from oxinfer_web.convert import Converted, convert
from oxinfer_web.convert.tensors import wanted_tensors
from oxinfer_web.enums import Quant
from oxinfer_web.errors import CheckpointError, ConfigError, OxinferError
from oxinfer_web.linear import find_matrix
from oxinfer_web.models import config_from_folder, load_model
from oxinfer_web.quant import from_bf16, quantize_q4, quantize_q8, read_parts, to_bf16
from safetensors import safe_open
from safetensors.numpy import save_file
from support import FIXTURES, TINY, safetensors_bytes

NAMES = {"bf16": Quant.BF16, "q8": Quant.Q8, "q4": Quant.Q4}


def weights(folder: Path) -> dict[str, np.ndarray]:
    """All bf16 tensors of a checkpoint as f32."""
    checkpoint = Checkpoint.open(folder)
    parts = {name: checkpoint.parts(name, "BF16", checkpoint.tensor(name).shape) for name in checkpoint}
    return {name: from_bf16(read_parts(folder, part)[0]) for name, part in parts.items()}


def write_model(folder: Path, tensors: Mapping[str, np.ndarray], config: Mapping[str, Any]) -> Path:
    """A Hugging Face folder of f32 arrays in bf16."""
    folder.mkdir(parents=True, exist_ok=True)
    raw = {name: ("BF16", list(w.shape), to_bf16(w).tobytes()) for name, w in tensors.items()}
    (folder / "model.safetensors").write_bytes(safetensors_bytes(raw))
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def config_of(case: str) -> dict[str, Any]:
    return json.loads((FIXTURES / case / "config.json").read_text())


def check_matrix(folder: Path, name: str, w: np.ndarray, quant: str) -> None:
    """The stored tensor is exactly what quantizing w gives."""
    found, values, scales = find_matrix(Checkpoint.open(folder), name, *w.shape)
    assert found == NAMES[quant], name
    got = read_parts(folder, values, scales)
    want = {"bf16": lambda: (to_bf16(w), got[1]), "q8": lambda: quantize_q8(w), "q4": lambda: quantize_q4(w)}[quant]()
    for a, b in zip(got, want, strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b, err_msg=name)


@pytest.mark.parametrize("shard_size", [20_000, 32 << 20])
@pytest.mark.parametrize("quant", ["bf16", "q8", "q4"])
@pytest.mark.parametrize("case", TINY)
def test_every_tensor(case: str, quant: str, shard_size: int, tmp_path: Path) -> None:
    out = tmp_path / "out"
    made = convert(FIXTURES / case, out, quant, shard_size=shard_size)
    config, source = config_from_folder(out), weights(FIXTURES / case)
    load_model(Checkpoint.open(out), config)  # checks names, dtypes and shapes
    checkpoint = Checkpoint.open(out)
    for w in wanted_tensors(config):
        if len(w.shape) == 1:
            ref = checkpoint.tensor(w.name)
            np.testing.assert_array_equal(from_bf16(read_parts(out, ((0, ref),))[0]), source[w.name])
        else:
            projection = quant == "q4" and w.name == "model.per_layer_model_projection.weight"
            check_matrix(out, w.name, source[w.name], "q8" if projection else quant)
    check_files(out, made, shard_size)
    assert checkpoint.metadata["oxinfer_quant"] == quant
    assert (shard_size > 100_000) == (not any("@" in name for name in checkpoint))


def check_files(out: Path, made: Converted, shard_size: int) -> None:
    """The index tells the truth, no file is too large, and every tensor is aligned."""
    index = json.loads((out / INDEX).read_text())
    files = sorted(path.name for path in out.glob("*.safetensors"))
    assert sorted(index["metadata"]["shards"]) == files == sorted(set(index["weight_map"].values()))
    assert len(files) == made.shards
    checkpoint, total = Checkpoint.open(out), 0
    for file, about in index["metadata"]["shards"].items():
        data = (out / file).read_bytes()
        assert len(data) == about["size"] <= shard_size
        assert hashlib.sha256(data).hexdigest() == about["sha256"]
        with safe_open(out / file, "np") as f:  # the reference implementation reads it too
            assert set(f.keys()) == {name for name, where in index["weight_map"].items() if where == file}
    for name in checkpoint:
        ref = checkpoint.tensor(name)
        assert ref.offset % DTYPE_BYTES[ref.dtype] == 0
        total += ref.nbytes
    assert total == index["metadata"]["total_size"] == made.total_size
    assert not list(out.parent.glob("*.partial*"))


def test_host_tables_share_no_shard_with_weights(tmp_path: Path) -> None:
    convert(FIXTURES / "gemma4_e2b", tmp_path / "out", "q4")
    for shard in Checkpoint.open(tmp_path / "out").shards.values():
        assert len({"embed_tokens_per_layer" in name for name in shard.tensors}) == 1


def test_precisions(tmp_path: Path) -> None:
    src = FIXTURES / "gemma4_e2b"
    source = weights(src)
    embed, per_layer = "model.embed_tokens.weight", "model.embed_tokens_per_layer.weight"
    layer = "model.layers.0.mlp.up_proj.weight"

    convert(src, tmp_path / "table", "q4", table_quant="q8")
    for name, quant in ((layer, "q4"), (per_layer, "q8"), (embed, "q4")):
        check_matrix(tmp_path / "table", name, source[name], quant)

    convert(src, tmp_path / "head", "q4", head_quant="q8")
    for name, quant in ((layer, "q4"), (per_layer, "q4"), (embed, "q8")):
        check_matrix(tmp_path / "head", name, source[name], quant)

    convert(src, tmp_path / "both", "q4", table_quant="q4", head_quant="q8")
    for name, quant in ((layer, "q4"), (per_layer, "q4"), (embed, "q4")):
        check_matrix(tmp_path / "both", name, source[name], quant)
    check_matrix(tmp_path / "both", "lm_head.weight", source[embed], "q8")
    model = load_model(Checkpoint.open(tmp_path / "both"), config_from_folder(tmp_path / "both"))
    assert (model.head.quant, model.embed_tokens.quant) == (Quant.Q8, Quant.Q4)


def test_untied(tmp_path: Path) -> None:
    tensors = weights(FIXTURES / "llama")
    rng = np.random.default_rng(1)
    tensors["lm_head.weight"] = rng.standard_normal((512, 192), np.float32)
    src = write_model(tmp_path / "src", tensors, config_of("llama") | {"tie_word_embeddings": False})
    convert(src, tmp_path / "out", "q4", table_quant="bf16", head_quant="q8")
    source = weights(src)
    check_matrix(tmp_path / "out", "lm_head.weight", source["lm_head.weight"], "q8")
    check_matrix(tmp_path / "out", "model.embed_tokens.weight", source["model.embed_tokens.weight"], "bf16")


@pytest.mark.parametrize("prefix", ["model.language_model.", "language_model.model."])
def test_multimodal_nesting(prefix: str, tmp_path: Path) -> None:
    case = "gemma4_e2b"
    tensors = {name.replace("model.", prefix, 1): w for name, w in weights(FIXTURES / case).items()}
    tower = np.ones((4, 32), np.float32)
    tensors |= {"model.vision_tower.layers.0.weight": tower, "model.embed_vision.embedding_projection.weight": tower}
    # A layer that uses another's KV may carry projections of its own all the same.
    tensors[f"{prefix}layers.6.self_attn.k_proj.weight"] = np.ones((64, 128), np.float32)
    outer = {"model_type": "gemma4", "text_config": config_of(case), "vision_config": {"model_type": "gemma4_vision"}}
    convert(write_model(tmp_path / "src", tensors, outer), tmp_path / "nested", "q8")
    convert(FIXTURES / case, tmp_path / "plain", "q8")
    nested, plain = Checkpoint.open(tmp_path / "nested"), Checkpoint.open(tmp_path / "plain")
    assert set(nested) == set(plain)
    for file in plain.shards:
        assert (tmp_path / "nested" / file).read_bytes() == (tmp_path / "plain" / file).read_bytes()


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_other_dtypes_over_several_shards(dtype: type, tmp_path: Path) -> None:
    tensors = {name: w.astype(dtype) for name, w in weights(FIXTURES / "gemma3").items()}
    src, names = tmp_path / "src", sorted(tensors)
    src.mkdir()
    weight_map = {}
    for i, file in enumerate(["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]):
        save_file({name: tensors[name] for name in names[i::2]}, src / file)
        weight_map |= dict.fromkeys(names[i::2], file)
    (src / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    shutil.copy(FIXTURES / "gemma3" / "config.json", src)
    convert(src, tmp_path / "out", "q8")
    for name, w in tensors.items():
        if w.ndim == 2:
            check_matrix(tmp_path / "out", name, w.astype(np.float32), "q8")


def test_odd_columns_stay_bf16(tmp_path: Path) -> None:
    config = config_of("llama") | {"intermediate_size": 40}
    tensors = weights(FIXTURES / "llama")
    for name, w in tensors.items():
        if "down_proj" in name:
            tensors[name] = np.ascontiguousarray(w[:, :40])
        elif "mlp" in name:
            tensors[name] = w[:40]
    made = convert(write_model(tmp_path / "src", tensors, config), tmp_path / "out", "q4")
    name = "model.layers.1.mlp.down_proj.weight"
    assert any(name in note and "bf16" in note for note in made.notes)
    check_matrix(tmp_path / "out", name, tensors[name], "bf16")


def test_tokenizer_files(tmp_path: Path) -> None:
    src = tmp_path / "src"
    shutil.copytree(FIXTURES / "llama", src)
    tokenizer = {"version": "1.0", "model": {"type": "BPE", "vocab": {"é": 0, "\u2581": 1}, "merges": []}}
    (src / "tokenizer.json").write_text(json.dumps(tokenizer, indent=2))
    (src / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "chat_template": "old"}))
    (src / "chat_template.jinja").write_text("{{ new }}")
    (src / "generation_config.json").write_text(json.dumps({"eos_token_id": [1, 2]}))
    made = convert(src, tmp_path / "out")
    out = tmp_path / "out"
    assert made.notes == ()
    assert json.loads((out / "tokenizer.json").read_text("utf-8")) == tokenizer
    assert "\n " not in (out / "tokenizer.json").read_text("utf-8")
    config = json.loads((out / "tokenizer_config.json").read_text())
    assert config == {"bos_token": "<s>", "chat_template": "{{ new }}", "oxinfer_complete": True}
    assert json.loads((out / "generation_config.json").read_text()) == {"eos_token_id": [1, 2]}
    assert json.loads((out / "config.json").read_text()) == config_of("llama")


def test_progress_reaches_the_end(tmp_path: Path) -> None:
    calls: list[tuple[int, int]] = []
    made = convert(FIXTURES / "llama", tmp_path / "out", progress=lambda done, total: calls.append((done, total)))
    assert calls[-1] == (made.total_size, made.total_size)
    assert [done for done, _ in calls] == sorted(done for done, _ in calls)


def test_replaces_a_model_and_keeps_other_files(tmp_path: Path) -> None:
    out = tmp_path / "out"
    convert(FIXTURES / "llama", out, "bf16", shard_size=20_000)
    (out / "README.md").write_text("mine")
    convert(FIXTURES / "llama", out, "q8")
    assert (out / "README.md").read_text() == "mine"
    assert len(list(out.glob("*.safetensors"))) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out"]


def test_refuses_a_folder_that_is_no_model(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "letter.txt").write_text("dear")
    with pytest.raises(CheckpointError, match=r"not a model's folder.*--force"):
        convert(FIXTURES / "llama", out)
    convert(FIXTURES / "llama", out, force=True)
    assert (out / "letter.txt").read_text() == "dear"
    assert config_from_folder(out).family == "llama"


def test_failure_leaves_everything_as_it_was(tmp_path: Path) -> None:
    out = tmp_path / "out"
    convert(FIXTURES / "llama", out)
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    src = tmp_path / "src"
    shutil.copytree(FIXTURES / "gemma3", src)
    (src / "tokenizer.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"tokenizer\.json: not JSON"):
        convert(src, out)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "src"]


def broken(tmp_path: Path, **changes: np.ndarray | None) -> Path:
    """The tiny Llama with tensors replaced, or left out (None)."""
    tensors = {**weights(FIXTURES / "llama"), **changes}
    return write_model(tmp_path / "src", {k: w for k, w in tensors.items() if w is not None}, config_of("llama"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model.norm.weight": None}, r"no tensor model\.norm\.weight"),
        ({"model.norm.weight": np.ones(7, np.float32)}, r"model\.norm\.weight has the shape \[7\].*\[192\]"),
        ({"model.layers.0.self_attn.q_proj.bias": np.ones(192, np.float32)}, r"q_proj\.bias is part of no model"),
        ({"model.norm.weight.q8": np.ones(192, np.float32)}, "quantized already"),
    ],
)
def test_refuses_what_does_not_fit(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=message):
        convert(broken(tmp_path, **changes), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_refuses_integer_weights(tmp_path: Path) -> None:
    src = tmp_path / "src"
    shutil.copytree(FIXTURES / "llama", src)
    checkpoint = Checkpoint.open(src)
    raw = {}
    for name in checkpoint:
        ref = checkpoint.tensor(name)
        data = read_parts(src, ((0, ref),))[0].tobytes()
        raw[name] = ("I16" if "up_proj" in name else ref.dtype, list(ref.shape), data)
    (src / "model.safetensors").write_bytes(safetensors_bytes(raw))
    with pytest.raises(CheckpointError, match=r"up_proj\.weight is I16; only BF16"):
        convert(src, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_refuses_bad_arguments(tmp_path: Path) -> None:
    src, out = FIXTURES / "llama", tmp_path / "out"
    with pytest.raises(CheckpointError, match="quant 'q5' does not exist"):
        convert(src, out, "q5")  # type: ignore[arg-type]
    with pytest.raises(CheckpointError, match="not found"):
        convert(tmp_path / "nothing", out)
    (tmp_path / "model.bin").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"neither a folder nor a \.gguf file"):
        convert(tmp_path / "model.bin", out)
    with pytest.raises(CheckpointError, match="more than a shard of 500"):
        convert(src, out, "bf16", shard_size=500)
    copy = tmp_path / "copy"
    shutil.copytree(src, copy)
    with pytest.raises(CheckpointError, match="is the original itself"):
        convert(copy, copy)
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="not a model's folder"):
        convert(src, tmp_path / "file")
    (copy / "config.json").unlink()
    with pytest.raises(ConfigError, match=r"config\.json"):
        convert(copy, out)
    (copy / "config.json").write_text('{"model_type": "mamba"}')
    with pytest.raises(OxinferError, match="'mamba' is not supported"):
        convert(copy, out)
    assert not out.exists()
