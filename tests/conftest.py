"""Fixtures that all tests share."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import FIXTURES


@pytest.fixture
def fixtures() -> Path:
    return FIXTURES


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Browser tests last: they take longest, and Playwright leaves an event loop running in the tests' thread."""
    items.sort(key=lambda item: "browser" in item.path.parts)
