"""No two modules import each other, not even by way of others, and imports go the way that pyproject.toml says."""

from __future__ import annotations

import re
import subprocess
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from .sources import ROOT

KERNELS = ROOT / "wasm_kernels"
OBJECTS = ROOT / "build" / "obj" / "relaxed-shared"
Graph = dict[str, set[str]]


def test_imports_of_python() -> None:
    """The contracts in pyproject.toml; a new module has to be given its place there."""
    lint = [str(Path(sys.executable).with_name("lint-imports")), "--no-logo", "--no-cache"]
    done = subprocess.run(lint, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_includes_of_c() -> None:
    files = [*KERNELS.glob("*.c"), *KERNELS.glob("*.h")]
    check({f.name: set(re.findall(r'^#include "(.+)"', f.read_text(), re.MULTILINE)) for f in files}, "execute.c")


def test_calls_of_c() -> None:
    """By the objects' symbols: which file defines what another leaves open, functions and variables alike."""
    names = sorted(f.stem for f in KERNELS.glob("*.c"))
    if any(not (OBJECTS / f"{name}.o").exists() for name in names):
        pytest.fail("the kernels are not built; run ./build.sh kernels")
    symbols = {name: symbols_of(OBJECTS / f"{name}.o") for name in names}
    home = {symbol: name for name, (defined, _) in symbols.items() for symbol in defined}
    check({name: {home[s] for s in missing if s in home} for name, (_, missing) in symbols.items()}, "execute")


def symbols_of(obj: Path) -> tuple[set[str], set[str]]:
    """The global functions and variables that an object defines, and those that it wants of others."""
    lines = subprocess.run(["wasm-objdump", "-x", obj], capture_output=True, text=True, check=True).stdout
    symbols = re.findall(r"^ *- \d+: [FD] <(?:env\.)?(\w+)>.*\[ (.*) \]$", lines, re.MULTILINE)
    shared = {name: traits.split() for name, traits in symbols if "binding=global" in traits}
    missing = {name for name, traits in shared.items() if "undefined" in traits}
    return shared.keys() - missing, missing


def test_imports_of_typescript() -> None:
    """Imports of types and addresses of workers too, which eslint's rule leaves out."""
    src = ROOT / "web" / "src"
    graph: Graph = {}
    for file in src.rglob("*.ts"):
        named = re.findall(r"(?:from|import|URL)\s*\(?\s*'(\.[^']*)'", file.read_text())
        modules = [resolved(file.parent / name) for name in named if not name.endswith(".json")]
        graph[str(file.relative_to(src))] = {str(module.relative_to(src)) for module in modules}
    check(graph, "app/main.ts")


def resolved(path: Path) -> Path:
    """The module that an import names: a file, or a folder's index."""
    path = path.resolve()
    return next(p for p in (path, path.with_name(path.name + ".ts"), path / "index.ts") if p.is_file())


def check(graph: Graph, user: str) -> None:
    """Fails with the circle if there is one, or if `user`, which does import something, seems to import nothing."""
    assert graph[user]
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as e:
        pytest.fail(f"a circle of imports: {' <- '.join(e.args[1])}")


def test_a_circle_is_found() -> None:
    with pytest.raises(pytest.fail.Exception, match="circle"):
        check({"a": {"b"}, "b": {"c"}, "c": {"a"}}, "a")
