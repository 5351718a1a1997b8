"""generation_config.json: end tokens and defaults, from the file to the answer."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import oxinfer_web as ox
import pytest
from gguf_writer import byte_level, write_gguf
from oxinfer_web.convert import convert
from oxinfer_web.errors import ConfigError
from oxinfer_web.models import config_from_json
from oxinfer_web.sampling import Sampler
from support import FIXTURES
from test_cli import run

LLAMA = (FIXTURES / "llama" / "config.json").read_text()
OWN = config_from_json(LLAMA).eos_token_ids


@pytest.mark.parametrize(
    ("said", "ends"),
    [(None, OWN), (7, (*OWN, 7)), ([7, 9], (*OWN, 7, 9)), ([*OWN, 9], (*OWN, 9)), ([], OWN)],
)
def test_end_tokens_join_the_config(said: Any, ends: tuple[int, ...]) -> None:
    assert config_from_json(LLAMA, json.dumps({"eos_token_id": said})).eos_token_ids == ends


@pytest.mark.parametrize(
    ("said", "sampling"),
    [
        ({}, {}),
        ({"do_sample": False, "top_k": 20}, {"temperature": 0, "top_k": 20}),
        # As transformers has it: without do_sample a temperature is not used.
        ({"temperature": 0.7, "top_p": 0.9}, {"temperature": 0, "top_p": 0.9}),
        ({"do_sample": True}, {"temperature": 1}),
        (
            {"do_sample": True, "temperature": 0.6, "top_k": 0, "top_p": 0.95, "min_p": 0.1, "max_new_tokens": 9},
            {"temperature": 0.6, "top_p": 0.95, "min_p": 0.1, "max_new_tokens": 9},
        ),
        ({"do_sample": True, "temperature": None, "top_k": 500, "typical_p": 1}, {"temperature": 1, "top_k": 500}),
    ],
)
def test_defaults(said: dict[str, Any], sampling: dict[str, float]) -> None:
    config = config_from_json(LLAMA, json.dumps(said))
    assert config.sampling == sampling
    sampler = Sampler.of(config.sampling)
    assert sampler.temperature == sampling.get("temperature", 0)
    assert sampler.top_k == min(sampling.get("top_k", 64), 64)
    assert Sampler.of(config.sampling, temperature=0.5, top_k=3, top_p=0.2, min_p=0.3, seed=1) == Sampler(
        0.5, 3, 0.2, 0.3, 1
    )


@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", "{", '{"eos_token_id": "</s>"}', '{"eos_token_id": [1, -2]}', '{"eos_token_id": [true]}'),
        *('{"temperature": NaN}', '{"temperature": "warm"}', '{"temperature": Infinity}', '{"top_p": 1.5}'),
        *('{"top_k": 2.5}', '{"min_p": -0.1}', '{"max_new_tokens": 0}', '{"top_p": true}'),
    ],
)
def test_what_cannot_be_used_is_named(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^generation_config\.json: .*leave"):
        config_from_json(LLAMA, text)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    convert(write_gguf(tmp_path / "tiny.gguf", "llama", byte_level), tmp_path / "out", "q8")
    return tmp_path / "out"


def test_the_terminal_takes_the_models_settings(model: Path) -> None:
    args = ("generate", model, "the1", "--raw")
    greedy = run(*args, "--max-tokens", "12").stdout
    warm = run(*args, "--max-tokens", "12", "--temperature", "1.5", "--top-k", "40", "--seed", "3").stdout
    said = {"do_sample": True, "temperature": 1.5, "top_k": 40, "max_new_tokens": 12}
    (model / "generation_config.json").write_text(json.dumps(said))
    assert run(*args, "--seed", "3").stdout == warm != greedy
    assert run(*args, "--temperature", "0").stdout == greedy


def test_an_answer_ends_at_the_models_end_tokens(tmp_path: Path) -> None:
    """The list comes along when a model is converted, and any token of it ends an answer."""
    source, ids = tmp_path / "source", [5, 6, 7]
    shutil.copytree(FIXTURES / "llama", source)
    convert(source, tmp_path / "plain", "q8")
    tokens = list(ox.generate_sync(ox.Session(ox.load(tmp_path / "plain")), ids, max_tokens=12, stop=[]))
    end = next(i for i, t in enumerate(tokens) if i and t not in tokens[:i])
    (source / "generation_config.json").write_text(json.dumps({"eos_token_id": [511, tokens[end]]}))
    convert(source, tmp_path / "out", "q8")
    assert list(ox.generate_sync(ox.Session(ox.load(tmp_path / "out")), ids, max_tokens=12)) == tokens[:end]
