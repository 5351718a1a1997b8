"""Sessions: truncate, clone, embeddings given by the caller, limits."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import oxinfer_web as ox
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from oxinfer_web.program.records import PAGE
from support import TINY, expected

LOADS = {"numpy": ox.load_reference, "kernels": lambda d: ox.load(d, chunk=32, max_context=2048)}


@pytest.fixture(scope="module", params=LOADS)
def engines(request: pytest.FixtureRequest) -> dict[str, object]:
    fixtures = Path(__file__).parent.parent / "fixtures"
    return {case: LOADS[request.param](fixtures / case) for case in TINY}


def logits(session: ox.Session) -> np.ndarray:
    return np.array(session.logits())


def ids(n: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(3, 512, n).tolist()


@pytest.mark.parametrize("case", TINY)
def test_truncating_equals_never_having_gone_there(case: str, engines: dict) -> None:
    a, b = ox.Session(engines[case]), ox.Session(engines[case])
    prompt, detour, rest = ids(40), ids(21, 1), ids(9, 2)
    a.forward(prompt)
    a.forward(detour)
    a.truncate(40)
    a.forward(rest)
    b.forward(prompt)
    b.forward(rest)
    assert np.abs(logits(a) - logits(b)).max() < 1e-5
    assert a.tokens == b.tokens == prompt + rest


def test_truncating_further_than_a_ring_reaches(engines: dict) -> None:
    """The sliding layers' rings have gone past what is needed, so the session feeds again, on its own."""
    engine = engines["gemma4_e2b"]
    prompt, detour = ids(60), ids(8 * PAGE, 1)
    a, b = ox.Session(engine), ox.Session(engine)
    a.forward(prompt)
    a.forward(detour)
    a.truncate(50)
    assert a.position == 50
    a.forward([7])
    b.forward([*prompt[:50], 7])
    assert np.abs(logits(a) - logits(b)).max() < 1e-4
    a.forward([9])
    b.forward([9])
    assert np.abs(logits(a) - logits(b)).max() < 1e-4


@pytest.mark.parametrize("case", ["gemma4_31b", "gemma3"])
def test_long_contexts_wrap_the_rings(case: str, engines: dict) -> None:
    """Far past a ring's size, the answer is that of a reference that keeps everything."""
    fixtures = Path(__file__).parent.parent / "fixtures"
    prompt = ids(700, 3)
    a, b = ox.Session(engines[case]), ox.Session(ox.load_reference(fixtures / case))
    for session in (a, b):
        session.forward(prompt)
        for token in ids(5, 4):
            session.forward([token])
    assert np.abs(logits(a) - logits(b)).max() < 2e-3


@pytest.mark.parametrize("case", TINY)
def test_clone_goes_its_own_way(case: str, engines: dict) -> None:
    a = ox.Session(engines[case])
    a.forward(ids(150))
    b = a.clone()
    a.forward(ids(5, 1))
    b.forward(ids(5, 2))
    c = ox.Session(engines[case])
    c.forward(ids(150) + ids(5, 2))
    assert np.abs(logits(b) - logits(c)).max() < 1e-4
    a.forward([3])
    c.truncate(150)
    c.forward([*ids(5, 1), 3])
    a.truncate(155)
    a.forward([3])
    assert np.abs(logits(a) - logits(c)).max() < 1e-4


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.sampled_from(["feed", "back"]), st.integers(1, 40)), min_size=1, max_size=6))
def test_any_walk_equals_the_straight_way(engines: dict, steps: list[tuple[str, int]]) -> None:
    engine = engines["gemma4_e4b"]
    a = ox.Session(engine)
    for seed, (step, n) in enumerate([*steps, ("feed", 1)]):
        if step == "feed":
            a.forward(ids(n, seed))
        else:
            a.truncate(max(0, a.position - n))
    b = ox.Session(engine)
    b.forward(a.tokens)
    assert np.abs(logits(a) - logits(b)).max() < 1e-4
    a.close()
    b.close()


@pytest.mark.parametrize("case", TINY)
def test_a_tokens_own_embedding_given_changes_nothing_but_the_per_layer_lookup(case: str, engines: dict) -> None:
    engine = engines[case]
    prompt = ids(20)
    a, b = ox.Session(engine), ox.Session(engine)
    a.forward(prompt, {i: np.array(a.embed_scaled(prompt[i])) for i in (0, 7, 19)})
    if engine.config.has_ple:
        return
    b.forward(prompt)
    assert np.abs(logits(a) - logits(b)).max() < 1e-5


def test_given_embeddings_look_up_the_pad_token(engines: dict) -> None:
    """Feeding the pad token's embedding as an embedding is feeding the pad token."""
    engine = engines["gemma4_e2b"]
    pad, prompt = engine.config.pad_token_id, ids(20)
    a, b = ox.Session(engine), ox.Session(engine)
    a.forward(prompt, {5: np.array(a.embed_scaled(pad))})
    b.forward([*prompt[:5], pad, *prompt[6:]])
    assert np.abs(logits(a) - logits(b)).max() < 1e-5
    assert a.tokens == b.tokens
    a.forward([3])
    b.forward([3])
    assert np.abs(logits(a) - logits(b)).max() < 1e-5


@pytest.mark.parametrize("resident", [False, True])
def test_a_failed_step_with_given_embeddings_leaves_no_trace(
    fixtures: Path, resident: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither in the slots through which tokens find their rows, nor in the session."""
    engine = ox.load(fixtures / "gemma4_e2b", resident_tables=resident)
    a, b = ox.Session(engine), ox.Session(engine)

    def failing(*_: object) -> None:
        raise ox.KernelError("a thread died")

    with monkeypatch.context() as m:
        m.setattr(engine, "_run", failing)
        with pytest.raises(ox.KernelError):
            a.forward(ids(20), {2: [0.5] * 128, 11: [0.25] * 128})
    assert a.tokens == []
    for session in (b, a):
        session.forward(ids(20))
    after = logits(a)
    b.truncate(0)
    b.forward(ids(20))
    assert (after == logits(b)).all()
    assert np.abs(after - np.array(_reference_logits(fixtures / "gemma4_e2b", ids(20)))).max() < 2e-3


def _reference_logits(folder: Path, prompt: list[int]) -> np.ndarray:
    session = ox.Session(ox.load_reference(folder))
    session.forward(prompt)
    return logits(session)


def test_given_embeddings_agree_between_backends(fixtures: Path) -> None:
    x = np.random.default_rng(5).normal(size=(3, 128)).astype(np.float32)
    got = []
    for load in LOADS.values():
        session = ox.Session(load(fixtures / "gemma4_e2b"))
        got.append(np.asarray(session.forward_hidden(ids(40), {1: x[0], 33: x[1], 39: x[2]})))
    assert np.abs(got[0] - got[1]).max() < 2e-3


@pytest.mark.parametrize("case", TINY)
def test_embed_scaled_is_the_first_hidden_state(case: str, engines: dict) -> None:
    want = expected(case)
    session = ox.Session(engines[case])
    token = int(want["input_ids"][0, 3])
    assert np.abs(np.array(session.embed_scaled(token)) - want["hidden_0"][3]).max() < 1e-6


def test_nll_is_that_of_the_golden_logits(engines: dict) -> None:
    want = expected("gemma3")
    tokens = want["input_ids"][0]
    row = want["logits"].astype(np.float64)
    exact = np.log(np.exp(row).sum(-1))[:-1] - row[np.arange(47), tokens[1:]]
    got = ox.Session(engines["gemma3"]).nll(tokens.tolist())
    assert len(got) == 47 and np.abs(got - exact).max() < 1e-3


def test_candidates_are_the_largest_logits(engines: dict) -> None:
    session = ox.Session(engines["llama"])
    session.forward(ids(10))
    row, c = logits(session), session.candidates(20)
    order = np.argsort(-row, kind="stable")[:20]
    assert c.ids == order.tolist() and np.allclose(c.logits, row[order], atol=0)
    assert abs(c.log_sum_exp - np.log(np.exp(row.astype(np.float64)).sum())) < 1e-4


@pytest.mark.parametrize(
    ("feed", "says"),
    [
        ([], "no tokens"),
        ([512], "token 512 is none"),
        ([-1], "token -1 is none"),
        ([3] * 3000, "more than the context"),
    ],
)
def test_what_cannot_be_fed(fixtures: Path, feed: list[int], says: str) -> None:
    session = ox.Session(ox.load(fixtures / "llama"))
    session.forward(ids(5))
    before = logits(session)
    with pytest.raises(ox.SessionError, match=says):
        session.forward(feed)
    assert session.position == 5 and (logits(session) == before).all()


def test_other_misuse(fixtures: Path) -> None:
    session = ox.Session(ox.load(fixtures / "llama"))
    session.forward(ids(5))
    with pytest.raises(ox.SessionError, match="cannot truncate to 6"):
        session.truncate(6)
    with pytest.raises(ox.SessionError, match="embedding given at 2"):
        session.forward([3], {2: [0.0] * 192})
    with pytest.raises(ox.SessionError, match="65 candidates"):
        session.candidates(65)


def test_pages_are_used_again(fixtures: Path) -> None:
    engine = ox.load(fixtures / "gemma4_e2b")
    sizes = []
    for _ in range(3):
        session = ox.Session(engine)
        session.forward(ids(300))
        session.close()
        sizes.append(engine.memory()["kv"])
    assert sizes[1] == sizes[2]


@pytest.mark.parametrize("case", TINY)
def test_advance_is_forward_for_one_token(case: str, engines: dict) -> None:
    a, b = ox.Session(engines[case]), ox.Session(engines[case])
    assert not a.advance(5)  # nothing has been fed: the general way has to begin
    for session in (a, b):
        session.forward(ids(10))
    for token in ids(4, 1):
        assert a.advance(token)
        b.forward([token])
    assert (logits(a) == logits(b)).all() and a.tokens == b.tokens
    assert not a.advance(512) and not a.advance(-1) and a.position == 14
    a.truncate(12)
    assert a.advance(7) and a.position == 13


def test_threads_that_are_played_are_said_to_be(fixtures: Path) -> None:
    with pytest.warns(UserWarning, match="threads=2 makes nothing faster in CPython"):
        slow = ox.load(fixtures / "llama", threads=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plain = ox.load(fixtures / "llama")
    one, other = (list(ox.generate_sync(ox.Session(engine), ids(5), max_tokens=3)) for engine in (slow, plain))
    assert one == other
