"""llama.cpp on the machine itself. Runs under a Python that has llama_cpp, and needs nothing else.

Reads a JSON object a line and answers with one: {"model", "threads", "context"} loads a GGUF file and gives
llama-cpp-python's version, {"ids", "generate"} measures a prompt of token ids and as many single tokens after it, in
tokens a second.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from llama_cpp import Llama, __version__


def load(model: str, threads: int, context: int) -> Llama:
    """The model, with as many threads for prompts as for tokens."""
    return Llama(model, n_ctx=context, n_threads=threads, n_threads_batch=threads, n_batch=512, verbose=False)


def measure(llama: Llama, ids: list[int], generate: int) -> dict[str, float]:
    """One pass. What is fed after the prompt does not matter for speed: the prompt again."""
    llama.reset()
    start = time.perf_counter()
    llama.eval(ids)
    middle = time.perf_counter()
    for i in range(generate):
        llama.eval([ids[i % len(ids)]])
    end = time.perf_counter()
    return {"prefill_tok_s": len(ids) / (middle - start), "decode_tok_s": generate / (end - middle)}


def main() -> None:
    """Answer requests until there are no more."""
    llama: Llama | None = None
    for line in sys.stdin:
        request: dict[str, Any] = json.loads(line)
        if "model" in request:
            llama = load(**request)
            answer: dict[str, Any] = {"version": __version__}
        else:
            assert llama is not None
            answer = measure(llama, **request)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
