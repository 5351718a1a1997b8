"""The matrix kernels that ship, alone: beside plain reading of memory, and beside onnxruntime-web."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from oxinfer_web.enums import Quant
from oxinfer_web.program.records import BARRIER, State, encode, padded_rows, quantized_bytes

from .browser import Browser, Tab

KERNELS, READER = "../kernels/relaxed-shared.wasm", "../read.wasm"
COLUMNS = 2048
NOISE = None
SCALE_WORD = {Quant.Q8: 0x3C000000, Quant.Q4: 0x20002000}
"""Every scale 1/128, as one f32 and as two f16."""
SMALL_ROWS = 256
WARM_UP = 300
"""Calls on little data before anything is timed: V8 puts its optimized code in place between calls."""


@dataclass(frozen=True)
class Program:
    """Records in kernel memory, and the state they run with."""

    ops: int
    count: int
    state: int


class Lab:
    """Kernel memory with programs made by hand."""

    def __init__(self, tab: Tab, threads: int) -> None:
        self._tab = tab
        options = {"kernels": KERNELS, "reader": READER, "threads": threads}
        self._top = int(tab.call("start", options))

    def alloc(self, nbytes: int) -> int:
        """Address of nbytes, a multiple of 128."""
        addr = (self._top + 127) // 128 * 128
        self._top = addr + nbytes
        return addr

    def fill(self, nbytes: int, word: int | None) -> int:
        """Address of nbytes of one 32-bit word, or of noise."""
        addr = self.alloc(nbytes)
        self._tab.call("call", {"name": "fill", "args": [addr, nbytes, word]})
        return addr

    def program(self, *records: bytes, tokens: int = 1) -> Program:
        """Records as a program that runs on `tokens` tokens."""
        state = tokens.to_bytes(4, "little").ljust(State.BYTES, b"\0")
        addr = self.alloc(State.BYTES + sum(map(len, records)))
        self._tab.call("call", {"name": "write", "args": [addr, list(state + b"".join(records))]})
        return Program(addr + State.BYTES, len(records), addr)

    def run(self, program: Program, times: int = 1) -> float:
        """Milliseconds of one run, the mean of `times`."""
        args = [program.ops, program.count, program.state, times]
        return float(self._tab.call("call", {"name": "dispatch", "args": args}))

    def read(self, addr: int, nbytes: int, times: int = 1) -> float:
        """Milliseconds in which all threads together read nbytes, the mean of `times`."""
        return float(self._tab.call("read", {"addr": addr, "nbytes": nbytes, "times": times}))

    def pause(self) -> None:
        """Let the machine come to rest."""
        self._tab.pause()

    def linear(self, quant: Quant, rows: int, tokens: int) -> Program:
        """y f32 [tokens, rows] = x [tokens, COLUMNS] times a repacked random weight, x being quantized already."""
        assert rows == padded_rows(rows)
        value_bytes = rows * COLUMNS // (2 if quant == Quant.Q4 else 1)
        values = self.fill(value_bytes, NOISE)
        scales = self.fill(weight_bytes(quant, rows) - value_bytes, SCALE_WORD[quant])
        weight = {"rows": rows, "cols": COLUMNS, "quant": quant}
        self.run(self.program(encode("REPACK", BARRIER, values=values, scales=scales, **weight)))
        x, x_q = self.fill(4 * tokens * COLUMNS, 0x3F800000), self.alloc(tokens * quantized_bytes(COLUMNS))
        norm = encode("NORM", BARRIER, dst_q=x_q, src=x, n=COLUMNS, rows=1, scale=1.0)
        self.run(self.program(norm, tokens=tokens))
        weight = {"values0": values, "scales0": scales, "n_out0": rows, "quant0": quant}
        y = self.alloc(4 * tokens * rows)
        record = encode("LINEAR", BARRIER, src=x, src_q=x_q, n_in=COLUMNS, count=1, dst0=y, **weight)
        return self.program(record, tokens=tokens)

    def warm_up(self, quant: Quant, tokens: int) -> None:
        """Have V8 optimize this kernel."""
        self.run(self.linear(quant, SMALL_ROWS, tokens), WARM_UP)


def weight_bytes(quant: Quant, rows: int) -> int:
    """Bytes of a weight's values and scales."""
    return rows * COLUMNS // 32 * {Quant.Q8: 36, Quant.Q4: 18}[quant]


@contextmanager
def lab(browser: Browser, threads: int) -> Iterator[Lab]:
    """Kernels in a page of their own."""
    tab = browser.open("pages/kernels.html")
    try:
        yield Lab(tab, threads)
    finally:
        tab.close()


GEMV_ROWS = {Quant.Q4: 1 << 18, Quant.Q8: 1 << 17}
"""Both 302 MB, as much as is read plainly."""
GEMM_ROWS, GEMM_TOKENS = 1 << 15, 64
TIMES = 4


def gemv_speeds(browser: Browser, threads: int, rounds: int) -> dict[str, list[float]]:
    """GB/s of "read" (plain loads), "q4" and "q8" in each round."""
    out: dict[str, list[float]] = {"read": [], "q4": [], "q8": []}
    with lab(browser, threads) as bench:
        nbytes = weight_bytes(Quant.Q4, GEMV_ROWS[Quant.Q4])
        plain = bench.fill(nbytes, NOISE)
        bench.read(plain, 1 << 22, WARM_UP)
        programs = {}
        for quant in (Quant.Q4, Quant.Q8):
            bench.warm_up(quant, 1)
            programs[quant.name.lower()] = bench.linear(quant, GEMV_ROWS[quant], 1)
        for round_ in range(rounds + 1):  # the first does not count
            speeds = {"read": bench.read(plain, nbytes, TIMES)}
            speeds |= {name: bench.run(program, TIMES) for name, program in programs.items()}
            for name, ms in speeds.items():
                if round_:
                    out[name].append(nbytes / ms / 1e6)
    return out


def read_speeds(browser: Browser, threads: int, rounds: int) -> list[float]:
    """GB/s of plain loads, in each round, over as many bytes as `gemv_speeds` reads."""
    with lab(browser, threads) as bench:
        nbytes = weight_bytes(Quant.Q4, GEMV_ROWS[Quant.Q4])
        plain = bench.fill(nbytes, NOISE)
        bench.read(plain, 1 << 22, WARM_UP)
        bench.read(plain, nbytes, TIMES)  # does not count
        return [nbytes / bench.read(plain, nbytes, TIMES) / 1e6 for _ in range(rounds)]


def gemm_speeds(browser: Browser, onnx_file: str, threads: int, rounds: int) -> dict[str, list[float]]:
    """GOP/s (two a weight and token) of "q4" and of "onnxruntime" in each round, on the same shape."""
    out: dict[str, list[float]] = {"q4": [], "onnxruntime": []}
    operations = 2 * GEMM_ROWS * COLUMNS * GEMM_TOKENS
    with lab(browser, threads) as bench:
        bench.warm_up(Quant.Q4, GEMM_TOKENS)
        program = bench.linear(Quant.Q4, GEMM_ROWS, GEMM_TOKENS)
        tab = browser.open("pages/onnx.html")
        shape = {"tokens": GEMM_TOKENS, "columns": COLUMNS}
        tab.call("load", {"model": onnx_file, "threads": threads, **shape})
        tab.call("measure", TIMES)
        for _ in range(rounds):
            bench.pause()
            out["q4"].append(operations / bench.run(program, TIMES) / 1e6)
            tab.pause()
            out["onnxruntime"].append(operations / tab.call("measure", TIMES) / 1e6)
        tab.close()
    return out
