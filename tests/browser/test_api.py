"""The engine as pages of other people's use it: from its stable address, and the host without any page."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import oxinfer_web
import pytest
from playwright.sync_api import Page
from support import FIXTURES

from .conftest import ROOT
from .host import Host
from .test_faults import TOKENIZER

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
