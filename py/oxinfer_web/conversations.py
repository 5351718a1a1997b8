"""The Python half of the page's engine worker (web/src/engine/client/worker.ts): one loaded model, one conversation.

Requests and answers are JSON, errors are the package's own; the worker turns both into JavaScript's.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from typing import Any

from .engine import Engine
from .generate import generate
from .opening import open as open_engine
from .program.records import KVType
from .sampling import Sampler
from .session import Session

DEFAULT_CONTEXT = 4096
"""Positions of a conversation where the page does not say."""
_SAMPLING = {
    "temperature": "temperature",
    "top_k": "topK",
    "top_p": "topP",
    "min_p": "minP",
    "max_new_tokens": "maxTokens",
}
"""The settings of `TextConfig.sampling` as the page spells them."""
YIELD_S = 0.01
"""The event loop, and with it a wish to stop, gets its turn at least this often."""


async def open_page(host: Any, max_context: int | None, kv: str = "f32") -> Page:
    """Load the model of the worker's host object. kv: the KV cache's precision, "f32" or "f16". Raises OxinferError."""
    return Page(await open_engine(host, max_context=max_context or DEFAULT_CONTEXT, kv=KVType[kv.upper()]))


class Page:
    """What the worker asks of a loaded model."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._session = Session(engine)

    def info(self) -> str:
        """What there is to know about the model: `ModelInfo` of web/src/engine/client/protocol.ts."""
        config, kernels = self._engine.config, self._engine.kernels
        return json.dumps(
            {
                "modelType": config.model_type,
                "kernel": kernels.build,
                "threads": kernels.threads,
                "maxContext": self._engine.max_context,
                "vocabSize": config.vocab_size,
                "eos": list(config.eos_token_ids),
                "defaults": {_SAMPLING[name]: value for name, value in config.sampling.items()},
            }
        )

    def stats(self) -> str:
        """Bytes of kernel memory, and what host tables have fetched."""
        return json.dumps({"memory": self._engine.memory(), "host": self._engine.files.stats()})

    async def generate(self, ids: str, sampling: str, on_token: Callable[[int], bool]) -> None:
        """Continue a prompt until its end, or until on_token(token) says false.

        The part of the prompt that the conversation so far begins with is not computed again.
        """
        prompt: list[int] = json.loads(ids)
        options = json.loads(sampling)
        sampler = Sampler(
            temperature=options["temperature"], top_k=options["topK"], top_p=options["topP"], seed=options["seed"]
        )
        tokens = generate(self._session, self._rewind(prompt), sampler, max_tokens=options["maxTokens"])
        yielded = time.perf_counter()
        async for token in tokens:
            if not on_token(token):
                break
            if time.perf_counter() - yielded > YIELD_S:
                await asyncio.sleep(0)
                yielded = time.perf_counter()

    async def bench(self, request: str) -> str:
        """Best prefill and decode speed over some repeats after a warm-up, the greedy tokens, and where time goes.

        `kinds` has milliseconds a token by kind of op, for the prompt and for decoding, if the request has "profile".
        """
        options = json.loads(request)
        ids, count = options["ids"], options["generate"]
        prefill = decode = overhead = 0.0
        tokens: list[int] = []
        for repeat in range(options["repeats"] + 1):
            self._session.truncate(0)
            start = time.perf_counter()
            await self._feed(ids)
            middle, kernels = time.perf_counter(), self._engine.prof["kernels"]
            tokens = await self._greedy(count)
            seconds, kernels = time.perf_counter() - middle, self._engine.prof["kernels"] - kernels
            steps = count - 1  # the first token is the prompt's own result
            if repeat:
                prefill = max(prefill, len(ids) / (middle - start))
            if repeat and steps / seconds > decode:
                decode, overhead = steps / seconds, 1000 * (seconds - kernels) / max(steps, 1)
        speeds = {"prefill_tok_s": prefill, "decode_tok_s": decode, "overhead_ms": overhead}
        kinds = await self._profile(ids, count) if options.get("profile") else {}
        return json.dumps({**speeds, "tokens": tokens, "kinds": kinds})

    async def _profile(self, ids: Sequence[int], count: int) -> dict[str, dict[str, float]]:
        """Milliseconds a token by kind of op, in the prompt and in decoding `count` tokens."""
        self._session.truncate(0)
        self._engine.profile = True
        try:
            start = self._engine.prof
            await self._feed(ids)
            middle = self._engine.prof
            await self._greedy(count)
            end = self._engine.prof
        finally:
            self._engine.profile = False

        def a_token(before: dict[str, float], after: dict[str, float], tokens: int) -> dict[str, float]:
            return {kind: 1000 * (s - before.get(kind, 0.0)) / max(tokens, 1) for kind, s in after.items()}

        return {"prefill": a_token(start, middle, len(ids)), "decode": a_token(middle, end, count - 1)}

    async def greedy(self, ids: str, n: int) -> str:
        """The likeliest n tokens after ids, end-of-sequence tokens among them."""
        self._session.truncate(0)
        await self._feed(json.loads(ids))
        return json.dumps(await self._greedy(n))

    async def nll(self, ids: str) -> float:
        """Mean -log p, in nats, of each token but the first."""
        tokens: list[int] = json.loads(ids)
        self._session.truncate(0)
        await self._session.fetch(tokens)
        losses = self._session.nll(tokens)
        return sum(losses) / len(losses)

    async def logits(self, ids: str) -> bytes:
        """Logits of the token after ids, f32 [vocab], as bytes."""
        self._session.truncate(0)
        await self._feed(json.loads(ids))
        return bytes(memoryview(self._session.logits()).cast("B"))

    def _rewind(self, prompt: Sequence[int]) -> Sequence[int]:
        """Go back to where the session and the prompt part; returns what is left to feed, at least one."""
        fed = self._session.tokens
        same = 0
        while same < min(len(fed), len(prompt) - 1) and fed[same] == prompt[same]:
            same += 1
        self._session.truncate(same)
        return prompt[same:]

    async def _feed(self, ids: Sequence[int]) -> None:
        await self._session.fetch(ids)
        self._session.forward(ids)

    async def _greedy(self, n: int) -> list[int]:
        tokens = [self._session.likeliest()]
        while len(tokens) < n:
            if not self._session.advance(tokens[-1]):
                await self._feed(tokens[-1:])
            tokens.append(self._session.likeliest())
        return tokens
