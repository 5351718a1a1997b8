"""`oxinfer-web convert`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from .console import errors, output, parse_size, progress_bar, show_size


class Precision(StrEnum):
    """The precisions to choose from."""

    bf16 = "bf16"
    q8 = "q8"
    q4 = "q4"


def convert(
    src: Annotated[Path, typer.Argument(help="a Hugging Face model folder (safetensors) or a .gguf file")],
    out: Annotated[Path, typer.Argument(help="the folder to make")],
    quant: Annotated[Precision, typer.Option(help="precision of the linear weights")] = Precision.q8,
    table_quant: Annotated[
        Precision | None,
        typer.Option(help="precision of the embedding tables  [default: as --quant]", show_default=False),
    ] = None,
    head_quant: Annotated[
        Precision | None, typer.Option(help="precision of the LM head  [default: as --quant]", show_default=False)
    ] = None,
    shard_size: Annotated[str, typer.Option(help="the largest file")] = "32MiB",
    force: Annotated[bool, typer.Option("--force", help="write into a folder that holds something else")] = False,
) -> None:
    """Convert a model to static files that a page can stream.

    Tied embeddings are stored once, at the head's precision; if --table-quant and --head-quant are both given and
    differ, the head becomes a tensor of its own.
    """
    from ..convert import convert as run

    size = parse_size(shard_size)
    with progress_bar(f"{src.name} -> {out.name}") as progress:
        made = run(
            src,
            out,
            quant.value,
            None if table_quant is None else table_quant.value,
            None if head_quant is None else head_quant.value,
            shard_size=size,
            force=force,
            progress=progress,
        )
    for note in made.notes:
        errors.print(f"note: {note}", style="yellow", soft_wrap=True)
    output.print(f"{made.folder}: {show_size(made.total_size)} in {made.shards} shards", soft_wrap=True)
