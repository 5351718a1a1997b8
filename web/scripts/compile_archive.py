"""Python sources in a zip archive or wheel to bytecode; runs under Pyodide (compile_archives.mjs).

Pyodide ships its standard library as sources, which every page would compile again: most of the time that Python takes
to start.
"""

from __future__ import annotations

import py_compile
import tempfile
import zipfile
from pathlib import Path

WHEN = (1980, 1, 1, 0, 0, 0)
"""The time of every entry, so that the same sources give the same archive."""


def compile_archive(source: str, target: str) -> None:
    """Write `target`: every module's bytecode instead of its source, all else as it is. Raises PyCompileError."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as new:
        for entry in old.infolist():
            name, data = entry.filename, old.read(entry)
            if name.endswith(".py"):
                name, data = f"{name}c", bytecode(data, name)
            elif name.endswith(".dist-info/RECORD"):
                data = without_hashes(data)
            new.writestr(zipfile.ZipInfo(name, WHEN), data, zipfile.ZIP_DEFLATED)


def bytecode(source: bytes, name: str) -> bytes:
    """A .pyc file that is valid without its source. name: the file that tracebacks name."""
    with tempfile.TemporaryDirectory() as folder:
        module, compiled = Path(folder) / "module.py", Path(folder) / "module.pyc"
        module.write_bytes(source)
        unchecked = py_compile.PycInvalidationMode.UNCHECKED_HASH
        py_compile.compile(str(module), str(compiled), dfile=name, doraise=True, invalidation_mode=unchecked)
        return compiled.read_bytes()


def without_hashes(record: bytes) -> bytes:
    """A wheel's RECORD for compiled modules, of which it need not say hash and size."""
    lines = record.decode().splitlines()
    names = (line.split(",", 1)[0] for line in lines)
    out = [f"{n}c,," if n.endswith(".py") else line for n, line in zip(names, lines, strict=True)]
    return "".join(f"{line}\n" for line in out).encode()
