"""The plain shared build on real threads, under Node: the same results as one thread, an orderly end, no hang.

Node 20 has relaxed SIMD behind a flag, and its baseline compiler gets the dot product wrong; the code of threads is the
same in both builds, and the browser's tests run the relaxed one.
"""

from __future__ import annotations

import base64
import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from oxinfer_web.enums import Quant
from oxinfer_web.native.kernels import find_kernels
from oxinfer_web.program.records import BARRIER, State, encode, quantized_bytes

from . import counterparts as numpy_ops
from .machine import Machine

TOKENS, COLS, ROWS = 3, 128, 208


def a_program(machine: Machine) -> tuple[list[bytes], int]:
    """REPACK, quantize, LINEAR, then a row of NORMs with barriers: its records, and the address of the result."""
    rng = np.random.default_rng(10)
    x = rng.normal(size=(TOKENS, COLS)).astype(np.float32)
    values, scales = numpy_ops.random_weight(rng, Quant.Q4, ROWS, COLS)
    assert scales is not None
    weight = {"values": machine.put(values), "scales": machine.put(scales), "quant": int(Quant.Q4)}
    src_q, dst = machine.room(TOKENS * quantized_bytes(COLS)), machine.room(TOKENS * ROWS * 4)
    linear = {f"{k}0": v for k, v in weight.items()} | {"dst0": dst, "n_out0": ROWS}
    norm = {"src": dst, "dst": dst, "n": ROWS, "rows": 1, "norm": 1, "eps": 1e-6, "scale": 1.0}
    records = [
        encode("REPACK", BARRIER, rows=ROWS, cols=COLS, **weight),
        encode("NORM", BARRIER, dst_q=src_q, src=machine.put(x), n=COLS, rows=1, scale=1.0),
        encode("LINEAR", BARRIER, src_q=src_q, n_in=COLS, count=1, **linear),
        *[encode("NORM", BARRIER, **norm)] * 100,
    ]
    return records, dst


def on_threads(machine: Machine, records: list[bytes], threads: int, reads: list[tuple[int, int]], **job: Any) -> Any:
    """What threads.mjs answers for a program."""
    ops = machine.put(np.frombuffer(b"".join(records), np.uint8))
    state = np.zeros(State.WORDS, np.uint32)
    state[0] = TOKENS
    address = machine.put(state)
    base, data = machine.snapshot()
    job |= {
        "wasm": str(find_kernels("simd").with_name("simd-shared.wasm")),
        "threads": threads,
        "ops": ops,
        "count": len(records),
        "state": address,
        "memory": {"address": base, "base64": base64.b64encode(data).decode()},
        "reads": reads,
    }
    script = Path(__file__).with_name("threads.mjs")
    done = subprocess.run(["node", str(script)], input=json.dumps(job), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_real_threads(threads: int) -> None:
    """More threads than cores as well; 50 runs, each with a hundred barriers and more."""
    machine = Machine("simd", 1)
    records, dst = a_program(machine)
    nbytes = TOKENS * ROWS * 4
    answer = on_threads(machine, records, threads, [(dst, nbytes)], repeats=50)
    assert answer["status"] == [0] * 50
    assert answer["stopped"] == threads - 1
    machine.play(*records, tokens=TOKENS)
    assert base64.b64decode(answer["data"][0]) == machine.kernels.read(dst, nbytes)


def test_a_lost_thread_is_noticed() -> None:
    """dispatch gives up on a thread that does not come, at once ever after, and the other threads end."""
    machine = Machine("simd", 1)
    records, _ = a_program(machine)
    answer = on_threads(machine, records, 3, [], repeats=2, lose=2)
    assert answer["status"] == [1, 1]
    assert answer["stopped"] == 1
