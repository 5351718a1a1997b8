"""A host object for an address, from whoever started Pyodide."""

from __future__ import annotations

from typing import Any

from pyodide.ffi import JsException

from ..errors import HostError
from .errors import ours

MODULE = "oxinfer_host"
"""The JavaScript module in which Pyodide's Python finds `openHost(address)`: see web/src/engine/host/index.ts."""


async def host_of(address: str) -> Any:
    """The host object of the model at an address. Raises HostError, or KernelError where kernels cannot run."""
    try:
        import oxinfer_host
    except ImportError:
        raise HostError(
            f"{address}: Python has nothing here to read it with; let JavaScript call "
            f"pyodide.registerJsModule('{MODULE}', {{ openHost }}) before, or give open a host object"
        ) from None
    try:
        return await oxinfer_host.openHost(address)
    except JsException as e:
        raise ours(e) from None
