"""Hugging Face tokenizer files from GGUF metadata: byte-level BPE ("gpt2") and SentencePiece BPE ("llama")."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from ..errors import CheckpointError
from ..models.gguf import Metadata
from ..text.files import TokenizerConfig
from .jsonfile import dump_json

_UNKNOWN, _CONTROL, _USER, _BYTE = 2, 3, 4, 6
"""token_type values (1 is a normal token, 5 an unused one)."""
_SPACE = "▁"

_LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2_SPLIT = _LLAMA3_SPLIT.replace(r"\p{N}{1,3}", r"\p{N}")
_BYTES: dict[str, Any] = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
_BYTES_ONLY = _BYTES | {"use_regex": False}
_DIGITS = {"type": "Digits", "individual_digits": True}

_IGNORE_MERGES = ("llama-bpe", "llama3", "llama-v3")
"""Values of tokenizer.ggml.pre with which a piece that is a token stays whole, whatever the merges say."""
_NFC = ("qwen2", "deepseek-r1-qwen")
"""Values with which text is normalized first."""


def _split(regex: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}


_PRE_TOKENIZERS: dict[str, list[dict[str, Any]]] = {
    name: steps
    for names, steps in (
        (("gpt-2", "default"), [_BYTES]),
        (("smollm", "starcoder", "refact"), [_DIGITS, _BYTES]),
        (_IGNORE_MERGES, [_split(_LLAMA3_SPLIT), _BYTES_ONLY]),
        (_NFC, [_split(_QWEN2_SPLIT), _BYTES_ONLY]),
    )
    for name in names
}
"""How text is cut before byte-level merging, by tokenizer.ggml.pre."""


def write_tokenizer(meta: Metadata, config: Mapping[str, Any], folder: Path) -> list[str]:
    """Write tokenizer.json, tokenizer_config.json and generation_config.json; returns notes for the user.

    Raises CheckpointError for a tokenizer model or a pre-tokenizer this version does not know.
    """
    kind = meta.get("tokenizer.ggml.model")
    if kind is None:
        return [f"no tokenizer in {meta.file}: the result takes token ids, not text"]
    makers = {"gpt2": _byte_level, "llama": _sentencepiece, "gemma4": _sentencepiece}
    if kind not in makers:
        raise CheckpointError(
            f"{meta.file}: tokenizer {kind!r} is not supported ({', '.join(makers)} are); convert from safetensors"
        )
    tokens: list[str] = list(meta.get("tokenizer.ggml.tokens") or [])
    types: list[int] = [int(t) for t in meta.get("tokenizer.ggml.token_type") or [1] * len(tokens)]
    if not tokens or len(types) != len(tokens):
        raise CheckpointError(f"{meta.file}: {len(tokens)} tokens and {len(types)} token types; download it again")
    if kind != "gpt2":
        # GGUF spells user-defined tokens as text; SentencePiece's vocabulary writes their spaces as it does elsewhere.
        tokens = [t.replace(" ", _SPACE) if k == _USER else t for t, k in zip(tokens, types, strict=True)]
    data = makers[kind](meta, tokens, types)
    data["post_processor"] = _post_processor(meta, tokens, data["post_processor"])
    dump_json(folder / "tokenizer.json", data)
    try:
        Tokenizer.from_file(str(folder / "tokenizer.json"))
    except Exception as e:  # the tokenizers package raises nothing narrower
        raise CheckpointError(f"{meta.file}: its tokenizer cannot be used ({e}); convert from safetensors") from None
    dump_json(folder / "tokenizer_config.json", _tokenizer_config(meta, tokens))
    ids = {name: config.get(name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    dump_json(folder / "generation_config.json", {name: i for name, i in ids.items() if i is not None})
    return []


def _added_tokens(tokens: Sequence[str], types: Sequence[int]) -> list[dict[str, Any]]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return [
        {"id": i, "content": token, **flags, "special": kind != _USER}
        for i, (token, kind) in enumerate(zip(tokens, types, strict=True))
        if kind in (_UNKNOWN, _CONTROL, _USER)
    ]


def _byte_level(meta: Metadata, tokens: list[str], types: list[int]) -> dict[str, Any]:
    pre = str(meta.get("tokenizer.ggml.pre", "default"))
    if pre not in _PRE_TOKENIZERS:
        raise CheckpointError(
            f"{meta.file}: pre-tokenizer {pre!r} is not supported ({', '.join(sorted(_PRE_TOKENIZERS))} are); "
            "convert from safetensors"
        )
    merges = [m.split(" ", 1) for m in meta.get("tokenizer.ggml.merges") or []]
    steps = _PRE_TOKENIZERS[pre]
    return _tokenizer(
        added=_added_tokens(tokens, types),
        normalizer={"type": "NFC"} if pre in _NFC else None,
        pre_tokenizer=steps[0] if len(steps) == 1 else {"type": "Sequence", "pretokenizers": steps},
        post_processor=_BYTES_ONLY,
        decoder=_BYTES_ONLY,
        model={
            "unk_token": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": pre in _IGNORE_MERGES,
            "vocab": _vocab(meta, tokens),
            "merges": merges,
        },
    )


def _sentencepiece(meta: Metadata, tokens: list[str], types: list[int]) -> dict[str, Any]:
    given = meta.get("tokenizer.ggml.merges")
    vocab = _vocab(meta, tokens)
    merges = [m.split(" ", 1) for m in given] if given else _merges_by_score(meta, vocab, tokens, types)
    prefix = bool(meta.get("tokenizer.ggml.add_space_prefix", True))
    normalizer: dict[str, Any] = {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE}
    decoders: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if prefix:
        normalizer = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": _SPACE}, normalizer]}
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    unknown = meta.get("tokenizer.ggml.unknown_token_id")
    return _tokenizer(
        added=_added_tokens(tokens, types),
        normalizer=normalizer,
        pre_tokenizer=None,
        post_processor=None,
        decoder={"type": "Sequence", "decoders": decoders},
        model={
            "unk_token": None if unknown is None else tokens[int(unknown)],
            "fuse_unk": True,
            "byte_fallback": _BYTE in types,
            "ignore_merges": False,
            "vocab": vocab,
            "merges": merges,
        },
    )


def _merges_by_score(meta: Metadata, vocab: Mapping[str, int], tokens: list[str], types: list[int]) -> list[list[str]]:
    """The merges that a SentencePiece vocabulary implies: every pair of tokens that makes a token, best score first.

    User-defined tokens come before all others, and of one score the merges of the longer left part come first.
    """
    scores = meta.get("tokenizer.ggml.scores")
    if scores is None or len(scores) != len(tokens):
        raise CheckpointError(f"{meta.file}: tokens without scores, and no merges; convert from safetensors")
    found = []
    for token, score, kind in zip(tokens, scores, types, strict=True):
        if kind in (_UNKNOWN, _CONTROL, _BYTE):
            continue
        rank = 0.0 if kind == _USER else float(score)
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in vocab and right in vocab:
                found.append((rank, len(left), len(right), left, right))
    found.sort(key=lambda m: m[:3], reverse=True)
    return [[left, right] for *_, left, right in found]


def _vocab(meta: Metadata, tokens: Sequence[str]) -> dict[str, int]:
    vocab = {token: i for i, token in enumerate(tokens)}
    if len(vocab) != len(tokens):
        raise CheckpointError(f"{meta.file}: two tokens of the vocabulary have the same text; convert from safetensors")
    return vocab


def _tokenizer(
    added: list[dict[str, Any]],
    normalizer: dict[str, Any] | None,
    pre_tokenizer: dict[str, Any] | None,
    post_processor: dict[str, Any] | None,
    decoder: dict[str, Any],
    model: dict[str, Any],
) -> dict[str, Any]:
    if not any(" " in part for merge in model["merges"] for part in merge):
        model["merges"] = [" ".join(merge) for merge in model["merges"]]  # the shorter of the two spellings
    plain = {"type": "BPE", "dropout": None, "continuing_subword_prefix": None, "end_of_word_suffix": None}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": post_processor,
        "decoder": decoder,
        "model": plain | model,
    }


def _post_processor(meta: Metadata, tokens: Sequence[str], first: dict[str, Any] | None) -> dict[str, Any] | None:
    """What adds bos and eos, after `first`; SentencePiece models begin with bos unless the file says otherwise."""
    sentencepiece = meta.get("tokenizer.ggml.model") != "gpt2"
    llama3 = meta.get("tokenizer.ggml.pre") in _IGNORE_MERGES
    bos = _token(meta, tokens, "bos") if meta.get("tokenizer.ggml.add_bos_token", sentencepiece or llama3) else None
    eos = _token(meta, tokens, "eos") if meta.get("tokenizer.ggml.add_eos_token", False) else None
    if bos is None and eos is None:
        return first

    def sequence(name: str, type_id: int) -> list[dict[str, Any]]:
        parts: list[dict[str, Any]] = [{"Sequence": {"id": name, "type_id": type_id}}]
        if bos is not None:
            parts.insert(0, {"SpecialToken": {"id": bos, "type_id": type_id}})
        if eos is not None:
            parts.append({"SpecialToken": {"id": eos, "type_id": type_id}})
        return parts

    template = {
        "type": "TemplateProcessing",
        "single": sequence("A", 0),
        "pair": sequence("A", 0) + sequence("B", 1),
        "special_tokens": {t: {"id": t, "ids": [tokens.index(t)], "tokens": [t]} for t in (bos, eos) if t is not None},
    }
    return template if first is None else {"type": "Sequence", "processors": [first, template]}


def _token(meta: Metadata, tokens: Sequence[str], role: str) -> str | None:
    i = meta.get(f"tokenizer.ggml.{role}_token_id")
    return None if i is None or not 0 <= int(i) < len(tokens) else tokens[int(i)]


def _tokenizer_config(meta: Metadata, tokens: Sequence[str]) -> dict[str, Any]:
    config: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    roles = {"bos": "bos", "eos": "eos", "unknown": "unk", "padding": "pad"}
    for theirs, ours in roles.items():
        token = _token(meta, tokens, theirs)
        if token is not None:
            config[f"{ours}_token"] = token
    for end in ("bos", "eos"):
        added = meta.get(f"tokenizer.ggml.add_{end}_token")
        if added is not None:
            config[f"add_{end}_token"] = bool(added)
    config["model_max_length"] = int(meta.of_arch("context_length", 0)) or None
    keys = {name: f"tokenizer.chat_template.{name}" for name in meta.get("tokenizer.chat_templates") or []}
    templates = {name: meta.get(key) for name, key in {"default": "tokenizer.chat_template", **keys}.items()}
    named = [{"name": name, "template": str(template)} for name, template in templates.items() if template]
    if named:
        config["chat_template"] = named if len(named) > 1 else named[0]["template"]
    return TokenizerConfig.of(config).completed
