"""Sampling among candidates."""

from __future__ import annotations

import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from oxinfer_web import Candidates, Sampler, SessionError

LOGITS = st.lists(st.floats(-30, 30), min_size=1, max_size=64).map(lambda x: sorted(x, reverse=True))


@given(LOGITS, st.floats(0, 3), st.floats(0.01, 1), st.floats(0, 1), st.integers(0, 100))
def test_a_sample_is_one_of_the_candidates(x: list[float], t: float, top_p: float, min_p: float, seed: int) -> None:
    c = Candidates(list(range(len(x))), x, 0.0)
    token = Sampler(t, 64, top_p, min_p, seed).sample(c)
    assert token in c.ids and (t > 0 or token == 0)


def test_frequencies_follow_the_softmax() -> None:
    x = [math.log(p) for p in (0.5, 0.3, 0.2)]
    sampler = Sampler(1.0, 3, seed=1)
    n = 20000
    got = Counter(sampler.sample(Candidates([7, 8, 9], x, 0.0)) for _ in range(n))
    for token, p in zip((7, 8, 9), (0.5, 0.3, 0.2), strict=True):
        assert abs(got[token] / n - p) < 5 * math.sqrt(p * (1 - p) / n)  # five standard deviations


def test_top_p_and_min_p_cut_the_tail() -> None:
    x = [math.log(p) for p in (0.5, 0.3, 0.15, 0.05)]
    c = Candidates([1, 2, 3, 4], x, 0.0)
    assert {Sampler(1.0, 4, 0.75, seed=s).sample(c) for s in range(200)} == {1, 2}
    assert {Sampler(1.0, 4, 1.0, 0.2, seed=s).sample(c) for s in range(200)} == {1, 2, 3}


def test_a_seed_repeats() -> None:
    c = Candidates(list(range(64)), [0.0] * 64, 0.0)
    one, two = (Sampler(1.0, seed=5) for _ in range(2))
    assert [one.sample(c) for _ in range(20)] == [two.sample(c) for _ in range(20)]


@pytest.mark.parametrize(
    "bad", [{"temperature": -1}, {"temperature": math.inf}, {"top_k": 0}, {"top_k": 65}, {"top_p": 0}, {"min_p": 2}]
)
def test_values_that_mean_nothing(bad: dict[str, float]) -> None:
    with pytest.raises(SessionError):
        Sampler(**bad)
