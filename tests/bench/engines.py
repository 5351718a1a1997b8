"""Our engine and its peers behind one face: loaded once, then measured pass by pass, in turns."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from .browser import Browser, Tab, npm_name

Speeds = dict[str, list[float]]
"""By name of a measure (prefill_tok_s, decode_tok_s, overhead_ms), its value in each round."""


@dataclass(frozen=True)
class Prompt:
    """Token ids, and the text that they are."""

    ids: Sequence[int]
    text: str = ""


class Engine(Protocol):
    """A model that is loaded and waits."""

    @property
    def name(self) -> str:
        """What it is called in a comparison, with its version."""

    def measure(self, prompt: Prompt, generate: int) -> Mapping[str, Any]:
        """prefill_tok_s and decode_tok_s, at least, of one pass."""

    def close(self) -> None:
        """Give its memory back."""


class Ours:
    """This project in Chromium."""

    name = "here"

    def __init__(self, browser: Browser, model: str, threads: int, **options: Any) -> None:
        """model: a folder of the site; options: as window.oxinfer.open takes them."""
        self.tab: Tab = browser.open("bench.html")
        self.info = self.tab.call("oxinfer.open", {"model": model, "threads": threads, **options})
        if self.info["threads"] != threads:
            raise RuntimeError(f"{model}: {self.info['threads']} threads run where {threads} were asked for")

    def prompt(self, tokens: int) -> Prompt:
        """The first tokens of the prompt text."""
        return Prompt(**self.tab.call("oxinfer.prompt", tokens))

    def measure(self, prompt: Prompt, generate: int) -> Mapping[str, Any]:
        """One pass after one to warm up; overhead_ms and memory too."""
        self.tab.pause()
        result: Mapping[str, Any] = self.tab.call("oxinfer.measure", {"ids": prompt.ids, "generate": generate})
        return result

    def close(self) -> None:
        """End the page."""
        self.tab.close()


class Wllama:
    """llama.cpp's WebAssembly build, as npm's @wllama/wllama has it, in the same Chromium."""

    def __init__(self, browser: Browser, model: str, threads: int, context: int) -> None:
        """model: address of a GGUF file, from the site's pages/."""
        self.name = npm_name("@wllama/wllama")
        self._tab = browser.open("pages/wllama.html")
        options = {"model": model, "threads": threads, "context": context}
        self.load_ms = float(self._tab.call("load", options))

    def measure(self, prompt: Prompt, generate: int) -> Mapping[str, Any]:
        """One pass. Raises RuntimeError if wllama made another number of tokens of the prompt's text."""
        self._tab.pause()
        result: Mapping[str, Any] = self._tab.call("measure", {"prompt": prompt.text, "generate": generate})
        if (result["prompt_tokens"], result["generated_tokens"]) != (len(prompt.ids), generate):
            raise RuntimeError(f"wllama took {result['prompt_tokens']} tokens and gave {result['generated_tokens']}")
        return result

    def close(self) -> None:
        """End the page."""
        self._tab.close()


class Native:
    """llama.cpp on the machine itself, in a process of its own."""

    def __init__(self, python: str, model: Path, threads: int, context: int) -> None:
        script = str(Path(__file__).with_name("llama_native.py"))
        self._process = subprocess.Popen([python, script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        ready = self._ask({"model": str(model), "threads": threads, "context": context})
        self.name = f"llama-cpp-python {ready['version']}"

    def _ask(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"{self._process.args!r} ended with status {self._process.wait()}")
        result: Mapping[str, Any] = json.loads(answer)
        return result

    def measure(self, prompt: Prompt, generate: int) -> Mapping[str, Any]:
        """One pass."""
        return self._ask({"ids": prompt.ids, "generate": generate})

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait()


def native_python() -> str | None:
    """A Python that has llama_cpp: $OXINFER_LLAMA_CPP_PYTHON, or this one; None without."""
    python = os.environ.get("OXINFER_LLAMA_CPP_PYTHON") or sys.executable
    found = subprocess.run([python, "-c", "import llama_cpp"], capture_output=True, check=False).returncode == 0
    return python if found else None


def in_turns(
    engines: Mapping[str, Engine], short: Prompt, prompt: Prompt, generate: int, rounds: int
) -> dict[str, Speeds]:
    """Measure every engine once a round: the machine's own ups and downs then meet all of them alike.

    A first pass over the short prompt does not count: it lets each of them settle.
    """
    out: dict[str, Speeds] = {name: {} for name in engines}
    for engine in engines.values():
        engine.measure(short, 8)
    for _ in range(rounds):
        for name, engine in engines.items():
            for measure, value in engine.measure(prompt, generate).items():
                if isinstance(value, int | float):
                    out[name].setdefault(measure, []).append(float(value))
    return out
