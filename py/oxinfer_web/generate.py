"""Generating text, token by token."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from .errors import CancelledError
from .sampling import Sampler
from .session import Session
from .tokens import check_count

T = TypeVar("T")

PAUSE_S = 0.01
"""Whoever gave a `pause` gets it at least this often, and after every chunk of a prompt."""


@dataclass(frozen=True)
class Ended:
    """How a request ended, and what it came to."""

    reason: Literal["stop", "length", "cancelled"]
    """The model ended its answer; max_tokens or the context were used up; or nobody wanted more."""
    prompt_tokens: int
    """Tokens before the answer, what the session had before included."""
    cached_tokens: int
    """Those of them that the session had before, and that were not computed again."""
    completion_tokens: int
    """Tokens of the answer."""


class Generation:
    """The tokens of an answer, `async for` by `async for`. Make one with `generate`."""

    def __init__(self, session: Session, prompt: Sequence[int]) -> None:
        """Of `prompt` after what the session has; `steps` are what gives the tokens."""
        self.steps: AsyncGenerator[int, None]
        self.reason: Literal["stop", "length", "cancelled"] = "cancelled"
        self.completion_tokens = 0
        self._cached = session.cached
        self._prompt = session.position + len(prompt)

    def __aiter__(self) -> AsyncIterator[int]:
        """The tokens; there is one pass."""
        return self.steps

    @property
    def end(self) -> Ended:
        """How it ended; "cancelled" before it has ended by itself."""
        return Ended(self.reason, self._prompt, self._cached, self.completion_tokens)


class SyncGeneration:
    """A `Generation` for CPython: an iterator."""

    def __init__(self, generation: Generation) -> None:
        """Of a generation that never really waits."""
        self._generation = generation

    def __iter__(self) -> Iterator[int]:
        """Itself; there is one pass."""
        return self

    def __next__(self) -> int:
        """The next token."""
        try:
            return finish(anext(self._generation.steps))
        except StopAsyncIteration:
            raise StopIteration from None

    @property
    def end(self) -> Ended:
        """See `Generation.end`."""
        return self._generation.end


def generate(
    session: Session,
    prompt: Sequence[int],
    sampler: Sampler | None = None,
    *,
    max_tokens: int = 128,
    stop: Collection[int] | None = None,
    pause: Callable[[], Awaitable[None]] | None = None,
) -> Generation:
    """Feed `prompt` and give the tokens that follow, until one of `stop` (not given), max_tokens, or the context's end.

    sampler: greedy by default; stop: token ids, by default the model's end-of-sequence ids; pause: awaited every now
    and then, so that an event loop gets its turn; it may raise CancelledError, as may the session's fetch, which
    ends the answer. The session ends with the prompt and all tokens that were given fed, but the last. The iteration
    raises ContextError for a prompt that is empty or does not fit, SessionError for one that has other ids than the
    model's, HostError, and NumericError. Raises SessionError for a max_tokens that is no number of tokens.
    """
    check_count("max_tokens", max_tokens, 0)
    ends = set(session.backend.model.config.eos_token_ids if stop is None else stop)
    generation = Generation(session, prompt)
    generation.steps = _steps(generation, session, prompt, sampler or Sampler(), max_tokens, ends, pause)
    return generation


async def _steps(
    generation: Generation,
    session: Session,
    prompt: Sequence[int],
    sampler: Sampler,
    max_tokens: int,
    ends: set[int],
    pause: Callable[[], Awaitable[None]] | None,
) -> AsyncGenerator[int, None]:
    try:
        if max_tokens > 0:
            await _feed(session, prompt, pause)
        paused = time.perf_counter()
        for given in range(1, max_tokens + 1):
            token = sampler.choose(session)
            if token in ends:
                generation.reason = "stop"
                return
            generation.completion_tokens = given
            yield token
            if given == max_tokens or session.position >= session.backend.max_context:
                break
            if pause and time.perf_counter() - paused > PAUSE_S:
                await pause()
                paused = time.perf_counter()
            if not session.advance(token):
                await session.fetch([token])
                session.forward([token])
        generation.reason = "length"
    except CancelledError:
        return


async def _feed(session: Session, prompt: Sequence[int], pause: Callable[[], Awaitable[None]] | None) -> None:
    """Feed a prompt; in chunks if somebody wants pauses between them."""
    session.check(prompt)
    await session.fetch(prompt)
    chunk = session.backend.chunk
    if pause:
        while len(prompt) > chunk:
            session.feed(prompt[:chunk])
            prompt = prompt[chunk:]
            await pause()
    session.forward(prompt)


def generate_sync(
    session: Session,
    prompt: Sequence[int],
    sampler: Sampler | None = None,
    *,
    max_tokens: int = 128,
    stop: Collection[int] | None = None,
) -> SyncGeneration:
    """`generate` for CPython, where nothing has to be waited for."""
    return SyncGeneration(generate(session, prompt, sampler, max_tokens=max_tokens, stop=stop))


def finish(awaitable: Awaitable[T]) -> T:
    """The result of something that never really waits, as everything is in CPython; an event loop may be running."""
    try:
        next(awaitable.__await__())
    except StopIteration as e:
        result: T = e.value
        return result
    raise RuntimeError("this waits for something; await it instead")
