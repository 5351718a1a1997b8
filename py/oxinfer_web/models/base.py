"""What a family is, and what the families share: where a checkpoint keeps its text decoder, and the tied head."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Protocol, TypeVar

from ..checkpoint import Checkpoint
from ..config import TextConfig
from ..enums import Act
from ..linear import Lin, load_lin
from ..ops import KVPages, Ops, X
from ..table import TableRef, find_table
from .gguf import GgufFormat

T = TypeVar("T")
HEAD = "lm_head.weight"
_NESTINGS = (
    ("model.language_model.", HEAD),
    ("language_model.model.", f"language_model.{HEAD}"),
    ("model.", HEAD),
)
"""Where checkpoints keep the decoder, and beside it the head; multimodal ones, which nest both, come first."""


class Model(Protocol):
    """What every family's model has: its weights, its tables and what its layers keep between steps, in a tree of
    dataclasses and tuples (`find_all`), and these."""

    @property
    def config(self) -> TextConfig:
        """The shape."""

    @property
    def embed_tokens(self) -> TableRef:
        """The lookup table of the input."""

    @property
    def embed_scale(self) -> float:
        """What a row of the input table is multiplied by."""

    @property
    def head(self) -> Lin:
        """The LM head; where embeddings are tied, the same tensor as embed_tokens."""

    def decode(self, ops: Ops[X]) -> X:
        """The hidden states after the final norm, of the step's tokens: [T, hidden]."""


@dataclass(frozen=True)
class Family:
    """One family: all that this package knows of it, which stands in one file."""

    name: str
    model_types: tuple[str, ...]
    """The model_type values of config.json that it answers to."""
    read_config: Callable[[Mapping[str, Any]], TextConfig]
    """Read the text part of a config.json. Raises ConfigError, or KeyError, TypeError, ValueError or AttributeError for
    fields that are missing or of the wrong kind, which `models.read_config` puts into words."""
    load: Callable[[Checkpoint, TextConfig], Model]
    """The model of a checkpoint, no weights read. The order in which it asks for tensors is their order in a converted
    checkpoint. Raises CheckpointError where the config and the tensors differ."""
    gguf: GgufFormat | None = None
    """How GGUF files spell it; None where there are none."""


def nesting(names: Iterable[str]) -> tuple[str, str]:
    """The prefix of the text decoder's tensors among a checkpoint's, and the name of its head."""
    names = list(names)
    found = (n for n in _NESTINGS if any(name.startswith(n[0] + "layers.") for name in names))
    return next(found, _NESTINGS[-1])


def canonical_names(names: Iterable[str]) -> dict[str, str]:
    """The text decoder's tensors by their names in a converted checkpoint (`model.layers.0...`): the names given."""
    names = list(names)
    prefix, head = nesting(names)
    found = {"model." + name.removeprefix(prefix): name for name in names if name.startswith(prefix)}
    return found | ({HEAD: head} if head in names else {})


def embeddings(ckpt: Checkpoint, cfg: TextConfig) -> tuple[TableRef, Lin]:
    """The input table and the LM head. A tied head is the input table's own tensor, unless the converter gave the
    head a precision, and so a tensor, of its own."""
    prefix, head = nesting(ckpt)
    name = prefix + "embed_tokens.weight"
    table = find_table(ckpt, name, cfg.vocab_size, cfg.hidden_size)
    own_head = any(head + suffix in ckpt for suffix in ("", ".q8", ".q4"))
    return table, load_lin(ckpt, head if own_head or not cfg.tie_word_embeddings else name, table.rows, table.cols)


def activation(cfg: TextConfig) -> Act:
    """The MLP's activation as the ops name it."""
    return Act.SILU if cfg.hidden_activation == "silu" else Act.GELU_TANH


def kv_pages(cfg: TextConfig, i: int) -> KVPages:
    """What layer i reads in its attention: its own keys and values, or those of the layer that it shares them with."""
    owner = cfg.kv_source(i)
    window = cfg.sliding_window if cfg.is_sliding(i) else 0
    return KVPages(owner, cfg.layer_n_kv(owner), cfg.layer_head_dim(owner), window)


def find_all(node: object, kind: type[T]) -> Iterator[T]:
    """Every instance of kind in a model, in the order of its fields."""
    if isinstance(node, kind):
        yield node
    elif isinstance(node, tuple):
        for item in node:
            yield from find_all(item, kind)
    elif is_dataclass(node):
        for f in fields(node):
            yield from find_all(getattr(node, f.name), kind)
