"""The model families. A family is one file (its config.json, weights, `decode`, GGUF names); FAMILIES lists them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..checkpoint import Checkpoint
from ..config import TextConfig
from ..errors import ConfigError
from ..generation_config import with_generation_config
from . import gemma3, gemma4, llama
from .base import Family, Model, canonical_names, find_all

__all__ = [
    "FAMILIES",
    "Family",
    "Model",
    "canonical_names",
    "config_from_folder",
    "config_from_json",
    "find_all",
    "load_model",
    "read_config",
]

FAMILIES = {family.name: family for family in (gemma3.FAMILY, gemma4.FAMILY, llama.FAMILY)}
"""Every family by its name. To add one: its file, and its place here."""


def config_from_folder(folder: str | Path) -> TextConfig:
    """Read FOLDER/config.json, and generation_config.json where there is one.

    Raises ConfigError if the first is missing, either is not JSON, or the model is one that this version cannot run.
    """
    path, generation = Path(folder) / "config.json", Path(folder) / "generation_config.json"
    if not path.exists():
        raise ConfigError(f"config.json: not in {folder}; is this a model's folder?")
    return config_from_json(path.read_bytes(), generation.read_bytes() if generation.exists() else None)


def config_from_json(text: str | bytes, generation: str | bytes | None = None) -> TextConfig:
    """Read the text of a config.json and, if there is one, of a generation_config.json. Raises ConfigError."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as e:
        raise ConfigError(f"config.json: not JSON ({e}); download it again") from None
    if not isinstance(data, dict):
        raise ConfigError("config.json: not a JSON object; download it again")
    return with_generation_config(read_config(data), generation)


def read_config(data: Mapping[str, Any]) -> TextConfig:
    """Read a config.json as a dict, the text part nested under `text_config` or not.

    Raises ConfigError for a model_type or a feature this version does not run, and for missing or absurd sizes.
    """
    outer_type = data.get("model_type")
    try:
        text = dict(data.get("text_config") or data)
        text.setdefault("model_type", outer_type)
        for name in ("eos_token_id", "bos_token_id", "pad_token_id", "tie_word_embeddings"):
            if data.get(name) is not None:  # the outer config has the last word: E2B lists two eos ids there
                text[name] = data[name]
        config = _family_of(text["model_type"], outer_type).read_config(text)
        config.check()
    except KeyError as e:
        raise ConfigError(f"config.json: {e.args[0]} is missing; download it again") from None
    except (TypeError, ValueError, AttributeError) as e:
        raise ConfigError(f"config.json: {e}; download it again") from None
    return config


def _family_of(*model_types: object) -> Family:
    """The family of the first model_type that one answers to."""
    by_type = {model_type: family for family in FAMILIES.values() for model_type in family.model_types}
    for model_type in model_types:
        if model_type in by_type:
            return by_type[str(model_type)]
    raise ConfigError(
        f"config.json: model_type {model_types[0]!r} is not supported; supported are {', '.join(sorted(by_type))}"
    )


def load_model(ckpt: Checkpoint, config: TextConfig) -> Model:
    """The model of a checkpoint. Reads no weights; raises CheckpointError where the config and the tensors differ."""
    return FAMILIES[config.family].load(ckpt, config)
