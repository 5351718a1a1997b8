"""A static host for tests: several folders under one address, a log of what was asked for, and faults on request."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import mimetypes
import re
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

HEADER = 16384
"""Bytes of a shard that are asked for first."""
PAGE = b"<!doctype html><title>A single-page site</title>"
TYPES = {".wasm": "application/wasm", ".mjs": "text/javascript", ".js": "text/javascript"}


@dataclass
class Host:
    """`mounts` maps the first part of a path to a folder ("" is the root's).

    Faults name files by their last part: `whole` answers ranges with the whole file, `missing` with 404, `pages` with a
    web page and 200 as single-page sites do, `packed` compresses, `drop` breaks off the first answers of a file half
    way (those of more than `HEADER` bytes), `busy` refuses the first ones with 503, `instead` gives other bytes,
    `later` does so after the next answer, which breaks off; answers of `stalled` files do not come before `move` is
    called, of `stuck` ones only half.

    cors: what pages of other sites may do: "none", "read", or "all" (see every header). It refuses to be asked first.
    """

    mounts: dict[str, Path]
    isolated: bool = True
    whole: set[str] = field(default_factory=set)
    missing: set[str] = field(default_factory=set)
    drop: dict[str, int] = field(default_factory=dict)
    busy: dict[str, int] = field(default_factory=dict)
    instead: dict[str, bytes] = field(default_factory=dict)
    later: dict[str, bytes] = field(default_factory=dict)
    pages: set[str] = field(default_factory=set)
    packed: set[str] = field(default_factory=set)
    stuck: set[str] = field(default_factory=set)
    tags: bool = True
    csp: str = ""
    cors: str = "none"
    log: list[tuple[str, int]] = field(default_factory=list)
    """(path, status) of every answer."""
    stalled: set[str] = field(default_factory=set)
    moving: threading.Event = field(default_factory=threading.Event)
    waiting: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    """Released whenever a request stalls."""
    ranges: list[tuple[str, int, int]] = field(default_factory=list)
    """(path, offset, bytes) of every range that was asked for."""
    url: str = ""

    def start(self) -> ThreadingHTTPServer:
        host = self

        class Handler(_Handler):
            owner = host

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{server.server_port}/"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return server

    def find(self, path: str) -> Path | None:
        first, _, rest = path.partition("/")
        file = self.mounts[first] / rest if first in self.mounts else self.mounts[""] / path
        return file if file.is_file() and file.name not in self.missing else None

    def stall(self, *files: str, half: bool = False) -> None:
        """Let answers of these files wait from now on, before they begin or half way."""
        self.moving.clear()
        self.waiting = threading.Semaphore(0)
        (self.stuck if half else self.stalled).update(files)

    def move(self) -> None:
        """Let everything that waits go on."""
        self.stalled.clear()
        self.stuck.clear()
        self.moving.set()

    def reset(self) -> None:
        self.move()
        self.tags, self.csp, self.cors = True, "", "none"
        sets: tuple[set[str], ...] = (self.whole, self.missing, self.pages, self.packed)
        counts: tuple[dict[str, int], ...] = (self.drop, self.busy)
        contents: tuple[dict[str, bytes], ...] = (self.instead, self.later)
        logs: tuple[list[Any], ...] = (self.ranges, self.log)
        for faults in (*sets, *counts, *contents, *logs):
            faults.clear()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    owner: Host

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        owner = self.owner
        path = unquote(urlsplit(self.path).path).lstrip("/") or "index.html"
        file = owner.find(path)
        if path.rpartition("/")[2] in owner.pages:
            self._answer(200, PAGE, "text/html")
            return
        if file is None:
            self._answer(404, b"not found", "text/plain")
            return
        if file.name in owner.stalled:
            owner.waiting.release()
            owner.moving.wait()
        if owner.busy.get(file.name, 0):
            owner.busy[file.name] -= 1
            self._answer(503, b"busy", "text/plain")
            return
        given = owner.instead.get(file.name)
        data = given or file.read_bytes()
        stat = file.stat()
        tag = hashlib.sha256(given).hexdigest() if given else f"{stat.st_mtime_ns:x}-{stat.st_size:x}"
        tag += owner.csp.replace("'", "")  # with what a page may do, its scripts change
        headers = {"ETag": f'"{tag}"'} if owner.tags else {}
        mime = TYPES.get(file.suffix) or mimetypes.guess_type(file.name)[0] or "application/octet-stream"
        if file.name in owner.packed:
            data = gzip.compress(data, 1)
            headers["Content-Encoding"] = "gzip"
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        other = self.headers.get("If-Range", f'"{tag}"') != f'"{tag}"'
        if not asked or file.name in owner.whole or other:
            if owner.tags and self.headers.get("If-None-Match") == f'"{tag}"':
                self._answer(304, b"", mime, headers)
                return
            self._answer(200, data, mime, headers, cut=self._stuck(file.name, len(data)))
            return
        start, end = int(asked[1]), min(int(asked[2]), len(data) - 1)
        owner.ranges.append((path, start, end + 1 - start))
        if start >= len(data):
            self._answer(416, b"", mime, {"Content-Range": f"bytes */{len(data)}"})
            return
        body = data[start : end + 1]
        headers["Content-Range"] = f"bytes {start}-{end}/{len(data)}"
        if start + len(body) <= HEADER:
            self._answer(206, body, mime, headers)
            return
        cut = self._stuck(file.name, len(body) if start == 0 else 0)
        if owner.drop.get(file.name, 0) or file.name in owner.later:
            owner.drop[file.name] = owner.drop.get(file.name, 1) - 1
            if file.name in owner.later:
                owner.instead[file.name] = owner.later.pop(file.name)
            cut = len(body) // 2
            self.close_connection = True
        self._answer(206, body, mime, headers, cut)

    def _stuck(self, name: str, nbytes: int) -> int | None:
        return nbytes // 2 if name in self.owner.stuck else None

    def _answer(
        self, status: int, body: bytes, mime: str, headers: dict[str, str] | None = None, cut: int | None = None
    ) -> None:
        owner = self.owner
        path = unquote(urlsplit(self.path).path).lstrip("/")
        owner.log.append((path, status))
        self.send_response(status)
        self.send_header("Content-Type", mime)
        if status != 304:
            self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-cache")
        if owner.isolated:
            self.send_header("Cross-Origin-Opener-Policy", "same-origin")
            self.send_header("Cross-Origin-Embedder-Policy", "require-corp")
        if owner.csp:
            self.send_header("Content-Security-Policy", owner.csp)
        if owner.cors != "none":
            self.send_header("Access-Control-Allow-Origin", "*")
        if owner.cors == "all":
            self.send_header("Access-Control-Expose-Headers", "*")
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        with contextlib.suppress(ConnectionError):  # whoever asked may have gone
            self.wfile.write(body[:cut])
            if path.rpartition("/")[2] in owner.stuck:
                owner.waiting.release()
                owner.moving.wait()
