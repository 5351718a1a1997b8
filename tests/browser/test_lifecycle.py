"""Whatever becomes of a model, a worker or the connection: every call settles, and the page can go on."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from oxinfer_web.checkpoint import Checkpoint
from playwright.sync_api import Page

from .conftest import DIST
from .host import Host
from .models import endless

LONG = 30_000
"""Tokens of an answer that is not over before the test is."""

WORKERS = """
const Plain = Worker;
window.workers = [];
window.Worker = class extends Plain {
  constructor(...args) { super(...args); window.workers.push(this); }
};
"""
"""Lets a page reach the workers that it starts: the engine, then the tokenizer."""
MORTAL = b"""
{
  const Plain = Worker, threads = [];
  self.Worker = class extends Plain { constructor(...args) { super(...args); threads.push(this); } };
  new BroadcastChannel('end').onmessage = ({ data }) => {
    if (data === 'engine') self.close();
    if (data === 'thread') threads[0].terminate();
  };
}
"""
"""Put before the engine worker's script: it, or one of its threads, ends when it is told."""
HELPERS = """
  window.load = (options) => window.api.Oxinfer.load('made/long/', { maxContext: 40000, threads: 2, ...options });
  // What becomes of a promise.
  window.fate = (promise) => promise.then(
    (value) => ({ value }),
    (e) => ({ name: e.name, message: e.message, ours: e instanceof window.api.OxinferError }),
  );
  // Resolves when the page watches the lives of exactly these. (wait_for_function does not wait for promises.)
  window.watched = async (...wanted) => {
    for (;;) {
      const watched = (await navigator.locks.query()).pending.map(({ name }) => name.split('/').at(-1));
      if (watched.sort().join() === wanted.sort().join()) return;
      await new Promise(requestAnimationFrame);
    }
  };
  // Read an answer; `reading` resolves when some of it is there.
  window.read = (answer, enough = 5) => {
    const tokens = [], state = {};
    state.reading = new Promise((resolve) => {
      state.end = (async () => {
        for await (const { token } of answer) {
          if (token !== null) tokens.push(token);
          if (tokens.length === enough) resolve();
        }
        return { tokens, end: answer.end };
      })();
      state.end.catch(() => undefined).finally(resolve);
    });
    return state;
  };
"""


@pytest.fixture(scope="module", autouse=True)
def models(folders: Path) -> None:
    endless(folders / "long")
    endless(folders / "rows", "gemma4_e2b")


@pytest.fixture
def api(page: Page, host: Host, complaints: list[str]) -> Page:
    """A page with the API as window.api."""
    page.add_init_script(WORKERS)
    (script,) = (DIST / "assets").glob("engine-*.js")
    host.instead[script.name] = MORTAL + script.read_bytes()
    page.goto(host.url + "bench.html")
    page.evaluate("async () => { window.api = await import('./oxinfer-web.js'); " + HELPERS + "}")
    return page


EVERY_CALL = """
  Promise.all([
    model.encode('\\u4e01'), model.pieces([1]), model.stats(), model.call((engine) => engine.nll([1, 2, 3])),
    read(model.generate([1, 2])).end, read(model.session().generate('\\u4e01')).end, session.close(),
  ].map(fate))
"""


def answering(end: str) -> str:
    """A script: load a model, let two sessions answer, do `end`: what becomes of these answers and of later calls."""
    return f"""async () => {{
      const model = await load();
      const session = model.session();
      const answers = [read(model.generate([1, 2], {{ maxTokens: {LONG} }})), read(session.generate([3, 4]), 1)];
      await answers[0].reading;
      const during = model.state;
      {end};
      const fates = await Promise.all(answers.map(({{ end }}) => fate(end)));
      const after = model.state;
      const later = await {EVERY_CALL};
      model.close();
      const again = await load();
      const answer = await read(again.generate([1, 2], {{ maxTokens: 3 }})).end;
      again.close();
      return {{ during, fates, after, later, answer }};
    }}"""


ENDS: dict[str, tuple[str, str, str]] = {
    "closed": ("model.close()", "closed", "the model is closed; load it again"),
    "engine terminated": ("workers[0].terminate()", "failed", "the model has failed: the engine is gone.*load the mod"),
    "engine ends itself": ("new BroadcastChannel('end').postMessage('engine')", "failed", "the engine is gone"),
    "tokenizer terminated": ("workers[1].terminate()", "failed", "the model has failed: the tokenizer is gone"),
    "thread terminated": ("new BroadcastChannel('end').postMessage('thread')", "failed", "the kernel thread is gone"),
    "engine throws": ("workers[0].onerror({ message: 'boom' })", "failed", r"the engine broke \(boom\)"),
}


@pytest.mark.parametrize("how", ENDS)
def test_the_end_of_a_model_in_an_answer(api: Page, how: str) -> None:
    """Both answers, one of which waits for its turn, and all later calls say what has happened; loading works again."""
    end, state, message = ENDS[how]
    got = api.evaluate(answering(end))
    assert (got["during"], got["after"]) == ("answering", state)
    closing = got["later"].pop()
    assert closing in ({"value": None}, got["later"][0])
    for fate in got["fates"] + got["later"]:
        assert fate.get("ours"), fate
        assert re.search(message, fate["message"])
    assert len(got["answer"]["tokens"]) == 3


STAGES = ["engine-", "pyodide.asm.wasm", "-shared.wasm", "tokenizer.json", "config.json", "model.safetensors"]


def test_abort_while_loading(api: Page, host: Host, folders: Path) -> None:
    """At once, whatever loading waits for just then; and the page can load the model afterwards."""
    files = [path.name for folder in (DIST, folders / "long") for path in folder.rglob("*") if path.is_file()]
    for stage in STAGES:
        host.stall(*(name for name in files if stage in name))
        api.evaluate(
            "() => { window.stop = new AbortController(); window.loading = fate(load({signal: stop.signal})) }"
        )
        assert host.waiting.acquire(timeout=30), stage
        got = api.evaluate("() => { stop.abort(new Error('enough')); return loading; }")
        assert (got["name"], got["message"]) == ("Error", "enough"), stage
        host.move()
    got = api.evaluate("""async () => {
      const early = await fate(load({ signal: AbortSignal.abort(new Error('before')) }));
      const model = await load();
      return [early, model.state];
    }""")
    assert got[0]["message"] == "before"
    assert got[1] == "ready"


DEATHS = {
    "engine": ("workers.at(-2).terminate()", "the engine is gone"),
    "tokenizer": ("workers.at(-1).terminate()", "the tokenizer is gone"),
    "engine by itself": ("new BroadcastChannel('end').postMessage('engine')", "the engine is gone"),
    "thread": ("new BroadcastChannel('end').postMessage('thread')", "the kernel thread is gone"),
}


def test_death_while_loading(api: Page, host: Host, complaints: list[str]) -> None:
    """A worker that ends before there is a model, or whose script is not there, is an error as well."""
    for end, message in DEATHS.values():
        host.stall("model.safetensors")
        api.evaluate("() => { window.loading = fate(load()) }")
        assert host.waiting.acquire(timeout=30)
        api.evaluate("watched('engine', 'tokenizer', 'thread1')")
        got = api.evaluate(f"() => {{ {end}; return loading; }}")
        assert got["ours"], got
        assert message in got["message"]
        host.move()
        # The browser tells of the dead in its own time, and the next model must not be taken for this one.
        api.evaluate("watched()")
    for kind in ("tokenizer", "engine"):
        (script,) = (DIST / "assets").glob(f"{kind}-*.js")
        host.missing.add(script.name)
        got = api.evaluate("() => fate(load())")
        assert got["ours"], got
        assert f"the {kind} broke (its script did not load)" in got["message"]
        host.missing.clear()
    assert api.evaluate("async () => (await load()).state") == "ready"
    complaints[:] = [c for c in complaints if "404" not in c]


def test_answers_left_and_stopped(api: Page) -> None:
    """A loop that is left, an answer that is stopped, in its turn or before, and what they leave behind."""
    got = api.evaluate(f"""async () => {{
      const model = await load();
      const left = model.generate([1, 2], {{ maxTokens: {LONG} }});
      for await (const piece of left) if (piece.token !== null) break;
      const stop = new AbortController();
      const options = {{ maxTokens: {LONG}, signal: stop.signal }};
      const first = read(model.generate([1, 2], options));
      const second = read(model.session().generate([3, 4], options));
      const third = read(model.session().generate([3, 4], {{ maxTokens: 4 }}));
      const idle = model.session();
      await Promise.all([read(idle.generate([5], {{ signal: AbortSignal.abort() }})).end, idle.close()]);
      const before = await read(model.generate([5], {{ signal: AbortSignal.abort() }})).end;
      await first.reading;
      stop.abort();
      const ends = await Promise.all([first.end, second.end, third.end]);
      const session = model.session();
      const cut = read(session.generate([1, 2], {{ maxTokens: {LONG} }}));
      await cut.reading;
      await session.close();
      const closed = (await cut.end).end;
      const later = await fate(read(session.generate([1])).end);
      const alone = await read(model.session().generate([3, 4], {{ maxTokens: 4 }})).end;
      return {{ left: left.end, before, ends, closed, later, alone, state: model.state }};
    }}""")
    first, second, third = got["ends"]
    assert first["end"]["reason"] == second["end"]["reason"] == got["closed"]["reason"] == "cancelled"
    assert first["end"]["completionTokens"] >= len(first["tokens"]) >= 5
    assert (first["end"]["promptTokens"], second["tokens"]) == (2, [])
    assert got["before"]["end"]["reason"] == "cancelled"
    assert third["end"] == {"reason": "length", "promptTokens": 2, "cachedTokens": 0, "completionTokens": 4}
    assert third["tokens"] == got["alone"]["tokens"]
    assert "this session is closed" in got["later"]["message"]
    assert got["state"] == "ready"


def test_the_end_of_the_context(api: Page) -> None:
    """The answer's end, not an error; a prompt beyond it, an empty one, and settings that are none are errors that say
    what to do, and harm nothing."""
    got = api.evaluate("""async () => {
      const model = await load({ maxContext: 20 });
      const ask = (prompt, options) => fate(read(model.generate(prompt, options)).end);
      const out = [];
      for (const prompt of [Array(15).fill(1), Array(20).fill(1), Array(21).fill(1), []]) out.push(await ask(prompt));
      for (const bad of [{ temperature: NaN }, { topK: 1.5 }, { maxTokens: Infinity }]) out.push(await ask([1], bad));
      out.push(await ask([1.5]), await ask([1e6]), await ask('\\u4e01', { maxTokens: 1 }));
      return { out, state: model.state };
    }""")
    room, full, over, empty, *bad, fine = got["out"]
    assert (room["value"]["end"]["reason"], room["value"]["end"]["completionTokens"]) == ("length", 6)
    assert (full["value"]["end"]["reason"], full["value"]["end"]["completionTokens"]) == ("length", 1)
    assert re.search("the prompt has 21 tokens, the model's context is 20; shorten the prompt", over["message"])
    assert "the prompt is empty" in empty["message"]
    for error in bad:
        assert error["ours"], error
    assert len(fine["value"]["tokens"]) == 1
    assert got["state"] == "ready"


def test_a_stop_ends_the_wait_for_a_row(api: Page, host: Host, folders: Path) -> None:
    """Rows that do not come: stop, close, and a loop that goes on when they come after all."""
    tables = {ref.file for name in (folders / "rows",) for ref in shards(name)}
    api.evaluate(
        "async () => { window.model = await load(); model.close(); window.model = "
        "await api.Oxinfer.load('made/rows/', { tokenizer: false }); }"
    )
    host.stall(*tables)
    api.evaluate(
        "() => { window.stop = new AbortController(); "
        "window.answer = read(model.generate([7, 8, 9], { signal: stop.signal })); }"
    )
    assert host.waiting.acquire(timeout=30)
    end = api.evaluate("async () => { stop.abort(); return (await answer.end).end; }")
    assert end == {"reason": "cancelled", "promptTokens": 3, "cachedTokens": 0, "completionTokens": 0}
    api.evaluate("() => { window.answer = read(model.generate([7, 8, 9], { maxTokens: 3 })); }")
    assert host.waiting.acquire(timeout=30)
    host.move()
    assert len(api.evaluate("async () => (await answer.end).tokens")) == 3
    host.stall(*tables)
    api.evaluate("() => { window.answer = read(model.generate([17, 18, 19], { maxTokens: 3 })); }")
    assert host.waiting.acquire(timeout=30)
    assert (
        "the model is closed"
        in api.evaluate("async () => { model.close(); return await fate(answer.end); }")["message"]
    )


def shards(folder: Path) -> list[Any]:
    checkpoint = Checkpoint.open(folder)
    return [checkpoint.tensor(name) for name in checkpoint]
