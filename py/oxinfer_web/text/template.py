"""Rendering chat templates, in the environment that they are written for (transformers')."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from functools import lru_cache
from typing import Any, NoReturn

from jinja2 import Template, TemplateError, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from ..errors import OxinferError


class _Generation(Extension):
    """{% generation %} ... {% endgeneration %}, which marks what the model says for training: here it says it."""

    tags = {"generation"}  # noqa: RUF012 - as jinja2 declares it

    def parse(self, parser: Parser) -> nodes.Node:
        """Its body in a scope of its own."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller: Any) -> str:
        return str(caller())


def _raise(message: str) -> NoReturn:
    raise TemplateError(message)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as it is; jinja2's own filter writes it for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


@lru_cache(maxsize=8)
def _compile(template: str) -> Template:
    env = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _Generation]
    )
    env.filters["tojson"] = _tojson
    env.globals["raise_exception"] = _raise
    env.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return env.from_string(template)


def render(template: str, variables: Mapping[str, Any]) -> str:
    """The text a chat template makes. Raises OxinferError if it cannot be read or refuses the conversation."""
    try:
        return _compile(template).render(**variables)
    except TemplateError as e:
        raise OxinferError(f"the chat template refuses the conversation ({e})") from None
    except (TypeError, ValueError, ArithmeticError, LookupError, AttributeError, RecursionError) as e:
        raise OxinferError(f"the chat template fails on the conversation ({type(e).__name__}: {e})") from None
