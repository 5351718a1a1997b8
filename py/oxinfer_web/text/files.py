"""What a tokenizer's folder says beside tokenizer.json, put together as transformers does."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import CheckpointError

COMPLETE = "oxinfer_complete"
"""A key of tokenizer_config.json: true says that what other files would add is in it already."""
FILES = ("special_tokens_map.json", "added_tokens.json", "chat_template.jinja", "chat_template.json")
"""Files that add to tokenizer_config.json, where it does not say that it is complete."""
MORE_TEMPLATES = "additional_chat_templates"
"""A folder of further chat templates, NAME.jinja."""

_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


@dataclass
class TokenizerConfig:
    """tokenizer_config.json and the files around it."""

    raw: dict[str, Any]
    """tokenizer_config.json, with what older files add."""
    templates: dict[str, str] = field(default_factory=dict)
    """Chat templates by name; the usual one is "default"."""

    @classmethod
    def read(cls, folder: Path) -> TokenizerConfig:
        """Read a folder's files, all of which may be absent. Raises CheckpointError for one that cannot be used."""
        raw = _read_json(folder / "tokenizer_config.json")
        if not raw.get(COMPLETE):
            _add_tokens(raw, folder)
            templates = _template_files(folder)
            if templates:
                raw["chat_template"] = templates
        return cls.of(raw)

    @classmethod
    def of(cls, raw: dict[str, Any]) -> TokenizerConfig:
        """A tokenizer_config.json with nothing around it."""
        return cls(raw, _templates(raw.get("chat_template")))

    @property
    def completed(self) -> dict[str, Any]:
        """A tokenizer_config.json that needs no other file."""
        named = [{"name": name, "template": template} for name, template in self.templates.items()]
        template = self.templates["default"] if list(self.templates) == ["default"] else named or None
        return {**self.raw, "chat_template": template, COMPLETE: True}

    @property
    def special(self) -> dict[str, str]:
        """The texts of tokens with a role, by role: bos_token, eos_token, ..., image_token."""
        roles = {name: _text(self.raw.get(name)) for name in _NAMES}
        roles |= {
            name: value
            for name, value in self.raw.items()
            if name.endswith("_token") and name not in _NAMES and isinstance(value, str)
        }
        extra = self._extra
        roles |= {name: _text(token) for name, token in extra.items()} if isinstance(extra, dict) else {}
        return {name: text for name, text in roles.items() if text}

    @property
    def added(self) -> list[dict[str, Any]]:
        """Tokens that text is cut at, as in tokenizer.json's added_tokens but for the ids, beside those there."""
        declared = sorted((self.raw.get("added_tokens_decoder") or {}).items(), key=lambda item: int(item[0]))
        tokens = {_text(token): _flags(token) for _, token in declared}
        extra = self._extra
        for token in [*self.special.values(), *(extra if isinstance(extra, list) else ())]:
            known = tokens.get(_text(token), {"normalized": False})
            tokens[_text(token)] = known | (_flags(token) if isinstance(token, dict) else {}) | {"special": True}
        return [{"content": text, **flags} for text, flags in tokens.items() if text]

    @property
    def _extra(self) -> Any:
        return self.raw.get("extra_special_tokens") or self.raw.get("additional_special_tokens") or []


def _read_json(path: Path) -> dict[str, Any]:
    """A JSON object, empty where there is no such file."""
    if not path.exists():
        return {}
    try:
        data = json.loads(path.read_bytes())
    except ValueError as e:
        raise CheckpointError(f"{path.name}: not JSON ({e}); convert the model again") from None
    if not isinstance(data, dict):
        raise CheckpointError(f"{path.name}: not a JSON object; convert the model again")
    return data


def _text(token: Any) -> str:
    """A token's text; in these files it is a string or an object."""
    return str(token.get("content") or "") if isinstance(token, Mapping) else str(token or "")


def _flags(token: Mapping[str, Any]) -> dict[str, bool]:
    flags = {name: bool(token[name]) for name in ("single_word", "lstrip", "rstrip", "special") if name in token}
    normalized = token.get("normalized")
    return flags | {"normalized": not flags.get("special", False) if normalized is None else bool(normalized)}


def _add_tokens(raw: dict[str, Any], folder: Path) -> None:
    """Before transformers wrote all tokens into tokenizer_config.json, it wrote them into files of their own."""
    if "added_tokens_decoder" in raw:
        return
    raw |= _read_json(folder / "special_tokens_map.json")
    older = _read_json(folder / "added_tokens.json")
    if older:
        special = set(TokenizerConfig.of(raw).special.values())
        raw["added_tokens_decoder"] = {str(i): {"content": t, "special": t in special} for t, i in older.items()}


def _template_files(folder: Path) -> dict[str, str]:
    """Chat templates in files of their own, which override tokenizer_config.json's."""
    files = {path.stem: path for path in sorted((folder / MORE_TEMPLATES).glob("*.jinja"))}
    if (folder / "chat_template.jinja").exists():
        files = {"default": folder / "chat_template.jinja", **files}
    if files:
        return {name: path.read_text("utf-8") for name, path in files.items()}
    return _templates(_read_json(folder / "chat_template.json").get("chat_template"))


def _templates(value: Any) -> dict[str, str]:
    """Templates by name, from the ways in which they are written: one text, or a list or an object of named ones."""
    if isinstance(value, str):
        return {"default": value}
    if isinstance(value, list):
        value = {entry.get("name"): entry.get("template") for entry in value if isinstance(entry, dict)}
    if isinstance(value, dict):
        return {str(name): template for name, template in value.items() if isinstance(template, str)}
    return {}
