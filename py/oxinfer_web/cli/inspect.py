"""`oxinfer-web inspect`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table as Grid

from ..checkpoint import Checkpoint
from ..config import TextConfig
from ..convert.tensors import Kind, tensors_of
from ..models import config_from_folder, find_all, load_model
from ..table import TableRef
from .console import output, show_size

_SUFFIXES = {".q4": "q4", ".q4s": "q4", ".q8": "q8", ".q8s": "q8"}


@dataclass
class Group:
    """The tensors of one kind and precision."""

    kind: str
    quant: str
    tensors: int = 0
    bytes: int = 0


@dataclass(frozen=True)
class HostTable:
    """A table that can stay on the host; row_bytes is what one token fetches of it."""

    name: str
    rows: int
    row_bytes: int
    bytes: int


@dataclass(frozen=True)
class Report:
    """What `inspect` shows. All sizes in bytes."""

    family: str
    config: dict[str, Any]
    groups: list[Group]
    total_bytes: int
    streamed_bytes: int
    """Read from memory for every decoded token."""
    host_tables: list[HostTable]
    shards: dict[str, int]


def inspect(
    folder: Annotated[Path, typer.Argument(help="a model folder")],
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """Show what a model folder holds: its shape, its tensors by kind, what is streamed and what stays on the host."""
    report = examine(folder)
    if as_json:
        output.print(json.dumps(asdict(report), indent=1), soft_wrap=True)
    else:
        for grid in _grids(report):
            output.print(grid)


def examine(folder: Path) -> Report:
    """Read a model folder's config and headers. Raises ConfigError or CheckpointError."""
    config, checkpoint = config_from_folder(folder), Checkpoint.open(folder)
    model = load_model(checkpoint, config)
    kinds = {ref.name: kind.value for _, kind, parts in tensors_of(model) for _, ref in parts}
    groups: dict[tuple[str, str], Group] = {}
    seen: set[str] = set()
    for name in checkpoint:
        base, quant = _split(name)
        kind = kinds.get(name, _OTHER)
        group = groups.setdefault((kind, quant), Group(kind, quant))
        group.tensors += base not in seen
        group.bytes += checkpoint.tensor(name).nbytes
        seen.add(base)
    resting = {Kind.TABLE.value, Kind.MORE_TABLE.value, _OTHER}
    return Report(
        config.family,
        _shape(config),
        sorted(groups.values(), key=lambda g: -g.bytes),
        sum(g.bytes for g in groups.values()),
        sum(g.bytes for g in groups.values() if g.kind not in resting),
        [_host_table(ref) for ref in find_all(model, TableRef)],
        {shard.file: shard.size for shard in checkpoint.shards.values()},
    )


_OTHER = "not used"


def _split(name: str) -> tuple[str, str]:
    """A stored tensor's name as the tensor it is a part of, and its precision."""
    base, at, row = name.rpartition("@")
    name = base if at and row.isdigit() else name
    for suffix, quant in _SUFFIXES.items():
        if name.endswith(suffix):
            return name.removesuffix(suffix), quant
    return name, "bf16"


def _host_table(ref: TableRef) -> HostTable:
    return HostTable(ref.name, ref.rows, ref.row_bytes + ref.scale_bytes, ref.bytes)


def _shape(config: TextConfig) -> dict[str, Any]:
    """What of the config is worth showing."""
    names = ["num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads"]
    names += ["head_dim", "vocab_size", "max_position_embeddings", "tie_word_embeddings"]
    optional = ["sliding_window", "hidden_size_per_layer_input", "num_kv_shared_layers", "final_logit_softcapping"]
    shape = {name: getattr(config, name) for name in names}
    shape |= {name: getattr(config, name) for name in optional if getattr(config, name)}
    full = [i for i in range(config.num_hidden_layers) if not config.is_sliding(i)]
    if len(full) < config.num_hidden_layers:
        shape["full_attention_layers"] = full
    return shape


def _grids(report: Report) -> Iterator[Grid]:
    grid = Grid("shape", report.family)
    for name, value in report.config.items():
        grid.add_row(name, " ".join(map(str, value)) if isinstance(value, list) else str(value))
    yield grid
    grid = Grid("tensors", "precision", "number", "size", show_footer=True)
    for group in report.groups:
        grid.add_row(group.kind, group.quant, str(group.tensors), show_size(group.bytes))
    grid.columns[0].footer, grid.columns[3].footer = "in all", show_size(report.total_bytes)
    yield grid
    grid = Grid("for each token", "size", "of")
    grid.add_row("streamed from memory", show_size(report.streamed_bytes), "")
    for table in report.host_tables:
        grid.add_row(f"row of {table.name}", show_size(table.row_bytes), show_size(table.bytes))
    yield grid
    grid = Grid("shard", "size")
    for file, size in report.shards.items():
        grid.add_row(file, show_size(size))
    yield grid
