"""The documents name what there is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from .sources import FOLDERS, ROOT, sources

DOCUMENTS = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/design.md", "docs/benchmarks.md")
LINK = re.compile(r"\]\(([^)#\s]+)[^)]*\)")
FILE = re.compile(r"`((?:[\w.-]+/)*[\w.-]+\.(?:py|ts|js|mjs|c|h|sh|html|css|wat))`|`((?:[\w.-]+/)+)`")
NAME = re.compile(r"`([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)(?:\([^`]*\))?`")
WORD = re.compile(r"\w+")
NO_NAMES = {"op_NAME", "memory.atomic.wait32", "crypto.subtle"}
MADE = {"oxinfer-web.js", "kernels/", "pyodide/", "models/", "build/kernels/", "web/dist/", "build/"}
"""What a build makes."""
ROOMS = ("py/oxinfer_web", "web", "web/src", "web/src/engine", "web/src/engine/client", "tests", ".")
NO_ROOMS = {"__init__.py", "__main__.py", "__pycache__", "node_modules", "dist", "build", "kernels", "py.typed"}


def test_all_documents_are_looked_at() -> None:
    found = {str(f.relative_to(ROOT)) for folder in (ROOT, ROOT / "docs") for f in folder.glob("*.md")}
    assert found == set(DOCUMENTS)


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_lead_somewhere(document: str) -> None:
    page = ROOT / document
    links = [link for link in LINK.findall(page.read_text()) if not re.match(r"[a-z]+:", link)]
    assert [link for link in links if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("document", [d for d in DOCUMENTS if d != "CHANGELOG.md"])
def test_files_that_are_named_exist(document: str) -> None:
    """In backticks, by any end of their path: `host/rows.ts` is in web/src/engine/. A folder ends in a slash."""
    named = {(file or folder).removeprefix("./") for file, folder in FILE.findall((ROOT / document).read_text())}
    files = [f"/{f}" for f in sources()]
    below = [folder for top in FOLDERS for folder in (ROOT / top).glob("**/")]
    folders = [f"/{folder.relative_to(ROOT)}/" for folder in (ROOT / "web", *below)]
    there = {n for n in named if any(path.endswith(f"/{n}") for path in (folders if n.endswith("/") else files))}
    assert named - there - MADE == set()


@pytest.mark.parametrize("document", ["README.md", "CONTRIBUTING.md", "docs/design.md"])
def test_names_of_the_code_are_in_it(document: str) -> None:
    """In backticks: a class, a function, a constant, or several with dots between."""
    words = {
        word for f in sources() if f.parts[:2] != ("tests", "house") for word in WORD.findall((ROOT / f).read_text())
    }
    text = re.sub(r"```.*?```", "", (ROOT / document).read_text(), flags=re.DOTALL)
    assert {name for name in NAME.findall(text) if not words.issuperset(name.split("."))} <= NO_NAMES


def test_the_map_names_every_room() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    missing = []
    for room in ROOMS:
        for thing in (ROOT / room).iterdir():
            in_sources = thing.is_dir() or (room == "py/oxinfer_web" and thing.suffix == ".py")
            if in_sources and thing.name not in NO_ROOMS and thing.name[0] != "." and holds_sources(thing):
                name = f"{thing.name}/" if thing.is_dir() else thing.name
                missing += [] if re.search(f"[`/]{re.escape(name)}", text) else [f"{room}/{name}"]
    assert missing == []


def holds_sources(path: Path) -> bool:
    """Whether a file or folder is or holds a source, and is not only left over from another branch."""
    return any(path == ROOT / f or path in (ROOT / f).parents for f in sources())
