"""docs/benchmarks.md and the table in README.md, written from what was measured."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from .report import HEADINGS, Row, short

INTRODUCTION = """# Benchmarks

Written by `./build.sh bench --write-docs`; do not edit.

Machine: {cpu}, {cores} cores, {system}, Chromium {chromium}, headless.
Command: `{command}`.
The engine and its peers run {threads} threads unless a row says otherwise.

Every figure is the median of {rounds} rounds. What is compared is loaded at the same time in the same browser and
measured in turns, so that the machine's ups and downs meet both alike; a ratio is that of the two medians.
"""

SECTIONS = {
    "speed": """## Models

A prompt of {prompt} tokens, then {generate} tokens, greedy. wllama (npm's `@wllama/wllama`) and llama.cpp (native code,
through `llama-cpp-python`) run a GGUF file of the same source weights, every matrix in Q4_0 or Q8_0 where ours has Q4
or Q8; they get the same tokens and the same number of threads. wllama's figures are those that llama.cpp's own clock
gives for a request. "Python and JavaScript" is what of a decoded token's time is spent outside the kernels.
""",
    "threads": """## Threads

The same pass with two threads and with one. Decoding reads every weight once a token and cannot gain more from a second
thread than plain reading of memory does, once one thread comes near that.
""",
    "context": """## Context

Speed of the tokens after a long prompt, beside that after a short one.
""",
    "kernels": """## Kernels

The kernels that ship, on random weights, called as a program calls them. A matrix of 2048 columns times one vector
reads 302 MB of values and scales; beside it, the speed at which a loop of plain 128-bit loads reads as much, with the
same threads. A matrix [32768, 2048] times {gemm_tokens} vectors is beside the MatMulNBits operator of npm's
`onnxruntime-web` with int8 activations. An operation is a multiplication or an addition.
""",
    "start": """## Start

From opening the page to the first token of an answer: Pyodide, kernels, tokenizer, and the model, which an earlier
visit has left in the browser. Beside it, wllama's `loadModel` alone, with the file already in the page's memory.
""",
    "idle": """## Idle

CPU time of the page's process, its workers included, over {idle_s} s that begin {idle_s} s after an answer.
""",
    "shapes": """## Large models

Random weights in the shapes of Gemma 4 E2B and E4B, in Q4, with a context of {shape_context} tokens and a prompt of
{shape_prompt}; the per-layer tables stay on the host. Memory is all that the kernels hold: weights, KV caches, buffers.
""",
}

README = {
    f"{measure}, gemma3-270m-{quant}": f"{name}, {quant.upper()}"
    for measure, name in (("decode", "decode"), ("prefill", "prompt"))
    for quant in ("q4", "q8")
}
"""Measures in README's table, and what it calls them."""
BEGIN, END = "<!-- speeds: written by ./build.sh bench --write-docs -->", "<!-- end of speeds -->"


def write_docs(path: Path, about: dict[str, Any], rows: Sequence[Row]) -> None:
    """Write the page: the sections that have rows, each with what they mean."""
    parts = [INTRODUCTION.format(**about)]
    for section, introduction in SECTIONS.items():
        of_it = [row for row in rows if row.section == section]
        if of_it:
            parts += [introduction.format(**about), _table(of_it)]
    path.write_text("\n".join(parts))


def write_readme(path: Path, rows: Sequence[Row]) -> None:
    """Write README.md's table of speeds anew, if both precisions of its model were measured."""
    speeds = {row.measure: row.ours for row in rows if row.section == "speed"}
    names = dict.fromkeys(row.than for row in rows if row.measure in README)
    peers = {name: {row.measure: row.other for row in rows if row.than == name} for name in names}
    if not README.keys() <= speeds.keys():
        return
    lines = [("Gemma 3 270M", "this", *peers), ("---",) * (2 + len(peers))]
    for measure, label in README.items():
        of_each = (speeds, *peers.values())
        lines.append((label, *(short(median(of_it[measure])) if measure in of_it else "" for of_it in of_each)))
    before, _, rest = path.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    path.write_text(f"{before}{BEGIN}\n{_markdown(lines)}{END}{after}")


def _table(rows: Sequence[Row]) -> str:
    return _markdown([HEADINGS, ("---",) * len(HEADINGS), *(row.cells() for row in rows)])


def _markdown(lines: Iterable[Iterable[str]]) -> str:
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)
