"""An output folder that appears complete or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..checkpoint import INDEX, SINGLE
from ..errors import CheckpointError
from ..text.files import FILES

_OURS = (
    *("model-*-of-*.safetensors", INDEX, SINGLE, "config.json", "generation_config.json"),
    *("tokenizer.json", "tokenizer_config.json", *FILES),
)


@contextmanager
def new_model_folder(out: Path, force: bool = False) -> Iterator[Path]:
    """A folder beside OUT to write into, which becomes OUT if the block ends well and goes away if it does not.

    A model that was in OUT is replaced; other files there are kept. Raises CheckpointError if OUT exists and holds
    anything but a model (force: whatever it holds), or if it cannot be written.
    """
    out = out.absolute()
    if out.exists() and not force and not _may_replace(out):
        raise CheckpointError(f"{out}: exists and is not a model's folder; choose another, or --force to write into it")
    if out.exists() and not out.is_dir():
        raise CheckpointError(f"{out}: is a file, not a folder; choose another name")
    # The process id keeps two conversions to the same place apart.
    partial, old = (out.with_name(f"{out.name}.{what}-{os.getpid()}") for what in ("partial", "old"))
    try:
        partial.mkdir(parents=True)
        yield partial
        if out.exists():
            out.rename(old)
        partial.rename(out)
        if old.exists():
            _keep_others(old, out)
            shutil.rmtree(old)
    except OSError as e:
        raise CheckpointError(f"{e.filename or out}: {e.strerror or e}; check free space and permissions") from e
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _model_files(folder: Path) -> set[Path]:
    return {path for pattern in _OURS for path in folder.glob(pattern)}


def _may_replace(folder: Path) -> bool:
    """Whether a folder is empty or has a model in it."""
    return folder.is_dir() and (not any(folder.iterdir()) or bool(_model_files(folder)))


def _keep_others(old: Path, new: Path) -> None:
    ours = _model_files(old)
    for path in old.iterdir():
        if path not in ours:
            path.rename(new / path.name)
