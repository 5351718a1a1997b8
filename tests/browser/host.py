"""A static host for tests: several folders under one address, a log of what was asked for, and faults on request."""

from __future__ import annotations

import contextlib
import mimetypes
import re
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

TYPES = {".wasm": "application/wasm", ".mjs": "text/javascript", ".js": "text/javascript"}


@dataclass
class Host:
    """`mounts` maps the first part of a path to a folder ("" is the root's).

    Faults name files by their last part: `whole` answers ranges with the whole file, `missing` with 404, `drop` breaks
    off the first answers of a file half way, `busy` refuses the first ones with 503, `instead` gives other bytes, and
    answers of `stalled` files do not come before `move` is called.
    """

    mounts: dict[str, Path]
    isolated: bool = True
    whole: set[str] = field(default_factory=set)
    missing: set[str] = field(default_factory=set)
    drop: dict[str, int] = field(default_factory=dict)
    busy: dict[str, int] = field(default_factory=dict)
    instead: dict[str, bytes] = field(default_factory=dict)
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

    def stall(self, *files: str) -> None:
        """Let answers of these files wait from now on."""
        self.moving.clear()
        self.waiting = threading.Semaphore(0)
        self.stalled |= set(files)

    def move(self) -> None:
        """Let everything that waits go on."""
        self.stalled.clear()
        self.moving.set()

    def reset(self) -> None:
        self.move()
        for faults in (self.whole, self.missing, self.drop, self.busy, self.instead, self.ranges):
            faults.clear()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    owner: Host

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path).lstrip("/") or "index.html"
        file = self.owner.find(path)
        if file is None:
            self._answer(404, b"not found", "text/plain")
            return
        if file.name in self.owner.stalled:
            self.owner.waiting.release()
            self.owner.moving.wait()
        if self.owner.busy.get(file.name, 0):
            self.owner.busy[file.name] -= 1
            self._answer(503, b"busy", "text/plain")
            return
        data = self.owner.instead.get(file.name) or file.read_bytes()
        mime = TYPES.get(file.suffix) or mimetypes.guess_type(file.name)[0] or "application/octet-stream"
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if not asked or file.name in self.owner.whole:
            self._answer(200, data, mime)
            return
        start, end = int(asked[1]), min(int(asked[2]), len(data) - 1)
        self.owner.ranges.append((path, start, end + 1 - start))
        if start >= len(data):
            self._answer(416, b"", mime, {"Content-Range": f"bytes */{len(data)}"})
            return
        body = data[start : end + 1]
        headers = {"Content-Range": f"bytes {start}-{end}/{len(data)}"}
        if self.owner.drop.get(file.name, 0):
            self.owner.drop[file.name] -= 1
            self._answer(206, body, mime, headers, cut=len(body) // 2)
            self.close_connection = True
            return
        self._answer(206, body, mime, headers)

    def _answer(
        self, status: int, body: bytes, mime: str, headers: dict[str, str] | None = None, cut: int | None = None
    ) -> None:
        self.send_response(status)
        self.send_header("Content-Type", mime)
        self.send_header("Content-Length", str(len(body)))
        if self.owner.isolated:
            self.send_header("Cross-Origin-Opener-Policy", "same-origin")
            self.send_header("Cross-Origin-Embedder-Policy", "require-corp")
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        with contextlib.suppress(ConnectionError):  # whoever asked may have gone
            self.wfile.write(body[:cut])
