"""What layers keep between steps, without kernels: memory here is a bytearray. And what a session runs again."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np
import oxinfer_web as ox
import pytest
from oxinfer_web.enums import KVType
from oxinfer_web.kv import KVCache, KVMemory
from oxinfer_web.ops import FixedState, KVPages, LayerState
from oxinfer_web.program.records import PAGE
from support import FIXTURES

CHUNK, CONTEXT = 32, 16 * PAGE


class Memory:
    """As much of `runtime.Kernels` as a KVMemory needs."""

    def __init__(self) -> None:
        self.data = bytearray(64)

    def alloc(self, nbytes: int, align: int = 64) -> int:
        at = len(self.data)
        self.data += bytes((nbytes + align - 1) // align * align)
        return at

    def write(self, addr: int, data: bytes) -> None:
        self.data[addr : addr + len(data)] = data

    def read(self, addr: int, nbytes: int) -> bytes:
        return bytes(self.data[addr : addr + nbytes])

    def copy(self, dst: int, src: int, nbytes: int) -> None:
        self.data[dst : dst + nbytes] = self.data[src : src + nbytes]


def memory(*states: LayerState) -> tuple[Memory, KVMemory]:
    kernels = Memory()
    return kernels, KVMemory(kernels, states, KVType.F32, CONTEXT, CHUNK)  # type: ignore[arg-type]


def write(kv: KVMemory, cache: KVCache, first: int, last: int) -> None:
    """Reserve as steps do."""
    for at in range(first, last, CHUNK):
        kv.reserve(cache, min(at + CHUNK, last))


def described(kernels: Memory, kv: KVMemory, state: LayerState, cache: KVCache) -> list[int]:
    """Addresses of a state's pages, as ops find them; unused ones are 0."""
    kv.bind(cache)
    table, pages = struct.unpack("<II", kernels.read(int(kv.places()[state]), 8))
    return list(struct.unpack(f"<{pages}I", kernels.read(table, 4 * pages)))


FULL, SLIDING, FIXED = KVPages(0, 1, 8), KVPages(1, 1, 8, window=40), FixedState(2, 48)


def test_pages_are_added_and_rings_wrap() -> None:
    kernels, kv = memory(FULL, SLIDING)
    cache = kv.new()
    write(kv, cache, 0, 5 * PAGE + 1)
    full, ring = (described(kernels, kv, s, cache) for s in (FULL, SLIDING))
    assert len(full) == 16 and full.count(0) == 10 and len(ring) == 3 and 0 not in ring
    assert len(set(full + ring)) == 10  # six pages, three pages, and none


@pytest.mark.parametrize(
    ("states", "written", "back", "kept"),
    [
        ((FULL,), 900, 0, 0),
        ((FULL,), 900, 1, 1),
        ((FULL, SLIDING), 384, 10, 10),  # the ring has not wrapped
        ((FULL, SLIDING), 900, 900 - 384 + 39, 900 - 384 + 39),  # the window's first is the oldest that is left
        ((FULL, SLIDING), 900, 900 - 384 + 38, 0),
        ((FULL, SLIDING, KVPages(3, 1, 8, window=900)), 1600, 900, 0),  # the shorter window decides
        ((FULL, FIXED), 900, 899, 0),
        ((FULL, FIXED), 900, 900, 900),
    ],
)
def test_how_far_back_one_can_go(states: Sequence[LayerState], written: int, back: int, kept: int) -> None:
    _, kv = memory(*states)
    cache = kv.new()
    write(kv, cache, 0, written)
    assert kv.rewind(cache, back) == kept


def test_a_sequence_begun_again_has_lost_nothing() -> None:
    _, kv = memory(FULL, SLIDING)
    cache = kv.new()
    write(kv, cache, 0, 1500)
    assert kv.rewind(cache, 300) == 0
    write(kv, cache, 0, 330)
    assert kv.rewind(cache, 300) == 300 and kv.clone(cache, 300).written == 330
    write(kv, cache, 300, 310)
    assert kv.rewind(cache, 5) == 5


def test_a_fixed_state_is_copied_and_begins_with_zeros() -> None:
    kernels, kv = memory(FULL, FIXED)
    cache = kv.new()
    write(kv, cache, 0, 10)
    (page,) = described(kernels, kv, FIXED, cache)
    assert kernels.read(page, 48) == bytes(48)
    kernels.write(page, b"x" * 48)
    other = kv.clone(cache, 10)
    (copy,) = described(kernels, kv, FIXED, other)
    assert copy != page and kernels.read(copy, 48) == b"x" * 48
    assert kv.rewind(cache, 9) == 0 and kernels.read(page, 48) == bytes(48)
    kv.free(other)
    again = kv.new()
    write(kv, again, 0, 1)
    assert described(kernels, kv, FIXED, again) == [copy] and kernels.read(copy, 48) == bytes(48)


# What a session runs: a long conversation, then turns of a short one.


@pytest.fixture(scope="module")
def engine() -> ox.Engine:
    return ox.load(FIXTURES / "gemma3", chunk=CHUNK, max_context=2048)


def ids(n: int, seed: int) -> list[int]:
    out: list[int] = np.random.default_rng(seed).integers(3, 512, n).tolist()
    return out


LONG, SHORT = ids(900, 1), ids(300, 2)


def after_a_truncation(engine: ox.Engine) -> ox.Session:
    session = ox.Session(engine)
    session.forward(LONG)
    session.truncate(0)
    session.forward(SHORT)
    return session


def after_a_truncation_to_a_common_beginning(engine: ox.Engine) -> ox.Session:
    session = ox.Session(engine)
    session.forward([*SHORT[:20], *LONG])
    session.truncate(20)
    session.forward(SHORT[20:])
    return session


def a_clone(engine: ox.Engine) -> ox.Session:
    return after_a_truncation(engine).clone()


def a_clone_of_what_has_to_be_fed_again(engine: ox.Engine) -> ox.Session:
    session = ox.Session(engine)
    session.forward([*SHORT[:20], *LONG])
    session.truncate(20)
    clone = session.clone()
    clone.forward(SHORT[20:])
    return clone


def fail_after(engine: ox.Engine, steps: int, session: ox.Session) -> None:
    """Let a long prompt fail in its middle."""
    run, calls = engine._run, []

    def failing(*args: object) -> None:
        calls.append(args)
        if len(calls) > steps:
            raise ox.KernelError("a thread died")
        run(*args)  # type: ignore[arg-type]

    engine._run = failing  # type: ignore[method-assign, assignment]
    try:
        with pytest.raises(ox.KernelError):
            session.forward(LONG)
    finally:
        del engine._run  # type: ignore[method-assign]


def after_an_error(engine: ox.Engine) -> ox.Session:
    """In the middle of a long prompt, far enough for what was there before to be overwritten."""
    session = ox.Session(engine)
    session.forward(SHORT)
    fail_after(engine, 27, session)
    assert session.tokens == SHORT and session.cached == 0
    session.truncate(299)
    session.forward(SHORT[299:])
    return session


def after_an_error_from_the_beginning(engine: ox.Engine) -> ox.Session:
    session = ox.Session(engine)
    session.forward([3])
    session.truncate(0)
    fail_after(engine, 27, session)
    session.forward(SHORT)
    return session


def after_an_error_in_decoding(engine: ox.Engine) -> ox.Session:
    session = after_a_truncation(engine)
    advance = engine._one_token

    def failing(token: int, position: int) -> bool:
        raise ox.KernelError("a thread died")

    engine._one_token = failing
    try:
        with pytest.raises(ox.KernelError):
            session.advance(3)
    finally:
        engine._one_token = advance
    assert session.position == session.cached == 300
    return session


def after_close(engine: ox.Engine) -> ox.Session:
    session = ox.Session(engine)
    session.forward(LONG)
    session.close()
    session.forward(SHORT)
    return session


@pytest.mark.parametrize(
    "way",
    [
        after_a_truncation,
        after_a_truncation_to_a_common_beginning,
        a_clone,
        a_clone_of_what_has_to_be_fed_again,
        after_an_error,
        after_an_error_from_the_beginning,
        after_an_error_in_decoding,
        after_close,
    ],
)
def test_turns_after_a_long_conversation_run_only_what_is_new(way: object, engine: ox.Engine) -> None:
    session = way(engine)  # type: ignore[operator]
    fresh = ox.Session(engine)
    fresh.forward(SHORT)
    for turn in range(3):
        new = ids(20, 10 + turn)
        for s in (session, fresh):
            s.truncate(s.position - 5)
            before = s.prof["tokens"]
            s.forward(new)
            assert s.prof["tokens"] - before == 20
        assert np.array_equal(np.array(session.logits()), np.array(fresh.logits()))
    session.close()
    fresh.close()
