"""Every test of a kernel runs on both builds, with one thread and with three.

The relaxed build runs with the machine's own dot product, and with the one of WebAssembly's deterministic profile.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .machine import Machine


@pytest.fixture(
    scope="session",
    params=[("relaxed", 1), ("relaxed", 3), ("simd", 1), ("simd", 3), ("relaxed", 1, True)],
    ids=lambda p: f"{p[0]}-{p[1]}{'-deterministic' if len(p) > 2 else ''}",
)
def machine_once(request: pytest.FixtureRequest) -> Iterator[Machine]:
    """One machine for all tests that want the same."""
    yield Machine(*request.param)


@pytest.fixture
def machine(machine_once: Machine) -> Machine:
    """A machine with all its memory free."""
    machine_once.reset()
    return machine_once
