"""What models, files and kernels number alike: how numbers are stored, and which activation a model has.

`program/records.py` puts them into the C header too.
"""

from __future__ import annotations

from enum import IntEnum


class Quant(IntEnum):
    """How a weight or a table is stored."""

    BF16 = 0
    Q8 = 1
    Q4 = 2


class Act(IntEnum):
    """The activation of a gated MLP."""

    GELU_TANH = 0
    SILU = 1


class KVType(IntEnum):
    """How a KV cache is stored."""

    F32 = 0
    F16 = 1
