"""Choosing the next token among the candidates that the kernels leave."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field

from .errors import SessionError
from .session import Candidates, Session


@dataclass
class Sampler:
    """temperature 0 is greedy; else softmax(logits / temperature) over the top_k likeliest, cut to the smallest set
    that holds top_p of their probability and to those at least min_p times as likely as the first."""

    temperature: float = 0.0
    top_k: int = 64
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    _random: random.Random = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Raises SessionError for values that mean nothing."""
        if not (self.temperature >= 0 and math.isfinite(self.temperature)):
            raise SessionError(f"temperature {self.temperature} must be 0 (greedy) or a positive number")
        if not 1 <= self.top_k <= 64:
            raise SessionError(f"top_k {self.top_k} must be 1 to 64")
        if not 0 < self.top_p <= 1 or not 0 <= self.min_p <= 1:
            raise SessionError(f"top_p {self.top_p} must be in (0, 1] and min_p {self.min_p} in [0, 1]")
        self._random = random.Random(self.seed)

    def choose(self, session: Session) -> int:
        """The next token of a session that has been fed."""
        return session.likeliest() if self.temperature == 0 else self.sample(session.candidates(self.top_k))

    def sample(self, c: Candidates) -> int:
        """The chosen token."""
        if self.temperature == 0:
            return c.ids[0]
        top = c.logits[0]
        weights = [math.exp((logit - top) / self.temperature) for logit in c.logits]
        keep, total, limit = 0, 0.0, self.top_p * sum(weights)
        while keep < len(weights) and (keep == 0 or (total < limit and weights[keep] >= self.min_p)):
            total += weights[keep]
            keep += 1
        return self._random.choices(c.ids[:keep], weights[:keep])[0]
