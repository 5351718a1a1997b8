"""The commands together, and how their errors are shown."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperGroup

from ..errors import OxinferError
from .console import errors, harmless
from .convert import convert
from .generate import generate
from .inspect import inspect
from .perplexity import perplexity
from .serve import serve


class _Commands(TyperGroup):
    """Shows the errors that a user can meet as one line, without a traceback."""

    def invoke(self, ctx: Any) -> Any:
        """Run a command; exits with 1 after showing an error."""
        try:
            return super().invoke(ctx)
        except OxinferError as e:
            errors.print(harmless(f"error: {e}"), style="red", soft_wrap=True)
        except ModuleNotFoundError as e:
            if (e.name or "").startswith("oxinfer_web"):
                raise
            extra = "convert" if e.name in ("gguf", "safetensors") else "native"
            errors.print(f"error: package {e.name} is missing; pip install 'oxinfer-web[{extra}]'")
        raise typer.Exit(1)


app = typer.Typer(
    cls=_Commands,
    help="A language model in a web page: convert models for it, look at them, and run them in the terminal.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for command in (convert, inspect, generate, perplexity, serve):
    app.command()(command)
