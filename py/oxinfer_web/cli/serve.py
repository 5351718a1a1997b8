"""`oxinfer-web serve`: static files with byte ranges, as a page that runs a model needs them."""

from __future__ import annotations

import asyncio
import mimetypes
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated

import typer
from aiohttp import web

from ..errors import OxinferError
from .console import output

_ISOLATION = {
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Embedder-Policy": "require-corp",
    "Cross-Origin-Resource-Policy": "same-origin",
}
"""What lets a page share memory between its threads."""
_TYPES = {
    ".wasm": "application/wasm",
    ".js": "text/javascript",
    ".mjs": "text/javascript",
    ".json": "application/json",
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".webmanifest": "application/manifest+json",
    ".whl": "application/zip",
    ".zip": "application/zip",
    ".safetensors": "application/octet-stream",
}
"""Types that must not depend on what the machine's own table says."""


def serve(
    folder: Annotated[Path, typer.Argument(help="the folder to serve")],
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one")] = 8000,
    host: Annotated[str, typer.Option(help="the address to listen on")] = "127.0.0.1",
) -> None:
    """Serve a folder of static files: byte ranges, cross-origin isolation, no caching without asking."""
    url, stop = start(folder, port, host)
    output.print(f"serving {folder} at {url} (Ctrl-C to stop)", soft_wrap=True)
    try:
        threading.Event().wait()
    except KeyboardInterrupt:
        stop()


def start(
    folder: str | Path, port: int = 0, host: str = "127.0.0.1", isolated: bool = True
) -> tuple[str, Callable[[], None]]:
    """Serve a folder from a thread of its own; returns its address (http://host:port/) and what stops it.

    port 0 takes a free one. isolated: send the headers that make pages cross-origin isolated. Raises OxinferError for
    a folder that is not there or an address that is taken.
    """
    root = Path(folder).resolve()
    if not root.is_dir():
        raise OxinferError(f"{folder}: not a folder; give the folder to serve")
    loop = asyncio.new_event_loop()
    runner = web.AppRunner(_app(root, isolated), access_log=None, shutdown_timeout=1)

    async def listen() -> int:
        await runner.setup()
        await web.TCPSite(runner, host, port).start()
        return int(runner.addresses[0][1])

    # Everything happens on the thread's own loop: the caller may have one running.
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    def stop() -> None:
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()

    try:
        actual = asyncio.run_coroutine_threadsafe(listen(), loop).result()
    except OSError as e:
        stop()
        raise OxinferError(f"cannot listen on {host}:{port} ({e.strerror or e}); choose another --port") from None

    return f"http://{f'[{host}]' if ':' in host else host}:{actual}/", stop


def _app(root: Path, isolated: bool) -> web.Application:
    async def handle(request: web.Request) -> web.StreamResponse:
        path = _find(root, request.path)
        if path is None:
            raise web.HTTPNotFound
        if path.is_dir():
            # Links in a page are relative to its folder, so a folder's address ends in a slash.
            raise web.HTTPMovedPermanently("/" + request.rel_url.raw_path.strip("/") + "/")
        guessed = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
        return web.FileResponse(path, headers={"Content-Type": _TYPES.get(path.suffix.lower(), guessed)})

    @web.middleware
    async def add_headers(
        request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        headers = {"Cache-Control": "no-cache"} | (_ISOLATION if isolated else {})
        try:
            response = await handler(request)
        except web.HTTPException as e:
            e.headers.update(headers)
            raise
        response.headers.update(headers)
        return response

    app = web.Application(middlewares=[add_headers])
    app.router.add_get("/{path:.*}", handle)
    return app


def _find(root: Path, url_path: str) -> Path | None:
    """The file of a decoded URL path, index.html for a folder; a folder's own path if the slash is missing; or None.

    Nothing above the root can be named. Symbolic links are followed: whoever put them there meant them.
    """
    parts = [part for part in url_path.split("/") if part]
    if any(part in (".", "..") or "\\" in part or "\0" in part or ":" in part for part in parts):
        return None
    path = root.joinpath(*parts)
    if path.is_dir():
        return _file(path / "index.html") if url_path.endswith("/") else path
    return _file(path)


def _file(path: Path) -> Path | None:
    return path if path.is_file() else None
