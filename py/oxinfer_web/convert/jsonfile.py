"""Reading and writing the JSON files beside the weights."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import CheckpointError


def read_json(path: Path) -> Mapping[str, Any]:
    """A JSON object from a file. Raises CheckpointError if it is not one."""
    try:
        data = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as e:
        raise CheckpointError(f"{path.name}: not JSON ({e}); download it again") from None
    if not isinstance(data, dict):
        raise CheckpointError(f"{path.name}: not a JSON object; download it again")
    return data


def dump_json(path: Path, data: Mapping[str, Any], indent: int | None = None) -> None:
    """Write a JSON object as UTF-8, without a space too many unless an indent is given."""
    separators = (",", ":") if indent is None else None
    text = json.dumps(data, ensure_ascii=False, separators=separators, indent=indent)
    try:
        encoded = text.encode()
    except UnicodeEncodeError:  # a lone surrogate in some vocabulary: keep it escaped
        encoded = json.dumps(data, separators=separators, indent=indent).encode()
    path.write_bytes(encoded + b"\n")
