"""Text to token ids and back, with the tokenizer of a model folder."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from ..errors import CheckpointError, OxinferError

Message = Mapping[str, str]
"""role and content."""


class Text:
    """A model folder's tokenizer.json and chat template."""

    def __init__(self, folder: Path) -> None:
        """Raises CheckpointError if there is no tokenizer that can be read."""
        path = folder / "tokenizer.json"
        if not path.exists():
            raise CheckpointError(
                f"tokenizer.json: not in {folder}; convert the model again from a source that has one"
            )
        try:
            self._tokenizer = Tokenizer.from_file(str(path))
        except Exception as e:  # the tokenizers package raises nothing narrower
            raise CheckpointError(f"tokenizer.json: cannot be read ({e}); convert the model again") from None
        config = folder / "tokenizer_config.json"
        try:
            self._config: dict[str, Any] = json.loads(config.read_bytes()) if config.exists() else {}
        except ValueError as e:
            raise CheckpointError(f"tokenizer_config.json: not JSON ({e}); convert the model again") from None

    @property
    def has_chat(self) -> bool:
        """Whether the model has a chat template."""
        return isinstance(self._config.get("chat_template"), str)

    def encode(self, text: str, special: bool = True) -> list[int]:
        """Token ids of a text; special: with the tokens the tokenizer puts around it (bos)."""
        return list(self._tokenizer.encode(text, add_special_tokens=special).ids)

    def encode_chat(self, messages: Sequence[Message]) -> list[int]:
        """Token ids of a conversation up to where the model is to answer. Raises OxinferError without a template."""
        return self.encode(self._render(messages), special=False)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids, special tokens left out."""
        return str(self._tokenizer.decode(list(ids)))

    def stream(self, ids: Iterable[int]) -> Iterator[str]:
        """The text of token ids as they come, in pieces that hold whole characters."""
        stream = DecodeStream(skip_special_tokens=True)
        for i in ids:
            piece = stream.step(self._tokenizer, i)
            if piece:
                yield piece

    def _render(self, messages: Sequence[Message]) -> str:
        from jinja2 import TemplateError
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        if not self.has_chat:
            raise OxinferError("the model has no chat template; use --raw")

        def raise_exception(message: str) -> NoReturn:
            raise TemplateError(message)

        # The settings that Hugging Face templates are written for.
        env = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        env.globals["raise_exception"] = raise_exception
        env.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
        tokens = {name: self._special(name) for name in ("bos_token", "eos_token", "pad_token", "unk_token")}
        try:
            template = env.from_string(self._config["chat_template"])
            return template.render(messages=messages, add_generation_prompt=True, **tokens)
        except TemplateError as e:
            raise OxinferError(f"tokenizer_config.json: the chat template refuses the conversation ({e})") from None

    def _special(self, name: str) -> str:
        token = self._config.get(name) or ""
        return str(token.get("content", "")) if isinstance(token, dict) else str(token)
