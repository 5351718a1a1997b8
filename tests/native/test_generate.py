"""How answers end, and what they are counted as; several conversations on one model."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import oxinfer_web as ox
import pytest
from oxinfer_web.conversations import Conversations
from support import FIXTURES, expected

CONTEXT = 300
CASE = "gemma3"


@pytest.fixture(scope="module")
def engine() -> ox.Engine:
    return ox.load(FIXTURES / CASE, kernel="simd", max_context=CONTEXT, chunk=32)


@pytest.fixture(scope="module")
def long(engine: ox.Engine) -> list[int]:
    """More tokens than a chunk and than the window."""
    ids: list[int] = expected(CASE)["input_ids"].reshape(-1).tolist()
    return (ids * (1 + 200 // len(ids)))[:200]


def test_ends_with_length(engine: ox.Engine, long: list[int]) -> None:
    session = ox.Session(engine)
    answer = ox.generate_sync(session, long, max_tokens=5, stop=())
    assert answer.end.reason == "cancelled"
    tokens = list(answer)
    assert answer.end == ox.Ended("length", len(long), 0, 5)
    more = ox.generate_sync(session, tokens[-1:], max_tokens=2, stop=())
    assert len(list(more)) == 2
    assert more.end == ox.Ended("length", len(long) + 5, len(long) + 4, 2)


def test_ends_with_stop(engine: ox.Engine, long: list[int]) -> None:
    third = list(ox.generate_sync(ox.Session(engine), long, max_tokens=5, stop=()))[2]
    answer = ox.generate_sync(ox.Session(engine), long, max_tokens=5, stop=[third])
    tokens = list(answer)
    assert third not in tokens
    assert answer.end == ox.Ended("stop", len(long), 0, len(tokens))


def test_left_early(engine: ox.Engine, long: list[int]) -> None:
    answer = ox.generate_sync(ox.Session(engine), long, stop=())
    for _ in zip(range(3), answer, strict=False):
        pass
    assert answer.end == ox.Ended("cancelled", len(long), 0, 3)


@pytest.mark.parametrize("spare", [0, 1, 7])
def test_the_end_of_the_context_is_an_end(engine: ox.Engine, long: list[int], spare: int) -> None:
    """The last position's token is given too; the same tokens as with room left."""
    prompt = (long * 2)[: CONTEXT - spare]
    answer = ox.generate_sync(ox.Session(engine), prompt, max_tokens=100, stop=())
    tokens = list(answer)
    assert answer.end == ox.Ended("length", len(prompt), 0, spare + 1)
    roomy = ox.load(FIXTURES / CASE, kernel="simd", max_context=CONTEXT + 20, chunk=32)
    assert tokens == list(ox.generate_sync(ox.Session(roomy), prompt, max_tokens=spare + 1, stop=()))


class Page:
    """Asks as the worker does."""

    def __init__(self, engine: ox.Engine) -> None:
        self.conversations = Conversations(engine)
        self.tokens: list[int] = []
        self.pauses = 0

    def ask(self, number: int, prompt: Sequence[int], stop_at: int | None = None, **sampling: Any) -> dict[str, Any]:
        """stop_at: the pause after which the answer is wanted no more."""
        self.tokens, self.pauses = [], 0
        options = {"maxTokens": 4, "temperature": 0, "topK": 64, "topP": 1, "minP": 0, "seed": None} | sampling

        def stopped() -> bool:
            self.pauses += 1
            return stop_at is not None and self.pauses >= stop_at

        answer = self.conversations.generate(
            number, json.dumps(list(prompt)), json.dumps(options), self.tokens.append, stopped
        )
        end: dict[str, Any] = json.loads(asyncio.run(answer))
        return end


def test_conversations_do_not_mix(engine: ox.Engine, long: list[int]) -> None:
    """Two by turns on one model give what each gives alone, and each keeps what it has computed."""
    page = Page(engine)
    other = long[::-1]
    want = {}
    for name, prompt in (("a", long), ("b", other)):
        want[name] = list(ox.generate_sync(ox.Session(engine), prompt, max_tokens=4, stop=()))
    a, b = page.conversations.open(), page.conversations.open()
    for turn in range(2):
        for number, name, prompt in ((a, "a", long), (b, "b", other)):
            end = page.ask(number, prompt)
            assert page.tokens == want[name][: len(page.tokens)]
            assert end["promptTokens"] == len(prompt)
            assert end["cachedTokens"] == (len(prompt) - 1 if turn else 0)
    page.conversations.close(a)
    page.ask(b, other)
    with pytest.raises(ox.SessionError, match=f"conversation {a} is closed"):
        page.ask(a, long)


def test_stopped_between_the_chunks_of_a_prompt(engine: ox.Engine, long: list[int]) -> None:
    """What had been computed by then serves the next request."""
    page = Page(engine)
    number = page.conversations.open()
    assert page.ask(number, long, stop_at=3) == {
        "reason": "cancelled",
        "promptTokens": len(long),
        "cachedTokens": 0,
        "completionTokens": 0,
    }
    assert page.tokens == []
    end = page.ask(number, long)
    assert (end["cachedTokens"], end["completionTokens"]) == (3 * engine.chunk, len(page.tokens))
    assert page.tokens == list(ox.generate_sync(ox.Session(engine), long, max_tokens=len(page.tokens), stop=()))


@pytest.mark.parametrize(("count", "message"), [(0, "prompt is empty"), (CONTEXT + 1, "301 tokens.*context is 300")])
def test_a_prompt_that_cannot_be(engine: ox.Engine, count: int, message: str) -> None:
    page = Page(engine)
    number = page.conversations.open()
    with pytest.raises(ox.SessionError, match=message):
        page.ask(number, [1] * count)
    assert page.ask(number, [1] * 3)["completionTokens"] == len(page.tokens)


def test_turns_of_a_short_conversation_after_a_long_one() -> None:
    """The first has to be computed from its beginning, as the window's layers have moved on; those after it do not."""
    page = Page(ox.load(FIXTURES / CASE, kernel="simd", max_context=2048, chunk=32))
    number = page.conversations.open()
    short = [3 + i % 400 for i in range(300)]
    page.ask(number, [*short[:20], *(5 + i % 300 for i in range(900))])
    assert page.ask(number, short)["cachedTokens"] == 0
    prompt = [*short, *page.tokens]
    for turn in range(3):
        computed = len(prompt) - 1
        prompt += [100 + 20 * turn + i for i in range(20)]
        end = page.ask(number, prompt)
        assert (end["promptTokens"], end["cachedTokens"]) == (len(prompt), computed)
        prompt += page.tokens
