"""The one door to a model on the kernels: which kernels and files there are is chosen here, and nowhere else."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

from .engine import CHUNK, Engine
from .enums import KVType
from .errors import ConfigError
from .generate import finish
from .models import config_from_json, load_model
from .runtime import Files, Kernels, Progress


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

    kernel: "relaxed" or "simd" (deterministic by specification); threads: for testing alone: CPython has one real
    thread, which plays the parts of several in turn, with the same results and three to six times slower (a UserWarning
    says so); the rest as for `open`. Raises CheckpointError, ConfigError or KernelError.
    """
    if threads > 1:
        warnings.warn(
            f"threads={threads} makes nothing faster in CPython: one thread plays all parts in turn, which takes "
            "several times as long; leave it at 1 unless you test the kernels",
            stacklevel=2,
        )
    kernels, files = _in_cpython(folder, kernel, threads)
    return finish(_load(kernels, files, max_context, chunk, kv, resident_tables, progress))


async def open(
    source: Any,
    *,
    max_context: int = 2048,
    chunk: int = CHUNK,
    kv: KVType = KVType.F32,
    resident_tables: bool = False,
    progress: Progress | None = None,
) -> Engine:
    """Load a model where Python may have to wait for it. source: in Pyodide, the address of a model's folder, or the
    host object (web/src/engine/host) of one, which has chosen kernels and threads; in CPython, a local folder.

    max_context: positions a session may have, at most the config's; chunk: tokens of a prompt run together; kv:
    precision of the KV cache; resident_tables: load the tables into memory instead of fetching their rows.
    Raises CheckpointError, ConfigError, HostError or KernelError.
    """
    if sys.platform == "emscripten":
        kernels, files = await _in_pyodide(source)
    else:
        kernels, files = _in_cpython(source, "relaxed", 1)
    return await _load(kernels, files, max_context, chunk, kv, resident_tables, progress)


def _in_cpython(folder: str | Path, kernel: str, threads: int) -> tuple[Kernels, Files]:
    from .native.files import FolderFiles
    from .native.kernels import WasmtimeKernels

    kernels = WasmtimeKernels(kernel, threads)
    return kernels, FolderFiles(folder, kernels)


async def _in_pyodide(source: Any) -> tuple[Kernels, Files]:
    from .browser.files import BrowserFiles
    from .browser.host import host_of
    from .browser.kernels import BrowserKernels

    host = await host_of(source) if isinstance(source, str) else source
    return BrowserKernels(host), BrowserFiles(host)


async def _load(
    kernels: Kernels,
    files: Files,
    max_context: int,
    chunk: int,
    kv: KVType,
    resident_tables: bool,
    progress: Progress | None,
) -> Engine:
    text = await files.text("config.json")
    if text is None:
        raise ConfigError(f"config.json: not in {files.folder}; is this a model's folder?")
    config = config_from_json(text, await files.text("generation_config.json"))
    model = load_model(await files.checkpoint(), config)
    return await Engine.load(
        kernels,
        files,
        model,
        max_context=max_context,
        chunk=chunk,
        kv=kv,
        resident_tables=resident_tables,
        progress=progress,
    )
