"""JavaScript's errors carry the names of the classes in `errors`, and become them here."""

from __future__ import annotations

from typing import Any

from .. import errors


def ours(e: Any) -> Exception:
    """A JavaScript error that carries the name of one of our classes as that class, any other as it is."""
    kind = getattr(errors, str(e.name), None)
    if isinstance(kind, type) and issubclass(kind, errors.OxinferError):
        return kind(str(e.message))
    assert isinstance(e, Exception)
    return e
