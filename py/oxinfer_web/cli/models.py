"""Loading a model for a command, on the kernels or on numpy."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path

from .. import Session, load, load_reference
from .console import progress_bar


class Kernel(StrEnum):
    """What runs the model."""

    relaxed = "relaxed"
    simd = "simd"
    numpy = "numpy"


def open_session(folder: Path, kernel: Kernel, max_context: int) -> Session:
    """A new session on a model folder. Raises OxinferError."""
    if kernel is Kernel.numpy:
        return Session(load_reference(folder, max_context=max_context))
    with progress_bar(f"loading {folder.name}") as progress:
        return Session(load(folder, kernel=kernel.value, max_context=max_context, progress=progress))
