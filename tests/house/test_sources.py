"""What every source file keeps to."""

from __future__ import annotations

from .sources import ROOT, sources

MOST_LINES = 350


def test_no_file_is_long() -> None:
    lines = {str(f): len((ROOT / f).read_text().splitlines()) for f in sources()}
    assert len(lines) > 100, "the sources are somewhere else now"
    assert {file: n for file, n in lines.items() if n > MOST_LINES} == {}
