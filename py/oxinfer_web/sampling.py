"""Choosing the next token among the candidates that the kernels leave."""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any

from .backend import TOP_K, Candidates
from .errors import SessionError
from .session import Session


@dataclass
class Sampler:
    """temperature 0 is greedy; else softmax(logits / temperature) over the top_k likeliest, cut to the smallest set
    that holds top_p of their probability and to those at least min_p times as likely as the first."""

    temperature: float = 0.0
    top_k: int = TOP_K
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    _random: random.Random = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Raises SessionError for values that mean nothing."""
        if not (_is_number(self.temperature) and self.temperature >= 0):
            raise SessionError(f"temperature {self.temperature!r} must be 0 (greedy) or a positive number")
        if not (_is_integer(self.top_k) and 1 <= self.top_k <= TOP_K):
            raise SessionError(f"top_k {self.top_k!r} must be an integer, 1 to {TOP_K}")
        if not (_is_number(self.top_p) and 0 < self.top_p <= 1):
            raise SessionError(f"top_p {self.top_p!r} must be a number above 0, at most 1")
        if not (_is_number(self.min_p) and 0 <= self.min_p <= 1):
            raise SessionError(f"min_p {self.min_p!r} must be a number from 0 to 1")
        if not (self.seed is None or _is_integer(self.seed)):
            raise SessionError(f"seed {self.seed!r} must be an integer, or None for another answer every time")
        self._random = random.Random(self.seed)

    @classmethod
    def of(
        cls,
        defaults: Mapping[str, float],
        *,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        min_p: float | None = None,
        seed: int | None = None,
    ) -> Sampler:
        """A sampler with these settings, and for those that are None a model's own (`TextConfig.sampling`)."""
        if top_k is None:
            top_k = min(int(defaults.get("top_k", TOP_K)), TOP_K)

        def choice(given: float | None, name: str, otherwise: float) -> float:
            return defaults.get(name, otherwise) if given is None else given

        temperature = choice(temperature, "temperature", 0.0)
        return cls(temperature, top_k, choice(top_p, "top_p", 1.0), choice(min_p, "min_p", 0.0), seed)

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


def _is_number(value: object) -> bool:
    """Whether a value is a finite number, a numpy one too; NaN and True are none."""
    number: Any = value
    return isinstance(value, Real) and not isinstance(value, bool) and bool(abs(number) <= sys.float_info.max)


def _is_integer(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)
