"""What a page imports, and who may ask what."""

from __future__ import annotations

import ast
import subprocess
import sys

from .sources import ROOT, sources

PACKAGE = "py/oxinfer_web/"
IN_A_PAGE = """
import sys, types

for name in ("js", "pyodide", "pyodide.ffi"):  # what Pyodide brings
    stub = types.ModuleType(name)
    stub.__getattr__ = lambda name: object
    sys.modules[name] = stub
sys.path.insert(0, sys.argv[1])
import oxinfer_web.browser.files, oxinfer_web.browser.kernels, oxinfer_web.conversations, oxinfer_web.models
foreign = {name.partition(".")[0] for name in sys.modules} - sys.stdlib_module_names
print(*sorted(foreign - {"__main__", "oxinfer_web", "js", "pyodide"}))
"""


def test_a_page_needs_python_alone() -> None:
    """Without site-packages (-S), as under Pyodide, all that a page runs can be imported."""
    command = [sys.executable, "-S", "-c", IN_A_PAGE, str(ROOT / "py")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "", "")


def asks_for_a_family(tree: ast.AST) -> list[int]:
    """Lines that compare a family's name: `config.family == ...`, `in`, `match`, or looking it up in a literal."""

    def named(node: ast.AST) -> bool:
        name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
        return name in ("family", "model_type")

    lines = []
    for node in ast.walk(tree):
        compared = [node.left, *node.comparators] if isinstance(node, ast.Compare) else []
        compared += [node.subject] if isinstance(node, ast.Match) else []
        compared += [node.slice] if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Dict) else []
        lines += [node.lineno for part in compared if named(part)]
    return lines


def test_only_models_ask_for_a_family() -> None:
    files = [f for f in sources() if str(f).startswith(PACKAGE) and not str(f).startswith(PACKAGE + "models/")]
    assert len(files) > 30
    found = {str(f): asks_for_a_family(ast.parse((ROOT / f).read_text())) for f in files if f.suffix == ".py"}
    assert {file: lines for file, lines in found.items() if lines} == {}


def test_asking_is_seen() -> None:
    for code in ("cfg.family == 'llama'", "'llama' != family", "c.model_type in X", "{'llama': 1}[c.family]"):
        assert asks_for_a_family(ast.parse(code)) == [1], code
    assert asks_for_a_family(ast.parse("match cfg.family:\n  case 'llama': pass")) == [1]
    assert asks_for_a_family(ast.parse("Report(config.family, family=family)")) == []
