"""What can be wrong with a model, in Python and in the terminal: one clear message, the file named, no traceback."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import oxinfer_web as ox
import pytest
from oxinfer_web.checkpoint import INDEX
from oxinfer_web.cli.app import app
from oxinfer_web.convert import convert
from support import FIXTURES
from typer.testing import CliRunner

Fault = Callable[[Path], None]


def second(folder: Path) -> Path:
    return sorted(folder.glob("*.safetensors"))[1]


def lose_shard(folder: Path) -> None:
    second(folder).unlink()


def cut_shard(folder: Path) -> None:
    second(folder).write_bytes(second(folder).read_bytes()[:-100])


def edit_config(**changes: object) -> Fault:
    def edit(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | changes))

    return edit


def edit_headers(old: bytes, new: bytes) -> Fault:
    def edit(folder: Path) -> None:
        for path in folder.glob("*.safetensors"):
            path.write_bytes(path.read_bytes().replace(old, new, 1))

    return edit


def lose_tensor(folder: Path) -> None:
    index = json.loads((folder / INDEX).read_text())
    del index["weight_map"]["model.norm.weight"]
    (folder / INDEX).write_text(json.dumps(index))


FAULTS: dict[str, tuple[Fault, type[ox.OxinferError], str]] = {
    "shard missing": (lose_shard, ox.CheckpointError, r"model-00002\S+: .* is not in .*; download it"),
    "shard short": (cut_shard, ox.CheckpointError, r"model-00002\S+: \d+ bytes, .* says \d+; download the file again"),
    "wrong shape": (edit_config(intermediate_size=96), ox.CheckpointError, r"model-\S+: tensor \S+ has the shape"),
    "wrong dtype": (edit_headers(b'"BF16"', b'"U16" '), ox.CheckpointError, r"is U16, the model needs BF16"),
    "tensor missing": (lose_tensor, ox.CheckpointError, r"no tensor model\.norm\.weight; .*convert it again"),
    "unknown model": (edit_config(model_type="mamba9"), ox.ConfigError, r"config\.json: model_type 'mamba9'"),
    "unknown quantization": (
        edit_headers(b'"oxinfer_quant":"q8"', b'"oxinfer_quant":"q3"'),
        ox.CheckpointError,
        "'q3'",
    ),
}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    convert(FIXTURES / "llama", folder, quant="q8", shard_size=150_000)
    return folder


@pytest.mark.parametrize("fault", FAULTS)
def test_in_python(model: Path, fault: str) -> None:
    break_it, kind, message = FAULTS[fault]
    break_it(model)
    for load in (ox.load, ox.load_reference):
        with pytest.raises(kind, match=message):
            load(model)


@pytest.mark.parametrize("fault", FAULTS)
def test_in_the_terminal(model: Path, fault: str) -> None:
    break_it, _, message = FAULTS[fault]
    break_it(model)
    ids = model / "ids.json"
    ids.write_text("[1, 2, 3]")
    result = CliRunner().invoke(app, ["perplexity", str(model), "--ids", str(ids)])
    said = " ".join(result.stderr.split())
    assert result.exit_code == 1 and said.startswith("error: ") and "Traceback" not in said
    assert re.search(message, said)
