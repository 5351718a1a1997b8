"""The engine as pages of other people's use it: from its stable address, and the host without any page."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import oxinfer_web
import pytest
from playwright.sync_api import Page
from support import FIXTURES, expected

from .conftest import ROOT
from .host import Host
from .models import TOKENIZER

PAGE = """<!doctype html>
<link rel="icon" href="data:," />
<p id="answer"></p>
<script type="module">
  import { Oxinfer } from '../../oxinfer-web.js';
  const model = await Oxinfer.load('./model');
  for await (const { token, text } of model.generate([1, 0, 1], { maxTokens: 3 }))
    document.querySelector('#answer').append(token, text, ' ');
  model.close();
  document.querySelector('#answer').dataset.version = Oxinfer.version;
  document.title = 'done';
</script>
"""


def test_import_from_the_site(page: Page, host: Host, folders: Path) -> None:
    """One import from the site's root is all that a page in another folder needs: workers and kernels are found."""
    folder = folders / "theirs"
    shutil.copytree(FIXTURES / "llama", folder / "model")
    (folder / "model" / "tokenizer.json").write_text(json.dumps(TOKENIZER))
    (folder / "model" / "tokenizer_config.json").write_text("{}")
    (folder / "index.html").write_text(PAGE)
    page.goto(host.url + "made/theirs/index.html")
    page.wait_for_function("document.title === 'done'")
    assert len(page.locator("#answer").inner_text().split()) >= 3
    assert page.locator("#answer").get_attribute("data-version") == oxinfer_web.__version__


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("host")
    build = ["npx", "vite", "build", "--mode", "host", "--outDir", str(out), "--logLevel", "error"]
    subprocess.run(build, cwd=ROOT / "web", check=True)
    return out / "host.js"


def test_the_host_is_one_bundle(bundle: Path) -> None:
    """Without a page, a worker or an address of its own: Node can import it."""
    assert [path.name for path in bundle.parent.iterdir()] == ["host.js"]
    text = bundle.read_text()
    assert "import.meta" not in text and "document" not in text
    script = f"import('{bundle.as_uri()}').then((host) => console.log(Object.keys(host).sort().join()))"
    out = subprocess.run(["node", "-e", script], check=True, capture_output=True, text=True).stdout
    assert {"openHost", "OxinferError", "Source"} <= set(out.strip().split(","))


WORKER = """
import { openHost } from './host.js';
import { loadPyodide } from '../../pyodide/pyodide.mjs';

const site = new URL('../../', import.meta.url).href;
const assets = { wasm: async (file) => (await fetch(`${site}kernels/${file}`)).arrayBuffer() };
const python = await loadPyodide({ indexURL: `${site}pyodide/`, lockFileURL: `${site}pyodide/pyodide-lock.json` });
await python.loadPackage('oxinfer-web', { messageCallback: () => undefined });
const before = await python.runPythonAsync(`
import oxinfer_web as ox
try:
    await ox.open("model/")
except ox.HostError as e:
    said = str(e)
said`);
python.registerJsModule('oxinfer_host', { openHost: (address) => openHost(address, assets, { threads: 1 }) });
python.globals.set('address', `${site}tiny/gemma3/`);
python.globals.set('prompt', JSON.stringify(PROMPT));
const after = await python.runPythonAsync(`
import json
async def tokens():
    session = ox.Session(await ox.open(address))
    return [t async for t in ox.generate(session, json.loads(prompt), max_tokens=24, stop=())]
json.dumps(await tokens())`);
self.postMessage({ before, after: JSON.parse(after) });
"""
WAIT = """() => new Promise((resolve, reject) => {
  const worker = new Worker('worker.js', { type: 'module' });
  worker.onmessage = ({ data }) => resolve(data);
  worker.onerror = (e) => reject(new Error(e.message));
})"""


def test_python_opens_an_address(bundle: Path, page: Page, host: Host, folders: Path) -> None:
    """In a Pyodide that is not our page's, with the host's bundle beside it, Python's own door is enough."""
    folder = folders / "python"
    folder.mkdir()
    shutil.copy(bundle, folder)
    want = expected("gemma3")
    prompt = json.dumps(want["input_ids"].reshape(-1).tolist())
    (folder / "worker.js").write_text(WORKER.replace("PROMPT", prompt))
    (folder / "index.html").write_text('<!doctype html><link rel="icon" href="data:," />')
    page.goto(host.url + "made/python/index.html")
    got = page.evaluate(WAIT)
    assert "model/: Python has nothing here to read it with" in got["before"]
    assert got["after"] == want["greedy"].tolist()
