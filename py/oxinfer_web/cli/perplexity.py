"""`oxinfer-web perplexity`."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import Annotated

import typer

from ..errors import ContextError, NumericError, OxinferError, SessionError
from ..models import config_from_folder
from ..tokens import token_ids
from .console import output
from .models import Kernel, open_session

_MOST = 700.0
"""Nats whose exponential is still a float."""


def perplexity(
    folder: Annotated[Path, typer.Argument(help="a model folder")],
    text: Annotated[Path | None, typer.Option(help="a text file")] = None,
    ids: Annotated[Path | None, typer.Option(help='a JSON list of token ids, or an object with "input_ids"')] = None,
    control_tokens: Annotated[
        bool, typer.Option("--control-tokens", help="take control tokens in the text, as <bos>, for what they are")
    ] = False,
    kernel: Annotated[Kernel, typer.Option(help="what runs the model")] = Kernel.relaxed,
    as_json: Annotated[bool, typer.Option("--json", help="print one line of JSON")] = False,
) -> None:
    """Measure how well a model predicts a text: mean negative log-likelihood (nats a token) and its exponential."""
    tokens = _tokens(folder, text, ids, control_tokens)
    session = open_session(folder, kernel, len(tokens))
    start = time.perf_counter()
    losses = session.nll(tokens)
    seconds = time.perf_counter() - start
    nll = math.fsum(losses) / len(losses)
    if nll > _MOST:
        raise NumericError(f"a mean of {nll:.4g} nats a token is beyond any text; are these the tokens of this model?")
    if as_json:
        numbers = {"nll": nll, "perplexity": math.exp(nll), "tokens": len(losses), "seconds": seconds}
        line = json.dumps({**numbers, "kernel": kernel.value})
        output.print(line, soft_wrap=True)
    else:
        output.print(f"nll {nll:.5f}  perplexity {math.exp(nll):.4f}  ({len(losses)} tokens in {seconds:.1f} s)")


def _tokens(folder: Path, text: Path | None, ids: Path | None, control_tokens: bool) -> list[int]:
    """The tokens to predict, at least two. Raises OxinferError for neither or both files, or one it cannot read."""
    if (text is None) == (ids is None):
        raise OxinferError("give the text to measure: either --text FILE or --ids FILE")
    config = config_from_folder(folder)
    try:
        if text is not None:
            from ..text import Text

            tokens = Text(folder).encode(text.read_text("utf-8"), control_tokens=control_tokens)
        else:
            assert ids is not None
            data = json.loads(ids.read_bytes())
            tokens = token_ids(data["input_ids"] if isinstance(data, dict) else data, config.vocab_size)
    except (OSError, ValueError, TypeError, KeyError, RecursionError, SessionError) as e:
        raise OxinferError(f"{text or ids}: cannot be read ({e})") from None
    most = config.max_position_embeddings
    if len(tokens) < 2:
        raise ContextError(f"{text or ids}: {len(tokens)} tokens; at least 2 are needed", len(tokens), most)
    if len(tokens) > most:
        raise ContextError(
            f"{text or ids}: {len(tokens)} tokens, more than the model's context of {most}; give a shorter text",
            len(tokens),
            most,
        )
    return tokens
