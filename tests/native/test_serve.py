"""The static server: what a page that streams a model asks of it."""

from __future__ import annotations

import http.client
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from oxinfer_web.cli.serve import start
from oxinfer_web.errors import OxinferError

DATA = bytes(range(256)) * 16


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    top = tmp_path_factory.mktemp("top")
    (top / "secret.txt").write_text("secret")
    root = top / "site"
    (root / "models" / "a b").mkdir(parents=True)
    (root / "empty").mkdir()
    (root / "index.html").write_text("<p>home")
    (root / "models" / "index.html").write_text("<p>models")
    for name in ("w.wasm", "m.mjs", "s.js", "c.json", "p.whl", "t.safetensors", "x.unheard"):
        (root / name).write_bytes(DATA)
    (root / "models" / "a b" / "\u00e9.json").write_text("{}")
    url, stop = start(root)
    yield url
    stop()


def get(url: str, **headers: str) -> tuple[int, http.client.HTTPMessage, bytes]:
    request = urllib.request.Request(url, headers={k.replace("_", "-"): v for k, v in headers.items()})
    try:
        with urllib.request.urlopen(request) as response:
            return response.status, response.headers, response.read()
    except urllib.error.HTTPError as e:
        return e.code, e.headers, e.read()


def raw(url: str, path: str, method: str = "GET") -> http.client.HTTPResponse:
    """A request whose path no client has tidied."""
    connection = http.client.HTTPConnection(url.split("/")[2])
    connection.request(method, path)
    return connection.getresponse()


@pytest.mark.parametrize(
    ("asked", "first", "last"), [("bytes=0-0", 0, 0), ("bytes=100-299", 100, 299), ("bytes=4000-", 4000, 4095)]
)
def test_ranges(site: str, asked: str, first: int, last: int) -> None:
    status, headers, body = get(site + "t.safetensors", Range=asked)
    assert status == 206
    assert body == DATA[first : last + 1]
    assert headers["Content-Range"] == f"bytes {first}-{last}/{len(DATA)}"
    assert headers["Content-Length"] == str(len(body))


def test_last_bytes_and_ranges_outside(site: str) -> None:
    assert get(site + "t.safetensors", Range="bytes=-16")[2] == DATA[-16:]
    assert get(site + "t.safetensors", Range="bytes=5000-6000")[0] == 416


def test_whole_file_and_head(site: str) -> None:
    status, headers, body = get(site + "t.safetensors")
    assert (status, body, headers["Accept-Ranges"]) == (200, DATA, "bytes")
    response = raw(site, "/t.safetensors", "HEAD")
    assert (response.status, response.headers["Content-Length"]) == (200, str(len(DATA)))
    assert raw(site, "/t.safetensors", "POST").status == 405


@pytest.mark.parametrize("path", ["", "w.wasm", "missing", "models"])
def test_headers_are_on_every_answer(site: str, path: str) -> None:
    headers = raw(site, "/" + path).headers
    assert headers["Cross-Origin-Opener-Policy"] == "same-origin"
    assert headers["Cross-Origin-Embedder-Policy"] == "require-corp"
    assert headers["Cache-Control"] == "no-cache"


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("w.wasm", "application/wasm"),
        ("m.mjs", "text/javascript"),
        ("s.js", "text/javascript"),
        ("c.json", "application/json"),
        ("p.whl", "application/zip"),
        ("t.safetensors", "application/octet-stream"),
        ("x.unheard", "application/octet-stream"),
        ("", "text/html; charset=utf-8"),
    ],
)
def test_types(site: str, name: str, kind: str) -> None:
    assert get(site + name)[1]["Content-Type"] == kind


def test_unchanged_files_are_not_sent_again(site: str) -> None:
    etag = get(site + "c.json")[1]["ETag"]
    assert get(site + "c.json", If_None_Match=etag)[0] == 304


def test_folders(site: str) -> None:
    assert get(site)[2] == b"<p>home"
    assert get(site + "models/")[2] == b"<p>models"
    moved = raw(site, "/models")
    assert (moved.status, moved.headers["Location"]) == (301, "/models/")
    assert raw(site, "/models/a%20b").headers["Location"] == "/models/a%20b/"
    assert get(site + "models/a%20b/%C3%A9.json")[2] == b"{}"
    assert get(site + "empty/")[0] == 404


@pytest.mark.parametrize(
    "path",
    [
        *("/../secret.txt", "/%2e%2e/secret.txt", "/models/../../secret.txt", "/models/%2e%2e/%2e%2e/secret.txt"),
        *("/..%2fsecret.txt", "/..%5csecret.txt", "//secret.txt", "/%00", "/missing", "/index.html/x"),
    ],
)
def test_nothing_outside_the_folder(site: str, path: str) -> None:
    response = raw(site, path)
    assert response.status in (400, 404)
    assert response.read() != b"secret"


def test_without_isolation(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text("")
    url, stop = start(tmp_path, isolated=False)
    assert "Cross-Origin-Opener-Policy" not in get(url)[1]
    stop()
    with pytest.raises(urllib.error.URLError):
        get(url)


def test_refuses(tmp_path: Path) -> None:
    with pytest.raises(OxinferError, match="not a folder"):
        start(tmp_path / "nothing")
    url, stop = start(tmp_path)
    with pytest.raises(OxinferError, match="choose another --port"):
        start(tmp_path, port=int(url.split(":")[2].strip("/")))
    stop()
