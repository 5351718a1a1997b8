"""generation_config.json: the tokens that end an answer, and how the model's makers would have it sampled."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from .config import TextConfig
from .errors import ConfigError

FILE = "generation_config.json"
_LIMITS: dict[str, tuple[type, float, float]] = {
    "temperature": (float, 0, math.inf),
    "top_k": (int, 0, math.inf),
    "top_p": (float, 0, 1),
    "min_p": (float, 0, 1),
    "max_new_tokens": (int, 1, math.inf),
}
"""The settings that are read: their type, the least and the most."""


def with_generation_config(config: TextConfig, text: str | bytes | None) -> TextConfig:
    """A config with what the text of a generation_config.json adds to it; None where there is no such file.

    Its end tokens join the config's. As transformers reads it, a model samples where `do_sample` is true and is greedy
    where not. Raises ConfigError for a file that is not JSON, and for a token or a setting that cannot be one.
    """
    # A host that answers every address with its page has no such file.
    if text is None or text.lstrip()[:1] in ("<", b"<"):
        return config
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as e:
        raise ConfigError(f"{FILE}: not JSON ({e}); download it again, or leave it out") from None
    if not isinstance(data, dict):
        raise ConfigError(f"{FILE}: not a JSON object; download it again, or leave it out")
    eos = dict.fromkeys([*config.eos_token_ids, *_tokens(data.get("eos_token_id"))])
    return replace(config, eos_token_ids=tuple(eos), sampling=_sampling(data))


def _tokens(value: Any) -> list[int]:
    tokens = value if isinstance(value, list) else [] if value is None else [value]
    for token in tokens:
        if not isinstance(token, int) or isinstance(token, bool) or token < 0:
            raise ConfigError(f"{FILE}: eos_token_id {token!r} is not a token id; correct it, or leave the file out")
    return tokens


def _sampling(data: Mapping[str, Any]) -> dict[str, float]:
    out: dict[str, float] = {}
    for name, (kind, low, high) in _LIMITS.items():
        value = data.get(name)
        if value is None:
            continue
        number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        if not number or not low <= value <= high or kind(value) != value:
            raise ConfigError(f"{FILE}: {name} {value!r} cannot be used; correct it, or leave the file out")
        if value or name == "temperature":  # 0 switches the others off
            out[name] = kind(value)
    if data.get("do_sample"):
        out.setdefault("temperature", 1.0)
    elif "do_sample" in data or out:
        out["temperature"] = 0.0
    return out
