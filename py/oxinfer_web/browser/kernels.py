"""The runtime under Pyodide: kernels, memory and files belong to the engine worker (web/src/engine/host/host.ts).

What happens for every token passes numbers only; plans are handed over as JSON. JavaScript's errors carry the names of
the classes in `errors`, and become them here.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any, cast

from pyodide.ffi import JsException, create_proxy

from .. import errors
from ..checkpoint import (
    INDEX,
    SINGLE,
    Checkpoint,
    Shard,
    TensorRef,
    check_size,
    header_length,
    parse_header,
    parse_index,
)
from ..config import TextConfig
from ..errors import CheckpointError, ConfigError, HostError, OxinferError
from ..models import config_from_json
from ..runtime import HostTable, LoadItem, OneToken, Progress, Rows


def ours(e: Any) -> Exception:
    """A JavaScript error that carries the name of one of our classes as that class, any other as it is."""
    kind = getattr(errors, str(e.name), None)
    if isinstance(kind, type) and issubclass(kind, OxinferError):
        return kind(str(e.message))
    assert isinstance(e, Exception)
    return e


class BrowserRuntime:
    """`runtime.Runtime` over the engine worker's host object."""

    def __init__(self, host: Any) -> None:
        """host: the JavaScript object that web/src/engine/host/host.ts makes, for one model's folder."""
        self.kernel: str = host.kernel
        self.threads: int = host.threads
        self._host = host
        # Bound once: looking a method up on a JavaScript object costs more than calling it.
        self._run = host.run
        self._copy = host.copy
        self._write_words, self._read_word = host.writeWords, host.readWord
        self._memory = host.memory()

    def alloc(self, nbytes: int, align: int = 64) -> int:
        """Address of nbytes of zeroed memory. Raises KernelError when there is no more."""
        try:
            addr = int(self._host.alloc(nbytes, align))
        except JsException as e:
            raise ours(e) from None
        # The memory may have grown, which leaves the old view behind.
        self._memory = self._host.memory()
        return addr

    def write(self, addr: int, data: bytes | bytearray | memoryview) -> None:
        """Copy data into kernel memory."""
        view = memoryview(data).cast("B")
        if view.nbytes:
            self._memory.subarray(addr, addr + view.nbytes).assign(view)

    def read(self, addr: int, nbytes: int) -> bytes:
        """A copy of kernel memory."""
        data: bytes = self._memory.subarray(addr, addr + nbytes).to_bytes()
        return data

    def write_words(self, addr: int, a: int, b: int) -> None:
        """Write two u32 at addr."""
        self._write_words(addr, a, b)

    def read_word(self, addr: int) -> int:
        """The u32 at addr."""
        word: int = self._read_word(addr)
        return word

    def copy(self, dst: int, src: int, nbytes: int) -> None:
        """Move bytes inside kernel memory, as memmove does."""
        self._copy(dst, src, nbytes)

    def run(self, ops: int, first: int, last: int, state: int) -> None:
        """Run records [first, last) of a program on all threads. Raises KernelError if a thread has died."""
        try:
            self._run(ops, first, last, state)
        except JsException as e:
            raise ours(e) from None

    def one_token(self, tables: Sequence[tuple[Rows, int, int]], ops: int, last: int, state: int) -> OneToken:
        """See Runtime: JavaScript does all of it in one call."""
        plan = {
            "tables": [{"rows": cast(BrowserRows, rows).number, "values": v, "scales": s} for rows, v, s in tables],
            "ops": ops,
            "last": last,
            "state": state,
        }
        call = self._host.oneToken(json.dumps(plan))

        def step(token: int, position: int) -> bool:
            try:
                return bool(call(token, position))
            except JsException as e:
                raise ours(e) from None

        return step

    def kernel_seconds(self) -> float:
        """Seconds spent in the kernels since the start."""
        return float(self._host.kernelSeconds())

    async def load(self, items: Sequence[LoadItem], progress: Progress | None = None) -> None:
        """Bring tensors into kernel memory; without `progress` the page itself is told. Raises HostError."""
        plan = json.dumps(
            [
                {"segments": [(s.file, s.offset, s.nbytes, s.addr) for s in item.segments], "finish": item.finish}
                for item in items
            ]
        )
        callback = create_proxy(progress) if progress else None
        try:
            await (self._host.load(plan, callback) if callback else self._host.load(plan))
        except JsException as e:
            raise ours(e) from None
        finally:
            if callback:
                callback.destroy()

    def open_rows(self, table: HostTable) -> BrowserRows:
        """The rows of a table on the same host."""
        plan = {
            "name": table.name,
            "rows": table.rows,
            "rowBytes": table.row_bytes,
            "scaleBytes": table.scale_bytes,
            "values": _parts(table.values),
            "scales": _parts(table.scales),
        }
        return BrowserRows(self._host.openRows(json.dumps(plan)), table)

    def host_stats(self) -> dict[str, int]:
        """Since the start, for host rows: requests, bytes, rows."""
        stats: dict[str, int] = json.loads(self._host.stats())
        return stats


class BrowserRows:
    """`runtime.Rows` of one table: fetched by byte range, kept in a cache on the JavaScript side."""

    def __init__(self, rows: Any, table: HostTable) -> None:
        """rows: what the host's `openRows` gave."""
        self._rows = rows
        self.number: int = rows.number
        """By which the host knows this table."""
        self._row_bytes = table.row_bytes

    async def fetch(self, ids: Sequence[int]) -> None:
        """Make these rows available to `stage`, in one batch. Raises HostError."""
        plan = _ids(ids)
        if not self._rows.held(plan):
            try:
                await self._rows.fetch(plan)
            except JsException as e:
                raise ours(e) from None

    def stage(self, ids: Sequence[int], values: int, scales: int) -> None:
        """Copy the rows, in order, to kernel memory. Raises HostError for a row that has to be fetched first."""
        try:
            self._rows.stage(_ids(ids), values, scales)
        except JsException as e:
            raise ours(e) from None

    def row(self, row: int) -> tuple[bytes, bytes]:
        """The value and scale bytes of one row. Raises HostError for a row that has to be fetched first."""
        try:
            data: bytes = self._rows.row(row).to_bytes()
        except JsException as e:
            raise ours(e) from None
        return data[: self._row_bytes], data[self._row_bytes :]


def _ids(ids: Sequence[int]) -> int | str:
    """What JavaScript is given: one id as a number, as for every decoded token, several as a JSON list."""
    return ids[0] if len(ids) == 1 else f"[{','.join(map(str, ids))}]"


def _parts(parts: Sequence[tuple[int, TensorRef]]) -> list[tuple[int, str, int]]:
    return [(first, ref.file, ref.offset) for first, ref in parts]


async def open_config(host: Any) -> TextConfig:
    """The model's config.json. Raises HostError, or ConfigError if it is none, or of a model this cannot run."""
    try:
        text = await host.text("config.json")
    except JsException as e:
        raise ours(e) from None
    if text is None:
        raise ConfigError("config.json: not found (404) in the model's folder; check the address")
    return config_from_json(text)


async def open_checkpoint(host: Any) -> Checkpoint:
    """The checkpoint in the host's folder: its index and all headers, read at the same time.

    Raises HostError where the host does not give them, CheckpointError where they are not right.
    """
    try:
        text = await host.index()
    except JsException as e:
        raise ours(e) from None
    if text is None:
        return Checkpoint({SINGLE: await _read_header(host, SINGLE, None, f"and {INDEX} is not there either")})
    index = parse_index(text)
    shards = await asyncio.gather(*(_read_header(host, file, index.sizes.get(file)) for file in index.files))
    return Checkpoint({shard.file: shard for shard in shards}, index)


async def _read_header(host: Any, file: str, expected_size: int | None, hint: str = "") -> Shard:
    try:
        header = await host.header(file)
    except JsException as e:
        error = ours(e)
        raise (HostError(f"{error} ({hint})") if hint and isinstance(error, HostError) else error) from None
    size = int(header.size)
    check_size(file, size, expected_size)
    data: bytes = header.bytes.to_bytes()
    n = header_length(data, file, size)
    if len(data) < 8 + n:
        raise CheckpointError(f"{file}: the header of {n} bytes did not arrive; load the model again")
    return parse_header(data[8 : 8 + n], file, size)
