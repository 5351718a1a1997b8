"""The door: one model by either of its two ways in, and what it says of a folder that is none."""

from __future__ import annotations

import asyncio
from pathlib import Path

import oxinfer_web as ox
import pytest
from oxinfer_web.opening import load
from oxinfer_web.opening import open as open_engine
from support import FIXTURES


def test_load_and_open_give_the_same_engine() -> None:
    logits = []
    for engine in (load(FIXTURES / "llama"), asyncio.run(open_engine(FIXTURES / "llama"))):
        session = ox.Session(engine)
        session.forward([3, 4, 5])
        logits.append(bytes(memoryview(session.logits()).cast("B")))
        assert (engine.kernels.build, engine.kernels.threads) == ("relaxed", 1)
    assert logits[0] == logits[1]


def nothing(folder: Path) -> None:
    pass


def no_tensors(folder: Path) -> None:
    (folder / "config.json").write_bytes((FIXTURES / "llama" / "config.json").read_bytes())


def no_text(folder: Path) -> None:
    (folder / "config.json").write_bytes(b'{"model_type": "\xff"}')


@pytest.mark.parametrize(
    ("make", "error", "says"),
    [
        (nothing, ox.ConfigError, r"config\.json: not in .*; is this a model's folder"),
        (no_tensors, ox.CheckpointError, r"neither model\.safetensors\.index\.json nor model\.safetensors is here"),
        (no_text, ox.HostError, r"config\.json: cannot be read in .*; download it again"),
    ],
)
def test_what_is_no_model(tmp_path: Path, make: object, error: type[Exception], says: str) -> None:
    make(tmp_path)  # type: ignore[operator]
    with pytest.raises(error, match=says):
        load(tmp_path)
    with pytest.raises(error, match=says):
        asyncio.run(open_engine(tmp_path))
