"""What is measured, section by section; each gives rows with the targets that must hold."""

from __future__ import annotations

import random
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from . import kernels
from .browser import BUILD, PAGES, ROOT, Browser, npm_name
from .engines import Engine, Native, Ours, Prompt, Wllama, in_turns, native_python
from .gguf_files import cache_folder, gguf_of
from .make_shape import make_shape
from .onnx_model import write_matmul_q4
from .report import Row

PROMPT_TOKENS = 512
GENERATE = 64
PEER_CONTEXT = 1024
LONG_PROMPT, SHORT_PROMPT = 4096, 128
IDLE_S = 10
SHAPE_CONTEXT = 2048
SHAPE_PROMPT = 256
QUESTION = "The capital of France is"


@dataclass(frozen=True)
class Settings:
    """How everything is measured."""

    threads: int = 2
    rounds: int = 3


Section = Callable[[Browser, Settings], Iterator[Row]]


@dataclass(frozen=True)
class Targets:
    """The least ratio to each peer, in decode and prefill; None where there is none."""

    decode_wllama: float
    decode_native: float | None
    prefill_wllama: float | None
    prefill_native: float | None


MODELS = {
    "gemma3-270m-q4": Targets(6.5, 0.5, 10, 0.28),
    "gemma3-270m-q8": Targets(4.5, 1.0, 6, 0.28),
    "smollm2-135m-q8": Targets(3.5, None, None, None),
}


def speed(browser: Browser, settings: Settings) -> Iterator[Row]:
    """Decode and prefill beside wllama and native llama.cpp."""
    python = native_python()
    for model, targets in MODELS.items():
        gguf = gguf_of(model)
        ours = Ours(browser, f"models/{model}", settings.threads, maxContext=PEER_CONTEXT)
        engines: dict[str, Engine] = {
            "ours": ours,
            "wllama": Wllama(browser, f"../gguf/{gguf.name}", settings.threads, PEER_CONTEXT),
        }
        if python:
            engines["llama.cpp"] = Native(python, gguf, settings.threads, PEER_CONTEXT)
        results = in_turns(engines, ours.prompt(SHORT_PROMPT), ours.prompt(PROMPT_TOKENS), GENERATE, settings.rounds)
        for engine in engines.values():
            engine.close()
        for measure, wllama, native in (
            ("decode", targets.decode_wllama, targets.decode_native),
            ("prefill", targets.prefill_wllama, targets.prefill_native),
        ):
            for peer, target in (("wllama", wllama), ("llama.cpp", native)):
                if peer in results:
                    name = f"{measure}_tok_s"
                    yield Row(
                        "speed",
                        f"{measure}, {model}",
                        "tok/s",
                        tuple(results["ours"][name]),
                        engines[peer].name,
                        tuple(results[peer][name]),
                        target,
                    )
        overhead = tuple(results["ours"]["overhead_ms"])
        yield Row("speed", f"Python and JavaScript a token, {model}", "ms", overhead, target=0.3, most=True)


def threads(browser: Browser, settings: Settings) -> Iterator[Row]:
    """Two threads beside one."""
    for model in ("gemma3-270m-q4", "gemma3-270m-q8"):
        engines = {f"{n}": Ours(browser, f"models/{model}", n, maxContext=PEER_CONTEXT) for n in (1, 2)}
        short, prompt = (engines["1"].prompt(n) for n in (SHORT_PROMPT, PROMPT_TOKENS))
        results = in_turns(engines, short, prompt, GENERATE, settings.rounds)
        for engine in engines.values():
            engine.close()
        for measure in ("decode", "prefill"):
            one, two = (tuple(results[n][f"{measure}_tok_s"]) for n in ("1", "2"))
            yield Row("threads", f"{measure}, 2 threads, {model}", "tok/s", two, "1 thread", one, 1.8)
    one, two = (tuple(kernels.read_speeds(browser, n, settings.rounds)) for n in (1, 2))
    yield Row("threads", "plain read, 2 threads", "GB/s", two, "1 thread", one)


def context(browser: Browser, settings: Settings) -> Iterator[Row]:
    """Decode after a long prompt beside decode after a short one."""
    engine = Ours(browser, "models/gemma3-270m-q8", settings.threads, maxContext=LONG_PROMPT + GENERATE)
    prompts = [engine.prompt(n) for n in (SHORT_PROMPT, LONG_PROMPT)]
    engine.measure(prompts[0], GENERATE)
    short, long = [], []
    for _ in range(settings.rounds):
        short.append(engine.measure(prompts[0], GENERATE)["decode_tok_s"])
        long.append(engine.measure(prompts[1], GENERATE)["decode_tok_s"])
    engine.close()
    measure = f"decode at {LONG_PROMPT} tokens, gemma3-270m-q8"
    yield Row("context", measure, "tok/s", tuple(long), f"at {SHORT_PROMPT}", tuple(short), 0.7)


def kernel_speeds(browser: Browser, settings: Settings) -> Iterator[Row]:
    """GEMV beside plain reading, GEMM beside onnxruntime-web."""
    gemv = {k: tuple(v) for k, v in kernels.gemv_speeds(browser, settings.threads, settings.rounds).items()}
    for quant, target in (("q4", 0.40), ("q8", 0.75)):
        yield Row("kernels", f"{quant.upper()} times 1 vector", "GB/s", gemv[quant], "plain read", gemv["read"], target)
    gemm = kernels.gemm_speeds(browser, f"../{ONNX_FILE}", settings.threads, settings.rounds)
    measure = f"Q4 times {kernels.GEMM_TOKENS} vectors"
    yield Row(
        "kernels", measure, "GOP/s", tuple(gemm["q4"]), npm_name("onnxruntime-web"), tuple(gemm["onnxruntime"]), 2.5
    )


def start(browser: Browser, settings: Settings) -> Iterator[Row]:
    """From opening the page to the first token, beside wllama's loading alone."""
    model = "gemma3-270m-q8"
    request = {"model": f"models/{model}", "threads": settings.threads, "prompt": QUESTION}
    loads, firsts, peers = [], [], []
    for visit in range(settings.rounds + 1):
        browser.rest()
        tab = browser.open("bench.html")
        times = tab.call("oxinfer.firstToken", request)
        tab.close()
        browser.rest()
        peer = Wllama(browser, f"../gguf/{gguf_of(model).name}", settings.threads, PEER_CONTEXT)
        peer.close()
        if visit:  # the first one brings the model into the browser
            loads.append(times["loaded"] / 1000)
            firsts.append(times["first"] / 1000)
            peers.append(peer.load_ms / 1000)
    yield Row("start", f"first token, {model}", "s", tuple(firsts), f"{peer.name} loads", tuple(peers), 1.0, most=True)
    yield Row("start", f"of that until the model is loaded, {model}", "s", tuple(loads))


def idle(browser: Browser, settings: Settings) -> Iterator[Row]:
    """CPU use of a page after its answer."""
    engine = Ours(browser, "models/gemma3-270m-q8", settings.threads)
    shares = []
    for _ in range(settings.rounds):
        engine.tab.call("oxinfer.answer", {"prompt": QUESTION, "tokens": GENERATE})
        engine.tab.pause(1000 * IDLE_S)
        before = engine.tab.cpu_seconds()
        engine.tab.pause(1000 * IDLE_S)
        shares.append(100 * (engine.tab.cpu_seconds() - before) / IDLE_S)
    engine.close()
    yield Row("idle", "CPU of an idle page", "% of a core", tuple(shares), target=2, most=True)


def shapes(browser: Browser, settings: Settings) -> Iterator[Row]:
    """Memory and speed of models too large to ship."""
    rng = random.Random(0)
    prompt = Prompt([rng.randrange(1000, 100_000) for _ in range(SHAPE_PROMPT)])
    for name, memory, decode, prefill in (("e2b", 1.7, 9, 60), ("e4b", 3.2, None, None)):
        make_shape_once(name)
        engine = Ours(browser, f"shapes/{name}", settings.threads, maxContext=SHAPE_CONTEXT, tokenizer=False)
        passes = [engine.measure(prompt, GENERATE // 2) for _ in range(settings.rounds)]
        engine.close()
        speeds = {m: tuple(p[f"{m}_tok_s"] for p in passes) for m in ("decode", "prefill")}
        yield Row(
            "shapes", f"memory, {name.upper()}", "GB", (passes[0]["memory"]["total"] / 1e9,), target=memory, most=True
        )
        yield Row("shapes", f"decode, {name.upper()}", "tok/s", speeds["decode"], target=decode)
        yield Row("shapes", f"prefill, {name.upper()}", "tok/s", speeds["prefill"], target=prefill)


SECTIONS: dict[str, Section] = {
    "speed": speed,
    "threads": threads,
    "context": context,
    "kernels": kernel_speeds,
    "start": start,
    "idle": idle,
    "shapes": shapes,
}
"""shapes is run on request only: it needs some 7 GB of disk."""


ONNX_FILE = "matmul_q4.onnx"


def make_shape_once(name: str) -> Path:
    """A checkpoint of a real model's shape in the cache."""
    folder = cache_folder() / "shapes" / name
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        make_shape(ROOT / "tests" / "fixtures" / f"hub_config_{name}.json", folder)
    return folder


def links() -> dict[str, Path]:
    """What the site needs beside pages and models, made if it is not there."""
    BUILD.mkdir(parents=True, exist_ok=True)
    onnx, reader = BUILD / ONNX_FILE, BUILD / "read.wasm"
    if not onnx.exists():
        write_matmul_q4(onnx, kernels.COLUMNS, kernels.GEMM_ROWS)
    wat2wasm = shutil.which("wat2wasm")
    if wat2wasm is None:
        raise SystemExit("wat2wasm is not here; install wabt")
    subprocess.run([wat2wasm, "--enable-threads", str(PAGES / "read.wat"), "-o", str(reader)], check=True)
    places = {"gguf": cache_folder() / "gguf", "shapes": cache_folder() / "shapes"}
    for place in places.values():
        place.mkdir(parents=True, exist_ok=True)
    return {ONNX_FILE: onnx, "read.wasm": reader, **places}
