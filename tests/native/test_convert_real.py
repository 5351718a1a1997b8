"""The real models that the demo uses: tokenizers give the reference ids, weights keep the reference likelihood."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import oxinfer_web as ox
import pytest
from oxinfer_web.checkpoint import INDEX
from oxinfer_web.text import Text
from support import FIXTURES
from test_text import check_pieces

pytestmark = pytest.mark.realmodel
REFERENCES = {
    "smollm2-135m-q8": "real_smollm2_135m.json",
    "gemma3-270m-q8": "real_gemma3_270m.json",
    "gemma3-270m-q4": "real_gemma3_270m.json",
}


@pytest.fixture(scope="module")
def demo() -> ModuleType:
    """web/demo/build_models.py as a module."""
    path = Path(__file__).parents[2] / "web" / "demo" / "build_models.py"
    spec = importlib.util.spec_from_file_location("build_models", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["build_models"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(params=REFERENCES)
def case(request: pytest.FixtureRequest, demo: ModuleType) -> tuple[Path, dict[str, Any]]:
    """A converted model's folder and its reference."""
    [model] = [m for m in demo.MODELS if m.id == request.param]
    return demo.converted(model), json.loads((FIXTURES / REFERENCES[request.param]).read_text())


def test_tokenizer(case: tuple[Path, dict[str, Any]]) -> None:
    folder, reference = case
    text = Text(folder)
    assert text.encode(reference["text"]) == reference["input_ids"]
    assert text.decode(reference["input_ids"]) == reference["text"]
    whole = reference["input_ids"][:16] + reference["greedy_from_16"]
    assert text.decode(whole) == reference["greedy_text"].removeprefix("<bos>")
    assert "".join(text.stream(whole)) == text.decode(whole)


def test_pieces(case: tuple[Path, dict[str, Any]]) -> None:
    """Of any tokens, as a model may sample them: never an error, and together what decoding them at once gives."""
    text = Text(case[0])
    size = json.loads((case[0] / "config.json").read_text())["vocab_size"]
    check_pieces(text, size, 1000)


def test_files_suit_any_static_host(case: tuple[Path, dict[str, Any]]) -> None:
    folder, _ = case
    assert all(path.stat().st_size <= 32 << 20 for path in folder.iterdir())
    shards = json.loads((folder / INDEX).read_text())["metadata"]["shards"]
    assert {file: about["size"] for file, about in shards.items()} == {
        path.name: path.stat().st_size for path in folder.glob("*.safetensors")
    }
    assert (folder / "NOTICE.txt").exists()


def test_likelihood(case: tuple[Path, dict[str, Any]]) -> None:
    """Q8 as good as f32; Q4 no worse than plain Q4_0 rounding of the same weights."""
    folder, reference = case
    losses = ox.Session(ox.load(folder, kernel="simd")).nll(reference["input_ids"])
    nll = sum(losses) / len(losses)
    if folder.name.split("-")[2] == "q8":
        assert nll == pytest.approx(reference["nll_f32"], rel=0.005)
    else:
        assert reference["nll_f32"] < nll < reference["nll_q4_0"]


def test_chat_template(demo: ModuleType) -> None:
    [model] = [m for m in demo.MODELS if m.chat]
    text = Text(demo.converted(model))
    ids = text.encode_chat([{"role": "user", "content": "Hello"}])
    start, end = 1, 2
    assert ids.count(start) == 3  # system, user, assistant
    assert ids.count(end) == 2
    assert ids[0] == start


def test_place_copies_once(demo: ModuleType, tmp_path: Path) -> None:
    made = tmp_path / "model-0123"
    made.mkdir()
    (made / "config.json").write_text("{}")
    target = tmp_path / "site" / "model"
    demo.place(made, target)
    (target / "config.json").write_text("changed")
    demo.place(made, target)
    assert (target / "config.json").read_text() == "changed"
    (made.rename(tmp_path / "model-4567") / "config.json").write_text("new")
    demo.place(tmp_path / "model-4567", target)
    assert (target / "config.json").read_text() == "new"
