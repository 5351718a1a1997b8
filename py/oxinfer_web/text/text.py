"""A model folder's tokenizer and chat template."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer

from ..errors import CheckpointError, OxinferError
from .control import ControlTokens, strings, unused_character
from .files import TokenizerConfig
from .pieces import PieceDecoder
from .template import render

Message = Mapping[str, Any]
"""role and content, and what else a template reads."""

_BYTE = re.compile(r"<0x[0-9A-Fa-f]{2}>")


class Text:
    """Text to token ids and back.

    Control tokens (those that the tokenizer calls special, and those that only a chat template writes) are control
    tokens where a template writes them; in what somebody typed they are text, unless `control_tokens` is true.
    """

    def __init__(self, folder: Path) -> None:
        """Raises CheckpointError if there is no tokenizer that can be read."""
        path = folder / "tokenizer.json"
        if not path.exists():
            raise CheckpointError(
                f"tokenizer.json: not in {folder}; convert the model again from an original that has one"
            )
        try:
            self._tokenizer = Tokenizer.from_file(str(path))
        except Exception as e:  # the tokenizers package raises nothing narrower
            raise CheckpointError(f"tokenizer.json: cannot be read ({e}); convert the model again") from None
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._config = TokenizerConfig.read(folder)
        self._add_tokens()
        added = self._tokenizer.get_added_tokens_decoder()
        self._silent = {i for i, token in added.items() if token.special}
        self._control = self._control_tokens()
        # The package keeps only "special" tokens from being found in a text.
        others = [token for token in added.values() if not token.special and token.content in self._control.texts]
        self._tokenizer.add_special_tokens([_special(token) for token in others])
        # Unguessable, so that nobody types one.
        self._mark = secrets.token_hex(8)

    @property
    def has_chat(self) -> bool:
        """Whether the model has a chat template."""
        return bool(self._config.templates)

    def encode(self, text: str, special: bool = True, control_tokens: bool = False) -> list[int]:
        """Token ids of a text; special: with the tokens the tokenizer puts around it (bos)."""
        self._tokenizer.encode_special_tokens = not control_tokens
        return list(self._tokenizer.encode(_well_formed(text), add_special_tokens=special).ids)

    def encode_chat(self, messages: Sequence[Message], control_tokens: bool = False, **variables: Any) -> list[int]:
        """Token ids of a conversation up to where the model is to answer. Raises OxinferError without a template.

        variables: what else the template reads, as `tools`.
        """
        given = [messages, variables]
        if control_tokens or not any(self._control.at(text, i) for text in strings(given) for i in range(len(text))):
            return self.encode(self.render(messages, **variables), special=False, control_tokens=True)
        guard = unused_character([*strings(given), *self._config.templates.values()])
        messages, variables = self._control.guard(given, guard)
        parts = self._control.split(self.render(messages, **variables), guard)
        return self._encode_parts(parts)

    def render(self, messages: Sequence[Message], **variables: Any) -> str:
        """The prompt that the model's chat template makes of a conversation. Raises OxinferError."""
        if not self.has_chat:
            raise OxinferError("the model has no chat template; use --raw")
        if not messages:
            raise OxinferError("the conversation is empty; give at least one message")
        messages = [{key: value for key, value in m.items() if value is not None} for m in messages]
        name = "tool_use" if variables.get("tools") is not None and "tool_use" in self._config.templates else "default"
        if name not in self._config.templates:
            raise OxinferError(f"the model has chat templates {', '.join(self._config.templates)}, but no default one")
        settings = {"tools": None, "documents": None, "add_generation_prompt": True, **self._config.special}
        return render(self._config.templates[name], {"messages": messages, **settings, **variables})

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids, special tokens left out."""
        return str(self._tokenizer.decode([i for i in ids if not self._is_silent(i)], skip_special_tokens=False))

    def stream(self, ids: Iterable[int], prompt: Sequence[int] = ()) -> Iterator[str]:
        """The text of token ids as they come, in pieces that hold whole characters and together are `decode`'s.

        prompt: the tokens that they continue.
        """
        decoder = PieceDecoder(self.decode, self._is_byte, self._is_silent, prompt)
        return decoder.pieces(ids)

    def _is_silent(self, i: int) -> bool:
        return i in self._silent or self._tokenizer.id_to_token(i) is None

    def _is_byte(self, i: int) -> bool:
        return _BYTE.fullmatch(self._tokenizer.id_to_token(i) or "") is not None

    def _add_tokens(self) -> None:
        known = {token.content: token for token in self._tokenizer.get_added_tokens_decoder().values()}
        for wanted in self._config.added:
            old = known.get(wanted["content"])
            flags = (
                {name: getattr(old, name) for name in ("single_word", "lstrip", "rstrip", "normalized")} if old else {}
            )
            token = AddedToken(**{**flags, **wanted})
            if old is None or old.__getstate__() != token.__getstate__():
                self._tokenizer.add_tokens([token])

    def _control_tokens(self) -> ControlTokens:
        """As transformers has it: special tokens, and those declared or, without that, in a chat template's text."""
        declared = self._config.raw.get("chat_control_tokens")
        templates = "\0".join(self._config.templates.values())
        return ControlTokens(
            [
                token.content
                for token in self._tokenizer.get_added_tokens_decoder().values()
                if token.special
                or (
                    token.content in declared
                    if isinstance(declared, list)
                    else token.content in templates and not token.content.isspace()
                )
            ]
        )

    def _encode_parts(self, parts: Sequence[str]) -> list[int]:
        """Token ids of text, control token, text, ..., text; in one go, so that text is cut as it is without them."""
        added = {token.content: (i, token) for i, token in self._tokenizer.get_added_tokens_decoder().items()}
        ids = {}
        for content in set(parts[1::2]):
            i, token = added[content]
            name = f"\ue000{self._mark}-{i}\ue001"
            flags = {flag: getattr(token, flag) for flag in ("single_word", "lstrip", "rstrip", "normalized")}
            self._tokenizer.add_tokens([AddedToken(name, special=False, **flags)])
            ids[content] = (name, self._tokenizer.token_to_id(name), i)
        stand_ins = {stand_in: i for _, stand_in, i in ids.values()}
        text = "".join(ids[part][0] if k % 2 else part for k, part in enumerate(parts))
        return [stand_ins.get(i, i) for i in self.encode(text, special=False)]


def _special(token: AddedToken) -> AddedToken:
    return AddedToken(**{**token.__getstate__(), "special": True})


def _well_formed(text: str) -> str:
    """The text with U+FFFD for halves of surrogate pairs, which arguments of a command may have for invalid bytes."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
