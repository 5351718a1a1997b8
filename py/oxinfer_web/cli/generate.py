"""`oxinfer-web generate`."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated

import typer

from ..errors import ContextError
from ..models import config_from_folder
from ..sampling import Sampler
from .console import errors, show_size, write_piece
from .models import Kernel, open_session

_OWN = "the model's own, else "


def generate(
    folder: Annotated[Path, typer.Argument(help="a model folder")],
    prompt: Annotated[str, typer.Argument(help="the prompt")],
    max_tokens: Annotated[
        int | None, typer.Option(min=1, help="tokens to generate at most", show_default=_OWN + "128")
    ] = None,
    temperature: Annotated[
        float | None, typer.Option(help="0 takes the likeliest token", show_default=_OWN + "0")
    ] = None,
    top_k: Annotated[int | None, typer.Option(help="sample among this many tokens", show_default=_OWN + "64")] = None,
    top_p: Annotated[
        float | None, typer.Option(help="and among those that hold this probability", show_default=_OWN + "1")
    ] = None,
    min_p: Annotated[
        float | None, typer.Option(help="and those this many times as likely as the first", show_default=_OWN + "0")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="makes sampling repeatable")] = None,
    max_context: Annotated[
        int | None,
        typer.Option(
            min=1, help="tokens of prompt and answer to make room for at most", show_default="as many as are needed"
        ),
    ] = None,
    chat: Annotated[
        bool | None,
        typer.Option("--chat/--raw", help="as a chat message or as it is  [default: --chat if the model can]"),
    ] = None,
    kernel: Annotated[Kernel, typer.Option(help="what runs the model")] = Kernel.relaxed,
    control_tokens: Annotated[
        bool,
        typer.Option(
            "--control-tokens", help="take control tokens in the prompt, as <bos>, for what they are, not as text"
        ),
    ] = False,
    stats: Annotated[bool, typer.Option("--stats", help="tokens, times and memory on stderr at the end")] = False,
) -> None:
    """Continue a prompt, or answer it, in the terminal. A file or a pipe gets the answer alone, as it is."""
    from ..generate import generate_sync
    from ..text import Text

    text = Text(folder)
    as_chat = text.has_chat if chat is None else chat
    if as_chat:
        ids = text.encode_chat([{"role": "user", "content": prompt}], control_tokens=control_tokens)
    else:
        ids = text.encode(prompt, control_tokens=control_tokens)
    config = config_from_folder(folder)
    own = config.sampling
    sampler = Sampler.of(own, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=seed)
    max_tokens = max_tokens or int(own.get("max_new_tokens", 128))
    _check_room(len(ids), max_context, config.max_position_embeddings)
    start = time.perf_counter()
    session = open_session(folder, kernel, min(len(ids) + max_tokens, max_context or config.max_position_embeddings))
    clock = _Clock(start)
    tokens = clock.count(generate_sync(session, ids, sampler, max_tokens=max_tokens))
    try:
        for piece in text.stream(tokens, () if as_chat else ids):
            write_piece(piece)
    finally:
        if sys.stdout.isatty():
            write_piece("\n")
    if stats:
        errors.print(f"load {clock.loaded - start:.2f} s, kernel {kernel.value}")
        errors.print(f"prompt {len(ids)} tokens, first token after {clock.first - clock.loaded:.2f} s")
        errors.print(f"generated {clock.tokens} tokens, {clock.rate:.1f} tokens/s")
        memory = getattr(session.backend, "memory", None)
        if memory is not None:
            errors.print("memory " + ", ".join(f"{name} {show_size(n)}" for name, n in memory().items()))


def _check_room(tokens: int, max_context: int | None, most: int) -> None:
    """Raise ContextError, with what can be done here, unless a prompt of this many tokens has a place."""
    limit = min(max_context or most, most)
    if not tokens:
        raise ContextError("the prompt is empty; give some text for the model to go on from", 0, limit)
    if tokens > limit:
        here = f"the model's context of {most}; shorten it"
        if limit < most:
            here = f"--max-context {limit}; raise that, up to the model's {most}, or shorten the prompt"
        raise ContextError(f"the prompt has {tokens} tokens, more than {here}", tokens, limit)


class _Clock:
    """When tokens came."""

    def __init__(self, start: float) -> None:
        self.loaded = self.first = self.last = time.perf_counter()
        self.tokens = 0

    def count(self, ids: Iterable[int]) -> Iterator[int]:
        """Pass tokens on, noting the time."""
        for i in ids:
            self.last = time.perf_counter()
            if not self.tokens:
                self.first = self.last
            self.tokens += 1
            yield i

    @property
    def rate(self) -> float:
        """Tokens a second, from the first to the last."""
        return (self.tokens - 1) / (self.last - self.first) if self.tokens > 1 else 0.0
