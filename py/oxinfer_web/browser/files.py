"""A model's folder under Pyodide: JavaScript reads it, from the net or from what it keeps (web/src/engine/host)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

from pyodide.ffi import JsException, create_proxy

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
from ..errors import CheckpointError, HostError
from ..runtime import HostTable, LoadItem, Progress
from .errors import ours


class BrowserFiles:
    """`runtime.Files` over a host object."""

    def __init__(self, host: Any) -> None:
        """host: the JavaScript object that web/src/engine/host/host.ts makes, for one model's folder."""
        self.folder: str = host.folder
        self._host = host

    async def text(self, file: str) -> str | None:
        """See Files. Raises HostError."""
        try:
            text: str | None = await self._host.text(file)
        except JsException as e:
            raise ours(e) from None
        return text

    async def checkpoint(self) -> Checkpoint:
        """See Files; all headers are asked for at the same time. Raises HostError or CheckpointError."""
        try:
            text = await self._host.index()
        except JsException as e:
            raise ours(e) from None
        if text is None:
            return Checkpoint({SINGLE: await self._header(SINGLE, None, f"and {INDEX} is not there either")})
        index = parse_index(text)
        shards = await asyncio.gather(*(self._header(file, index.sizes.get(file)) for file in index.files))
        return Checkpoint({shard.file: shard for shard in shards}, index)

    async def load(self, items: Sequence[LoadItem], progress: Progress | None = None) -> None:
        """Bring tensors into kernel memory; without `progress` the page itself is told. Raises HostError."""
        request = json.dumps(
            [
                {"segments": [(s.file, s.offset, s.nbytes, s.addr) for s in item.segments], "finish": item.finish}
                for item in items
            ]
        )
        callback = create_proxy(progress) if progress else None
        try:
            await (self._host.load(request, callback) if callback else self._host.load(request))
        except JsException as e:
            raise ours(e) from None
        finally:
            if callback:
                callback.destroy()

    def open_rows(self, table: HostTable) -> BrowserRows:
        """The rows of a table on the same host."""
        request = {
            "name": table.name,
            "rows": table.rows,
            "rowBytes": table.row_bytes,
            "scaleBytes": table.scale_bytes,
            "values": _parts(table.values),
            "scales": _parts(table.scales),
        }
        return BrowserRows(self._host.openRows(json.dumps(request)), table)

    def stats(self) -> dict[str, int]:
        """Since the start, for host rows: requests, bytes, rows."""
        stats: dict[str, int] = json.loads(self._host.stats())
        return stats

    async def _header(self, file: str, expected_size: int | None, hint: str = "") -> Shard:
        try:
            header = await self._host.header(file)
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
        wanted = _ids(ids)
        if not self._rows.held(wanted):
            try:
                await self._rows.fetch(wanted)
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
