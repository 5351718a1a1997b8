"""The model families, by model_type. A family is one file: its weights as dataclasses, and `decode` in ops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from ..checkpoint import Checkpoint
from ..config import TextConfig
from ..linear import Lin
from ..ops import Ops, X
from ..table import TableRef
from . import gemma3, gemma4, llama


class Model(Protocol):
    """What every family has."""

    @property
    def config(self) -> TextConfig:
        """The shape."""

    @property
    def embed_tokens(self) -> TableRef:
        """The lookup table of the input."""

    @property
    def more_tables(self) -> tuple[TableRef, ...]:
        """Other tables that are looked up by token: Gemma 4's per-layer embeddings."""

    @property
    def head(self) -> Lin:
        """The LM head; where embeddings are tied, the same tensor as embed_tokens."""

    def decode(self, ops: Ops[X]) -> X:
        """The hidden states after the final norm, of the step's tokens: [T, hidden]."""


_FAMILIES: dict[str, Callable[[Checkpoint, TextConfig], Model]] = {
    "gemma4": gemma4.load,
    "gemma3": gemma3.load,
    "llama": llama.load,
}


def load_model(ckpt: Checkpoint, config: TextConfig) -> Model:
    """The model of a checkpoint. Reads no weights; raises CheckpointError where the config and the tensors differ."""
    return _FAMILIES[config.family](ckpt, config)
