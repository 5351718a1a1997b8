"""What every source file keeps to."""

from __future__ import annotations

import re

from .sources import ROOT, sources

MOST_LINES = 350
FAMILIES = "py/oxinfer_web/models/"
FAMILY_ASKED = re.compile(r"\b(family|model_type|architecture)s?\b.{0,20}(==|!=|\bin\b)")


def test_no_file_is_long() -> None:
    lines = {str(f): len((ROOT / f).read_text().splitlines()) for f in sources()}
    assert len(lines) > 100, "the sources are somewhere else now"
    assert not {file: n for file, n in lines.items() if n > MOST_LINES}
