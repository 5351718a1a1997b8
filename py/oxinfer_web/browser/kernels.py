"""The kernels under Pyodide: they and their memory are JavaScript's (web/src/engine/host/host.ts).

What happens for every token passes numbers only; requests are handed over as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, cast

from pyodide.ffi import JsException

from ..runtime import OneToken, Rows
from .errors import ours
from .files import BrowserRows


class BrowserKernels:
    """`runtime.Kernels` over a host object."""

    def __init__(self, host: Any) -> None:
        """host: the JavaScript object that web/src/engine/host/host.ts makes."""
        self.build: str = host.kernel
        self.threads: int = host.threads
        self._host = host
        # Bound once: looking a method up on a JavaScript object costs more than calling it.
        self._run = host.run
        self._copy = host.copy
        self._write_words, self._read_word = host.writeWords, host.readWord
        self._memory = host.memory()

    def alloc(self, nbytes: int, align: int = 64) -> int:
        """Address of nbytes of zeroed memory. Raises KernelError when there is no more."""
        try:
            addr = int(self._host.alloc(nbytes, align))
        except JsException as e:
            raise ours(e) from None
        # The memory may have grown, which leaves the old view behind.
        self._memory = self._host.memory()
        return addr

    def write(self, addr: int, data: bytes | bytearray | memoryview) -> None:
        """Copy data into kernel memory."""
        view = memoryview(data).cast("B")
        if view.nbytes:
            self._memory.subarray(addr, addr + view.nbytes).assign(view)

    def read(self, addr: int, nbytes: int) -> bytes:
        """A copy of kernel memory."""
        data: bytes = self._memory.subarray(addr, addr + nbytes).to_bytes()
        return data

    def write_words(self, addr: int, a: int, b: int) -> None:
        """Write two u32 at addr."""
        self._write_words(addr, a, b)

    def read_word(self, addr: int) -> int:
        """The u32 at addr."""
        word: int = self._read_word(addr)
        return word

    def copy(self, dst: int, src: int, nbytes: int) -> None:
        """Move bytes inside kernel memory, as memmove does."""
        self._copy(dst, src, nbytes)

    def run(self, ops: int, first: int, last: int, state: int) -> None:
        """Run records [first, last) of a program on all threads. Raises KernelError if a thread has died."""
        try:
            self._run(ops, first, last, state)
        except JsException as e:
            raise ours(e) from None

    def one_token(self, tables: Sequence[tuple[Rows, int, int]], ops: int, last: int, state: int) -> OneToken:
        """See Kernels: JavaScript does all of it in one call."""
        request = {
            "tables": [{"rows": cast(BrowserRows, rows).number, "values": v, "scales": s} for rows, v, s in tables],
            "ops": ops,
            "last": last,
            "state": state,
        }
        call = self._host.oneToken(json.dumps(request))

        def step(token: int, position: int) -> bool:
            try:
                return bool(call(token, position))
            except JsException as e:
                raise ours(e) from None

        return step

    def seconds(self) -> float:
        """Seconds spent in the kernels since the start."""
        return float(self._host.kernelSeconds())
