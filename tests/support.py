"""What all tests share: the fixtures' places, the golden files, a checkpoint writer."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

FIXTURES = Path(__file__).parent / "fixtures"
TINY = ("gemma4_e2b", "gemma4_e4b", "gemma4_31b", "gemma3", "llama")


def expected(case: str) -> dict[str, np.ndarray]:
    """What transformers computed for a tiny checkpoint."""
    return load_file(FIXTURES / case / "expected.safetensors")


def safetensors_bytes(
    tensors: Mapping[str, tuple[str, list[int], bytes]], metadata: dict[str, str] | None = None
) -> bytes:
    """A safetensors file of raw tensors: name -> (dtype, shape, data)."""
    header: dict[str, Any] = {"__metadata__": metadata} if metadata else {}
    at = 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + b"".join(data for _, _, data in tensors.values())
