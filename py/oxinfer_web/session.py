"""`Session`: one conversation's KV caches and position, on any backend (numpy reference or recorded program)."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from .backend import TOP_K, Backend, Cache, Candidates, Floats, Want, floats
from .errors import ContextError, SessionError
from .tokens import token_ids


class Session:
    """A sequence of tokens being decoded.

    `forward` feeds tokens; `candidates` and `logits` then tell about the next one. `truncate` takes back the last
    tokens, `clone` forks the sequence. In a page, `await fetch(ids)` before tokens are fed: it brings their table rows.
    """

    def __init__(self, backend: Backend) -> None:
        """An empty session on a backend, which may serve many."""
        self.backend = backend
        self.tokens: list[int] = []
        """The tokens fed so far (the pad token where an embedding was given)."""
        self.prof = {"steps": 0.0, "tokens": 0.0, "forward": 0.0, "fetch": 0.0}
        """Seconds in `forward` and in `fetch`, and what they did (`advance`, which has no time for it, is not counted).
        The engine's `prof` tells how much of it the kernels took."""
        self._cache: Cache = None  # made when the first token is fed
        self._given: dict[int, Floats] = {}
        self._done = 0  # positions that are in the caches; below len(tokens) after a truncation that has to feed again

    @property
    def position(self) -> int:
        """Tokens fed so far."""
        return len(self.tokens)

    @property
    def cached(self) -> int:
        """Tokens whose keys and values are in the caches: fewer than `position` after a truncation that went further
        back than a sliding layer remembers, and then the next `forward` computes the others again."""
        return self._done

    async def fetch(self, ids: Sequence[int]) -> None:
        """Bring the table rows that `forward(ids)` will need.

        Raises HostError if the host does not give them, and SessionError for ids outside the vocabulary.
        """
        start = time.perf_counter()
        ids = token_ids(ids, self.backend.model.config.vocab_size)
        missing = self.tokens[self._done :]
        await self.backend.fetch([*missing, *ids] if missing else ids)
        self.prof["fetch"] += time.perf_counter() - start

    def forward(self, ids: Sequence[int], given: Mapping[int, Floats] | None = None) -> None:
        """Feed tokens. given: embeddings f32 [hidden], already scaled, by index into ids; they take the place of those
        tokens' embeddings, and their per-layer lookup uses the pad token.

        Raises ContextError for no tokens or more than `max_context` positions, SessionError for ids outside the
        vocabulary, and HostError for rows that have not been fetched. After an error the session is as it was before.
        """
        self._feed(ids, given, Want.LOGITS)

    def feed(self, ids: Sequence[int]) -> None:
        """Feed a part of a prompt that is not its last: as `forward`, but nothing can be asked about the next token."""
        self._feed(ids, None, Want.CACHE)

    def advance(self, token: int) -> bool:
        """Feed one token, as decoding does again and again, if all it needs is at hand.

        False, and nothing done, if not: then `await fetch([token])` and `forward([token])`, which also says what may be
        wrong with the token.
        """
        position = len(self.tokens)
        backend = self.backend
        if self._done != position or self._cache is None or position >= backend.max_context or type(token) is not int:
            return False
        if not 0 <= token < backend.model.config.vocab_size:
            return False
        try:
            if not backend.advance(self._cache, token, position):
                return False
        except BaseException:
            self._done = backend.rewind(self._cache, position)
            raise
        self.tokens.append(token)
        self._done = position + 1
        return True

    def forward_hidden(self, ids: Sequence[int], given: Mapping[int, Floats] | None = None) -> Floats:
        """Feed tokens as `forward` does and return their hidden states after the final norm, f32 [len(ids), hidden]."""
        rows: list[bytes] = []
        self._feed(ids, given, Want.HIDDEN, rows)
        return floats(b"".join(rows), (len(ids), self.backend.model.config.hidden_size))

    def logits(self, hidden: Floats | None = None) -> Floats:
        """Logits of the next token, f32 [vocab]; or, given hidden states [n, hidden], theirs, [n, vocab]."""
        return self.backend.logits() if hidden is None else self.backend.logits_of(hidden)

    def candidates(self, k: int) -> Candidates:
        """The k likeliest next tokens after `forward`; k at most 64. Raises SessionError for another k, NumericError
        where the logits have a NaN or no largest."""
        if type(k) is not int or not 1 <= k <= TOP_K:
            raise SessionError(f"{k!r} candidates asked for; there are 1 to {TOP_K}")
        return self.backend.candidates(k)

    def likeliest(self) -> int:
        """The likeliest next token after `forward`; of equals the lowest. Raises NumericError as `candidates` does."""
        return self.backend.likeliest()

    def nll(self, ids: Sequence[int]) -> list[float]:
        """Feed ids and return -log p, in nats, of each but the first given those before it: len(ids) - 1 numbers.

        Raises what `forward` does, and NumericError where the logits have a NaN or no largest.
        """
        ids = self.check(ids)
        out: list[float] = []
        for at in range(0, len(ids), step := min(self.backend.chunk, 64)):
            part = ids[at : at + step]
            targets = ids[at + 1 : at + step + 1]
            hidden = self.forward_hidden(part)
            out += self.backend.nll_of(hidden, targets)
        return out

    def embed_scaled(self, token: int) -> Floats:
        """The scaled input embedding of a token, f32 [hidden]: what a drafter is fed. Its row has to be fetched.

        Raises SessionError for an id outside the vocabulary.
        """
        return self.backend.embed_scaled(*token_ids([token], self.backend.model.config.vocab_size))

    def truncate(self, position: int) -> None:
        """Go back to `position` tokens. Raises SessionError if there are not that many.

        Where a layer no longer has what it takes to go on from there, as when a window has moved far past it, the next
        `forward` computes the tokens again from the first.
        """
        if type(position) is not int or not 0 <= position <= len(self.tokens):
            raise SessionError(f"cannot truncate to {position!r}: the session has {len(self.tokens)} tokens")
        del self.tokens[position:]
        self._given = {at: x for at, x in self._given.items() if at < position}
        if position < self._done:
            self._done = self.backend.rewind(self._cache, position)

    def clone(self) -> Session:
        """A session of its own with the same tokens."""
        other = Session.__new__(Session)
        other.__dict__.update(self.__dict__)
        other.tokens, other._given, other.prof = list(self.tokens), dict(self._given), dict.fromkeys(self.prof, 0.0)
        if self._cache is not None:
            other._cache = self.backend.clone_cache(self._cache, self._done)
        return other

    def close(self) -> None:
        """Give the caches' memory back; the session is empty afterwards."""
        if self._cache is not None:
            self.backend.free_cache(self._cache)
        self._cache = None
        self.tokens, self._given, self._done = [], {}, 0

    def _feed(
        self, ids: Sequence[int], given: Mapping[int, Floats] | None, want: Want, rows: list[bytes] | None = None
    ) -> None:
        start = time.perf_counter()
        ids = self.check(ids, given)
        again = self.tokens[self._done :]
        feed = [*again, *ids] if again else ids
        embeddings = {at - self._done: x for at, x in self._given.items() if at >= self._done} if self._given else {}
        if given:
            embeddings |= {len(again) + i: x for i, x in given.items()}
        done = self._done
        try:
            self._run(feed, embeddings, want, len(again), rows)
        except BaseException:
            self._done = 0 if self._cache is None else self.backend.rewind(self._cache, done)
            raise
        pad = self.backend.model.config.pad_token_id
        if given:
            self._given |= {len(self.tokens) + i: x for i, x in given.items()}
        self.tokens += [pad if i in given else t for i, t in enumerate(ids)] if given else ids
        self.prof["steps"] += 1
        self.prof["tokens"] += len(feed)
        self.prof["forward"] += time.perf_counter() - start

    def _run(
        self, feed: Sequence[int], given: Mapping[int, Floats], want: Want, skip: int, rows: list[bytes] | None
    ) -> None:
        """Feed in chunks; of hidden states, those after the first `skip` go to rows."""
        if self._cache is None:
            self._cache = self.backend.new_cache()
        chunk = self.backend.chunk
        for at in range(0, len(feed), chunk):
            part = feed[at : at + chunk]
            last = at + chunk >= len(feed)
            some = {i - at: x for i, x in given.items() if at <= i < at + chunk} if given else given
            step_want = want if last or want == Want.HIDDEN else Want.CACHE
            self.backend.step(self._cache, part, self._done, step_want, some)
            self._done += len(part)
            if rows is not None and at + len(part) > skip:
                hidden = memoryview(self.backend.hidden(len(part))).cast("B")
                width = len(hidden) // len(part)
                rows.append(bytes(hidden[max(0, skip - at) * width :]))

    def check(self, ids: Sequence[int], given: Mapping[int, Floats] | None = None) -> list[int]:
        """The ids as plain integers; raises the SessionError, of which ContextError is one, with which `forward` would
        refuse these arguments."""
        config, limit = self.backend.model.config, self.backend.max_context
        tokens = len(self.tokens) + len(ids)
        if not len(ids):
            raise ContextError("there are no tokens to feed: give at least one", 0, limit)
        if tokens > limit:
            raise ContextError(
                f"{tokens} tokens are more than the context of {limit}; truncate the session, or load the model with "
                f"a larger max_context (it takes up to {config.max_position_embeddings})",
                tokens,
                limit,
            )
        ids = token_ids(ids, config.vocab_size)
        for i, x in (given or {}).items():
            if not 0 <= i < len(ids) or len(x) != config.hidden_size:
                raise SessionError(
                    f"the embedding given at {i} must lie in 0..{len(ids) - 1}, {config.hidden_size} wide"
                )
        return ids
