"""Kernels with numpy in front: what the tests of single ops need."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from oxinfer_web.enums import KVType, Quant
from oxinfer_web.native.kernels import WasmtimeKernels
from oxinfer_web.program.records import (
    CacheDescriptor,
    State,
    attention_scratch_bytes,
    encode,
    padded_rows,
    page_bytes,
    quantized_bytes,
)

Array = NDArray[Any]
F32 = NDArray[np.float32]
GUARD = 0x5A
"""What lies behind every buffer; a kernel that writes there fails the test."""


class Machine:
    """Kernel memory that is used from the start again for every op tried."""

    def __init__(self, kernel: str, threads: int, deterministic: bool = False) -> None:
        self.kernels = WasmtimeKernels(kernel, threads, deterministic=deterministic)
        self.kernel, self.threads = kernel, threads
        self.kernels.alloc(1 << 16)  # the builds' own data differ a little in size; what follows lies alike in all
        self._base = self.kernels.alloc(96 << 20)
        self._size = 96 << 20
        self.reset()

    def reset(self) -> None:
        """Forget all buffers."""
        self._top = self._base
        self._guards: list[int] = []

    def room(self, nbytes: int) -> int:
        """Address of nbytes filled with junk (finite as f32, f16 and bf16), with a guard behind."""
        addr = self._top
        self._top += (nbytes + 64 + 63) // 64 * 64
        assert self._top <= self._base + self._size
        self.kernels.write(addr, bytes([GUARD]) * (nbytes + 64))
        self._guards.append(addr + nbytes)
        return addr

    def put(self, array: Array) -> int:
        """Address of a copy of the array."""
        data = np.ascontiguousarray(array).tobytes()
        addr = self.room(len(data))
        self.kernels.write(addr, data)
        return addr

    def get(self, addr: int, shape: Sequence[int], dtype: Any = np.float32) -> Array:
        """The array at addr."""
        nbytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
        return np.frombuffer(self.kernels.read(addr, nbytes), dtype).reshape(shape).copy()

    def snapshot(self) -> tuple[int, bytes]:
        """The address and contents of all buffers so far."""
        return self._base, self.kernels.read(self._base, self._top - self._base)

    def play(self, *records: bytes, tokens: int = 1, pos: int = 0) -> None:
        """Run records as one program, then check that nothing was written behind a buffer."""
        ops = self.put(np.frombuffer(b"".join(records), np.uint8))
        state = np.zeros(State.WORDS, np.uint32)
        state[:2] = tokens, pos
        self.kernels.run(ops, 0, len(records), self.put(state))
        for guard in self._guards:
            assert self.kernels.read(guard, 64) == bytes([GUARD]) * 64

    def weight(self, quant: Quant, values: Array, scales: Array | None) -> dict[str, int]:
        """Load and repack a weight as the checkpoint has it; its addresses and quant."""
        rows, cols = values.shape[0], values.shape[1] * (2 if quant == Quant.Q4 else 1)
        extra = padded_rows(rows) - rows

        def padded(a: Array) -> int:
            return self.put(np.concatenate([a, np.full((extra, a.shape[1]), 0x3F, a.dtype)]))

        out = {"values": padded(values), "scales": 0 if scales is None else padded(scales), "quant": int(quant)}
        self.play(encode("REPACK", rows=rows, cols=cols, **out))
        return out

    def quantized(self, x: F32) -> int:
        """The quantized copy of rows, made by NORM without a norm."""
        tokens, n = x.shape
        dst_q = self.room(tokens * quantized_bytes(n))
        self.play(encode("NORM", dst_q=dst_q, src=self.put(x), n=n, rows=1, scale=1.0), tokens=tokens)
        return dst_q


class Cache:
    """A KV cache of a machine."""

    def __init__(self, machine: Machine, kv_heads: int, head_dim: int, kv: KVType, pages: int) -> None:
        self.machine, self.kv_heads, self.head_dim, self.kv = machine, kv_heads, head_dim, kv
        size = page_bytes(kv_heads, head_dim, kv)
        table = np.array([machine.room(size) for _ in range(pages)][::-1], np.uint32)  # in no particular order
        descriptor = np.zeros(CacheDescriptor.WORDS, np.uint32)
        descriptor[:2] = machine.put(table), pages
        self.address = machine.put(descriptor)

    def append(self, k: F32, v: F32, pos: int) -> None:
        """Write keys and values f32 [T, kv_heads * head_dim] of positions pos on."""
        heads: dict[str, Any] = {
            "cache": self.address,
            "heads": self.kv_heads,
            "head_dim": self.head_dim,
            "kv": int(self.kv),
            "scale": 1.0,
        }
        self.machine.play(
            encode("HEADS", src=self.machine.put(k), bind=1, **heads),
            encode("HEADS", src=self.machine.put(v), bind=2, **heads),
            tokens=len(k),
            pos=pos,
        )

    def attend(
        self, q: F32, heads: int, pos: int, window: int = 0, quantized: bool = False, flags: int = 0
    ) -> tuple[F32, int]:
        """ATTENTION and ATTENTION_MERGE: f32 [rows of q, heads * head_dim], and the address of the quantized copy or 0.

        With the flag LAST the step has 3 tokens more than q's one.
        """
        m, tokens = self.machine, len(q)
        positions = pos + tokens + 3
        operands = {
            "dst": m.room(q.nbytes),
            "dst_q": m.room(tokens * quantized_bytes(q.shape[1])) if quantized else 0,
            "q": m.put(q),
            "cache": self.address,
            "scratch": m.room(attention_scratch_bytes(heads, self.head_dim, positions)),
            "heads": heads,
            "kv_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "window": window,
            "kv": int(self.kv),
        }
        records = encode("ATTENTION", flags | 1, **operands), encode("ATTENTION_MERGE", flags | 1, **operands)
        m.play(*records, tokens=tokens + (3 if flags & 2 else 0), pos=pos)
        return m.get(operands["dst"], q.shape), operands["dst_q"]
