"""Convert a model to this package's checkpoint format. Needs the `convert` extra."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..errors import CheckpointError, OxinferError
from ..models import read_config
from ..runtime import Progress
from .folder import new_model_folder
from .jsonfile import dump_json
from .original import Original
from .shards import PRECISIONS, Precision, Precisions, choose, fill_shards
from .tensors import Wanted, wanted_tensors
from .write import Quantizer, write_shards

SHARD_SIZE = 32 << 20
"""Bytes; the largest file that every common static host takes."""

__all__ = ["PRECISIONS", "SHARD_SIZE", "Converted", "Precision", "convert"]


@dataclass(frozen=True)
class Converted:
    """What a conversion made: `total_size` is bytes of tensor data, `notes` what the user should know."""

    folder: Path
    shards: int
    total_size: int
    notes: tuple[str, ...]


def convert(
    src: str | Path,
    out: str | Path,
    quant: Precision = "q8",
    table_quant: Precision | None = None,
    head_quant: Precision | None = None,
    shard_size: int = SHARD_SIZE,
    force: bool = False,
    progress: Progress | None = None,
) -> Converted:
    """Convert a Hugging Face folder or a GGUF file `src` to a model folder `out`.

    quant: precision of the linear weights; table_quant: of the tables a token is looked up in; head_quant: of the LM
    head. Where the embeddings are tied they are one tensor at head_quant or quant, unless both table_quant and
    head_quant are given and differ: then the head becomes a tensor of its own.
    shard_size: the largest file, in bytes. force: write into a folder that holds something else than a model.

    Raises OxinferError, with nothing left behind: an original that is missing, damaged or of a kind that is not run, a
    precision that does not exist, an output that cannot be written.
    """
    src, out = Path(src), Path(out)
    for name, value in (("quant", quant), ("table_quant", table_quant), ("head_quant", head_quant)):
        if value not in (*PRECISIONS, None) or (name == "quant" and value is None):
            raise CheckpointError(f"{name} {value!r} does not exist; choose one of {', '.join(PRECISIONS)}")
    if out.exists() and src.exists() and out.samefile(src):
        raise CheckpointError(f"{out}: is the original itself; choose another output folder")
    original = open_original(src)
    wanted = wanted_tensors(read_config(original.config))
    _check(original, wanted, src)
    stores, notes = choose(wanted, Precisions(quant, table_quant, head_quant))
    shards = fill_shards(stores, shard_size)
    with new_model_folder(out, force) as folder:
        dump_json(folder / "config.json", original.config, indent=1)
        notes += original.write_tokenizer(folder)
        with Quantizer(original) as quantizer:
            total = write_shards(quantizer.blocks, shards, folder, quant, progress)
    return Converted(out, len(shards), total, tuple(notes))


def open_original(src: Path) -> Original:
    """The model at a path. Raises OxinferError if there is none, or if a package to read it is missing."""
    if not src.exists():
        raise CheckpointError(f"{src}: not found; give a Hugging Face folder or a .gguf file")
    if src.is_dir():
        from .hf import HuggingFaceFolder

        return HuggingFaceFolder(src)
    if src.suffix.lower() != ".gguf":
        raise CheckpointError(f"{src}: neither a folder nor a .gguf file; give a Hugging Face folder or a .gguf file")
    try:
        from .gguf_file import GgufFile
    except ImportError as e:
        raise OxinferError(f"package {e.name} is missing; pip install 'oxinfer-web[convert]'") from None
    return GgufFile(src)


def _check(original: Original, wanted: list[Wanted], src: Path) -> None:
    """Raise CheckpointError unless the original has every tensor of the decoder, in its shape, and no unknown one."""
    shapes = original.shapes
    for w in wanted:
        if w.name not in shapes:
            raise CheckpointError(f"{src}: no tensor {w.name}; the model is not complete, download it again")
        if shapes[w.name] != w.shape:
            raise CheckpointError(
                f"{src}: {w.name} has the shape {list(shapes[w.name])}, its config says {list(w.shape)}; "
                "config and weights belong to different models"
            )
    names = {w.name for w in wanted}
    for name in shapes:
        # Some checkpoints carry the k and v of layers that use others'; a bias or an expert must not get lost silently.
        unused = name.endswith(("k_proj.weight", "v_proj.weight", "k_norm.weight", "rotary_emb.inv_freq"))
        if name not in names and name.startswith("model.layers.") and not unused:
            raise CheckpointError(f"{src}: {name} is part of no model that this version runs; it cannot be converted")
