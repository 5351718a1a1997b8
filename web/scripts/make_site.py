"""Put what Vite does not make into the site: Pyodide and its wheels, compiled, their lock file, and the kernels.

make_site.py DIST WHEEL [--with-numpy]
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from pyodide_lock import PyodideLockSpec
from pyodide_lock.spec import InfoSpec
from pyodide_lock.utils import add_wheels_to_spec

WEB = Path(__file__).resolve().parent.parent
ROOT = WEB.parent
PYODIDE = WEB / "node_modules" / "pyodide"
RUNTIME = ("pyodide.mjs", "pyodide.asm.mjs", "pyodide.asm.wasm")
STDLIB = PYODIDE / "python_stdlib.zip"
COMPILER = (Path(__file__).with_name("compile_archives.mjs"), Path(__file__).with_name("compile_archive.py"))
REQUIREMENTS = Path(__file__).with_name("pyodide-wheels.txt")
CDN = "https://cdn.jsdelivr.net/pyodide"
TIMEOUT_S = 20


def copy_if_newer(source: Path, target: Path) -> None:
    """Copy a file, its time of change included, unless the target is as new and as long."""
    if target.exists():
        a, b = source.stat(), target.stat()
        if a.st_size == b.st_size and a.st_mtime <= b.st_mtime:
            return
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(source, target)


def pure_wheels(cache: Path) -> list[Path]:
    """micropip and what it needs, for Pyodide's Python, downloaded once and checked against their hashes."""
    stamp = cache / REQUIREMENTS.name
    if not stamp.exists() or stamp.read_bytes() != REQUIREMENTS.read_bytes():
        shutil.rmtree(cache, ignore_errors=True)
        cache.mkdir(parents=True)
        python = json.loads((PYODIDE / "pyodide-lock.json").read_text())["info"]["python"]
        version = ".".join(python.split(".")[:2])
        pip = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--no-deps",
            "--require-hashes",
            "--dest",
            str(cache),
        ]
        pip += ["--only-binary", ":all:", "--python-version", version, "--requirement", str(REQUIREMENTS)]
        subprocess.run(pip, check=True)
        shutil.copy(REQUIREMENTS, stamp)
    return sorted(cache.glob("*.whl"))


def numpy_wheel(cache: Path) -> Path:
    """Pyodide's numpy wheel from Pyodide's own CDN, checked against the lock file that Pyodide ships.

    Raises SystemExit with one line if it cannot be had or is not the right one.
    """
    entry = json.loads((PYODIDE / "pyodide-lock.json").read_text())["packages"]["numpy"]
    release = json.loads((PYODIDE / "package.json").read_text())["version"]
    target = cache / entry["file_name"]
    if not target.exists():
        url = f"{CDN}/v{release}/full/{entry['file_name']}"
        try:
            with urllib.request.urlopen(url, timeout=TIMEOUT_S) as response:
                data = response.read()
        except (urllib.error.URLError, TimeoutError) as e:
            raise SystemExit(
                f"--with-numpy: {url} cannot be reached ({e}); build without --with-numpy (the site works without "
                f"numpy), or put the file at {target}"
            ) from None
        cache.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
    if sha256(target) != entry["sha256"]:
        target.unlink()
        raise SystemExit(f"--with-numpy: {target.name} is not the file that Pyodide's lock file names; try again")
    return target


def compiled(archives: list[Path], cache: Path) -> list[Path]:
    """The archives with bytecode in the place of Python sources, made by Pyodide where one is newer than its copy."""
    cache.mkdir(parents=True, exist_ok=True)

    def is_old(archive: Path) -> bool:
        target = cache / archive.name
        return not target.exists() or any(f.stat().st_mtime > target.stat().st_mtime for f in (archive, *COMPILER))

    old = [archive for archive in archives if is_old(archive)]
    if old:
        subprocess.run(["node", str(COMPILER[0]), str(cache), *map(str, old)], check=True, cwd=WEB)
    return [cache / archive.name for archive in archives]


def lock_file(folder: Path, wheels: list[Path]) -> dict[str, Any]:
    """A lock file by which Pyodide installs these wheels of its own folder, and knows of no others.

    wheels: with their sources, as pyodide-lock wants them to make an entry; the files in `folder`, which have the same
    names, may be compiled. Pyodide's own wheels keep the entry that Pyodide ships.
    """
    shipped = json.loads((PYODIDE / "pyodide-lock.json").read_text())
    by_sum = {p["sha256"]: name for name, p in shipped["packages"].items()}
    own = {sha256(wheel): wheel for wheel in wheels}
    ours = {by_sum[s]: shipped["packages"][by_sum[s]] for s in own if s in by_sum}
    pure = [wheel for s, wheel in own.items() if s not in by_sum]
    # pyodide-lock may be older than Pyodide and want fields that the format no longer has.
    info = {field: shipped["info"].get(field, "") for field in InfoSpec.model_fields}
    spec = add_wheels_to_spec(PyodideLockSpec(info=InfoSpec(**info), packages={}), pure, base_path=Path("/"))
    entries = json.loads(spec.model_dump_json())["packages"]
    for entry in entries.values():
        entry["file_name"] = Path(entry["file_name"]).name
        entry["sha256"] = sha256(folder / entry["file_name"])
    return {"info": shipped["info"], "packages": ours | entries}


def sha256(file: Path) -> str:
    """In hex."""
    return hashlib.sha256(file.read_bytes()).hexdigest()


def main() -> None:
    """Fill DIST/pyodide and DIST/kernels."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dist", type=Path)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--with-numpy", action="store_true")
    args = parser.parse_args()
    out: Path = args.dist / "pyodide"
    sources = [args.wheel.resolve(), *pure_wheels(ROOT / "build" / "pyodide-wheels")]
    stdlib, *wheels = compiled([STDLIB, *sources], ROOT / "build" / "pyodide-compiled")
    if args.with_numpy:
        sources.append(numpy_wheel(ROOT / "build" / "pyodide-numpy"))
        wheels.append(sources[-1])
    out.mkdir(parents=True, exist_ok=True)
    names = {wheel.name for wheel in wheels}
    for old in out.glob("*.whl"):
        if old.name not in names:
            old.unlink()
    for wheel in wheels:
        copy_if_newer(wheel, out / wheel.name)
    copy_if_newer(stdlib, out / stdlib.name)
    for name in RUNTIME:
        copy_if_newer(PYODIDE / name, out / name)
    lock = lock_file(out, sources)
    (out / "pyodide-lock.json").write_text(json.dumps(lock))
    for kernel in sorted((ROOT / "build" / "kernels").glob("*.wasm")):
        copy_if_newer(kernel, args.dist / "kernels" / kernel.name)


if __name__ == "__main__":
    main()
