"""Turning tokens into text while they come."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

_CONTEXT = 4
"""How many tokens before a piece are decoded with it, as a token's text may depend on what is before it."""
_UNFINISHED = "\ufffd"


class PieceDecoder:
    """Gives the text that each further token settles; web/src/engine/client/text/decoder.ts does the same.

    A character whose bytes are spread over several tokens is held back until it is whole. All pieces together are what
    `decode` makes of all tokens: where bytes make no character, U+FFFD. So tokens that stand for a byte are held back
    up to the first that does not, because one wrong byte spoils all of them.
    """

    def __init__(
        self,
        decode: Callable[[list[int]], str],
        is_byte: Callable[[int], bool] = lambda i: False,
        is_silent: Callable[[int], bool] = lambda i: False,
        prompt: Sequence[int] = (),
    ) -> None:
        """Prompt: what goes before and is not given again; is_byte: whether a token stands for one byte;
        is_silent: whether it has no text.
        """
        self._decode, self._is_byte, self._is_silent = decode, is_byte, is_silent
        self._tokens = [i for i in prompt if not is_silent(i)][-_CONTEXT:]
        self._settled = len(self._tokens)

    def push(self, token: int) -> str:
        """Text that is settled after one more token."""
        if self._is_silent(token):
            return ""
        self._tokens.append(token)
        if self._is_byte(token):
            return ""
        text = self.rest()
        if text.endswith(_UNFINISHED):
            return ""
        self._tokens = self._tokens[-_CONTEXT:]
        self._settled = len(self._tokens)
        return text

    def rest(self) -> str:
        """What has been held back, unfinished characters as U+FFFD."""
        before, text = self._decode(self._tokens[: self._settled]), self._decode(self._tokens)
        return text[_common(before, text) :]

    def pieces(self, tokens: Iterable[int]) -> Iterator[str]:
        """All pieces that are not empty, to the end; also when `tokens` ends with an error."""
        try:
            for token in tokens:
                if piece := self.push(token):
                    yield piece
        except Exception:
            if rest := self.rest():
                yield rest
            raise
        if rest := self.rest():
            yield rest


def _common(a: str, b: str) -> int:
    """How many characters two texts begin with alike."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
