"""`oxinfer-web generate`."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from ..errors import ContextError
from ..generate import Ended, generate_sync
from ..models import config_from_folder
from ..sampling import Sampler
from .console import errors, output, show_size, write_piece
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
    as_json: Annotated[
        bool, typer.Option("--json", help="one line of JSON at the end: text, token ids, why it ended, counts")
    ] = False,
    stats: Annotated[bool, typer.Option("--stats", help="tokens, times and memory on stderr at the end")] = False,
) -> None:
    """Continue a prompt, or answer it, in the terminal. A file or a pipe gets the answer alone, as it is."""
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
    generation = generate_sync(session, ids, sampler, max_tokens=max_tokens)
    pieces = text.stream(clock.count(generation), () if as_chat else ids)
    if as_json:
        answer = {"text": "".join(pieces), "tokens": clock.tokens, **asdict(generation.end)}
        output.print(json.dumps(answer), soft_wrap=True)
    else:
        _show(pieces)
    if errors.is_terminal and not as_json:
        _show_length(generation.end, max_tokens)
    if stats:
        errors.print(f"load {clock.loaded - start:.2f} s, kernel {kernel.value}")
        errors.print(f"prompt {len(ids)} tokens, first token after {clock.first - clock.loaded:.2f} s")
        errors.print(
            f"generated {len(clock.tokens)} tokens, {clock.rate:.1f} tokens/s, ended by {generation.end.reason}"
        )
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


def _show(pieces: Iterable[str]) -> None:
    """Write an answer to stdout as it comes; what is left of a line on a terminal ends there."""
    try:
        for piece in pieces:
            write_piece(piece)
    finally:
        if sys.stdout.isatty():
            write_piece("\n")


def _show_length(end: Ended, max_tokens: int) -> None:
    """Say so on stderr if an answer is not complete, and what to do."""
    if end.reason != "length":
        return
    if end.completion_tokens >= max_tokens:
        errors.print(f"(stopped after {max_tokens} tokens; --max-tokens asks for more)", style="dim")
    else:
        used = end.prompt_tokens + end.completion_tokens
        errors.print(f"(stopped because the context is full: {used} tokens)", style="dim")


class _Clock:
    """Tokens, and when they came."""

    def __init__(self, start: float) -> None:
        self.loaded = self.first = self.last = time.perf_counter()
        self.tokens: list[int] = []

    def count(self, ids: Iterable[int]) -> Iterator[int]:
        """Pass tokens on, noting the time."""
        for i in ids:
            self.last = time.perf_counter()
            if not self.tokens:
                self.first = self.last
            self.tokens.append(i)
            yield i

    @property
    def rate(self) -> float:
        """Tokens a second, from the first to the last."""
        return (len(self.tokens) - 1) / (self.last - self.first) if len(self.tokens) > 1 else 0.0
