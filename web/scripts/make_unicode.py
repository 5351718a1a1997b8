"""Print web/src/engine/client/text/unassigned.ts: what the tokenizers package's regular expressions know of Unicode.

Usage: make_unicode.py > FILE    with the pinned tokenizers package; run it again when that is updated.
"""

from __future__ import annotations

from collections.abc import Iterator

from tokenizers import Regex, pre_tokenizers

_SURROGATES = range(0xD800, 0xE000)


def unassigned() -> Iterator[tuple[int, int]]:
    """Ranges [first, last] of code points that are unassigned to the package."""
    cut = pre_tokenizers.Split(Regex(r"\p{Cn}+"), "isolated")
    for base in (0, _SURROGATES.stop):
        end = _SURROGATES.start if base == 0 else 0x110000
        text = "".join(map(chr, range(base, end)))
        is_unassigned = pre_tokenizers.Split(Regex(r"\p{Cn}+"), "removed")
        kept = {span for _, span in is_unassigned.pre_tokenize_str(text)}
        for _, span in cut.pre_tokenize_str(text):
            if span not in kept:
                yield base + span[0], base + span[1] - 1


def base36(n: int) -> str:
    """A number in digits and small letters."""
    digits = "0123456789abcdefghijklmnopqrstuvwxyz"
    return (base36(n // 36) if n >= 36 else "") + digits[n % 36]


def module() -> str:
    """The TypeScript module's text."""
    numbers = []
    at = 0
    for first, last in unassigned():
        numbers += [first - at, last - first]
        at = last
    words = " ".join(map(base36, numbers))
    lines = []
    while words:
        cut = len(words) if len(words) <= 110 else words.rindex(" ", 0, 110) + 1
        lines.append(f"  '{words[:cut]}'")
        words = words[cut:]
    ranges = " +\n".join(lines)
    return f"""// Printed by web/scripts/make_unicode.py; do not edit.

/** Code points that the tokenizers package's regular expressions take for unassigned: gaps and lengths, in base 36. */
export const UNASSIGNED =
{ranges};
"""


if __name__ == "__main__":
    print(module(), end="")
