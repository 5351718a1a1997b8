"""Converting GGUF files made on the fly: weights and config come back as they were."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf_writer import Writer, write_gguf
from oxinfer_web.config import FULL, TextConfig
from oxinfer_web.convert import convert
from oxinfer_web.errors import CheckpointError, ConfigError, OxinferError
from oxinfer_web.models import config_from_folder, read_config
from support import FIXTURES
from test_convert import config_of, weights


@pytest.mark.parametrize("case", ["llama", "gemma3", "gemma4_e2b", "gemma4_e4b", "gemma4_31b"])
def test_round_trip(case: str, tmp_path: Path) -> None:
    path, out = write_gguf(tmp_path / "tiny.gguf", case), tmp_path / "out"
    convert(path, out, "bf16", shard_size=1 << 20)
    got, want = weights(out), weights(FIXTURES / case)
    assert got.keys() == want.keys()
    for name, w in want.items():
        # 1 + w in f32 has lost the lowest bits of a small w; one unit in bf16's last place is then the most.
        tolerance = 2**-8 * np.abs(w).max() if case == "gemma3" and "norm" in name else 0
        np.testing.assert_allclose(got[name], w, rtol=0, atol=tolerance, err_msg=name)
    same_config(config_from_folder(out), config_from_folder(FIXTURES / case))


def same_config(got: TextConfig, want: TextConfig) -> None:
    """Equal in all that a decoder asks, however it is written down."""
    layers = range(want.num_hidden_layers)
    for ask in ("layer_head_dim", "layer_n_kv", "layer_intermediate", "layer_k_eq_v", "kv_source", "rope_spec"):
        assert [getattr(got, ask)(i) for i in layers] == [getattr(want, ask)(i) for i in layers], ask
    same: dict[str, Any] = {"rope_parameters": {}, "layer_overrides": {}, "head_dim": 0, "num_key_value_heads": 0}
    same |= {"use_double_wide_mlp": False}
    if not want.has_ple:
        same["vocab_size_per_layer_input"] = 0
    assert replace(got, **same) == replace(want, **same)


def test_quantized_types(tmp_path: Path) -> None:
    """Rows of a block type are put back in order without being taken apart."""
    kind = gguf.GGMLQuantizationType.Q8_0
    source = weights(FIXTURES / "llama")

    class Quantizing(Writer):
        def add_tensor(self, name: str, tensor: np.ndarray, *args: Any, **kwargs: Any) -> None:
            if tensor.ndim == 2:
                super().add_tensor(name, gguf.quants.quantize(tensor, kind), *args, raw_dtype=kind, **kwargs)
            else:
                super().add_tensor(name, tensor, *args, **kwargs)

    path = write_gguf(tmp_path / "tiny.gguf", "llama", writer=Quantizing)
    convert(path, tmp_path / "out", "bf16", shard_size=30_000)
    from oxinfer_web.checkpoint import Checkpoint
    from oxinfer_web.quant import from_bf16, read_parts, to_bf16

    checkpoint = Checkpoint.open(tmp_path / "out")
    for name, w in source.items():
        if w.ndim == 2:
            got = from_bf16(read_parts(tmp_path / "out", checkpoint.parts(name, "BF16", w.shape))[0])
            want = gguf.quants.dequantize(gguf.quants.quantize(w, kind), kind).reshape(w.shape)
            np.testing.assert_array_equal(got, from_bf16(to_bf16(want)), err_msg=name)


def test_llama3_scaling_is_recovered(tmp_path: Path) -> None:
    scaling = {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    scaling |= {"original_max_position_embeddings": 8192}
    config = config_of("llama")
    plain = read_config(config)
    config["rope_parameters"] |= scaling
    scaled = read_config(config)
    divisors = np.array(plain.rope_spec(0).inv_freq) / np.array(scaled.rope_spec(0).inv_freq)

    def describe(w: Writer, _: TextConfig) -> None:
        w.add_tensor("rope_freqs.weight", divisors.astype(np.float32))

    convert(write_gguf(tmp_path / "tiny.gguf", "llama", describe), tmp_path / "out", "bf16")
    got = config_from_folder(tmp_path / "out")
    np.testing.assert_allclose(got.rope_spec(0).inv_freq, scaled.rope_spec(0).inv_freq, rtol=1e-6)


def test_linear_scaling(tmp_path: Path) -> None:
    def describe(w: Writer, _: TextConfig) -> None:
        w.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        w.add_rope_scaling_factor(8.0)

    convert(write_gguf(tmp_path / "tiny.gguf", "gemma3", describe), tmp_path / "out", "bf16")
    got, want = (config_from_folder(d) for d in (tmp_path / "out", FIXTURES / "gemma3"))
    full = want.layer_types.index(FULL)
    np.testing.assert_allclose(np.array(got.rope_spec(full).inv_freq) * 8, want.rope_spec(full).inv_freq)
    assert got.rope_spec(0) == want.rope_spec(0)


def refusals() -> dict[str, tuple[Callable[[Writer, TextConfig], None], str]]:
    def odd_freqs(w: Writer, _: TextConfig) -> None:
        w.add_tensor("rope_freqs.weight", np.linspace(1, 5, 16, dtype=np.float32))

    return {
        "rope_freqs": (odd_freqs, r"rope_freqs\.weight is not Llama"),
        "yarn": (lambda w, _: w.add_rope_scaling_type(gguf.RopeScalingType.YARN), "rope scaling 'yarn'"),
        "experts": (lambda w, _: w.add_expert_count(4), "mixture of experts"),
        "parts": (lambda w, _: w.add_uint16("split.count", 3), "one of several parts"),
        "bias": (lambda w, _: w.add_tensor("blk.0.attn_q.bias", np.ones(192, np.float32)), r"q_proj\.bias"),
        "tokenizer": (lambda w, _: w.add_tokenizer_model("t5"), "tokenizer 't5' is not supported"),
    }


@pytest.mark.parametrize("what", refusals())
def test_refuses(what: str, tmp_path: Path) -> None:
    describe, message = refusals()[what]
    with pytest.raises(OxinferError, match=message):
        convert(write_gguf(tmp_path / "tiny.gguf", "llama", describe), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_refuses_other_files(tmp_path: Path) -> None:
    path = tmp_path / "bad.gguf"
    for data in (b"", b"GGUF", b"not a model at all, but long enough to have a header" * 9):
        path.write_bytes(data)
        with pytest.raises(CheckpointError, match=r"bad\.gguf: not a readable GGUF file"):
            convert(path, tmp_path / "out")
    whole = write_gguf(tmp_path / "tiny.gguf", "llama").read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(CheckpointError, match=r"bad\.gguf"):
        convert(path, tmp_path / "out")
    w = Writer(path, "mamba")
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    with pytest.raises(ConfigError, match="architecture 'mamba' is not supported"):
        convert(path, tmp_path / "out")
