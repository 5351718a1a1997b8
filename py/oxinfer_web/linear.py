"""`Lin`, the weight of a linear layer, at bf16, Q8 or Q4: what it is and where its bytes lie. No data is held here.

A `Lin` is the same for both backends: `reference.py` reads it into numpy, `weights.py` loads it into kernel memory.
"""

from __future__ import annotations

from dataclasses import dataclass

from .checkpoint import Checkpoint, TensorRef
from .enums import Quant
from .errors import CheckpointError

Parts = tuple[tuple[int, TensorRef], ...]
"""Pieces of a tensor split by rows: (first row, piece) in rising order."""
QBLOCK = 32


@dataclass(frozen=True)
class Lin:
    """The weight [n_out, n_in] of a linear layer: y = x W^T.

    values: bf16 [n_out, n_in], int8 [n_out, n_in] or uint8 [n_out, n_in / 2] by `quant`; scales: none, f32 or f16
    [n_out, n_in / 32].
    """

    name: str
    n_out: int
    n_in: int
    quant: Quant
    values: Parts
    scales: Parts
    needs_8_bits: bool = False
    """Whether the converter leaves it at 8 bits where others get 4."""

    @property
    def bytes(self) -> int:
        """Bytes that one token streams from memory for this weight."""
        return sum(ref.nbytes for _, ref in (*self.values, *self.scales))


def find_matrix(ckpt: Checkpoint, name: str, rows: int, cols: int) -> tuple[Quant, Parts, Parts]:
    """How tensor `name` [rows, cols] is stored, and its value and scale pieces.

    Raises CheckpointError if it is not there in any form, or not of this shape, or the shards' `oxinfer_quant` names
    a quantization this version does not know.
    """
    said = ckpt.metadata.get("oxinfer_quant", "bf16")
    if said not in ("bf16", "q8", "q4"):
        raise CheckpointError(
            f"{next(iter(ckpt.shards))}: quantization {said!r} (oxinfer_quant) is not supported; "
            "supported are bf16, q8, q4: convert the model again or update oxinfer-web"
        )
    blocks = (rows, cols // QBLOCK)
    for suffix, quant, dtype, width, scale_dtype in (
        (".q4", Quant.Q4, "U8", cols // 2, "F16"),
        (".q8", Quant.Q8, "I8", cols, "F32"),
    ):
        if name + suffix in ckpt:
            if cols % QBLOCK:
                raise CheckpointError(f"{name}{suffix}: {cols} columns are not a multiple of {QBLOCK}; convert again")
            values = ckpt.parts(name + suffix, dtype, (rows, width))
            return quant, values, ckpt.parts(name + suffix + "s", scale_dtype, blocks)
    return Quant.BF16, ckpt.parts(name, "BF16", (rows, cols)), ()


def load_lin(ckpt: Checkpoint, name: str, n_out: int, n_in: int) -> Lin:
    """The weight `name` [n_out, n_in], in whichever precision the checkpoint has it. Raises as `find_matrix` does."""
    quant, values, scales = find_matrix(ckpt, name, n_out, n_in)
    return Lin(name, n_out, n_in, quant, values, scales)
