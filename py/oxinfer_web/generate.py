"""Generating text, token by token."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Collection, Iterator, Sequence
from typing import TypeVar

from .sampling import Sampler
from .session import Session

T = TypeVar("T")


async def generate(
    session: Session,
    prompt: Sequence[int],
    sampler: Sampler | None = None,
    *,
    max_tokens: int = 128,
    stop: Collection[int] | None = None,
) -> AsyncIterator[int]:
    """Feed `prompt` and yield the tokens that follow, at most max_tokens, until one of `stop` (not yielded).

    sampler: greedy by default; stop: token ids, by default the model's end-of-sequence ids. The session ends with the
    prompt and all tokens that were yielded fed, but the last. Raises SessionError or HostError.
    """
    sampler = sampler or Sampler()
    ends = set(session.backend.model.config.eos_token_ids if stop is None else stop)
    feed: Sequence[int] = prompt
    for _ in range(max_tokens):
        if len(feed) != 1 or not session.advance(feed[0]):
            await session.fetch(feed)
            session.forward(feed)
        token = sampler.choose(session)
        if token in ends:
            return
        yield token
        feed = [token]


def generate_sync(
    session: Session,
    prompt: Sequence[int],
    sampler: Sampler | None = None,
    *,
    max_tokens: int = 128,
    stop: Collection[int] | None = None,
) -> Iterator[int]:
    """`generate` for CPython, where nothing has to be waited for."""
    steps = generate(session, prompt, sampler, max_tokens=max_tokens, stop=stop)
    while True:
        try:
            yield finish(anext(steps))
        except StopAsyncIteration:
            return


def finish(awaitable: Awaitable[T]) -> T:
    """The result of something that never really waits, as everything is in CPython; an event loop may be running."""
    try:
        next(awaitable.__await__())
    except StopIteration as e:
        result: T = e.value
        return result
    raise RuntimeError("this waits for something; await it instead")
