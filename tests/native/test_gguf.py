"""Converting GGUF files made on the fly: weights, config and tokenizer come back as they were."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from oxinfer_web.config import FULL, TextConfig
from oxinfer_web.convert import convert
from oxinfer_web.errors import CheckpointError, ConfigError, OxinferError
from oxinfer_web.models import config_from_folder, read_config
from support import FIXTURES
from test_convert import config_of, weights
from tokenizers import Tokenizer

Writer = gguf.GGUFWriter
GLOBAL = {
    "model.embed_tokens.": "token_embd.",
    "model.norm.": "output_norm.",
    "model.embed_tokens_per_layer.": "per_layer_token_embd.",
    "model.per_layer_model_projection.": "per_layer_model_proj.",
    "model.per_layer_projection_norm.": "per_layer_proj_norm.",
    "lm_head.": "output.",
}
LAYER = {
    "input_layernorm.": "attn_norm.",
    "self_attn.q_proj.": "attn_q.",
    "self_attn.k_proj.": "attn_k.",
    "self_attn.v_proj.": "attn_v.",
    "self_attn.o_proj.": "attn_output.",
    "self_attn.q_norm.": "attn_q_norm.",
    "self_attn.k_norm.": "attn_k_norm.",
    "mlp.gate_proj.": "ffn_gate.",
    "mlp.up_proj.": "ffn_up.",
    "mlp.down_proj.": "ffn_down.",
    "post_feedforward_layernorm.": "post_ffw_norm.",
    "pre_feedforward_layernorm.": "ffn_norm.",
    "per_layer_input_gate.": "inp_gate.",
    "per_layer_projection.": "proj.",
    "post_per_layer_input_norm.": "post_norm.",
    "layer_scalar": "layer_output_scale.weight",
}


def gguf_name(name: str, arch: str) -> str:
    """The name that llama.cpp gives a Hugging Face tensor."""
    if name.startswith("model.layers."):
        _, _, layer, rest = name.split(".", 3)
        after_attention = "ffn_norm." if arch == "llama" else "post_attention_norm."
        for theirs, ours in {**LAYER, "post_attention_layernorm.": after_attention}.items():
            if rest.startswith(theirs):
                return f"blk.{layer}." + ours + rest.removeprefix(theirs)
    return next(ours + name.removeprefix(theirs) for theirs, ours in GLOBAL.items() if name.startswith(theirs))


def interleave(w: np.ndarray, heads: int) -> np.ndarray:
    """Rows of q or k as llama.cpp orders them: the two of a rotary pair side by side."""
    return w.reshape(heads, 2, -1, w.shape[1]).swapaxes(1, 2).reshape(w.shape)


def write_gguf(path: Path, case: str, describe: Callable[[Writer, TextConfig], None] | None = None) -> Path:
    """A tiny checkpoint as llama.cpp's converter would write it, in f32."""
    config = config_from_folder(FIXTURES / case)
    arch = config.family
    w = Writer(path, arch)
    common(w, config)
    {"llama": llama, "gemma3": gemma3, "gemma4": gemma4}[arch](w, config)
    if describe is not None:
        describe(w, config)
    for name, data in weights(FIXTURES / case).items():
        if arch == "gemma3" and name.endswith("norm.weight"):
            data = data + np.float32(1)
        if arch == "llama" and name.endswith(("q_proj.weight", "k_proj.weight")):
            heads = config.num_attention_heads if "q_proj" in name else config.num_key_value_heads
            data = interleave(data, heads)
        w.add_tensor(gguf_name(name, arch), np.ascontiguousarray(data))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    return path


def common(w: Writer, config: TextConfig) -> None:
    w.add_context_length(config.max_position_embeddings)
    w.add_embedding_length(config.hidden_size)
    w.add_block_count(config.num_hidden_layers)
    w.add_feed_forward_length(config.intermediate_size)
    w.add_head_count(config.num_attention_heads)
    w.add_head_count_kv(config.num_key_value_heads)
    w.add_layer_norm_rms_eps(config.rms_norm_eps)
    if config.bos_token_id is not None:
        w.add_bos_token_id(config.bos_token_id)
    w.add_eos_token_id(config.eos_token_ids[0])
    w.add_pad_token_id(config.pad_token_id)


def llama(w: Writer, config: TextConfig) -> None:
    w.add_rope_dimension_count(config.head_dim)
    w.add_rope_freq_base(config.rope_parameters[FULL]["rope_theta"])


def gemma3(w: Writer, config: TextConfig) -> None:
    w.add_key_length(config.head_dim)
    w.add_sliding_window(config.sliding_window)
    w.add_sliding_window_pattern([config.is_sliding(i) for i in range(config.num_hidden_layers)])
    w.add_rope_freq_base(1e6)


def gemma4(w: Writer, config: TextConfig) -> None:
    layers, full = range(config.num_hidden_layers), config.layer_types.index(FULL)
    head_dim = config.layer_head_dim(full)
    w.add_key_length(head_dim)
    w.add_key_length_swa(config.head_dim)
    w.add_sliding_window(config.sliding_window)
    w.add_sliding_window_pattern([config.is_sliding(i) for i in layers])
    w.add_shared_kv_layers(config.num_kv_shared_layers)
    w.add_embedding_length_per_layer_input(config.hidden_size_per_layer_input)
    w.add_final_logit_softcapping(config.final_logit_softcapping)
    w.add_rope_freq_base(1e6)
    w.add_rope_freq_base_swa(1e4)
    array = gguf.GGUFValueType.ARRAY
    w.add_key_value("gemma4.feed_forward_length", [config.layer_intermediate(i) for i in layers], array)
    w.add_key_value("gemma4.attention.head_count_kv", [config.layer_n_kv(i) for i in layers], array)
    turning = head_dim // 8
    freqs = [1.0] * turning + [1e30] * (head_dim // 2 - turning)
    w.add_tensor("rope_freqs.weight", np.array(freqs, np.float32))


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

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(globals(), "Writer", Quantizing)
        path = write_gguf(tmp_path / "tiny.gguf", "llama")
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


# --- tokenizers -------------------------------------------------------------------------------------------------------


def byte_level(w: Writer, config: TextConfig, pre: str = "smollm") -> None:
    alphabet = [chr(c) for c in range(33, 127)] + ["\u0120", "\u010a"]
    tokens = ["<|end|>", *alphabet, "\u0120t", "he", "\u0120the", "<|user|>"]
    tokens += [f"<unused{i}>" for i in range(config.vocab_size - len(tokens))]
    types = [3, *[1] * (len(alphabet) + 3), 4, *[5] * (config.vocab_size - len(alphabet) - 5)]
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre(pre)
    w.add_token_list(tokens)
    w.add_token_types(types)
    w.add_token_merges(["\u0120 t", "h e", "\u0120t he"])
    w.add_add_bos_token(False)
    w.add_chat_template("{{ messages[0]['content'] }}")


def sentencepiece(w: Writer, config: TextConfig) -> None:
    pieces = [("<pad>", 0, 3), ("<eos>", 0, 3), ("<bos>", 0, 3), ("<unk>", 0, 2), ("  ", -1000, 4), ("\n", -1000, 4)]
    pieces += [(f"<0x{b:02X}>", 0, 6) for b in range(256)]
    words = ["the", "\u2581the", "at", "\u2581a"]
    letters = ["\u2581", *"abcdefghijklmnopqrstuvwxyz", "th", "\u2581t"]
    pieces += [(word, -float(i), 1) for i, word in enumerate(words + letters)]
    pieces += [(f"<unused{i}>", 0, 3) for i in range(config.vocab_size - len(pieces))]
    w.add_tokenizer_model("llama")
    w.add_token_list([p[0] for p in pieces])
    w.add_token_scores([float(p[1]) for p in pieces])
    w.add_token_types([p[2] for p in pieces])
    w.add_unk_token_id(3)
    w.add_add_bos_token(True)
    w.add_add_space_prefix(False)


def converted_tokenizer(case: str, describe: Callable[[Writer, TextConfig], None], tmp_path: Path) -> Tokenizer:
    convert(write_gguf(tmp_path / "tiny.gguf", case, describe), tmp_path / "out", "bf16")
    return Tokenizer.from_file(str(tmp_path / "out" / "tokenizer.json"))


def test_byte_level_tokenizer(tmp_path: Path) -> None:
    tokenizer = converted_tokenizer("llama", byte_level, tmp_path)
    text = "1234 the the<|user|>x\n"
    encoding = tokenizer.encode(text)
    assert encoding.tokens == ["1", "2", "3", "4", "\u0120the", "\u0120the", "<|user|>", "x", "\u010a"]
    assert tokenizer.decode(encoding.ids) == text
    assert tokenizer.decode([0, *encoding.ids]) == text  # the control token is special, the user's is not
    config = json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())
    assert config["chat_template"] == "{{ messages[0]['content'] }}"


def test_sentencepiece_tokenizer(tmp_path: Path) -> None:
    tokenizer = converted_tokenizer("gemma3", sentencepiece, tmp_path)
    text = "the cat  \n\u00e9"
    encoding = tokenizer.encode(text)
    assert encoding.tokens == ["<bos>", "the", "\u2581", "c", "at", "\u2581\u2581", "\n", "<0xC3>", "<0xA9>"]
    assert tokenizer.decode(encoding.ids) == text
    config = json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())
    assert (config["bos_token"], config["eos_token"], config["unk_token"]) == ("<bos>", "<eos>", "<unk>")
    assert json.loads((tmp_path / "out" / "generation_config.json").read_text())["eos_token_id"] == 1


def test_space_prefix_and_eos(tmp_path: Path) -> None:
    def describe(w: Writer, config: TextConfig) -> None:
        sentencepiece(w, config)
        w.kv_data[-1].pop("tokenizer.ggml.add_space_prefix")
        w.add_add_eos_token(True)

    tokenizer = converted_tokenizer("gemma3", describe, tmp_path)
    encoding = tokenizer.encode("the cat")
    assert encoding.tokens == ["<bos>", "\u2581the", "\u2581", "c", "at", "<eos>"]
    assert tokenizer.decode(encoding.ids) == "the cat"


def test_unknown_pre_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="pre-tokenizer 'klingon' is not supported"):
        converted_tokenizer("llama", lambda w, c: byte_level(w, c, "klingon"), tmp_path)


@pytest.mark.parametrize(("pre", "tokens"), [("llama-bpe", ["123", "4"]), ("qwen2", ["1", "2", "3", "4"])])
def test_number_splitting(pre: str, tokens: list[str], tmp_path: Path) -> None:
    def describe(w: Writer, config: TextConfig) -> None:
        byte_level(w, config, pre)
        vocab = w.kv_data[-1]["tokenizer.ggml.tokens"].value
        vocab[vocab.index("he")], vocab[vocab.index("<unused0>")] = "123", "he"
        w.kv_data[-1]["tokenizer.ggml.token_type"].value[vocab.index("he")] = 1

    assert converted_tokenizer("llama", describe, tmp_path).encode("1234", add_special_tokens=False).tokens == tokens
