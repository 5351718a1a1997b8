"""Every test of a kernel runs on both builds, with one thread and with three."""

from __future__ import annotations

import pytest

from .machine import Machine

_machines: dict[tuple[str, int], Machine] = {}


@pytest.fixture(params=[("relaxed", 1), ("relaxed", 3), ("simd", 1), ("simd", 3)], ids=lambda p: f"{p[0]}-{p[1]}")
def machine(request: pytest.FixtureRequest) -> Machine:
    """A machine with all its memory free."""
    key = request.param
    if key not in _machines:
        _machines[key] = Machine(*key)
    _machines[key].reset()
    return _machines[key]
