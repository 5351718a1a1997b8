"""Tokenizers from GGUF files made on the fly: the same ids and text as the tokens and merges in them say."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from gguf_writer import Writer, byte_level, sentencepiece, write_gguf
from oxinfer_web.config import TextConfig
from oxinfer_web.convert import convert
from oxinfer_web.errors import CheckpointError
from tokenizers import Tokenizer


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
