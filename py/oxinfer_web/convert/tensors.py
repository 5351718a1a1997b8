"""Which tensors a model is made of and what each is for: the list that a conversion has to fill."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from ..checkpoint import Checkpoint, TensorRef
from ..config import TextConfig
from ..linear import Lin, Parts
from ..models import Model, find_all, load_model
from ..ops import Norm, Scalar
from ..table import TableRef


class Kind(Enum):
    """What a tensor is for; it decides the tensor's precision and its place in the shards."""

    VECTOR = "norms and scalars"
    LINEAR = "linear layers"
    LINEAR_8_BITS = "linear layers, never at 4 bits"
    HEAD = "LM head"
    TIED = "embeddings and LM head (tied)"
    TABLE = "input embeddings"
    MORE_TABLE = "further embeddings"


@dataclass(frozen=True)
class Wanted:
    """A tensor of the decoder under its name in the output: [n] for a vector, else [rows, cols]."""

    name: str
    shape: tuple[int, ...]
    kind: Kind


def tensors_of(model: Model) -> Iterator[tuple[str, Kind, Parts]]:
    """Each tensor of a model once, in no particular order: its name, what it is for, and where it is stored."""
    tied = model.head.name == model.embed_tokens.name
    for lin in {lin.name: lin for lin in find_all(model, Lin)}.values():
        plain = Kind.LINEAR_8_BITS if lin.needs_8_bits else Kind.LINEAR
        kind = plain if lin.name != model.head.name else Kind.TIED if tied else Kind.HEAD
        yield lin.name, kind, (*lin.values, *lin.scales)
    for table in find_all(model, TableRef):
        if table.name != model.head.name:
            kind = Kind.TABLE if table is model.embed_tokens else Kind.MORE_TABLE
            yield table.name, kind, (*table.values, *table.scales)
    vectors = [norm.weight for norm in find_all(model, Norm)] + [s.value for s in find_all(model, Scalar)]
    for ref in {ref.name: ref for ref in vectors if ref is not None}.values():
        yield ref.name, Kind.VECTOR, ((0, ref),)


def wanted_tensors(cfg: TextConfig) -> list[Wanted]:
    """Every tensor that the model of a config asks its checkpoint for, in that order."""
    blank = _Blank()
    kinds = {name: kind for name, kind, _ in tensors_of(load_model(blank, cfg))}
    return [Wanted(name, shape, kinds[name]) for name, shape in blank.asked.items()]


class _Blank(Checkpoint):
    """Stands in for a checkpoint that has whatever it is asked for, in bf16, and notes what that was."""

    def __init__(self) -> None:
        super().__init__({})
        self.asked: dict[str, tuple[int, ...]] = {}

    def parts(self, name: str, dtype: str, shape: tuple[int, ...]) -> Parts:
        """A piece that lies nowhere."""
        self.asked.setdefault(name, shape)
        return ((0, TensorRef(name, "", 0, 0, dtype, shape)),)
