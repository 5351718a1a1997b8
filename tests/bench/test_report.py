"""What the benchmark makes of its measurements."""

from __future__ import annotations

from pathlib import Path

import pytest

from . import docs
from .__main__ import joined, merged
from .report import Row, read_json, write_json

FASTER = Row("speed", "decode, a model", "tok/s", (50.0, 70.0, 60.0), "wllama", (11.0, 10.0, 9.0), 6.5)
IDLE = Row("idle", "CPU of an idle page", "% of a core", (1.0, 3.0, 2.5), target=2, most=True)
SIZE = Row("shapes", "prefill, E4B", "tok/s", (15.0,))


def test_row() -> None:
    """Ratios are of medians; a target is a bound from below, or from above; without one nothing has to hold."""
    assert FASTER.value == pytest.approx(6.0)
    assert FASTER.holds is False
    assert FASTER.cells() == ["decode, a model", "60.0 tok/s", "10.0 (wllama)", "6.00 x", "at least 6.5 x", "no"]
    assert IDLE.holds is False
    assert IDLE.cells() == ["CPU of an idle page", "2.50 % of a core", "", "", "at most 2", "no"]
    assert SIZE.holds is None


def test_json(tmp_path: Path) -> None:
    """What is written is read back, and a section that is measured again takes the place of its old rows."""
    file = tmp_path / "results" / "bench.jsonl"
    write_json(file, {"cpu": "a CPU"}, [FASTER, IDLE])
    about, rows = read_json(file)
    assert about == {"cpu": "a CPU"}
    assert rows == [FASTER, IDLE]
    again = Row("speed", "decode, another model", "tok/s", (1.0,))
    assert merged(rows, [SIZE, again]) == [again, IDLE, SIZE]


def test_joined() -> None:
    """Runs are only joined where they were made alike."""
    one, two = ({"cpu": "a CPU", "command": command} for command in ("one", "two"))
    assert joined(one, two) == {"cpu": "a CPU", "command": "one; two"}
    with pytest.raises(SystemExit, match="'a CPU'"):
        joined(one, {**two, "cpu": "another"})


def test_docs(tmp_path: Path) -> None:
    """The page names the machine and has a table for each section that was measured."""
    about = dict.fromkeys(("cores", "system", "chromium", "threads", "rounds", "prompt", "generate", "gemm_tokens"), 2)
    about |= dict.fromkeys(("idle_s", "shape_context", "shape_prompt"), 10)
    docs.write_docs(tmp_path / "benchmarks.md", {**about, "cpu": "a CPU", "command": "./build.sh bench"}, [IDLE])
    text = (tmp_path / "benchmarks.md").read_text()
    assert "Machine: a CPU, 2 cores" in text
    assert "over 10 s that begin 10 s after an answer" in text
    assert "| CPU of an idle page | 2.50 % of a core |  |  | at most 2 | no |" in text
    assert "## Models" not in text
