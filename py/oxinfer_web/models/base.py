"""What the families share: where a checkpoint keeps its text decoder, and the tied head."""

from __future__ import annotations

from ..checkpoint import Checkpoint
from ..config import TextConfig
from ..linear import Lin, load_lin
from ..program.records import Act
from ..table import TableRef, find_table

_PREFIXES = ("model.language_model.", "language_model.model.", "model.")


def text_prefix(ckpt: Checkpoint) -> str:
    """The prefix of the text decoder's tensors: multimodal checkpoints nest it."""
    return next((p for p in _PREFIXES if any(name.startswith(p + "layers.") for name in ckpt)), "model.")


def embeddings(ckpt: Checkpoint, prefix: str, cfg: TextConfig) -> tuple[TableRef, Lin]:
    """The input table and the LM head. A tied head is the input table's own tensor, unless the converter gave the
    head a precision, and so a tensor, of its own."""
    name = prefix + "embed_tokens.weight"
    table = find_table(ckpt, name, cfg.vocab_size, cfg.hidden_size)
    own_head = any("lm_head.weight" + suffix in ckpt for suffix in ("", ".q8", ".q4"))
    head = "lm_head.weight" if own_head or not cfg.tie_word_embeddings else name
    return table, load_lin(ckpt, head, cfg.vocab_size, cfg.hidden_size)


def activation(cfg: TextConfig) -> Act:
    """The MLP's activation as the ops name it."""
    return Act.SILU if cfg.hidden_activation == "silu" else Act.GELU_TANH
