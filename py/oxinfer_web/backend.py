"""What runs a model's steps, as a protocol: `Reference` on numpy and `Engine` on the kernels are the two that have it.
Sessions run on either.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

from .models import Model

Floats = Any
"""f32 numbers: a numpy array where numpy is there, else a memoryview of format "f" (as in a page)."""
Cache = Any
"""A backend's own KV caches."""
TOP_K = 64
"""The most candidates that a step leaves to choose among."""


class Want(Enum):
    """What a step is run for."""

    CACHE = "cache"
    """Only the KV caches: a part of a prompt that is not its last."""
    LOGITS = "logits"
    """The last token's logits."""
    HIDDEN = "hidden"
    """Every token's hidden state after the final norm."""


@dataclass(frozen=True)
class Candidates:
    """The likeliest next tokens: ids and their logits in falling order, and log(sum(exp(all logits)))."""

    ids: list[int]
    logits: list[float]
    log_sum_exp: float


class Backend(Protocol):
    """Runs a model's steps. `reference.Reference` and `engine.Engine` are the two."""

    @property
    def model(self) -> Model:
        """The model it runs."""

    @property
    def chunk(self) -> int:
        """The most tokens of one step."""

    @property
    def max_context(self) -> int:
        """The most positions of one session."""

    def new_cache(self) -> Cache:
        """Empty KV caches."""

    def clone_cache(self, cache: Cache, position: int) -> Cache:
        """A copy of the first `position` positions."""

    def free_cache(self, cache: Cache) -> None:
        """Give a cache's memory back."""

    def rewind(self, cache: Cache, position: int) -> int:
        """Let a cache go back to `position` positions. Returns how many it has: `position`, or 0 where a layer keeps
        too little to go on from there."""

    async def fetch(self, ids: Sequence[int]) -> None:
        """Make the table rows of these tokens available to `step`."""

    def step(self, cache: Cache, ids: Sequence[int], pos: int, want: Want, given: Mapping[int, Floats]) -> None:
        """Run at most `chunk` tokens at positions pos, pos + 1, ...; given: embeddings [hidden] by index into ids."""

    def advance(self, cache: Cache, token: int, pos: int) -> bool:
        """Run one token for its logits, the quickest way; False, and nothing done, where that way is not open."""

    def hidden(self, n: int) -> Floats:
        """Hidden states [n, hidden] of the last step, which had n tokens and wanted HIDDEN."""

    def logits(self) -> Floats:
        """Logits [vocab] of the last step, which wanted LOGITS."""

    def likeliest(self) -> int:
        """The likeliest next token after the last step: the first candidate, without the others. Raises NumericError
        where the logits have a NaN or no largest, as `candidates` and `nll_of` do."""

    def logits_of(self, hidden: Floats) -> Floats:
        """Logits [n, vocab] of hidden states [n, hidden]."""

    def candidates(self, k: int) -> Candidates:
        """The k likeliest next tokens of the last step, which wanted LOGITS."""

    def nll_of(self, hidden: Floats, targets: Sequence[int]) -> list[float]:
        """-log p(target), in nats, for each target, given hidden states [at least as many, hidden]."""

    def embed_scaled(self, token: int) -> Floats:
        """The scaled input embedding [hidden] of a token, whose row has been fetched."""


def floats(data: bytes, shape: tuple[int, ...]) -> Floats:
    """f32 bytes as an array of this shape: numpy where it is there, else a memoryview."""
    try:
        import numpy as np
    except ImportError:
        return memoryview(data).cast("f", shape) if shape[0] else memoryview(b"").cast("f")
    return np.frombuffer(data, np.float32).reshape(shape)
