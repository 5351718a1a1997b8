"""The Python half of the page's engine worker (web/src/engine/client/engine.ts): one loaded model, many conversations.

Requests and answers are JSON, errors are the package's own; the worker turns both into JavaScript's.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Any

from .engine import Engine
from .enums import KVType
from .errors import CancelledError, ContextError, SessionError
from .generate import generate
from .opening import open as open_engine
from .probe import Probe
from .sampling import Sampler
from .session import Session

DEFAULT_CONTEXT = 4096
"""Positions of a conversation where the page does not say."""
DEFAULT_TOKENS = 256
"""Tokens of an answer where neither the page nor the model's makers say."""
_SAMPLING = {
    "temperature": "temperature",
    "top_k": "topK",
    "top_p": "topP",
    "min_p": "minP",
    "max_new_tokens": "maxTokens",
}
"""The settings of `TextConfig.sampling` as the page spells them."""


async def load(host: Any, max_context: int | None, kv: str = "f32") -> Conversations:
    """Load the model of the worker's host object. kv: the KV cache's precision, "f32" or "f16". Raises OxinferError."""
    kv_type: Any = KVType.__members__.get(str(kv).upper(), kv)
    return Conversations(await open_engine(host, max_context=max_context or DEFAULT_CONTEXT, kv=kv_type))


class Conversations:
    """The conversations that one model serves, by number. One request at a time."""

    def __init__(self, engine: Engine) -> None:
        """None is open yet."""
        self.probe = Probe(engine)
        self._engine = engine
        self._sessions: dict[int, Session] = {}
        self._opened = 0

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

    def open(self) -> int:
        """The number of a new conversation. It takes memory from its first token on."""
        self._opened += 1
        self._sessions[self._opened] = Session(self._engine)
        return self._opened

    def close(self, number: int) -> None:
        """Give a conversation's memory back. Raises SessionError for one that is not open."""
        self._session(number).close()
        del self._sessions[number]

    async def generate(
        self,
        number: int,
        ids: str,
        sampling: str,
        on_token: Callable[[int], None],
        stopped: Callable[[], bool],
    ) -> str:
        """Continue a prompt in a conversation: how that ended, `Ended` of protocol.ts.

        The part of the prompt that the conversation so far begins with is not computed again. stopped: asked every few
        milliseconds whether the answer is wanted no more. Raises ContextError for a prompt that is empty or too long.
        """
        session, prompt = self._session(number), json.loads(ids)
        options = json.loads(sampling)
        defaults = self._engine.config.sampling
        sampler = Sampler.of(
            defaults,
            temperature=options["temperature"],
            top_k=options["topK"],
            top_p=options["topP"],
            min_p=options["minP"],
            seed=options["seed"],
        )
        most = defaults.get("max_new_tokens", DEFAULT_TOKENS) if options["maxTokens"] is None else options["maxTokens"]
        self._check_length(prompt)

        async def pause() -> None:
            await asyncio.sleep(0)
            if stopped():
                raise CancelledError("stopped")

        tokens = generate(session, _rewind(session, prompt), sampler, max_tokens=int(most), pause=pause)
        async for token in tokens:
            on_token(token)
        end = tokens.end
        return json.dumps(
            {
                "reason": end.reason,
                "promptTokens": end.prompt_tokens,
                "cachedTokens": end.cached_tokens,
                "completionTokens": end.completion_tokens,
            }
        )

    def _session(self, number: int) -> Session:
        if number not in self._sessions:
            raise SessionError(f"conversation {number} is closed; open another one")
        return self._sessions[number]

    def _check_length(self, prompt: Sequence[int]) -> None:
        """Raises ContextError, with what a page's reader can do there, unless the prompt and one token fit."""
        context = self._engine.max_context
        if not prompt:
            raise ContextError("the prompt is empty; write something for the model to go on from", 0, context)
        if len(prompt) > context:
            raise ContextError(
                f"the prompt has {len(prompt)} tokens, the model's context is {context}; shorten the prompt (whoever "
                "writes the page can load the model with a larger maxContext)",
                len(prompt),
                context,
            )


def _rewind(session: Session, prompt: Sequence[int]) -> Sequence[int]:
    """Go back to where the session and the prompt part; returns what is left to feed, at least one."""
    same = 0
    while same < min(session.position, len(prompt) - 1) and session.tokens[same] == prompt[same]:
        same += 1
    session.truncate(same)
    # What the caches have lost is fed as a part of the prompt, so that it is counted and can be stopped.
    session.truncate(min(same, session.cached))
    return prompt[session.position :]
