"""What the benchmark makes of its measurements."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from . import docs
from .__main__ import joined, merged
from .browser import npm_name
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


def test_readme(tmp_path: Path) -> None:
    """README's table takes its figures and its peers' names, versions included, from the rows; the rest stays."""
    readme = tmp_path / "README.md"
    readme.write_text(f"Before.\n{docs.BEGIN}\nold\n{docs.END}\nAfter.\n")
    docs.write_readme(readme, [FASTER])
    assert "old" in readme.read_text(), "not all of the table was measured"
    rows = [
        Row("speed", measure, "tok/s", (100.0 + i,), peer, (10.0 * i,))
        for i, measure in enumerate(docs.README, 1)
        for peer in ("wllama 3.13.0", "llama-cpp-python 0.3.0")
    ]
    docs.write_readme(readme, rows)
    text = readme.read_text()
    assert text.startswith("Before.\n") and text.endswith("\nAfter.\n") and "old" not in text
    assert "| Gemma 3 270M | this | wllama 3.13.0 | llama-cpp-python 0.3.0 |" in text
    assert "| prompt, Q8 | 104 | 40.0 | 40.0 |" in text
    docs.write_readme(readme, rows)
    assert readme.read_text() == text


def test_peers_are_named_with_their_version() -> None:
    assert re.fullmatch(r"wllama \d+\.\d+\.\d+", npm_name("@wllama/wllama"))
    assert re.fullmatch(r"onnxruntime-web \d+\.\d+\.\d+", npm_name("onnxruntime-web"))
