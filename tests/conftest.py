"""Fixtures that all tests share."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import FIXTURES


@pytest.fixture
def fixtures() -> Path:
    return FIXTURES
