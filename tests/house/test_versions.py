"""One version for the wheel, the site and the npm package: that of `oxinfer_web`, which the wheel takes by itself."""

from __future__ import annotations

import json
import re

import oxinfer_web

from .sources import ROOT


def test_one_version() -> None:
    web = json.loads((ROOT / "web" / "package.json").read_text())
    lock = json.loads((ROOT / "web" / "package-lock.json").read_text())
    latest = re.search(r"^## \[(\d.*?)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert latest
    others = {
        "package.json": web["version"],
        "package-lock.json": lock["version"],
        "package-lock.json's package": lock["packages"][""]["version"],
        "CHANGELOG.md": latest[1],
    }
    assert others == dict.fromkeys(others, oxinfer_web.__version__)


def test_npm_versions_are_pinned() -> None:
    web = json.loads((ROOT / "web" / "package.json").read_text())
    wanted = web["dependencies"] | web["devDependencies"]
    assert wanted
    assert {name: v for name, v in wanted.items() if not re.fullmatch(r"\d+\.\d+\.\d+", v)} == {}
