"""What a token id is, and what a number of tokens."""

from __future__ import annotations

from collections.abc import Iterable
from numbers import Integral
from operator import index

from .errors import SessionError


def token_ids(ids: Iterable[int], vocab_size: int) -> list[int]:
    """Token ids as plain integers; numpy's are taken too. Raises SessionError for what is no id of this vocabulary."""
    out = []
    for token in ids:
        try:
            number = -1 if isinstance(token, bool) else index(token)
        except TypeError:
            number = -1
        if not 0 <= number < vocab_size:
            raise SessionError(
                f"token {token!r} is none of this model's, which are the integers 0 to {vocab_size - 1}; "
                "is this its tokenizer?"
            )
        out.append(number)
    return out


def check_count(name: str, value: int, least: int) -> None:
    """Raise SessionError, naming the argument, for a number of tokens that is none or is less than `least`."""
    if isinstance(value, bool) or not isinstance(value, Integral) or int(value) < least:
        raise SessionError(f"{name} {value!r} must be an integer, {least} or more")
