"""Telling the control tokens that a chat template writes from those that somebody typed.

A typed control token gets a guard, one private-use character after its first, before the template is rendered: so it is
no control token any more, and what the template does with the text around it stays the same.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

_PRIVATE_USE = range(0xE000, 0xF900)


class ControlTokens:
    """The texts of a tokenizer's control tokens."""

    def __init__(self, texts: Collection[str]) -> None:
        self.texts = frozenset(texts)
        self._lengths: dict[str, list[int]] = {}
        for text in self.texts:
            self._lengths.setdefault(text[0], []).append(len(text))
        for first, lengths in self._lengths.items():
            self._lengths[first] = sorted(set(lengths), reverse=True)

    def at(self, text: str, start: int) -> str | None:
        """The longest control token that begins at this character."""
        lengths = self._lengths.get(text[start], ())
        return next((found for n in lengths if (found := text[start : start + n]) in self.texts), None)

    def guard(self, value: Any, guard: str) -> Any:
        """The value with a guard in every control token of its strings, overlapping ones too; keys stay as they are."""
        if isinstance(value, str):
            return "".join(c + guard if self.at(value, i) else c for i, c in enumerate(value))
        if isinstance(value, dict):
            return {key: self.guard(item, guard) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.guard(item, guard) for item in value]
        return value

    def split(self, text: str, guard: str) -> list[str]:
        """A rendered prompt without guards, cut at its control tokens: text, token, text, ..., text."""
        parts = [""]
        i = plain = 0
        while i < len(text):
            guarded = text[i + 1 : i + 2] == guard
            token = None if guarded else self.at(text, i)
            if token is not None:
                parts[-1] += text[plain:i]
                parts += [token, ""]
                plain = i + len(token)
            i += 2 if guarded else len(token or " ")
        parts[-1] += text[plain:]
        return [part.replace(guard, "") for part in parts]


def unused_character(texts: Collection[str]) -> str:
    """A private-use character that is in none of these texts."""
    return next(chr(code) for code in _PRIVATE_USE if not any(chr(code) in text for text in texts))


def strings(value: Any) -> Iterator[str]:
    """All strings in a value made of lists and mappings, keys not included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list | tuple):
        for item in value.values() if isinstance(value, dict) else value:
            yield from strings(item)
