"""oxinfer-web: a language model in a web page, decoded by Python on WASM SIMD kernels.

In CPython:

    engine = oxinfer_web.load("models/gemma3-270m-q8")
    session = oxinfer_web.Session(engine)
    for token in oxinfer_web.generate_sync(session, prompt_ids):
        ...

Where Python has to wait for files, as in Pyodide, it is `await oxinfer_web.open(...)`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from .backend import Candidates
from .checkpoint import Checkpoint
from .config import TextConfig
from .engine import Engine
from .enums import KVType
from .errors import (
    CancelledError,
    CheckpointError,
    ConfigError,
    ContextError,
    HostError,
    KernelError,
    NumericError,
    OxinferError,
    SessionError,
)
from .generate import Ended, Generation, SyncGeneration, generate, generate_sync
from .models import config_from_folder
from .opening import load, open
from .sampling import Sampler
from .session import Session

if TYPE_CHECKING:
    from .reference import Reference

__version__ = "0.1.0"
__all__ = [
    "CancelledError",
    "Candidates",
    "Checkpoint",
    "CheckpointError",
    "ConfigError",
    "ContextError",
    "Ended",
    "Engine",
    "Generation",
    "HostError",
    "KVType",
    "KernelError",
    "NumericError",
    "OxinferError",
    "Sampler",
    "Session",
    "SessionError",
    "SyncGeneration",
    "TextConfig",
    "generate",
    "generate_sync",
    "load",
    "load_reference",
    "open",
]


def load_reference(folder: str | Path, *, max_context: int | None = None) -> Reference:
    """Load a model from a local folder onto numpy, in float32. Raises CheckpointError or ConfigError."""
    from .models import load_model
    from .reference import Reference

    config, checkpoint = config_from_folder(folder), Checkpoint.open(folder)
    return Reference(load_model(checkpoint, config), folder, max_context)
