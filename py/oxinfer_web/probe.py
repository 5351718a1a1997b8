"""What measuring and testing in a page ask of a loaded model. Requests and answers are JSON, as in `conversations`."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence

from .engine import Engine
from .errors import ContextError
from .session import Session


class Probe:
    """Runs a model without sampling, in a session of its own."""

    def __init__(self, engine: Engine) -> None:
        """Of a loaded model."""
        self._engine = engine
        self._session = Session(engine)

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
        if len(tokens) < 2:
            raise ContextError(f"{len(tokens)} tokens have none to predict; give at least 2", len(tokens))
        losses = self._session.nll(tokens)
        return sum(losses) / len(losses)

    async def logits(self, ids: str) -> bytes:
        """Logits of the token after ids, f32 [vocab], as bytes."""
        self._session.truncate(0)
        await self._feed(json.loads(ids))
        return bytes(memoryview(self._session.logits()).cast("B"))

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
