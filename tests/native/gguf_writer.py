"""The tiny checkpoints as GGUF files, as llama.cpp's converter would write them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
from oxinfer_web.config import FULL, TextConfig
from oxinfer_web.models import config_from_folder
from support import FIXTURES
from test_convert import weights

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


def write_gguf(
    path: Path,
    case: str,
    describe: Callable[[Writer, TextConfig], None] | None = None,
    writer: type[Writer] = Writer,
) -> Path:
    """A tiny checkpoint as llama.cpp's converter would write it, in f32."""
    config = config_from_folder(FIXTURES / case)
    arch = config.family
    w = writer(path, arch)
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
