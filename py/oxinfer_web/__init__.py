"""oxinfer-web: a language model in a web page, decoded by Python on WASM SIMD kernels.

In CPython:

    engine = oxinfer_web.load("models/gemma3-270m-q8")
    session = oxinfer_web.Session(engine)
    for token in oxinfer_web.generate_sync(session, prompt_ids):
        ...

In a page, `conversations` does the same with `await`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from .checkpoint import Checkpoint
from .config import TextConfig
from .engine import CHUNK, Engine
from .errors import CheckpointError, ConfigError, HostError, KernelError, OxinferError, SessionError
from .generate import finish, generate, generate_sync
from .models import config_from_folder
from .program.records import KVType
from .runtime import Progress
from .sampling import Sampler
from .session import Candidates, Session

if TYPE_CHECKING:
    from .reference import Reference

__version__ = "0.1.0"
__all__ = [
    "Candidates",
    "Checkpoint",
    "CheckpointError",
    "ConfigError",
    "Engine",
    "HostError",
    "KVType",
    "KernelError",
    "OxinferError",
    "Sampler",
    "Session",
    "SessionError",
    "TextConfig",
    "generate",
    "generate_sync",
    "load",
    "load_reference",
]


def load(
    folder: str | Path,
    *,
    kernel: str = "relaxed",
    threads: int = 1,
    max_context: int = 2048,
    chunk: int = CHUNK,
    kv: KVType = KVType.F32,
    resident_tables: bool = False,
    progress: Progress | None = None,
) -> Engine:
    """Load a model from a local folder onto the WASM kernels, run by wasmtime (CPython; `oxinfer-web[native]`).

    kernel: "relaxed" or "simd" (deterministic by specification). Raises CheckpointError, ConfigError or KernelError.
    """
    from .native.kernels import WasmtimeRuntime

    config, checkpoint = config_from_folder(folder), Checkpoint.open(folder)
    runtime = WasmtimeRuntime(folder, kernel, threads)
    return finish(
        Engine.load(
            runtime,
            checkpoint,
            config,
            max_context=max_context,
            chunk=chunk,
            kv=kv,
            resident_tables=resident_tables,
            progress=progress,
        )
    )


def load_reference(folder: str | Path, *, max_context: int | None = None) -> Reference:
    """Load a model from a local folder onto numpy, in float32. Raises CheckpointError or ConfigError."""
    from .models import load_model
    from .reference import Reference

    config, checkpoint = config_from_folder(folder), Checkpoint.open(folder)
    return Reference(load_model(checkpoint, config), folder, max_context)
