"""The command line: `oxinfer-web` or `python -m oxinfer_web`. CPython only."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line; exits with 0, with 1 after an error of one line, or with 2 for wrong usage."""
    try:
        from .app import app
    except ImportError as e:
        sys.exit(f"error: package {e.name} is missing; pip install 'oxinfer-web[native]'")
    app()
