"""What is no token, no setting, no number: a clear error in Python and in the terminal, on both backends."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import oxinfer_web as ox
import pytest
from gguf_writer import byte_level, write_gguf
from oxinfer_web.checkpoint import Checkpoint
from oxinfer_web.convert import convert
from oxinfer_web.generate import finish
from support import FIXTURES
from test_cli import run
from test_convert import weights, write_model

VOCAB = 512
BACKENDS: dict[str, Callable[..., Any]] = {"reference": ox.load_reference, "engine": ox.load}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama with a tokenizer, in Q8."""
    folder = tmp_path_factory.mktemp("numbers")
    convert(write_gguf(folder / "tiny.gguf", "llama", byte_level), folder / "out", "q8")
    return folder / "out"


@pytest.fixture(scope="module", params=BACKENDS)
def backend(request: pytest.FixtureRequest, model: Path) -> Any:
    return BACKENDS[request.param](model)


@pytest.mark.parametrize("bad", [-1, VOCAB, 2**32 - 1, 2**70, 1.5, 3.0, math.nan, True, "7", None, np.float32(2)])
def test_what_is_no_token(backend: Any, bad: Any) -> None:
    session = ox.Session(backend)
    calls: dict[str, Callable[[], object]] = {
        "fetch": lambda: finish(session.fetch([1, bad])),
        "forward": lambda: session.forward([1, bad]),
        "hidden": lambda: session.forward_hidden([bad]),
        "nll": lambda: session.nll([1, 2, bad]),
        "embed": lambda: session.embed_scaled(bad),
        "generate": lambda: list(ox.generate_sync(session, [bad])),
    }
    for name, call in calls.items():
        with pytest.raises(ox.SessionError, match="is none of this model's, which are the integers 0 to 511"):
            call()
        assert session.tokens == [], name
    session.forward([1, 2])
    assert not session.advance(bad)  # which leaves the error to forward
    assert session.tokens == [1, 2]


def test_numpy_integers_are_tokens(backend: Any) -> None:
    session = ox.Session(backend)
    session.forward(np.array([1, 2], np.int32))
    assert session.tokens == [1, 2] and type(session.tokens[0]) is int


SETTINGS = ("temperature", "top_k", "top_p", "min_p")
VALUES = (math.nan, math.inf, -math.inf, -1, 10**400, True, "1", [])


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("name", SETTINGS)
def test_what_is_no_setting(name: str, value: Any) -> None:
    with pytest.raises(ox.SessionError, match=rf"{name} .* must be"):
        ox.Sampler(**{name: value})
    with pytest.raises(ox.SessionError, match=rf"{name} .* must be"):
        ox.Sampler.of({"temperature": 1.0, "top_k": 3}, **{name: value})


@pytest.mark.parametrize("seed", [math.nan, 0.5, "1", True])
def test_what_is_no_seed(seed: Any) -> None:
    with pytest.raises(ox.SessionError, match=r"seed .* must be an integer"):
        ox.Sampler(1.0, seed=seed)


@pytest.mark.parametrize("most", [math.nan, math.inf, -1, 2.5, True, "9", None])
def test_what_is_no_number_of_tokens(backend: Any, most: Any) -> None:
    with pytest.raises(ox.SessionError, match=r"max_tokens .* must be an integer"):
        ox.generate_sync(ox.Session(backend), [1], max_tokens=most)


@pytest.mark.parametrize("size", [0, -5, math.nan, 2.5, True, "9"])
def test_what_is_no_size(model: Path, size: Any) -> None:
    for load in BACKENDS.values():
        with pytest.raises(ox.SessionError, match=r"max_context .* must be an integer, 1 or more"):
            load(model, max_context=size)
    with pytest.raises(ox.SessionError, match=r"chunk .* must be an integer, 1 or more"):
        ox.load(model, chunk=size)


@pytest.mark.parametrize("kv", ["f16", 16, None])
def test_what_is_no_precision_of_the_cache(model: Path, kv: Any) -> None:
    with pytest.raises(ox.SessionError, match=r"kv .* must be f32 or f16"):
        ox.load(model, kv=kv)


@pytest.mark.parametrize("k", [0, 65, -1, math.nan, 2.5, True])
def test_what_is_no_number_of_candidates(backend: Any, k: Any) -> None:
    session = ox.Session(backend)
    session.forward([1])
    with pytest.raises(ox.SessionError, match=r"candidates asked for; there are 1 to 64"):
        session.candidates(k)


def test_a_prompt_without_a_place(backend: Any, model: Path) -> None:
    session = ox.Session(backend)
    with pytest.raises(ox.ContextError, match="no tokens to feed") as e:
        session.forward([])
    assert (e.value.tokens, e.value.limit) == (0, backend.max_context)
    with pytest.raises(ox.ContextError, match="no tokens to feed"):
        list(ox.generate_sync(session, []))
    session.forward([1, 2])
    most = backend.config.max_position_embeddings
    with pytest.raises(ox.ContextError, match=rf"larger max_context \(it takes up to {most}\)") as e:
        session.forward([3] * (backend.max_context - 1))
    assert (e.value.tokens, e.value.limit) == (backend.max_context + 1, backend.max_context)
    assert session.tokens == [1, 2]


def test_the_reference_has_the_models_context(model: Path) -> None:
    most = ox.load_reference(model).config.max_position_embeddings
    assert ox.load_reference(model).max_context == most
    assert ox.load_reference(model, max_context=10 * most).max_context == most
    assert ox.load_reference(model, max_context=7).max_context == 7


# --- in the terminal --------------------------------------------------------------------------------------------------


def complaint(*args: Any) -> str:
    """The one line of a command that fails as it should."""
    result = run(*args)
    assert result.exit_code == 1 and result.stdout == "", result.output
    assert isinstance(result.exception, SystemExit)
    [line] = result.stderr.strip().splitlines()
    assert line.startswith("error: ")
    return line


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_in_the_terminal(model: Path, name: str) -> None:
    option = "--" + name.replace("_", "-")
    for value in ("nan", "inf", "-3") if name != "top_k" else ("0", "65", "-3"):
        assert f"{name} " in complaint("generate", model, "the", option, value)


@pytest.mark.parametrize(
    ("ids", "says"),
    [
        *(("[1, 2.5]", "token 2.5"), ("[1, -1]", "token -1"), ("[1, 512]", "token 512"), ("[1, NaN]", "token nan")),
        *(("[1, true]", "token True"), ('["1", 2]', "token '1'"), ("[1, Infinity]", "token inf")),
        ("7", "not iterable"),
    ],
)
def test_ids_in_the_terminal(model: Path, tmp_path: Path, ids: str, says: str) -> None:
    (tmp_path / "ids.json").write_text(ids)
    line = complaint("perplexity", model, "--ids", tmp_path / "ids.json", "--json")
    assert "ids.json: cannot be read" in line and says in line


@pytest.mark.parametrize("kernel", ["numpy", "simd"])
def test_the_context_in_the_terminal(model: Path, tmp_path: Path, kernel: str) -> None:
    most = ox.load_reference(model).config.max_position_embeddings
    args = ("--kernel", kernel)
    said = complaint("generate", model, "the the the the", "--raw", "--max-context", "2", *args)
    assert f"more than --max-context 2; raise that, up to the model's {most}, or shorten the prompt" in said
    said = complaint("generate", model, "the " * most, "--raw", *args)
    assert f"more than the model's context of {most}; shorten it" in said
    assert "the prompt is empty; give some text" in complaint("generate", model, "", "--raw", *args)
    (tmp_path / "long.json").write_text(json.dumps([1] * (most + 1)))
    said = complaint("perplexity", model, "--ids", tmp_path / "long.json", *args)
    assert f"long.json: {most + 1} tokens, more than the model's context of {most}; give a shorter text" in said
    (tmp_path / "empty.txt").write_text("")
    assert "0 tokens; at least 2" in complaint("perplexity", model, "--text", tmp_path / "empty.txt", *args)


# --- NaN in the model -------------------------------------------------------------------------------------------------

BF16 = {"nan": 0x7FC0, "inf": 0x7F80}


def poison(folder: Path, name: str, value: str, all_of_it: bool = False) -> None:
    """One number of a stored tensor, or all, to NaN or infinity."""
    ref = Checkpoint.open(folder).tensor(name)
    number = {"BF16": np.uint16(BF16[value]), "F32": np.float32(value), "F16": np.float16(value)}[ref.dtype].tobytes()
    with (folder / ref.file).open("r+b") as f:
        f.seek(ref.offset)
        f.write(number * (ref.nbytes // len(number) if all_of_it else 1))


FAULTS = {
    "the last norm": ("model.norm.weight", "nan", False),
    "a norm in the middle": ("model.layers.1.post_attention_layernorm.weight", "inf", False),
    "all of a norm": ("model.layers.0.input_layernorm.weight", "nan", True),
    "the head's first row": ("model.embed_tokens.weight.q8s", "nan", False),
    "all of the head": ("model.embed_tokens.weight.q8s", "inf", True),
    "values of attention": ("model.layers.0.self_attn.v_proj.weight.q8s", "nan", False),
    "a gate": ("model.layers.2.mlp.gate_proj.weight.q8s", "inf", True),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_nan_in_a_model(fault: str, model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(model, folder)
    poison(folder, *FAULTS[fault])
    ids = tmp_path / "ids.json"
    ids.write_text("[5, 6, 7, 8]")
    for kernel, load in BACKENDS.items():
        session = ox.Session(load(folder))
        with pytest.raises(ox.NumericError, match="not a number"):
            list(ox.generate_sync(session, [5, 6, 7], max_tokens=4))
        for k in (1, 64):
            with pytest.raises(ox.NumericError):
                session.candidates(k)
        with pytest.raises(ox.NumericError):
            ox.Sampler(1.0).choose(session)
        session.truncate(0)
        with pytest.raises(ox.NumericError):
            session.nll([5, 6, 7, 8])
        option = "numpy" if kernel == "reference" else "relaxed"
        assert "not a number" in complaint("perplexity", folder, "--ids", ids, "--json", "--kernel", option)
    result = run("generate", folder, "the", "--raw", "--temperature", "1")
    assert result.exit_code == 1 and "error: the model's result is not a number" in result.stderr


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("quant", ["bf16", "q8", "q4"])
def test_a_model_with_nan_is_not_converted(quant: Any, value: float, tmp_path: Path) -> None:
    tensors = weights(FIXTURES / "llama")
    tensors["model.layers.1.mlp.up_proj.weight"][3, 5] = value
    config = json.loads((FIXTURES / "llama" / "config.json").read_text())
    source = write_model(tmp_path / "source", tensors, config)
    with pytest.raises(ox.CheckpointError, match=r"layers\.1\.mlp\.up_proj\.weight: has numbers that are NaN"):
        convert(source, tmp_path / "out", quant)
    assert not (tmp_path / "out").exists()
