"""What a conversion reads from, whichever format it is in."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from ..quant import F32


class Original(Protocol):
    """A model to convert, its tensors under the names of the output. Nothing is read until it is asked for."""

    @property
    def config(self) -> Mapping[str, Any]:
        """What config.json is to say."""

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """The text decoder's tensors and their shapes."""

    def read(self, name: str, first: int, last: int) -> F32:
        """Rows [first, last) of a tensor as f32 (of a vector: its elements). Raises CheckpointError."""

    def write_tokenizer(self, folder: Path) -> list[str]:
        """Write tokenizer.json, tokenizer_config.json and generation_config.json, as far as the original has them.

        Returns notes for the user. Raises CheckpointError for a tokenizer that cannot be converted.
        """
