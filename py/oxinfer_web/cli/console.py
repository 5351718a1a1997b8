"""The terminal, and sizes and progress on it."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rich import progress
from rich.console import Console

from ..errors import OxinferError
from ..runtime import Progress

output = Console(highlight=False, markup=False, emoji=False)
errors = Console(stderr=True, highlight=False, markup=False, emoji=False)

# Control characters as pictures of themselves, but for tab and newline.
_PICTURES: dict[int, int | str] = {
    0x7F: 0x2421,
    **{code: 0x2400 + code for code in range(0x20) if chr(code) not in "\t\n"},
    **{code: f"\\x{code:02x}" for code in range(0x80, 0xA0)},
}

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "KI": 1 << 10, "MI": 1 << 20, "GI": 1 << 30}


def parse_size(text: str) -> int:
    """Bytes of a size like 32MiB, 20KB or 4096. Raises OxinferError for anything else, and for 0."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMG]I?)?B?", text.strip().upper())
    size = int(float(found[1]) * _UNITS[found[2] or ""]) if found else 0
    if size < 1:
        raise OxinferError(f"size {text!r} is not understood; write 32MiB, 20KB or a number of bytes")
    return size


def show_size(nbytes: float) -> str:
    """Bytes as people read them."""
    for unit in ("B", "KiB", "MiB"):
        if nbytes < 1024:
            return f"{nbytes:.0f} {unit}" if unit == "B" else f"{nbytes:.1f} {unit}"
        nbytes /= 1024
    return f"{nbytes:.2f} GiB"


def harmless(text: str) -> str:
    """A text whose control characters are shown, so that none of it is an order to the terminal."""
    return text.translate(_PICTURES)


def write_piece(text: str) -> None:
    """Write a part of an answer to stdout at once: exactly, in UTF-8, to a file or a pipe, harmless to a terminal.

    Raises OxinferError where it cannot be written.
    """
    stdout = sys.stdout
    data = harmless(text).encode(stdout.encoding, "replace") if stdout.isatty() else text.encode()
    try:
        stdout.flush()  # what was written as text goes first
        stdout.buffer.write(data)
        stdout.buffer.flush()
    except BrokenPipeError:
        raise  # whoever read has enough: no error
    except OSError as e:
        raise OxinferError(f"the answer cannot be written ({e.strerror or e}); send it somewhere else") from None


@contextmanager
def progress_bar(what: str) -> Iterator[Progress]:
    """A progress bar of bytes on stderr while the block runs, if that is a terminal; it goes away afterwards."""
    columns = (
        progress.TextColumn("{task.description}", markup=False),
        progress.BarColumn(),
        progress.DownloadColumn(),
        progress.TimeRemainingColumn(),
    )
    with progress.Progress(*columns, console=errors, transient=True, disable=not errors.is_terminal) as bar:
        task = bar.add_task(what, total=None)

        def update(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        yield update
