"""The project's own source files."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("py", "scripts", "tests", "wasm_kernels", "web/demo", "web/scripts", "web/src")
SUFFIXES = {".py", ".ts", ".js", ".mjs", ".c", ".h", ".sh", ".css", ".html"}


def sources() -> list[Path]:
    """Every file of code, relative to ROOT: in Python, TypeScript, JavaScript, C, shell, HTML or CSS."""
    folders = [ROOT / folder for folder in FOLDERS]
    found = [*ROOT.glob("*"), *(ROOT / "web").glob("*"), *(f for folder in folders for f in folder.rglob("*"))]
    return sorted(f.relative_to(ROOT) for f in found if f.suffix in SUFFIXES and f.is_file())
